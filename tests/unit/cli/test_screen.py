# SPDX-License-Identifier: Apache-2.0
"""Lines for a terminal, and colors only where it shows them."""

from __future__ import annotations

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


def test_no_line_ends_in_a_command() -> None:
    lines = list(screen.wrapped("ok  ", TEXT, 48))

    assert lines == [
        "ok  it ends here: run",
        "    `nvct system create-device-nodes --all` now",
    ]
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


def test_no_terminal_no_color() -> None:
    assert screen.colored("LOOK", "red") == "LOOK"
