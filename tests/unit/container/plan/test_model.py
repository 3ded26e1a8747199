# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, cast

import pytest

from nvct import paths
from nvct.container.plan import model
from nvct.container.plan.model import no_edits
from nvct.errors import CdiSpecError, StaleSpecError, UnknownDeviceError, line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Edits, Plan

BROKEN: Any = ["text", "/no/such/file", "x"]


def edits(mark: str) -> Edits:
    return {**no_edits(), "env": [mark]}


def spec(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "facts": [], "edits": edits(f"common of {path}"), "refuse": ""} | more


def device(at: int, edits: int, **more: Any) -> dict[str, Any]:
    return {"spec": at, "edits": edits, "facts": [], "refuse": ""} | more


def plan(**more: Any) -> Plan:
    document = {
        "nvct-plan": model.FORMAT,
        "facts": [],
        "specs": [spec("/a"), spec("/b")],
        "edits": [edits("zero"), edits("one"), edits("two")],
        "devices": {
            "x.org/gpu=0": device(0, 0),
            "x.org/gpu=GPU-aaaaaaaa": device(0, 0),
            "x.org/gpu=1": device(0, 1),
            "y.org/nic=0": device(1, 2),
        },
        "kinds": ["x.org/gpu", "y.org/nic"],
        "problems": [],
    }
    return cast("Plan", document | more)


def marks(selected: list[Edits]) -> list[str]:
    return [edit["env"][0] for edit in selected]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["x.org/gpu=1", "y.org/nic=0", "x.org/gpu=0"],
         ["common of /a", "one", "common of /b", "two", "zero"]),
        (["x.org/gpu=0", "x.org/gpu=GPU-aaaaaaaa", "x.org/gpu=0"], ["common of /a", "zero"]),
        ([], []),
    ],
    ids=["three devices", "two names of one device", "no names"],
)  # fmt: skip
def test_common_edits_come_first_and_once(names: list[str], expected: list[str]) -> None:
    assert marks(model.collect(plan(), names)) == expected


@pytest.mark.parametrize(
    ("name", "problems", "message"),
    [
        ("x.org/gpu=9", [], "^x.org/gpu has no device '9'; it has 0, 1$"),
        ("z.org/gpu=0", [], "^no CDI spec defines 'z.org/gpu=0'$"),
        ("z.org/gpu=0", ["/etc/cdi/z.json is broken"], r"\(/etc/cdi/z.json is broken\)$"),
    ],
)
def test_an_unknown_name_is_refused_with_the_devices_or_the_first_problem(
    name: str, problems: list[str], message: str
) -> None:
    with pytest.raises(UnknownDeviceError, match=message):
        model.collect(plan(problems=problems), ["x.org/gpu=0", name])


def test_a_refusal_fits_into_one_line_however_long_the_name() -> None:
    many = {f"x.org/gpu={'long' * 9}{i}": device(0, 0) for i in range(100)}
    for name in ("x.org/gpu=" + "9" * 500, "x.org/gpu=\n\x1b[2J"):
        with pytest.raises(UnknownDeviceError) as caught:
            model.collect(plan(devices=many), [name])
        shown = line("nvidia-container-runtime", caught.value)
        assert len(shown) <= 200
        assert shown.isprintable()
        assert shown.endswith("; nvidia-ctk cdi list shows all [unknown-device]")


@pytest.mark.parametrize("holder", ["spec", "device"])
def test_a_stale_spec_is_refused_with_the_reason_but_a_broken_fingerprint_before_it(
    holder: str,
) -> None:
    document = plan()
    holding: Any = document["specs"][0]
    if holder == "device":
        holding = document["devices"]["x.org/gpu=0"]
    holding["refuse"] = "it is for driver 1, but 2 is loaded"
    with pytest.raises(StaleSpecError) as caught:
        model.collect(document, ["x.org/gpu=0"])
    assert caught.value.message == "x.org/gpu=0 of /a: it is for driver 1, but 2 is loaded"
    holding["facts"] = [BROKEN]
    with pytest.raises(model.StalePlanError):
        model.collect(document, ["x.org/gpu=0"])
    assert marks(model.collect(document, ["y.org/nic=0"])) == ["common of /b", "two"]


def test_common_edits_are_those_of_the_kinds_first_spec_and_checked_as_a_devices_are() -> None:
    assert marks(model.common(plan(), "y.org/nic")) == ["common of /b"]
    with pytest.raises(CdiSpecError, match=r"^no CDI spec of kind z.org/gpu$"):
        model.common(plan(), "z.org/gpu")
    document = plan(specs=[spec("/a", refuse="gone")])
    with pytest.raises(StaleSpecError, match=r"^x.org/gpu of /a: gone$"):
        model.common(document, "x.org/gpu")
    document["specs"][0]["facts"] = [BROKEN]
    with pytest.raises(model.StalePlanError):
        model.common(document, "x.org/gpu")


@pytest.mark.parametrize(
    "document",
    [
        None, [], "plan", {}, {"nvct-plan": 1}, {"nvct-plan": 1, "facts": None},
        {"nvct-plan": 1, "facts": {}}, {"nvct-plan": 0, "facts": []}, {"nvct-plan": "1", "facts": []},
        {"facts": []}, {"nvct-plan": 1, "facts": [[]]}, {"nvct-plan": 1, "facts": [None]},
        {"nvct-plan": 1, "facts": [BROKEN]}, {"nvct-plan": 1, "facts": [["new-kind", "/", None]]},
    ],
)  # fmt: skip
def test_a_damaged_or_stale_plan_is_not_current(document: object) -> None:
    assert model.is_current(document) is False


def test_a_plan_with_matching_fingerprints_and_view_is_current() -> None:
    assert model.is_current(plan(facts=[["absent", "/no/such/file", None]]))
    assert model.is_current(plan(farm=farm()))
    assert not model.is_current(plan(farm=farm(facts=[BROKEN])))


def farm(**more: Any) -> Any:
    return {"view": "/farm", "facts": [], **more}


def parted() -> Plan:
    with_parts = spec("/a")
    with_parts["edits"]["parts"] = {"compute": edits("compute"), "compat32": edits("32")}
    return plan(specs=[with_parts, spec("/b")], farm=farm())


def test_a_view_comes_with_the_edits_that_it_can_replace() -> None:
    selected = model.collect(parted(), ["x.org/gpu=0"], ["compute"])

    (mark,) = [edit for edit in selected if "farm" in edit]
    assert {**mark, "farm": None} == {**model.no_edits(), "farm": None}
    assert mark["farm"]["table"] == farm()
    assert mark["farm"]["capabilities"] == ["compute"]
    assert marks(mark["farm"]["common"]) == ["common of /a", "compute"]
    assert all(any(edit is other for other in selected) for edit in mark["farm"]["common"])


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("its hook /h is missing", "nvct launchers install puts the hook in place"),
        ("/lib/libcuda.so.1 is gone", "is the driver being installed? try again"),
    ],
)
def test_a_problem_of_our_own_spec_has_a_helpful_hint(reason: str, hint: str) -> None:
    document = plan(specs=[spec(f"/run/x/{paths.OWN_SPEC}", refuse=reason), spec("/b")])

    with pytest.raises(StaleSpecError, match=reason) as caught:
        model.collect(document, ["x.org/gpu=0"])

    assert caught.value.hint == hint


def worked(**work: Any) -> Plan:
    """Return a plan with work in its common edits and in the part of a capability."""
    common = spec("/a")
    common["edits"]["work"] = model.no_work() | {"folders": ["/lib"], "links": [["a", "/lib/b"]]}
    common["edits"]["work"] |= work
    part = edits("compute")
    part["work"] = {**model.no_work(), "folders": ["/lib", "/lib64"], "links": [["a", "/lib/b"]]}
    common["edits"]["parts"] = {"compute": part}
    return plan(specs=[common, spec("/b")], hook=PROGRAM)


PROGRAM = {"path": "/h", "args": ["h", "apply"], "env": ["A=B"]}
COMPAT = {"driver": "580.65.06", "folder": "/compat"}


def hooks(selected: list[Edits]) -> list[Any]:
    return [edit["hook"] for edit in selected if "hook" in edit]


def test_the_work_of_all_parts_is_in_one_hook() -> None:
    selected = model.collect(worked(params=True), ["x.org/gpu=0"], ["compute"])

    (hook,) = hooks(selected)
    assert hook["program"] == PROGRAM
    assert hook["work"] == {
        "links": [["a", "/lib/b"]], "folders": ["/lib", "/lib64"], "compat": {},
        "params": True, "profile": False,
    }  # fmt: skip


def test_without_compat_neither_the_hook_nor_the_view_chooses() -> None:
    document = worked(compat=COMPAT)
    document["farm"] = farm()

    with_compat = model.collect(document, ["x.org/gpu=0"])
    without = model.collect(document, ["x.org/gpu=0"], compat=False)

    for selected, expected in ((with_compat, COMPAT), (without, {})):
        (mark,) = [edit["farm"] for edit in selected if "farm" in edit]
        for hook in (*hooks(selected), *hooks(mark["common"])):
            assert hook["work"]["compat"] == expected
    assert hooks(model.common(document, "x.org/gpu", compat=False))[0]["work"]["compat"] == {}
    assert document["specs"][0]["edits"]["work"]["compat"] == COMPAT  # a plan is not changed


def test_without_compat_a_hook_without_other_work_is_left_out() -> None:
    document = worked(compat=COMPAT, folders=[], links=[])

    assert hooks(model.collect(document, ["x.org/gpu=0"], [], compat=False)) == []
