# SPDX-License-Identifier: Apache-2.0
"""Each step of a GPU's healing, what leads to the next one, and what ends it."""

from dataclasses import replace

import pytest

from nvct.agent.heal import machine
from nvct.agent.heal.machine import (
    LEVELS,
    Look,
    Record,
    Rules,
    Step,
    reset_together,
    resumed,
    step,
)
from nvct.agent.health.machine import Health
from nvct.host.nvml.model import GpuLink, NvmlGpu

XID = "XID 48 (double-bit ECC error)"
RESET = Health(state="unhealthy", action="reset", reason=XID)
LOST = Health(state="unhealthy", action="reboot", reason="the GPU is lost")
CURED = Health(state="probation", reason=XID)
RULES = Rules(level="reboot-request")
AT = 1000.0


def record(which: Step, **more: object) -> Record:
    return Record(step=which, since=AT, **more)  # type: ignore[arg-type]


def after(
    before: Record | None, look: Look, s: float = 1.0, level: str = "reboot-request"
) -> tuple[str, str, str]:
    """Return step, reason and action so many seconds after a step has begun."""
    found = step(before, look, AT + s, Rules(level=level))
    return (found.step, found.reason, found.action) if found else ("", "", "")


def test_from_an_error_to_a_healthy_gpu() -> None:
    seen = []
    looks = [
        (0, Look(health=RESET)),
        (31, Look(health=RESET, gpus=("GPU-0",))),
        (32, Look(health=RESET, users=())),
        (40, Look(health=RESET, holders=())),
        (41, Look(health=RESET, outcome="")),
        (42, Look(health=RESET)),
        (43, Look(health=CURED)),
        (103, Look(health=Health())),
    ]
    now: Record | None = None
    for s, look in looks:
        now = step(now, look, AT + s, RULES)
        seen.append(now.step if now else "healthy")
    assert seen == [
        "quarantined", "evicting", "releasing", "resetting", "checking", "checking", "probation",
        "healthy",
    ]  # fmt: skip


@pytest.mark.parametrize("state", ["healthy", "suspect", "probation"])
def test_only_an_unhealthy_gpu_is_quarantined(state: str) -> None:
    assert step(None, Look(health=Health(state=state)), AT, RULES) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("which", ["quarantined", "evicting", "releasing", "requested", "failed"])
def test_a_gpu_that_recovers_by_itself_is_left_alone(which: Step) -> None:
    assert after(record(which), Look(health=Health()))[0] == ""
    assert after(record(which), Look(health=CURED))[0] == "probation"
    assert after(record("probation"), Look(health=RESET))[0] == "quarantined"


def test_a_reset_that_runs_is_not_given_up() -> None:
    assert after(record("resetting"), Look(health=Health()))[0] == "resetting"


@pytest.mark.parametrize(
    ("level", "ends"),
    [
        ("quarantine", ["quarantined"]),
        ("evict", ["quarantined", "evicting", "requested reset"]),
        ("reset", ["quarantined", "evicting", "releasing", "resetting", "checking", "probation"]),
    ],
)
def test_a_level_goes_so_far(level: str, ends: list[str]) -> None:
    lines = machine.plan(RESET, ("GPU-0",), "", Rules(level=level))
    words = {"reset the GPU": "requested reset"}
    assert [
        words[line.partition("act: ")[2].partition(" (")[0]]
        if "act: " in line else line.partition(":")[0]
        for line in lines
    ] == ends  # fmt: skip


@pytest.mark.parametrize("level", LEVELS[1:])
def test_what_no_reset_helps_is_requested_once_its_pods_have_gone(level: str) -> None:
    assert after(record("evicting"), Look(health=LOST, users=()), level=level) == (
        "requested", "the GPU is lost", "reboot"
    )  # fmt: skip


def test_the_healing_waits_for_the_brake_and_says_so() -> None:
    look = Look(health=RESET, wait="2 nodes heal already")
    assert after(record("quarantined"), look, 31) == ("quarantined", "2 nodes heal already", "")
    assert (
        after(record("quarantined"), Look(health=RESET, gpus=("GPU-0",)), 29)[0] == "quarantined"
    )
    assert after(record("quarantined"), Look(health=RESET), 31)[0] == "quarantined"  # not asked


def test_pods_have_a_time_to_go() -> None:
    look = Look(health=RESET, users=("pod default/train has GPU-0", "pod a/b has GPU-0"))
    users = "pod default/train has GPU-0; pod a/b has GPU-0"
    assert after(record("evicting"), look, 1799) == ("evicting", users, "")
    assert after(record("evicting"), look, 1800) == (
        "failed", f"pods have not ended within 1800 s: {users}", ""
    )  # fmt: skip
    away = Look(health=RESET, unknown="the kubelet does not answer")
    assert after(record("evicting"), away, 1799) == ("evicting", away.unknown, "")
    assert after(record("evicting"), away, 1800)[0] == "failed"


def test_a_reset_that_is_refused_is_requested() -> None:
    before = record("evicting", refusal="it is in MIG mode")
    assert after(before, Look(health=RESET, users=())) == (
        "requested", f"{XID}; it is in MIG mode", "reset"
    )  # fmt: skip


def test_holders_have_a_time_to_go_and_are_named() -> None:
    held = Look(health=RESET, holders=("process 7 (cuda) holds GPU 0",))
    assert after(record("releasing"), held, 59)[0] == "releasing"
    assert after(record("releasing"), held, 60) == (
        "failed", "the GPU is in use: process 7 (cuda) holds GPU 0", ""
    )  # fmt: skip
    assert after(record("releasing"), Look(health=RESET, holders=()), 4)[0] == "releasing"
    assert after(record("releasing"), Look(health=RESET), 59)[0] == "releasing"  # not known
    assert after(record("releasing"), Look(health=RESET), 60) == (
        "requested", f"{XID}; it is not known which processes have it open", "reboot"
    )  # fmt: skip
    away = Look(health=RESET, unknown="NVML's worker is away")
    assert after(record("releasing"), away, 59) == ("releasing", away.unknown, "")
    assert after(record("releasing"), away, 60) == ("failed", away.unknown, "")
    came = Look(health=RESET, outcome="a GPU is in use", holders=held.holders)
    assert after(record("resetting"), came)[0] == "failed"


def test_a_reset_that_fails_or_does_not_help_asks_for_a_reboot() -> None:
    failed = Look(health=RESET, outcome="nvidia-smi -r failed")
    assert after(record("resetting"), failed) == (
        "requested", f"{XID}; no reset: nvidia-smi -r failed", "reboot"
    )  # fmt: skip
    assert after(record("checking"), Look(health=RESET), 119)[0] == "checking"
    assert after(record("checking"), Look(health=RESET), 120) == (
        "requested", f"{XID}; the reset has not helped", "reboot"
    )  # fmt: skip


def test_a_request_grows_and_never_shrinks() -> None:
    worn = Health(state="unhealthy", action="replace", reason="no row is left")
    asked = record("requested", action="reboot", reason="no reset helps")
    assert after(asked, Look(health=RESET))[2] == "reboot"
    assert after(asked, Look(health=worn)) == ("requested", "no row is left", "replace")


def test_what_has_failed_begins_again() -> None:
    assert after(record("failed"), Look(health=RESET), 599)[0] == "failed"
    assert after(record("failed"), Look(health=RESET), 600)[0] == "quarantined"


@pytest.mark.parametrize("which", machine.STEPS)
def test_killed_at_any_step_the_next_process_goes_on_or_goes_back(which: Step) -> None:
    before = record(which, reason="why", gpus=("GPU-0", "GPU-1"))
    found = resumed(before, AT + 50, RULES)
    if which in ("evicting", "releasing", "resetting"):
        assert (found.step, found.gpus) == ("quarantined", ())
        assert after(found, Look(health=RESET, gpus=("GPU-0",)), 50)[0] == "evicting"
    else:
        assert found == before


@pytest.mark.parametrize("since", [AT + 1e9, float("inf"), float("nan")])
def test_a_file_that_names_a_time_to_come_stops_nothing(since: float) -> None:
    found = resumed(Record(step="checking", since=since), AT, RULES)
    assert after(found, Look(health=RESET), 120)[0] == "requested"


VOLTA, AMPERE = (7, 0), (8, 0)
PAIRS = [("GPU-0", "GPU-1"), ("GPU-1", "GPU-2"), ("GPU-3", "GPU-4")]
LINKS = [GpuLink(gpus=pair, ancestor=0, nvlinks=2) for pair in PAIRS] + [
    GpuLink(gpus=("GPU-2", "GPU-3"), ancestor=0, nvlinks=0)
]


@pytest.mark.parametrize(
    ("uuid", "compute", "group", "refusal"),
    [
        ("GPU-0", VOLTA, ("GPU-0", "GPU-1", "GPU-2"), ""),
        ("GPU-4", VOLTA, ("GPU-3", "GPU-4"), ""),
        ("GPU-5", VOLTA, ("GPU-5",), ""),
        ("GPU-0", AMPERE, ("GPU-0",), ""),
        ("GPU-0", (9, 0), ("GPU-0",), ""),
        ("GPU-0", (0, 0), ("GPU-0",), "it is not known which GPUs have to be reset together"),
    ],
)
def test_gpus_before_ampere_are_reset_with_those_that_nvlinks_connect(
    uuid: str, compute: tuple[int, int], group: tuple[str, ...], refusal: str
) -> None:
    gpu = NvmlGpu(index=0, minor=0, uuid=uuid, bus_id="", name="")
    assert reset_together(gpu, compute, LINKS, groups=True) == (group, refusal)
    if len(group) > 1:
        alone, refusal = reset_together(gpu, compute, LINKS, groups=False)
        assert alone == (uuid,)
        assert refusal == f"{len(group)} GPUs have to be reset together, which is switched off"
    unknown = "it is not known which GPUs have to be reset together"
    on_switches = replace(gpu, name="Tesla V100-SXM3-32GB")
    if compute < AMPERE:
        assert reset_together(on_switches, compute, (), groups=True) == ((uuid,), unknown)
    in_mig = replace(gpu, mig_enabled=True)
    assert reset_together(in_mig, compute, LINKS, groups=True)[1].startswith("it is in MIG mode")
