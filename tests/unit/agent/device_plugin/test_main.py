# SPDX-License-Identifier: Apache-2.0
"""Program nvidia-device-plugin: what it prints and how it ends, without a driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = (sys.executable, "-I", "-m", "nvct.agent.device_plugin.main")
REPOSITORY = Path(__file__).parents[4]


def call(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, check=False, timeout=60,
        env={"PATH": os.environ["PATH"], **env}, cwd=REPOSITORY,
    )  # fmt: skip


@pytest.mark.parametrize("word", ["--version", "-version", "-v"])
def test_the_version_is_that_of_the_incumbent_and_ours(word: str) -> None:
    done = call(word)

    assert done.stdout.startswith("NVIDIA Device Plugin version v0.20.0\nnvct: ")
    assert done.returncode == 0


def test_help_is_printed() -> None:
    done = call("--mig-strategy=none", "--help")

    assert "--fail-on-init-error" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "env", "sentence"),
    [
        (
            ["--mig-strategy=x"],
            {},
            "invalid --mig-strategy option: 'x'; it is one of none, single",
        ),
        ([], {"MIG_STRATEGY": "x"}, "invalid --mig-strategy option: 'x'"),
        ([], {"NVCT_LOG_FORMAT": "xml"}, "NVCT_LOG_FORMAT='xml'; it is one of text, json"),
        (["--kubelet-socket="], {}, "no libnvidia-ml.so.1 in / or /"),
    ],
)
def test_a_failure_is_the_last_line_and_status_1(
    words: list[str], env: dict[str, str], sentence: str
) -> None:
    done = call(*words, **env)

    last = done.stderr.splitlines()[-1]
    assert last.startswith("nvidia-device-plugin: ")
    assert sentence in last
    assert done.returncode == 1
