# SPDX-License-Identifier: Apache-2.0
"""What is explained is what the shim then does, and explaining changes nothing."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from nvct.compile import plans as compiler
from tests.support import explained as case
from tests.support.explained import VISIBLE, explained, farm_of, glibc_root
from tests.support.shim_lab import Lab

CASES = [
    case.gpu, case.all_gpus_of_a_spec, case.nothing, case.hook_of_the_incumbent, case.no_driver, case.typo, case.unknown,
    case.requirement, case.capabilities, case.bad_configuration, case.bad_configuration_that_nobody_needs, case.bad_rule,
    case.allowed, case.denied, case.ignored, case.ignored_on_a_host_without_a_driver, case.from_the_plugin,
]  # fmt: skip


WARM = [
    case.gpu,
    case.all_gpus_of_a_spec,
    case.denied,
]  # plans and configuration are compiled by then


@pytest.mark.parametrize(
    ("prepare", "is_warm"), [*((one, False) for one in CASES), *((one, True) for one in WARM)]
)
def test_the_shim_does_what_was_explained(
    prepare: Callable[[Lab], None], *, is_warm: bool, lab: Lab
) -> None:
    prepare(lab)
    before = lab.document()
    if is_warm:
        lab.create()
        lab.config_json.write_text(json.dumps(before), encoding="utf-8")

    told = explained(lab)
    assert lab.document() == before
    done = lab.create()

    if told["error"]:
        assert done.status == 1
        assert done.stderr == told["error"]["line"] + "\n"
        assert told["outcome"] == "refused"
        assert lab.document() == before
        return
    assert done.status == 0, done.stderr
    assert told["outcome"] == ("GPU" if told["request"] else "untouched")
    assert told["inject"] == difference(before, lab.document())


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the members that a create added, found without the code that explains."""

    def added(old: list[Any], new: list[Any]) -> list[Any]:
        return [one for one in new if one not in old]

    old, new = before["linux"], after["linux"]
    hooks = before.get("hooks", {}), after.get("hooks", {})
    user = before["process"]["user"], after["process"]["user"]
    return {
        "env": added(before["process"]["env"], after["process"]["env"]),
        "nodes": added(old.get("devices", []), new.get("devices", [])),
        "rules": added(old["resources"]["devices"], new["resources"]["devices"]),
        "mounts": added(before["mounts"], after["mounts"]),
        "hooks": [
            {"point": point, **hook}
            for point in hooks[1]
            for hook in added(hooks[0].get(point, []), hooks[1][point])
        ],
        "gids": added(user[0].get("additionalGids", []), user[1].get("additionalGids", [])),
        "removed hooks": added(hooks[1].get("prestart", []), hooks[0].get("prestart", [])),
    }


def test_nothing_is_written_anywhere(lab: Lab) -> None:
    case.gpu(lab)

    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in lab.home.rglob("*") if path.is_file()}

    before = files()

    assert explained(lab)["outcome"] == "GPU"
    assert files() == before
    assert lab.run_dir.exists()


def test_a_plan_of_young_files_stays_as_it_is(lab: Lab) -> None:
    case.gpu(lab)
    lab.config_toml.touch()
    lab.create()
    lab.age(lab.config_toml)
    lab.asks(VISIBLE + "0")
    plan = lab.run_dir / "own.plan"
    before = plan.stat().st_ino, plan.read_bytes()

    assert explained(lab)["outcome"] == "GPU"
    assert (plan.stat().st_ino, plan.read_bytes()) == before

    lab.create()
    assert plan.read_bytes() != before[1]


def test_the_layout_is_chosen_as_the_shim_does_and_the_root_is_left_alone(lab: Lab) -> None:
    farm_of(lab)
    before = lab.document()
    lab.create()
    root = glibc_root(lab)
    lab.config_json.write_text(json.dumps(before), encoding="utf-8")

    told = explained(lab)

    assert sorted((lab.bundle / "rootfs").rglob("*")) == root
    assert any(note.startswith("layout farm at /usr/local/nvidia") for note in told["notes"])
    lab.create()
    assert told["inject"] == difference(before, lab.document())


def test_no_view_of_the_driver_is_made_for_an_explanation(lab: Lab) -> None:
    farm_of(lab)

    told = explained(lab)

    assert told["notes"] == [
        "without a hook",
        "shown is layout classic: the first create makes a plan and the driver's view",
    ]
    assert told["inject"]["nodes"]
    assert not (lab.home / "farm").exists()


def test_the_layout_of_a_request_without_a_root_is_left_open(lab: Lab) -> None:
    farm_of(lab)
    lab.create()

    told = explained(lab, "--env", VISIBLE + "0")

    note = "shown is layout classic: whether it is farm depends on the container's root"
    assert told["notes"] == [note]


def test_a_plan_that_holds_is_read_and_not_made_again(lab: Lab) -> None:
    case.gpu(lab)
    lab.create()
    lab.asks(VISIBLE + "0")
    lab.cold = "/nonexistent"
    document = lab.kept("own.plan")
    document["specs"][0]["path"] = "/marked"
    lab.keep("own.plan", document)

    assert explained(lab)["devices"] == [{"name": "nvidia.com/gpu=0", "spec": "/marked"}]


@pytest.mark.parametrize(("word", "is_met"), [("0", True), ("1", False), ("all", False)])
def test_brand_and_architecture_are_shown_where_they_decide(
    word: str, *, is_met: bool, lab: Lab
) -> None:
    lab.driver()
    gpus = {"0": {"brand": "Tesla", "arch": "9.0"}, "1": {"brand": "Titan", "arch": "7.0"}}
    known = {**compiler.empty(str(lab.config_toml)), "gpus": gpus}
    lab.keep("properties.plan", known)
    lab.asks(VISIBLE + word, "NVIDIA_REQUIRE_CUDA=cuda>=99 brand=tesla,driver>=580")

    told = explained(lab)

    (requirement,) = told["requirements"]
    assert requirement["holds"] is is_met
    wanted = gpus.values() if word == "all" else [gpus[word]]
    assert [{"brand": one["brand"], "arch": one["arch"]} for one in requirement["host"]] == [
        *wanted
    ]
    assert (told["error"] is None) is is_met


def test_each_step_is_measured_and_the_recorded_decision_is_beside_it(lab: Lab) -> None:
    case.gpu(lab)
    document = lab.document()

    cold = explained(lab)

    steps = ["config.toml", "request and policy", "plan own", "devices and files", "edits"]
    assert [one["step"] for one in cold["steps"]] == steps
    assert all(one["ms"] >= 0 for one in cold["steps"])
    assert [one["step"] for one in cold["steps"] if one["how"] == "compiled"] == ["plan own"]
    assert cold["recorded"] is None

    lab.create()
    lab.config_json.write_text(json.dumps(document), encoding="utf-8")
    warm = explained(lab)

    assert [one["how"] for one in warm["steps"] if one["step"] == "plan own"] == ["read"]
    assert warm["recorded"]["outcome"] == "given"
    said = " ".join(case.run(lab, "--bundle", lab.bundle).stdout.split())
    assert re.search(
        r"took config.toml [\d.]+ ms; .*plan own read [\d.]+ ms; .*edits [\d.]+ ms", said
    )
    assert f"when it was created: {warm['recorded']['took']} in all" in said


@pytest.mark.parametrize(
    ("prepare", "steps"),
    [
        (case.nothing, ["config.toml", "request and policy", "edits"]),
        (case.denied, ["config.toml", "plan own", "request and policy"]),
    ],
)
def test_the_steps_are_those_that_the_request_takes(
    prepare: Callable[[Lab], None], steps: list[str], lab: Lab
) -> None:
    prepare(lab)

    assert [one["step"] for one in explained(lab)["steps"]] == steps


def test_capabilities_that_are_left_out_are_named_with_the_reason(lab: Lab) -> None:
    case.capabilities(lab)  # utility
    everything = "graphics", "compute", "video"
    told = explained(lab)["left out"]

    found = {one["capability"]: one["why"] for one in told}

    assert set(everything) <= set(found)
    assert set(found.values()) == {"NVIDIA_DRIVER_CAPABILITIES does not ask for it"}
    assert "utility" not in found
    assert all(one["paths"] > 0 for one in told)
    said = " ".join(case.run(lab, "--bundle", lab.bundle).stdout.split())
    assert re.search(r"left out compute \(\d+ paths?\): NVIDIA_DRIVER_CAPABILITIES", said)


def test_what_config_toml_forbids_is_left_out_of_all(lab: Lab) -> None:
    lab.driver()
    lab.configure(f'supported-driver-capabilities = "utility"\n{lab.config_toml.read_text()}')
    lab.age(lab.config_toml)
    lab.asks(VISIBLE + "all", "NVIDIA_DRIVER_CAPABILITIES=all")

    told = explained(lab)["left out"]

    reasons = {one["why"] for one in told}
    assert reasons == {"supported-driver-capabilities of config.toml does not allow it"}


def test_what_a_driver_without_libcuda_cannot_do_is_said(lab: Lab) -> None:
    case.gpu(lab)
    notes = explained(lab)["notes"]
    for path in lab.home.rglob("libcuda.so*"):
        path.unlink()

    lacking = [one for one in explained(lab)["notes"] if one not in notes]

    assert [one for one in lacking if one.endswith("CUDA will not start in containers")], lacking


def test_that_explain_does_not_ask_nvml_is_no_fault_of_the_host(lab: Lab) -> None:
    lab.driver()
    lab.asks(VISIBLE + "1")
    instance = lab.home / "proc/driver/nvidia/capabilities/gpu0/mig/gi7"
    instance.mkdir(parents=True)
    (instance / "access").write_text("DeviceFileMinor: 66\n")

    told = explained(lab)

    assert told["outcome"] == "GPU", told["error"]
    assert [note for note in told["notes"] if "NVML" in note] == []
