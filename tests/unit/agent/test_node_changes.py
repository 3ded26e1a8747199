# SPDX-License-Identifier: Apache-2.0
"""`nvct agent` as a real process, with NVML in its own or in another one, while its node changes."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvct.agent.device_plugin.resources import GPU
from nvct.host.modes import has_gpu
from nvct_sim import node_changes
from tests.unit.agent.device_plugin.fake_kubelet import FakeKubelet, until
from tests.unit.agent.programs import Machine, Program, simulated, wait_for

pytestmark = pytest.mark.slow
TIMEOUT_S = 60.0
NEW = "590.48.01"
WORKER = "/run/nvct-nvml/nvml.sock"
SLEEPS_KIB = 25 << 10
"""The design allows 20 MiB; the size of the interpreter and its libraries differs by system."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with simulated("t4", "t4-4", tmp_path) as machine:
        yield machine


def hide(machine: Machine) -> Callable[[], None]:
    """Remove the driver; return what brings it back."""
    assert machine.node
    paths = [machine.node.driver_root / "usr", machine.node.proc / "driver/nvidia"]
    for path in paths:
        path.rename(path.with_name("hidden"))

    def show() -> None:
        for path in paths:
            path.with_name("hidden").rename(path)

    return show


@pytest.mark.parametrize("is_apart", [False, True], ids=["own-process", "other-container"])
def test_the_kubelet_has_what_the_driver_has(
    machine: Machine, capsys: pytest.CaptureFixture[str], *, is_apart: bool
) -> None:
    node, kubelet = machine.node, FakeKubelet(machine.kubelet)
    assert node
    times: list[str] = []

    def devices(state: str) -> int:
        return list(kubelet.lists.get(GPU, {}).values()).count(state)

    async def becomes(event: str, holds: Callable[[], object]) -> None:
        began = time.monotonic()
        await until(holds, TIMEOUT_S)
        times.append(f"{event} {time.monotonic() - began:.1f}")

    async def test(agent: Program) -> None:
        await kubelet.start()
        await until(lambda: agent.state == "serving", TIMEOUT_S)
        await asyncio.sleep(1)
        assert not kubelet.registered
        show()
        await becomes("driver arrives", lambda: devices("Healthy") == 4)
        for fault in ("hang", "crash"):
            node_changes.set_fault(node, fault, 600)
            await becomes(fault, lambda: devices("Unhealthy") == 4)
            node_changes.set_fault(node, fault, 0)
            await becomes(f"end of {fault}", lambda: devices("Healthy") == 4)
        node_changes.reload_module(node_changes.upgrade(node, NEW))
        await asyncio.sleep(3)
        await becomes("upgrade", lambda: devices("Healthy") == 4)
        assert agent.status()["nvml"]["state"] == "answers"
        hide(machine)
        await becomes("driver goes", lambda: not devices("Healthy"))
        assert agent.is_running, agent.log
        await kubelet.stop()

    show = hide(machine)
    if is_apart:
        machine.start("worker", NVCT_AGENT_WORKER=WORKER)
    agent = machine.start(**({"NVCT_AGENT_WORKER": WORKER} if is_apart else {}))
    try:
        asyncio.run(test(agent))
    except AssertionError as error:
        raise AssertionError("\n---\n".join(p.log for p in machine.programs)) from error
    if is_apart:
        assert not children(agent)
    with capsys.disabled():
        print(f"\n{'other' if is_apart else 'own'} process, seconds: {', '.join(times)}")
    assert agent.terminate() == 0


def children(program: Program) -> list[int]:
    return program.tree()[1:]


def test_without_a_gpu_the_agent_sleeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if has_gpu() or os.geteuid():
        pytest.skip("needs root's privileges and a machine without a GPU")
    machine = Machine(None, str(tmp_path), tmp_path)
    try:
        agent = machine.start()
        wait_for(lambda: agent.state == "waiting", machine.programs)
        loaded = Path(f"/proc/{agent.process.pid}/maps").read_text()
        size = agent.pss_kib()
    finally:
        machine.close()

    with capsys.disabled():
        print(f"\nthe sleeping agent takes {size / 1024:.1f} MiB (PSS, with NVML's supervisor)")
    assert "grpc" not in loaded
    assert size < SLEEPS_KIB
