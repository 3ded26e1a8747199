# SPDX-License-Identifier: Apache-2.0
"""Errors concern a GPU with all that is on it, or one MIG instance alone."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from nvct.agent.health.board import Board, GpuLook, Key
from nvct.agent.health.machine import Rules
from nvct.host.faults import Fault
from nvct.host.nvml.model import XidEvent
from nvct.oci.jsontext import Json
from nvct.typed import MalformedError

RESET = Fault(action="reset", reason="XID 48")
REBOOT = Fault(action="reboot", reason="XID 79")
MIG = {(7, 0): "MIG-a", (8, 0): "MIG-b", (8, 1): "MIG-c"}
ALL = tuple(MIG.values())
PLAIN, SPLIT = "GPU-plain", "GPU-split"


def board() -> Board:
    """Return the board of a GPU, and of one with MIG devices, both seen."""
    made = Board(Rules(probation_s=60.0))
    look(made, 0.0)
    return made


def look(
    made: Board, now: float, instances: Mapping[tuple[int, int], str] = MIG, **more: GpuLook
) -> list[str]:
    found = {
        PLAIN: replace(more.get("plain", GpuLook()), instances={}),
        SPLIT: replace(more.get("split", GpuLook()), instances=instances),
    }
    return [f"{c.after.state} {' '.join(c.devices)}" for c in made.note_looks(found, now)]


def states(made: Board) -> dict[str, str]:
    devices = {"plain": made.of(PLAIN), "split": made.of(SPLIT)}
    devices |= {uuid: made.of(SPLIT, instance) for instance, uuid in MIG.items()}
    return {name: health.state for name, health in devices.items() if health.state != "healthy"}


@pytest.mark.parametrize(
    ("event", "unhealthy", "devices"),
    [
        (XidEvent(uuid=PLAIN, xid=48), {"plain"}, [(PLAIN,)]),
        (XidEvent(uuid=SPLIT, xid=48), {"split", *ALL}, [(SPLIT, *ALL)]),
        (XidEvent(uuid=SPLIT, xid=48, gi=7, ci=0), {"split", "MIG-a"}, [("MIG-a",)]),
        (XidEvent(uuid=SPLIT, xid=48, gi=8, ci=1), {"split", "MIG-c"}, [("MIG-c",)]),
        (XidEvent(uuid=SPLIT, xid=48, gi=8), {"split", "MIG-b", "MIG-c"}, [("MIG-b", "MIG-c")]),
        (XidEvent(uuid=SPLIT, xid=48, gi=9, ci=0), {"split"}, [()]),
        (XidEvent(uuid=PLAIN, xid=48, gi=1, ci=0), {"plain"}, [(PLAIN,)]),
        (XidEvent(uuid="GPU-other", xid=48), set(), [("GPU-other",)]),
        (XidEvent(uuid="", xid=48), {"plain", "split", *ALL}, [(PLAIN,), (SPLIT, *ALL)]),
    ],
)
def test_what_an_xid_concerns(
    event: XidEvent, unhealthy: set[str], devices: list[tuple[str, ...]]
) -> None:
    made = board()
    changes = made.note_xid(event, RESET, 1.0)
    assert [change.devices for change in changes] == devices
    assert set(states(made)) == unhealthy


def test_a_reset_of_the_gpu_ends_the_errors_of_its_instances() -> None:
    made = board()
    made.note_xid(XidEvent(uuid=SPLIT, xid=48, gi=7, ci=0), RESET, 1.0)

    assert look(made, 2.0) == []
    assert look(made, 3.0, split=GpuLook(was_reset=True)) == ["probation MIG-a"]
    assert look(made, 63.0) == ["healthy MIG-a"]
    assert states(made) == {}


def test_an_instance_that_is_made_again_is_healthy() -> None:
    made = board()
    made.note_xid(XidEvent(uuid=SPLIT, xid=48, gi=7, ci=0), RESET, 1.0)

    look(made, 2.0, {(8, 0): "MIG-b"})
    look(made, 3.0)

    assert states(made) == {}


def test_an_error_of_the_gpu_is_not_one_of_its_instances_too() -> None:
    made = board()
    hangs = GpuLook(faults=(Fault(action="reset", reason="no answer"),))
    look(made, 1.0, split=hangs)
    look(made, 2.0, split=hangs)
    assert set(states(made)) == {"split", *ALL}
    assert look(made, 3.0) == ["probation GPU-split MIG-a MIG-b MIG-c"]


def test_the_worst_of_all_counts() -> None:
    made = board()
    made.note_xid(XidEvent(uuid=SPLIT, xid=48, gi=7, ci=0), RESET, 1.0)
    made.note_xid(XidEvent(uuid=SPLIT, xid=79), REBOOT, 2.0)

    assert made.of(SPLIT, (7, 0)).reason == "XID 79"


def test_a_second_error_is_no_change() -> None:
    made = board()
    event = XidEvent(uuid=PLAIN, xid=48)
    assert len(made.note_xid(event, RESET, 1.0)) == 1
    assert made.note_xid(event, RESET, 2.0) == []


def test_forget_makes_all_healthy() -> None:
    made = board()
    made.note_xid(XidEvent(uuid="", xid=79), REBOOT, 1.0)

    assert len(made.forget(2.0)) == 2
    assert states(made) == {}


def test_what_was_written_is_read_again() -> None:
    made = board()
    made.note_xid(XidEvent(uuid=SPLIT, xid=48, gi=7, ci=0), RESET, 1.0)
    made.note_xid(XidEvent(uuid=PLAIN, xid=48), RESET, 1.0)
    look(made, 2.0, plain=GpuLook(was_reset=True))
    look(made, 62.0)

    other = Board(made.rules)
    other.load(json.loads(json.dumps(made.to_dict())))

    assert other.states == made.states
    assert other.states[Key(PLAIN)].returns == (62.0,)


WRITTEN = {
    "gpu": "GPU-0", "gi": -1, "ci": -1, "state": "unhealthy", "action": "reset", "reason": "why",
    "since": 1.0, "seen": 0, "must_reset": True, "asked": False, "returns": [1.0],
}  # fmt: skip


@pytest.mark.parametrize(
    "document",
    [
        None, [], {}, {"devices": {}}, {"devices": [1]},
        *({"devices": [{**WRITTEN, name: value}]} for name, value in (
            ("state", "well"), ("action", "pray"), ("since", "1"), ("gi", True),
            ("returns", ["1"]), ("returns", None),
        )),
        {"devices": [{key: value for key, value in WRITTEN.items() if key != "seen"}]},
    ],
)  # fmt: skip
def test_what_is_no_state_is_refused(document: Json) -> None:
    made = board()
    before = dict(made.states)
    with pytest.raises(MalformedError):
        made.load(document)
    assert made.states == before
