# SPDX-License-Identifier: Apache-2.0
"""Programs nvidia-device-plugin and gpu-feature-discovery: what they print and how they end, without a driver."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.processes import captured

PROGRAM = (sys.executable, "-I", "-m", "nvct.agent.core.program")
PLUGIN, LABELS = "nvidia-device-plugin", "gpu-feature-discovery"
REPOSITORY = Path(__file__).parents[4]


def call(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return captured(
        [*PROGRAM, *words], timeout=60, env={"PATH": os.environ["PATH"], **env}, cwd=REPOSITORY
    )


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ((PLUGIN, "--version"), ("NVIDIA Device Plugin version v0.20.0", "nvct: ")),
        ((PLUGIN, "-version"), ("NVIDIA Device Plugin version v0.20.0", "nvct: ")),
        ((PLUGIN, "-v"), ("NVIDIA Device Plugin version v0.20.0", "nvct: ")),
        ((LABELS, "--version"), ("GPU Feature Discovery version v0.20.0", "nvct: ")),
        ((PLUGIN, "--mig-strategy=none", "--help"), ("  --fail-on-init", "  --log-format VALUE")),
        ((LABELS, "--help"), ("  --use-node-feature-api",)),
    ],
)
def test_version_and_help_are_printed(words: tuple[str, ...], lines: tuple[str, ...]) -> None:
    done = call(*words)

    assert all(f"\n{line}" in f"\n{done.stdout}" for line in lines)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "env", "sentence"),
    [
        ([PLUGIN, "--mig-strategy=x"], {}, "invalid --mig-strategy option: 'x'; it is one of n"),
        ([PLUGIN], {"NVCT_LOG_FORMAT": "xml"}, "NVCT_LOG_FORMAT='xml'; it is one of text, json"),
        ([PLUGIN, "--kubelet-socket="], {}, "no libnvidia-ml.so.1 in /;"),
        ([LABELS, "--oneshot"], {}, "this is no pod of a cluster, and no kubeconfig is given"),
        ([LABELS, "--use-node-feature-api=false"], {}, "no libnvidia-ml.so.1 in /;"),
    ],
)
def test_a_failure_is_the_last_line_and_status_1(
    words: list[str], env: dict[str, str], sentence: str
) -> None:
    done = call(*words, **env)

    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"{words[0]}: ")
    assert sentence in last
    assert done.returncode == 1


@pytest.mark.parametrize("is_first", [False, True], ids=["any process", "process 1"])
def test_a_signal_is_heeded_before_anything_slow_is_loaded(*, is_first: bool) -> None:
    words = [*PROGRAM, PLUGIN, "--fail-on-init-error=false", "--kubelet-socket="]
    if is_first:
        first = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
        if subprocess.run([*first, "true"], check=False, capture_output=True).returncode:
            pytest.skip("no user namespaces here")
        words = [*first, *words]
    # This process may be late for once, and the program serves already.
    assert "" in (log_of_signaled(words, is_first=is_first) for _ in range(5))


def log_of_signaled(words: Sequence[str], *, is_first: bool) -> str:
    """Return what a program logs that gets signals as soon as it catches them."""
    with subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, env={"PATH": os.environ["PATH"]}
    ) as process:
        pid = wait_for(lambda: child_of(process.pid) if is_first else process.pid)
        wait_for(lambda: catches(pid, signal.SIGTERM))
        os.kill(pid, signal.SIGHUP)
        os.kill(pid, signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr
        return process.stderr.read()


def wait_for(answer: Callable[[], int]) -> int:
    """Return the first true answer."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if found := answer():
            return found
        time.sleep(0.001)
    pytest.fail("it does not start in time")


def child_of(pid: int) -> int:
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(words[0]) if words else 0


def catches(pid: int, number: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return int(line.split()[1], 16) >> (number - 1) & 1
    return 0
