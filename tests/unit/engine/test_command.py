# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.engine.command."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from nvct.engine import command
from nvct.engine.command import Completed
from nvct.errors import EngineError


def script(folder: Path, text: str, name: str = "engine") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_output_errors_and_status_are_separate(tmp_path: Path) -> None:
    completed = command.run([script(tmp_path, "echo out; echo one >&2; echo two >&2; exit 3")])

    assert completed == Completed(status=3, out="out\n", err="one\ntwo\n")
    assert completed.reason == "two"


def test_where_systemctl_says_to_look_is_not_the_reason() -> None:
    why = "Job for docker.service failed because the control process exited with error code."
    where = (
        'See "systemctl status docker.service" and "journalctl -xeu docker.service" for details.'
    )
    hint = "Hint: Some lines were ellipsized, use -l to show in full."
    assert Completed(status=1, err=f"{why}\n{where}\n{hint}\n").reason == why
    assert Completed(status=1, err=f"{where}\n").reason == where


def test_missing_and_malformed_programs_have_the_shells_status(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()

    assert command.run([str(tmp_path / "none")]).status == 127
    assert command.run([str(plain)]).status == 127
    assert "Permission denied" in command.run([str(plain)]).reason


def test_a_slow_program_is_killed(tmp_path: Path) -> None:
    done = command.run([script(tmp_path, "exec sleep infinity")], 0.1)

    assert done.status == command.TIMED_OUT
    assert done.reason == "no answer within 0.1 s"


def test_the_callers_environment_is_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD_LIKE", "x")

    assert "LD_PRELOAD_LIKE" not in command.run([script(tmp_path, "env")]).out


def test_a_child_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    def enter() -> None:
        raise PermissionError(1, os.strerror(1))

    program = script(tmp_path, f"touch {tmp_path}/ran; exit 125")

    with pytest.raises(OSError, match="Operation not permitted"):
        command.run([program], enter=enter)

    assert not (tmp_path / "ran").exists()
    assert command.run([program], enter=lambda: None).status == 125


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("containerd github.com/containerd/containerd v1.7.24 88aa2f5", (1, 7, 24)),
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3",
         (1, 6, 20)),
        ("Docker version 28.5.2+dfsg4, build 89c5e8f", (28, 5, 2)),
        ("crio version 1.31.0\n   GitCommit: x", (1, 31, 0)),
        ("podman version 5.4.2", (5, 4, 2)),
        ("containerd v2.1", (2, 1, 0)),
        ("nothing", ()),
    ],
    ids=["containerd", "debian", "docker", "crio", "podman", "short", "none"],
)  # fmt: skip
def test_versions_are_read_from_what_engines_print(printed: str, version: tuple[int, ...]) -> None:
    def run(argv: Sequence[str], _timeout_s: float = 0) -> Completed:
        assert argv == ["engine", "--version"]
        return Completed(status=0, out=printed)

    assert command.version("engine", run) == version


def test_a_program_that_fails_has_no_version() -> None:
    assert command.version("engine", lambda *_: Completed(status=1, out="v1.2.3")) == ()


def test_both_commands_of_crio_are_tried() -> None:
    calls = []

    def run(argv: Sequence[str]) -> Completed:
        calls.append(list(argv))
        return (
            Completed(status=0, out="[crio]\n") if "crio-status" in argv else Completed(status=1)
        )

    assert command.dump("crio", "/opt/crio", run) == "[crio]\n"
    assert calls == [["/opt/crio", "status", "config"], ["crio-status", "config"]]


def test_an_engine_that_prints_no_configuration_is_an_error() -> None:
    with pytest.raises(EngineError, match="containerd does not print its configuration: bad"):
        command.dump("containerd", "containerd", lambda _: Completed(status=1, err="x\nbad\n"))
