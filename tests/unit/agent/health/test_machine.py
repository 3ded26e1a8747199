# SPDX-License-Identifier: Apache-2.0
"""The state machine of a device: a table of courses, and rules for every course; notices."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nvct.agent.health.machine import Event, Forget, Health, Look, Rules, Xid, step
from nvct.agent.health.notices import AGAIN_S, Notices
from nvct.host.faults import LASTING, SEVERE, Fault, worst

RULES = Rules(probation_s=60.0)
DOUBLE_BIT = Fault(action="reset", reason="XID 48")
OFF_THE_BUS = Fault(action="reboot", reason="XID 79")
ASKS_RESET = Fault(action="reset", reason="the driver asks for a reset")
HANGS = Fault(action="reset", reason="no answer")
REMAP_FAILED = Fault(action="replace", reason="a row cannot be remapped")
REMAP_PENDING = Fault(action="watch", reason="a row waits for a reset")
CLEAN = Look()


def course(events: Sequence[tuple[float, Event]], rules: Rules = RULES) -> Health:
    health = Health()
    for at, event in events:
        health = step(health, event, at, rules)
    return health


BIT, BUS, RESET, HANG, REPLACE = (
    Xid(fault=DOUBLE_BIT), Xid(fault=OFF_THE_BUS), Look(was_reset=True), Look(faults=(HANGS,)),
    Look(faults=(REMAP_FAILED,)),
)  # fmt: skip
COURSES: dict[str, tuple[list[tuple[float, Event]], str]] = {
    "nothing happens": ([(1, CLEAN)], "healthy"),
    "an XID counts": ([(1, BIT)], "unhealthy reset: XID 48"),
    "time alone ends no XID": ([(1, BIT), (9, CLEAN), (999, CLEAN)], "unhealthy reset: XID 48"),
    "the driver does not ask any more": (
        [(1, BIT), (2, Look(asks=True, faults=(ASKS_RESET,))), (3, CLEAN)],
        "probation reset: XID 48",
    ),
    "the GPU was reset": ([(1, BIT), (2, RESET)], "probation reset: XID 48"),
    "a reset counts also while the GPU has another error": (
        [(1, BIT), (2, Look(was_reset=True, faults=(HANGS,))), (3, CLEAN)],
        "probation reset: XID 48",
    ),
    "probation lasts": ([(1, BIT), (2, RESET), (61.9, CLEAN)], "probation reset: XID 48"),
    "probation ends": ([(1, BIT), (2, RESET), (62, CLEAN)], "healthy"),
    "an XID in probation": (
        [(1, BIT), (2, RESET), (30, BIT), (70, CLEAN)], "unhealthy reset: XID 48"
    ),
    "an error in probation counts at once": (
        [(1, BIT), (2, RESET), (30, HANG)], "unhealthy reset: no answer"
    ),
    "one look is a suspicion": ([(1, HANG)], "suspect reset: no answer"),
    "a suspicion that is wrong": ([(1, HANG), (2, CLEAN)], "healthy"),
    "two looks count": ([(1, HANG), (2, HANG)], "unhealthy reset: no answer"),
    "two looks with different errors are no proof": (
        [(1, HANG), (2, REPLACE)], "suspect replace: a row cannot be remapped"
    ),
    "an error that was only seen ends when it is not seen": (
        [(1, HANG), (2, HANG), (3, CLEAN), (63, CLEAN)], "healthy"
    ),
    "what asks for nothing stays a suspicion": (
        [(at, Look(faults=(REMAP_PENDING,))) for at in range(100)],
        "suspect watch: a row waits for a reset",
    ),
    "only a boot ends it": ([(1, BUS), (2, RESET), (999, CLEAN)], "unhealthy reboot: XID 79"),
    "the worse error counts": ([(1, BIT), (2, BUS), (3, BIT)], "unhealthy reboot: XID 79"),
    "a worse error that is seen counts at once": (
        [(1, BIT), (2, REPLACE)], "unhealthy replace: a row cannot be remapped"
    ),
    "the administrator knows": ([(1, BUS), (2, Forget())], "healthy"),
}  # fmt: skip


@pytest.mark.parametrize(("events", "expected"), COURSES.values(), ids=COURSES)
def test_courses(events: Sequence[tuple[float, Event]], expected: str) -> None:
    health = course(events)
    shown = f"{health.state} {health.action}: {health.reason}" if health.reason else health.state
    assert shown == expected


def failures(count: int, every_s: float) -> list[tuple[float, Event]]:
    """Return XIDs that are each followed by a reset and a probation."""
    starts = [number * every_s for number in range(count)]
    return [event for at in starts for event in ((at, BIT), (at + 1, RESET), (at + 61, CLEAN))]


def test_a_device_that_comes_back_three_times_in_an_hour_is_out_with_its_next_error() -> None:
    assert course(failures(3, 300)).state == "healthy"

    out = course(failures(4, 300))

    assert (out.state, out.action) == ("unhealthy", "replace")
    assert out.reason == "flapping: it came back 3 times in an hour; XID 48"


def test_returns_that_are_long_ago_do_not_count() -> None:
    assert course(failures(9, 1300)).state == "healthy"


def test_without_recovery_nothing_but_xids_counts_and_nothing_ends() -> None:
    rules = Rules(recovers=False)
    assert course([(at, REPLACE) for at in range(3)], rules) == Health()
    assert course([(1, BIT), (2, RESET), (999, CLEAN)], rules).state == "unhealthy"


def test_the_worst_fault_is_the_one_that_asks_for_most() -> None:
    assert worst([REMAP_PENDING, DOUBLE_BIT, HANGS]) is DOUBLE_BIT
    assert worst([]) is None


FAULTS = st.builds(Fault, action=st.sampled_from(("watch", *SEVERE)), reason=st.just("a reason"))


class Courses(RuleBasedStateMachine):
    """Any course of events: what must hold whatever happens."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.health = Health()
        self.offered_since: list[float] = []

    def happen(self, event: Event) -> None:
        before = self.health
        self.health = step(before, event, self.now, RULES)
        if before.state == "unhealthy" and before.action in LASTING:
            assert self.health.state == "unhealthy" or isinstance(event, Forget)
        if isinstance(event, Forget):
            self.offered_since.clear()
        elif self.health.is_offered and not before.is_offered:
            assert before.state == "probation"
            assert self.now - before.since >= RULES.probation_s
            self.offered_since.append(self.now)

    @rule(seconds=st.sampled_from((0.5, 2.0, 30.0, 60.0, 1200.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(fault=FAULTS.filter(lambda fault: fault.action in SEVERE))
    def xid(self, fault: Fault) -> None:
        self.happen(Xid(fault=fault))

    @rule(faults=st.lists(FAULTS, max_size=2), asks=st.booleans(), was_reset=st.booleans())
    def look(self, faults: list[Fault], *, asks: bool, was_reset: bool) -> None:
        self.happen(Look(faults=tuple(faults), asks=asks, was_reset=was_reset))

    @rule()
    def reset_and_wait(self) -> None:
        """Bring it back, which random events rarely do."""
        self.happen(BIT)
        self.happen(RESET)
        self.now += RULES.probation_s
        self.happen(CLEAN)

    @rule()
    def forget(self) -> None:
        self.happen(Forget())

    @invariant()
    def it_has_a_reason_unless_it_is_healthy(self) -> None:
        assert bool(self.health.reason) == (self.health.state != "healthy")
        assert bool(self.health.action) == (self.health.state != "healthy")
        if not self.health.is_offered:
            assert self.health.action in SEVERE

    @invariant()
    def it_does_not_come_back_more_often_than_the_rule_says(self) -> None:
        recent = [at for at in self.offered_since if self.now - at < RULES.window_s]
        assert len(recent) <= RULES.returns


TestCourses = Courses.TestCase
TestCourses.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


# Notices: what was said just now is not repeated.


@pytest.mark.parametrize(
    ("later", "is_new"),
    [(0.0, False), (AGAIN_S - 1, False), (AGAIN_S, True), (-1.0, False), (-3600.0, True)],
)
def test_a_sentence_is_repeated_after_a_while_even_if_the_clock_is_set_back(
    later: float, *, is_new: bool
) -> None:
    notices = Notices()
    assert notices.add("GPUUnhealthy", "XID 79", 1e6, ["GPU-0"], is_warning=True)

    again = notices.add("GPUUnhealthy", "XID 79", 1e6 + later, ["GPU-0"], is_warning=True)

    assert (again is not None) == is_new
