# SPDX-License-Identifier: Apache-2.0
"""Programs nvidia-device-plugin and gpu-feature-discovery: what they print and how they end, without a driver."""

import os
import subprocess
import sys
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
        (
            [PLUGIN],
            {"NVCT_LOG_FORMAT": "xml"},
            "NVCT_LOG_FORMAT='xml' is unknown; it is one of text, json",
        ),
        ([PLUGIN, "--kubelet-socket="], {}, "no libnvidia-ml.so.1 in /;"),
        ([LABELS, "--oneshot"], {}, "this is not a pod of a cluster, and no kubeconfig is given"),
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


def test_process_1_heeds_a_signal_that_came_before_it_was_ready() -> None:
    """The kernel drops signals of process 1 that it neither catches nor blocks; test_agent has other processes."""
    first = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if captured([*first, "true"]).returncode:
        pytest.skip("no user namespaces here")
    code = (
        "import os, signal, sys; from nvct.agent.core import program; program.block();"
        "assert os.getpid() == 1; os.kill(1, signal.SIGHUP); os.kill(1, signal.SIGTERM);"
        "os.execv(sys.executable, sys.argv[1:])"
    )
    words = [*PROGRAM, PLUGIN, "--fail-on-init-error=false", "--kubelet-socket="]
    done = captured([*first, sys.executable, "-c", code, *words], timeout=60, cwd=REPOSITORY)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
