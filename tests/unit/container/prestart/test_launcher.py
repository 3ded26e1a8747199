# SPDX-License-Identifier: Apache-2.0
"""The launcher under the hook's names starts Python with the engine's environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvct.launcher.install import PROGRAMS, Built
from tests.support.launcher import ask, compiled, script

NAMES = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
SHOW = """printf '%s\\0' "$@" "$NVIDIA_CTK_CONFIG_FILE_PATH" "$(cat)"\n"""


@pytest.mark.parametrize("name", NAMES)
def test_the_hook_is_started_with_its_arguments_environment_and_stdin(
    name: str, tmp_path: Path
) -> None:
    python = script(tmp_path / "python", SHOW)
    built = Built(python=str(python), packages="/packages", cold="/cold")
    program = compiled(tmp_path, built, name=name)
    env = {"PATH": os.environ["PATH"], "NVIDIA_CTK_CONFIG_FILE_PATH": "/c.toml"}

    answer = ask([program, "-debug", "prestart", "a b"], env, tmp_path, b"{state}")

    assert (answer.status, answer.stderr) == (0, b"")
    flags, boot, arguments = answer.words[:3], answer.words[3], answer.words[4:]
    assert flags == [b"-I", b"-S", b"-c"]
    assert boot.endswith(b"from nvct.container.prestart.launch import main;main('/cold')")
    assert arguments == [name.encode(), b"-debug", b"prestart", b"a b", b"/c.toml", b"{state}"]


def test_both_names_are_installed() -> None:
    assert set(NAMES) <= set(PROGRAMS)
