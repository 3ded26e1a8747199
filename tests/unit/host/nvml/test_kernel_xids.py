# SPDX-License-Identifier: Apache-2.0
"""XIDs in the kernel's messages: each counts once, whichever source tells of it first."""

from pathlib import Path

import pytest

from nvct.host.nvml.kernel_xids import SAME_S, WAIT_S, KernelXids, bus_of, parse
from nvct.host.nvml.model import XidEvent
from nvct.kernel.kmsg import RECORD_LIMIT, Kmsg

UUIDS = {(0, 0x18, 0): "GPU-0", (0x10000, 0x19, 0): "GPU-1"}
LOST = "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus."
EVENT = XidEvent(uuid="GPU-0", xid=79)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        (LOST, EVENT),
        (
            "NVRM: Xid (PCI:0000:18:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel",
            XidEvent(uuid="GPU-0", xid=94, gi=5),
        ),
        (
            "NVRM: Xid (PCI:0000:18:00 GPU-I:05 GPU-CI:01): 43, pid=7194",
            XidEvent(uuid="GPU-0", xid=43, gi=5, ci=1),
        ),
        ("NVRM: Xid (PCI:10000:19:00): 48, pid='<unknown>'", XidEvent(uuid="GPU-1", xid=48)),
        ("NVRM: Xid (PCI:0000:3b:00): 79, of another GPU", None),
        ("NVRM: GPU at PCI:0000:18:00: GPU-0", None),
        ("said NVRM: Xid (PCI:0000:18:00): 79, of a program", None),
        ("NVRM: Xid (PCI:0000:18:00): 7999999, too long", None),
        ("NVRM: Xid (PCI:0000:18:00): , nothing", None),
        ("", None),
    ],
)
def test_messages(text: str, event: XidEvent | None) -> None:
    assert parse(text, UUIDS) == event


@pytest.mark.parametrize(
    ("address", "bus"),
    [("00000000:18:00.0", (0, 24, 0)), ("00010000:AF:1f.0", (65536, 175, 31)), ("18:00.0", None)],
)
def test_addresses(address: str, bus: tuple[int, int, int] | None) -> None:
    assert bus_of(address) == bus


class Lab:
    """The messages of a simulated node, and a clock."""

    def __init__(self, file: Path) -> None:
        self.now = 100.0
        self.file = file
        file.touch()
        self.xids = KernelXids(lambda: Kmsg(str(file)), lambda: self.now)

    def write(self, text: str, facility: int = 0) -> None:
        with self.file.open("ab") as file:
            head = f"{facility << 3 | 4},1,{int(self.now * 1e6)},-;"
            file.write(f"{head}{text}\n".encode().ljust(RECORD_LIMIT, b"\n"))

    def after(self, seconds: float) -> list[XidEvent]:
        self.now += seconds
        return self.xids.take(UUIDS)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "kmsg")


def test_what_nvml_does_not_report_is_reported_once(lab: Lab) -> None:
    lab.write(LOST)
    assert lab.after(0.5) == []
    assert lab.after(WAIT_S) == [EVENT]
    assert lab.after(WAIT_S) == []


def test_what_nvml_has_reported_is_not_reported_again(lab: Lab) -> None:
    assert lab.xids.note_nvml(EVENT)
    lab.write(LOST)
    assert lab.after(0.5) == []
    assert lab.after(WAIT_S) == []


@pytest.mark.parametrize("drift", [-2 * SAME_S, 2 * SAME_S])
def test_an_error_counts_once_where_the_clock_of_messages_drifts(lab: Lab, drift: float) -> None:
    assert lab.xids.note_nvml(EVENT)
    lab.now += drift
    lab.write(LOST)
    lab.now -= drift
    assert lab.after(0.5) == []
    assert lab.after(WAIT_S) == []


def test_nvml_may_be_a_little_later(lab: Lab) -> None:
    lab.write(LOST)
    assert lab.after(0.5) == []
    assert lab.xids.note_nvml(EVENT)
    assert lab.after(WAIT_S) == []


def test_an_event_that_is_much_later_was_counted_already(lab: Lab) -> None:
    lab.write(LOST)
    lab.after(0.5)
    assert lab.after(WAIT_S) == [EVENT]
    assert not lab.xids.note_nvml(EVENT)
    assert lab.xids.note_nvml(EVENT), "the second one is another error"


def test_errors_that_are_far_apart_are_two(lab: Lab) -> None:
    assert lab.xids.note_nvml(EVENT)
    lab.after(SAME_S + 1)
    lab.write(LOST)
    lab.after(0.1)
    assert lab.after(WAIT_S) == [EVENT]


def test_two_errors_of_which_nvml_reports_one_are_two(lab: Lab) -> None:
    lab.write(LOST)
    lab.write(LOST)
    assert lab.xids.note_nvml(EVENT)
    lab.after(0.1)
    assert lab.after(WAIT_S) == [EVENT]


def test_the_same_error_of_another_gpu_is_another_one(lab: Lab) -> None:
    assert lab.xids.note_nvml(XidEvent(uuid="GPU-1", xid=79))
    lab.write(LOST)
    lab.after(0.1)
    assert lab.after(WAIT_S) == [EVENT]


def test_messages_of_programs_do_not_count(lab: Lab) -> None:
    lab.write(LOST, facility=1)
    lab.after(0.1)
    assert lab.after(WAIT_S) == []


def test_messages_of_the_past_do_not_count(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "kmsg")
    lab.write(LOST)
    again = Lab(lab.file)
    again.after(0.1)
    assert again.after(WAIT_S) == []


def test_without_the_right_to_read_there_is_a_reason(tmp_path: Path) -> None:
    xids = KernelXids(lambda: Kmsg(str(tmp_path / "missing")))
    assert xids.problem == "the kernel's messages cannot be read: No such file or directory"
    assert xids.take(UUIDS) == []
    assert xids.note_nvml(EVENT)


def test_a_record_that_is_malformed_ends_this_source_alone(lab: Lab) -> None:
    with lab.file.open("ab") as file:
        file.write(b"nonsense")
    assert lab.after(0.1) == []
    assert "cannot be read any more" in lab.xids.problem
    assert lab.xids.note_nvml(EVENT)
