# SPDX-License-Identifier: Apache-2.0
"""`nvct mig apply` beside a running agent: it closes NVML, and its kubelet follows the change."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.agent.device_plugin.resources import GPU
from nvct_sim.attach import DRIVER_ROOT
from tests.unit.agent.device_plugin.fake_kubelet import FakeKubelet, until
from tests.unit.agent.machines import REPOSITORY
from tests.unit.agent.programs import TIMEOUT_S, Machine, simulated

LARGE = "nvidia.com/mig-3g.40gb"
CONFIGS = "version: v1\nmig-configs: {two: [{devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 2}}]}"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with simulated("a100", "a100-80", tmp_path) as machine:
        yield machine


def test_the_kubelet_follows_a_change_by_the_command(machine: Machine, tmp_path: Path) -> None:
    kubelet = FakeKubelet(machine.kubelet)
    (tmp_path / "configs.yaml").write_text(CONFIGS)
    (tmp_path / "config.toml").write_text(f'[nvidia-container-cli]\nroot = "{DRIVER_ROOT}"\n')
    words = [
        "nsenter", f"--mount=/proc/{machine.holder}/ns/mnt", sys.executable, "-m", "nvct.cli",
        "nvct", "--config", str(tmp_path / "config.toml"), "mig", "apply", "-f",
        str(tmp_path / "configs.yaml"),
    ]  # fmt: skip
    seen: list[int] = []

    def healthy(name: str) -> int:
        return list(kubelet.lists.get(name, {}).values()).count("Healthy")

    async def test() -> None:
        await kubelet.start()
        await until(lambda: healthy(GPU) == 8, TIMEOUT_S)
        command = await asyncio.create_subprocess_exec(
            *words, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        await until(lambda: healthy(GPU) == 7, TIMEOUT_S)
        seen.append(len(kubelet.lists[GPU]))
        output, _ = await command.communicate()
        assert command.returncode == 0, output
        await until(lambda: (healthy(LARGE), len(kubelet.lists[GPU])) == (2, 7), TIMEOUT_S)
        await kubelet.stop()

    agent = machine.start(MIG_STRATEGY="mixed")
    try:
        asyncio.run(test())
    except AssertionError as error:
        raise AssertionError(agent.log) from error
    assert seen == [8], "the GPU is listed until it has changed"
    assert "NVML is closed while another program changes MIG" in agent.log
    assert "NVML does not answer" not in agent.log
    assert agent.terminate() == 0
