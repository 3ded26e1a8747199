# SPDX-License-Identifier: Apache-2.0
"""An error as the one line that users see, and the list of all codes."""

import re
from pathlib import Path

import pytest

from nvct import errors
from nvct.errors import LINE_LIMIT, HostError, NvctError, RequestError, line, unexpected

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "errors.md"


def classes(base: type[NvctError] = NvctError) -> list[type[NvctError]]:
    found = [base]
    for one in base.__subclasses__():
        if one.__module__ == "nvct.errors":
            found += classes(one)
    return found


def test_a_line_has_program_message_hint_and_code() -> None:
    error = HostError("no C compiler on PATH", hint="install gcc")

    assert line("nvct", error) == "nvct: no C compiler on PATH; install gcc [host]"


def test_a_long_message_loses_its_middle_and_nothing_else() -> None:
    error = HostError("begin " + "x" * 500 + " end", hint="a hint of usual length")

    text = line("nvidia-container-runtime", error)

    assert len(text) == LINE_LIMIT
    assert text.startswith("nvidia-container-runtime: begin xxx")
    assert "xxx...xxx" in text
    assert text.endswith("x end; a hint of usual length [host]")


def test_a_long_hint_ends_with_a_word() -> None:
    text = line("nvct", HostError("no", hint="word " * 60))

    assert re.search(r"; (word )+\.\.\. \[host\]$", text)
    assert len(text) <= LINE_LIMIT


def test_a_message_that_just_fits_is_left_alone() -> None:
    room = LINE_LIMIT - len("p: ; do it [host]")

    assert line("p", HostError("m" * room, hint="do it")) == f"p: {'m' * room}; do it [host]"
    assert "..." in line("p", HostError("m" * (room + 1), hint="do it"))


@pytest.mark.parametrize("size", [0, 100, 100_000])
@pytest.mark.parametrize("hint_size", [0, 90, 200])
@pytest.mark.parametrize("program_size", [1, 300])
def test_a_line_never_exceeds_the_limit_and_keeps_its_code(
    size: int, hint_size: int, program_size: int
) -> None:
    error = RequestError("m" * size, hint="h" * hint_size)

    text = line("p" * program_size, error)

    assert len(text) <= LINE_LIMIT
    assert text.endswith(" [bad-request]")
    assert hint_size > 90 or "h" * hint_size in text
    assert size > 40 or "m" * size in text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x00", r"\x00"),
        ("\u202eevil", r"\u202eevil"),
        ("\u2028", r"\u2028"),
        ("\udc80", r"\udc80"),
        ("\x85", r"\x85"),
        ("\u00e9 \u65e5\u672c", "\u00e9 \u65e5\u672c"),
    ],
    ids=["escape", "lines", "nul", "bidi", "separator", "surrogate", "c1", "letters"],
)
def test_control_characters_are_shown_as_escapes(raw: str, shown: str) -> None:
    text = line(f"p{raw}", HostError(f"m{raw}", hint=f"h{raw}"))

    assert text == f"p{shown}: m{shown}; h{shown} [host]"
    assert text.isprintable()


def test_a_message_of_escapes_fits_as_well() -> None:
    text = line("p", HostError("\x00" * 500, hint="\x01" * 500))

    assert len(text) <= LINE_LIMIT
    assert text.endswith(" [host]")


def test_a_bug_asks_to_be_reported() -> None:
    text = line("nvct", unexpected(KeyError("x")))

    assert text == (
        "nvct: unexpected KeyError: 'x'; please report it; NVCT_DEBUG=1 shows more [bug]"
    )


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [one.code for one in classes()]

    assert len(codes) == len(set(codes)) > 15
    assert [code for code in codes if not re.fullmatch(r"[a-z]+(-[a-z]+)*", code)] == []


def test_the_errors_of_the_module_are_the_subclasses_of_one() -> None:
    types = {one for one in vars(errors).values() if isinstance(one, type)}

    assert {one for one in types if issubclass(one, BaseException)} == set(classes())


def test_only_usage_and_a_missing_runtime_have_an_exit_status_of_their_own() -> None:
    statuses = {one.code: one.exit_status for one in classes() if one.exit_status != 1}

    assert statuses == {"usage": 2, "runtime-not-found": 127}


def test_every_code_is_documented_and_no_other() -> None:
    text = DOCUMENTATION.read_text(encoding="utf-8")

    documented = re.findall(r"^- `([a-z-]+)` \(", text, re.MULTILINE)

    assert sorted(documented) == sorted({one.code for one in classes()} | {"bug"})


def test_the_documentation_tells_the_exit_statuses() -> None:
    text = DOCUMENTATION.read_text(encoding="utf-8")
    items = re.findall(r"^- `([a-z-]+)` \((\d+)\): (.+(?:\n  .+)*)$", text, re.MULTILINE)
    expected = {one.code: one.exit_status for one in classes()} | {"bug": 1}

    assert {code: int(status) for code, status, _ in items} == expected
    assert all(re.search(r"\.\s.*\.$", text, re.DOTALL) for _, _, text in items)


def test_an_os_error_of_a_block_gets_a_text_and_the_systems_reason() -> None:
    with (
        pytest.raises(HostError, match=r"^/x cannot be read: No such file$") as raised,
        errors.OSErrorsAs(HostError, "/x cannot be read", hint="make it"),
    ):
        raise FileNotFoundError(2, "No such file", "/x")
    assert raised.value.hint == "make it"
    assert isinstance(raised.value.__cause__, FileNotFoundError)


def test_other_errors_of_such_a_block_stay_what_they_are() -> None:
    with pytest.raises(RequestError, match=r"^a$"), errors.OSErrorsAs(HostError, "no"):
        raise RequestError("a")
