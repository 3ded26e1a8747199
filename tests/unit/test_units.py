# SPDX-License-Identifier: Apache-2.0
"""The unit that keeps the specification: what its text alone decides."""

from __future__ import annotations

import configparser
import shlex
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "packaging/systemd"


def service(name: str = "nvidia-cdi-refresh") -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as its documentation has it
    parser.read(FOLDER / f"{name}.service", encoding="utf-8")
    return parser["Service"]


def test_what_fails_for_good_is_not_tried_without_end_at_a_nodes_cost() -> None:
    # RestartSteps= came with systemd 254: Debian 12's and RHEL 9's wait RestartSec= each time.
    assert int(service()["RestartSec"]) >= 30


def test_a_setting_that_means_nothing_is_not_tried_again() -> None:
    assert service()["RestartPreventExitStatus"] == "2"


PROGRAM = """#!/bin/sh
echo "${0##*/} $*" >> "$LOG"
[ "$1" != apply ] || exit ${STATUS:-0}
"""


@pytest.mark.parametrize(
    ("env", "status", "calls"),
    [
        ({}, 0, []),
        ({"MIG_PARTED_SELECTED_CONFIG": "all-balanced"}, 0, ["generate-config", "apply"]),
        ({"MIG_PARTED_SELECTED_CONFIG": "mine", "MIG_PARTED_CONFIG_FILE": "FILE"}, 0, ["apply"]),
        ({"MIG_PARTED_SELECTED_CONFIG": "mine", "STATUS": "1"}, 1, ["generate-config", "apply"]),
    ],
)
def test_mig_is_applied_at_boot_only_if_a_drop_in_names_it(
    env: dict[str, str], status: int, calls: list[str], tmp_path: Path
) -> None:
    for name in ("nvidia-mig-parted", "nvidia-ctk"):
        (tmp_path / name).write_text(PROGRAM)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "FILE").touch()
    text = service("nvidia-mig-manager")["ExecStart"].replace("$$", "$").replace("\\\n", "")
    _, _, script = shlex.split(text.replace("/usr/bin/", f"{tmp_path}/"))
    env = {**env, "LOG": str(tmp_path / "log"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", "-euc", script], env=env, cwd=tmp_path, check=False)
    assert done.returncode == status
    log = (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""
    called = [line.split()[1] for line in log.splitlines() if line.startswith("nvidia-mig-parted")]
    assert called == calls
    assert ("nvidia-ctk" in log) == (bool(calls) and status == 0)
