# SPDX-License-Identifier: Apache-2.0
"""A driver that hangs or crashes; separate processes use the library."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct_sim import node_changes, tree
from tests.support.nvml_node import CACHE

TIMEOUT_S = 30.0
PROGRAM = """
import ctypes, sys
nvml, count = ctypes.CDLL(sys.argv[1]), ctypes.c_uint()
print(nvml.nvmlInit_v2(), flush=True)
for line in sys.stdin:
    print(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), count.value, flush=True)
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tree.Node]:
    node = tree.create("lab", "t4-4", tmp_path, nodes="plain", native_cache=CACHE)
    yield node
    node_changes.set_fault(node, "hang", 0)


@contextlib.contextmanager
def start(node: tree.Node) -> Iterator[subprocess.Popen[str]]:
    """Start a program that uses the library; it always ends with the test."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(node.library_dir / "libnvidia-ml.so.1")],
        env={"NVCT_SIM_DEV": str(node.dev)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        node_changes.set_fault(node, "hang", 0)
        process.kill()
        with process:  # closes its pipes
            process.wait(TIMEOUT_S)


def ask(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def state_of(process: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0]


def wait_for_state(process: subprocess.Popen[str], state: str) -> None:
    until = time.monotonic() + TIMEOUT_S
    while state_of(process) != state:
        assert time.monotonic() < until, state_of(process)
        time.sleep(0.02)


def test_calls_hang_and_continue_when_the_fault_ends(node: tree.Node) -> None:
    with start(node) as process:
        assert answer(process) == "0"
        node_changes.apply(node, "nvml-hang", ["600"])
        ask(process)
        assert process.stdout
        assert select.select([process.stdout], [], [], 0.5)[0] == []

        node_changes.apply(node, "nvml-hang", ["0"])

        assert answer(process) == "0 4"


def test_a_hang_ends_by_itself_and_initialisation_hangs_too(node: tree.Node) -> None:
    node_changes.apply(node, "nvml-hang", ["1"])
    began = time.monotonic()
    with start(node) as process:
        assert answer(process) == "0"
        assert time.monotonic() - began > 0.8


def test_a_process_that_hangs_can_be_killed(node: tree.Node) -> None:
    with start(node) as process:
        assert answer(process) == "0"
        node_changes.apply(node, "nvml-hang", ["600"])
        ask(process)
        time.sleep(0.1)
        process.kill()
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL


@pytest.mark.skipif(os.geteuid() != 0, reason="makes mounts")
def test_a_process_that_hangs_hard_is_not_ended_by_sigkill(node: tree.Node) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    with start(node) as process:
        assert answer(process) == "0"
        node_changes.apply(node, "nvml-hang-hard", ["600"])
        ask(process)
        try:
            time.sleep(0.5)
            process.kill()
            wait_for_state(process, "D")
            process.kill()
            time.sleep(0.5)
            assert process.poll() is None
            assert state_of(process) == "D"
        finally:
            node_changes.apply(node, "nvml-hang-hard", ["0"])
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    assert Path("/proc/self/mountinfo").read_text() == mounts


@pytest.mark.skipif(os.geteuid() != 0, reason="makes mounts")
def test_a_process_that_hung_hard_continues_unless_killed(node: tree.Node) -> None:
    with start(node) as process:
        assert answer(process) == "0"
        node_changes.apply(node, "nvml-hang-hard", ["1"])
        ask(process)
        assert answer(process) == "0 4"
        assert process.poll() is None


def test_a_crash_ends_the_calling_process(node: tree.Node) -> None:
    with start(node) as process:
        assert answer(process) == "0"
        node_changes.apply(node, "nvml-crash", ["600"])
        ask(process)
        assert process.wait(TIMEOUT_S) == -signal.SIGSEGV


def test_an_expired_fault_has_no_effect(node: tree.Node) -> None:
    node_changes.apply(node, "nvml-crash", ["600"])
    node_changes.apply(node, "nvml-crash", ["0"])
    with start(node) as process:
        assert answer(process) == "0"
    assert node.state().find("fault") == []
