# SPDX-License-Identifier: Apache-2.0
"""The announcement of a change: it counts while its writer lives, and no longer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from nvct.errors import HostError
from nvct.mig import pause

STAYS = {"GPU-1": frozenset({(9, 0)}), "GPU-2": frozenset[tuple[int, int]]()}


def test_a_change_is_announced_while_it_lasts(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    assert pause.read(folder) == {}
    with pause.announce(folder, STAYS):
        assert pause.read(folder) == STAYS
    assert pause.read(folder) == {}
    assert os.listdir(folder) == []


def test_a_change_that_fails_ends_its_announcement(tmp_path: Path) -> None:
    with pytest.raises(ValueError), pause.announce(str(tmp_path), STAYS):
        raise ValueError
    assert os.listdir(tmp_path) == []


def test_one_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / pause.FILE).mkdir()
    with (
        pytest.raises(HostError, match=r"cannot be announced in .*: Is a directory"),
        pause.announce(str(tmp_path), STAYS),
    ):
        pass
    assert os.listdir(tmp_path) == [pause.FILE]


def test_one_that_another_has_replaced_ends_without_an_error(tmp_path: Path) -> None:
    with pause.announce(str(tmp_path), {"GPU-0": ()}):  # noqa: SIM117 - the order matters
        with pause.announce(str(tmp_path), {"GPU-1": ()}):
            pass
    assert pause.read(str(tmp_path)) == {}


def test_that_of_a_killed_program_does_not_count(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        with pause.announce(str(tmp_path), STAYS):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert os.listdir(tmp_path) == [pause.FILE]
    assert pause.read(str(tmp_path)) == {}

    with pause.announce(str(tmp_path), STAYS):
        assert pause.read(str(tmp_path)) == STAYS


@pytest.mark.parametrize(
    "text", ["", "[]", '{"GPU-1": 7}', '{"GPU-1": [[1]]}', '{"GPU-1": [[1e999, 0]]}', "\x00"]
)
def test_a_malformed_one_pauses_nothing(text: str, tmp_path: Path) -> None:
    with pause.announce(str(tmp_path), STAYS):
        (tmp_path / pause.FILE).write_text(text)
        assert pause.read(str(tmp_path)) == {}
