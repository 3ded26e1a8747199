# SPDX-License-Identifier: Apache-2.0
"""Lines for a terminal, and colors only where it shows them."""

import pytest

from nvct.cli import screen

TEXT = "it ends here: run `nvct system create-device-nodes --all` now"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen.sys.stdout, "isatty", lambda: True, raising=False)  # type: ignore[attr-defined]
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_file_gets_the_line_as_it_is() -> None:
    assert list(screen.wrapped("ok  ", TEXT, 0)) == [f"ok  {TEXT}"]
    assert screen.columns() == 0
    assert screen.colored("LOOK", "red") == "LOOK"


def test_no_line_ends_in_a_command() -> None:
    lines = list(screen.wrapped("ok  ", TEXT, 48))

    assert lines == ["ok  it ends here: run", "    `nvct system create-device-nodes --all` now"]
    assert list(screen.wrapped("ok  ", "", 48)) == ["ok"]


def test_a_word_longer_than_the_line_is_not_broken() -> None:
    lines = list(screen.wrapped("ok  ", f"at {'x' * 90} it is", 48))

    assert lines == ["ok  at", f"    {'x' * 90}", "    it is"]


def test_a_narrow_terminal_breaks_lines_itself() -> None:
    assert list(screen.wrapped("ok  ", TEXT, 20)) == [f"ok  {TEXT}"]


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("A", "B")])
def test_colors_can_be_switched_off(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)

    text = screen.colored("LOOK", "red", bold=True)

    assert text == ("\x1b[31m\x1b[1mLOOK\x1b[0m" if name == "A" else "LOOK")


ROWS = [
    ("NODE", "GPUS", "REASON"),
    ("a", "gpu=8", "no driver\x1b[2J on this node, " * 3),
    ("b", "", ""),
]


def test_a_table_breaks_its_last_column_only() -> None:
    lines = list(screen.table(ROWS, 60))
    assert lines[0] == "NODE  GPUS   REASON"
    assert lines[1].startswith("a     gpu=8  no driver\\x1b[2J")
    assert all(line.startswith(" " * 13) for line in lines[2:-1])
    assert lines[-1] == "b"
    assert max(map(len, lines)) <= 60


def test_a_last_column_without_room_stands_below_its_row() -> None:
    wide = [("NODE", "GPUS", "REASON"), ("n" * 30, "gpu=8", "the driver is not loaded here")]
    lines = list(screen.table(wide, 50))
    assert lines[:2] == [f"{'NODE':<30}  GPUS", "    REASON"]
    assert lines[2:] == ["n" * 30 + "  gpu=8", "    the driver is not loaded here"]


def test_columns_that_do_not_fit_together_become_a_paragraph() -> None:
    wide = [("NODE", "GPUS", "AGENT", "REASON"), ("n" * 38, "gpu=8", "-", "not loaded here")]
    assert list(screen.table(wide, 50)) == ["n" * 38, "    gpus gpu=8", "    not loaded here"]


def test_a_table_for_a_pipe_has_a_line_for_each_row() -> None:
    assert len(list(screen.table(ROWS, 0))) == len(ROWS)
