# SPDX-License-Identifier: Apache-2.0
"""The agent's decisions: their records, as nvct log reads them."""

import io
import os
import time
from pathlib import Path

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.health import engine as health_module
from nvct.container import recorder as container_recorder
from nvct.doctor import decisions
from nvct.errors import HostError, NvctError, RequestError
from nvct.host.nvml.model import XidEvent
from nvct.host.recorder import AGAIN_S, REMEMBERED, Recorder
from tests.unit.agent.dra.test_prepare import Node
from tests.unit.agent.health.engines import engine

GPU = "GPU-1"


def log_to(folder: Path) -> Log:
    folder.mkdir(exist_ok=True)
    return Log(target=io.StringIO(), recorder=Recorder(str(folder)))


def records(folder: Path) -> list[tuple[str, str, str]]:
    """Return outcome, subject and what was given, changed or wrong."""
    found = decisions.look([str(folder)]).records
    return [
        (one["outcome"], one["about"], one.get("asked") or one.get("result") or one["error"])
        for one in found
    ]


async def test_a_claim_that_is_prepared_refused_and_unprepared(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.preparer.agent_log = log_to(tmp_path / "run")
    claim = node.allocate("one", "gpu-0")

    await node.preparer.prepare(claim)
    await node.preparer.prepare(claim)
    with pytest.raises(NvctError):
        await node.preparer.prepare(node.allocate("two", "gpu-0"))
    await node.preparer.unprepare(claim)

    uuid = node.preparer.devices["gpu-0"].uuid
    assert records(tmp_path / "run") == [
        ("given", "ns/one", f"gpu-0 ({uuid})"),
        ("refused", "ns/two", f"{uuid} is prepared for claim ns/one"),
        ("changed", "ns/one", "its devices are free again"),
    ]


def test_a_gpu_that_fails_or_hangs(tmp_path: Path) -> None:
    health = engine(log=log_to(tmp_path))
    health._note_hanging({GPU: "it does not answer"})
    health._note_hanging({})
    health._note_xid(XidEvent(uuid=GPU, xid=79))

    (hangs, answers, fails) = records(tmp_path)
    assert hangs == ("changed", GPU, "does not answer: its devices are unhealthy")
    assert answers == ("changed", GPU, "answers again")
    assert fails[:2] == ("changed", GPU)
    assert fails[2].startswith("is unhealthy: XID 79")
    assert health_module.TASK == "health"


def test_one_caller_that_asks_again_and_again_does_not_push_out_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, now = log_to(tmp_path), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for _ in range(5):
        log.refused("dra", "ns/one", RequestError("no device"))
    log.refused("dra", "ns/two", HostError("no device"))
    log.refused("dra", "ns/one", RequestError("another error"))
    now += AGAIN_S + 1
    log.refused("dra", "ns/one", RequestError("another error"))
    for _ in range(2):
        log.decided("device-plugin", "given", "nvidia.com/gpu", asked=GPU)

    assert [(outcome, about) for outcome, about, _ in records(tmp_path)] == [
        ("refused", "ns/one"), ("refused", "ns/two"), ("refused", "ns/one"),
        ("refused", "ns/one"), ("given", "nvidia.com/gpu"), ("given", "nvidia.com/gpu"),
    ]  # fmt: skip


def test_what_it_remembers_has_a_bound(tmp_path: Path) -> None:
    recorder = log_to(tmp_path).recorder
    assert recorder is not None
    for number in range(REMEMBERED + 50):
        recorder.decided("dra", "given", f"ns/{number}", asked=GPU)

    assert len(recorder._last) == REMEMBERED


@pytest.mark.parametrize(("mode", "is_used"), [(0o700, True), (0o755, True), (0o777, False)])
def test_a_folder_of_the_kubelet_is_used_and_one_for_everybody_is_not(
    tmp_path: Path, mode: int, *, is_used: bool
) -> None:
    tmp_path.chmod(mode)

    log_to(tmp_path).decided("dra", "given", "ns/one", asked=GPU)

    assert (tmp_path / container_recorder.NAME).exists() is is_used


def test_without_a_folder_nothing_fails(tmp_path: Path) -> None:
    log = Log(target=io.StringIO(), recorder=Recorder(str(tmp_path / "none")))

    log.refused("dra", "ns/one", HostError("x", hint="y"))
    Log(target=io.StringIO()).decided("dra", "given", "ns/one")

    assert os.listdir(tmp_path) == []
