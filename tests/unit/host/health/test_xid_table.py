# SPDX-License-Identifier: Apache-2.0
"""What each XID asks for, and the files and variables that change it."""

import re
from datetime import date
from pathlib import Path

import pytest

from nvct.errors import DocumentError
from nvct.host import faults
from nvct.host.faults import APPLICATION, XidAction, XidTable, checks

REPOSITORY = Path(__file__).parents[4]
ROWS = faults.read()


def table(disable: str = "", enable: str = "", *, is_incumbent: bool = False) -> XidTable:
    variables = checks({"DP_DISABLE_HEALTHCHECKS": disable, "DP_ENABLE_HEALTHCHECKS": enable})
    return XidTable(rows=ROWS, checks=variables, is_incumbent=is_incumbent)


def test_each_line_has_a_source_and_a_date() -> None:
    assert len(ROWS) >= 100
    for row in ROWS.values():
        assert row.name, row
        assert row.source, row
        assert date.fromisoformat(row.date) >= date(2026, 11, 23), row


def test_the_document_has_the_same_table() -> None:
    text = " ".join((REPOSITORY / "docs/health.md").read_text(encoding="utf-8").split())
    for action in faults.XID_ACTIONS:
        (listed,) = re.findall(rf"- `{action}`, [^:]*: ([0-9][0-9, -]*[0-9])", text)
        numbers = [range_of(words) for words in listed.split(", ")]
        rows = [row.xid for row in ROWS.values() if row.action == action]
        assert [xid for each in numbers for xid in each] == rows, action


def range_of(words: str) -> range:
    first, _, last = words.partition("-")
    return range(int(first), int(last or first) + 1)


def test_what_the_incumbent_ignores_takes_no_gpu_away() -> None:
    assert {ROWS[xid].action for xid in APPLICATION} <= {"ignore", "application"}


@pytest.mark.parametrize(
    ("xid", "action"),
    [
        (13, "application"), (63, "ignore"), (94, "application"), (48, "reset"), (79, "reboot"),
        (109, "application"), (154, "ignore"), (999, "reset"),
    ],
)  # fmt: skip
def test_actions(xid: int, action: XidAction) -> None:
    assert table().action(xid) == action


@pytest.mark.parametrize(
    ("disable", "enable", "actions"),
    [
        ("48, 79", "", {48: "ignore", 79: "ignore", 95: "reset", 13: "application"}),
        ("all", "", {48: "ignore", 13: "ignore", 999: "ignore"}),
        ("XIDS", "79", {79: "reboot", 48: "ignore", 13: "ignore"}),
        ("48", "48,13", {48: "reset", 13: "reset", 31: "application"}),
        ("all", "all", {13: "reset", 48: "reset", 79: "reboot", 63: "reset"}),
    ],
)
def test_variables(disable: str, enable: str, actions: dict[int, str]) -> None:
    found = table(disable, enable)
    assert {xid: found.action(xid) for xid in actions} == actions
    assert found.checks.malformed == ()


def test_only_the_word_all_switches_off_what_nvml_reports() -> None:
    assert not checks({"DP_DISABLE_HEALTHCHECKS": "all"}).looks
    assert checks({"DP_DISABLE_HEALTHCHECKS": "xids"}).looks
    assert checks({}).looks


@pytest.mark.parametrize("word", ["many", "-1", "1" * 5000, "4٨"])
def test_a_word_that_is_no_xid_is_reported(word: str) -> None:
    assert checks({"DP_DISABLE_HEALTHCHECKS": f"48,{word}"}).malformed == (word,)


def test_without_recovery_every_xid_counts_that_the_incumbent_does_not_ignore() -> None:
    incumbent = table("63", is_incumbent=True)

    assert [xid for xid in APPLICATION if incumbent.action(xid) != "application"] == []
    assert [incumbent.action(xid) for xid in (94, 154, 48, 79, 999)] == [
        "reset", "reset", "reset", "reboot", "reset",
    ]  # fmt: skip
    assert incumbent.action(63) == "ignore"


def test_a_fault_says_what_the_xid_means() -> None:
    assert table().fault(48).reason == "XID 48 (double-bit ECC error)"
    assert table().fault(999).reason == "XID 999"


def test_lines_of_the_administrator(tmp_path: Path) -> None:
    file = tmp_path / "xids.csv"
    file.write_text("xid,action\n# our own\n\n48,replace\n74,ignore,NVLink,us,2026-11-23\n")

    rows = faults.read(file)

    assert [(row.xid, row.action, row.name) for row in rows.values()] == [
        (48, "replace", ""), (74, "ignore", "NVLink"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("48\n", "line 1 of {} has 1 parts, not 2 to 5"),
        ("\n48,ignore,a,b,c,d,e\n", "line 2 of {} has 7 parts, not 2 to 5"),
        ("x,ignore\n", "line 1 of {}: 'x' is not an XID"),
        ("4444444,ignore\n", "line 1 of {}: '4444444' is not an XID"),
        ("48,watch\n", "line 1 of {}: unknown action 'watch'"),
        ("48,reset\n48,reset\n", "line 2 of {}: XID 48 has a line already"),
        ("\udcff", "cannot read the XID table {}: it is not UTF-8"),
    ],
)
def test_a_malformed_line_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "xids.csv"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DocumentError) as caught:
        faults.read(file)
    assert caught.value.message == message.format(file)


def test_a_copy_of_the_table_is_one_with_a_byte_order_mark_too(tmp_path: Path) -> None:
    file = tmp_path / "xids.csv"
    for mark in (b"", b"\xef\xbb\xbf"):
        file.write_bytes(mark + Path(faults.FILE).read_bytes())
        assert faults.read(file) == ROWS
    with pytest.raises(DocumentError, match="cannot read the XID table /missing: No such file"):
        faults.read("/missing")


def test_texts_are_nvidias() -> None:
    texts = faults.texts()

    assert len(texts) == 173
    assert texts[0] == "No Error"
    assert texts[45].endswith(" -- Most likely to see when running multiple cuda")
    assert texts[63] == "ECC page retirement or row remapping recording event"
    assert texts[172] == "Uncorrectable SRAM Error"
    assert 1 not in ROWS
