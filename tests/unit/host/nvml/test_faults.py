# SPDX-License-Identifier: Apache-2.0
"""Sessions with a simulated library that hangs, hangs in the kernel, or crashes."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.errors import NvmlError
from nvct.host.nvml.process import KILL_S, NAME
from nvct.host.nvml.session import NvmlSession, shared_session
from nvct_sim import node_changes, tree
from tests.support.cpu import Limit
from tests.support.nvml_node import CACHE

TIMEOUT_S = 30.0


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tree.Node]:
    node = tree.create("lab", "t4-4", tmp_path, nodes="plain", native_cache=CACHE)
    monkeypatch.setenv("NVCT_SIM_DEV", str(node.dev))
    yield node
    node_changes.set_fault(node, "hang", 0)


@pytest.fixture
def session(node: tree.Node) -> Iterator[NvmlSession]:
    session = NvmlSession(str(node.library_dir / "libnvidia-ml.so.1"), TIMEOUT_S)
    with contextlib.closing(session):
        yield session
        node_changes.set_fault(node, "hang", 0)
        wait_for_the_end_of_a_stuck_worker(session)


def wait_for_the_end_of_a_stuck_worker(session: NvmlSession) -> None:
    limit = Limit(TIMEOUT_S)
    while session._worker and session._worker.killed and not session._worker.has_ended():
        assert not limit.is_over
        time.sleep(0.02)


def workers() -> list[int]:
    """Return the workers that this process has started and not reaped."""
    pids = Path("/proc/thread-self/children").read_text().split()
    return [int(pid) for pid in pids if is_worker(pid)]


def is_worker(pid: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text() == f"{NAME.decode()}\n"


def refused(session: NvmlSession) -> NvmlError:
    with pytest.raises(NvmlError) as caught:
        session.report()
    return caught.value


def test_a_call_that_hangs_times_out_and_the_next_starts_a_new_worker(
    node: tree.Node, session: NvmlSession
) -> None:
    assert len(session.report().gpus) == 4
    node_changes.apply(node, "nvml-hang", ["600"])
    session.limit_s = 0.3

    began = time.monotonic()
    error = refused(session)

    assert time.monotonic() - began < TIMEOUT_S
    assert error.message == f"NVML does not answer within 0.3 s: {session.path}"
    assert error.hint == "dmesg tells which GPU hangs"
    assert workers() == []
    node_changes.apply(node, "nvml-hang", ["0"])
    session.limit_s = TIMEOUT_S
    assert len(session.report().gpus) == 4


def test_an_initialization_that_hangs_times_out(node: tree.Node, session: NvmlSession) -> None:
    node_changes.apply(node, "nvml-hang", ["600"])
    session.limit_s = 0.3

    assert refused(session).message.startswith("NVML does not answer within 0.3 s")
    assert workers() == []


def test_a_hang_that_ends_before_the_deadline_costs_time_only(
    node: tree.Node, session: NvmlSession
) -> None:
    session.check()
    node_changes.apply(node, "nvml-hang", ["1"])

    assert len(session.report().gpus) == 4


def test_a_crash_is_an_error_and_the_next_call_starts_a_new_worker(
    node: tree.Node, session: NvmlSession
) -> None:
    session.check()
    node_changes.apply(node, "nvml-crash", ["600"])

    error = refused(session)

    assert error.message == f"NVML crashed with SIGSEGV: {session.path}"
    assert error.hint == "install the driver again"
    assert workers() == []
    assert refused(session).message == error.message
    node_changes.apply(node, "nvml-crash", ["0"])
    assert len(session.report().gpus) == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="makes mounts")
def test_a_worker_that_sigkill_does_not_end_is_the_only_one_until_it_has_ended(
    node: tree.Node, session: NvmlSession
) -> None:
    session.check()
    (pid,) = workers()
    node_changes.apply(node, "nvml-hang-hard", ["600"])
    session.limit_s = 0.5

    began = time.monotonic()
    assert refused(session).message == f"NVML does not answer within 0.5 s: {session.path}"
    assert 0.5 + KILL_S <= time.monotonic() - began < TIMEOUT_S

    stuck = f"NVML hangs: process {pid} waits in the driver and cannot be killed: {session.path}"
    began = time.monotonic()
    for _ in range(3):
        error = refused(session)
        assert error.message == stuck
        assert error.hint == "dmesg tells which GPU hangs; a reboot ends it"
    with pytest.raises(NvmlError, match=f"process {pid} waits in the driver"):
        session.close()
    assert time.monotonic() - began < KILL_S
    assert workers() == [pid]

    assert session.is_stuck
    node_changes.apply(node, "nvml-hang-hard", ["0"])
    wait_for_the_end_of_a_stuck_worker(session)
    session.limit_s = TIMEOUT_S
    assert len(session.report().gpus) == 4
    assert pid not in workers()
    assert not session.is_stuck


@pytest.mark.skipif(os.geteuid() != 0, reason="makes mounts")
def test_while_a_worker_is_stuck_no_library_gets_another_one(
    node: tree.Node, tmp_path: Path
) -> None:
    session = shared_session(str(node.library_dir / "libnvidia-ml.so.1"))
    session.check()  # its worker has started: the short limit is for NVML alone
    node_changes.apply(node, "nvml-hang-hard", ["600"])
    session.limit_s = 0.5
    try:
        refused(session)
        (pid,) = workers()

        assert shared_session("libc.so.6") is session
        assert f"process {pid} waits in the driver" in refused(session).message
        assert workers() == [pid]
    finally:
        node_changes.apply(node, "nvml-hang-hard", ["0"])
    wait_for_the_end_of_a_stuck_worker(session)
    assert shared_session("libc.so.6") is not session
