# SPDX-License-Identifier: Apache-2.0
"""What is known of a container whose config.json the shim has rewritten, and what is not."""

import json
from typing import Any

import pytest

from nvct.cli import explain_container
from nvct.config import load
from nvct.config.model import Config
from nvct.doctor import decisions, reconstruction
from nvct.doctor.reconstruction import Evidence
from nvct.engine.engine_files import Creation
from nvct.oci.bundle import Bundle
from nvct.oci.bundle import load as load_bundle
from tests.support.shim_lab import Lab

VISIBLE = "NVIDIA_VISIBLE_DEVICES="
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES="
RULES = """
[[nvct.policy.rules]]
name = "no everything"
then = "deny"
asks-for = ["all"]
[[nvct.policy.rules]]
name = "others"
then = "allow"
"""


pytestmark = pytest.mark.usefixtures("driver")


def creation(lab: Lab, started_s: float | None = None, **engine: Any) -> dict[str, Any]:
    """Return what is put together for the lab's container."""
    log = decisions.look([str(lab.run_dir)], decisions.Filter())
    evidence = Evidence(
        creation=Creation(**engine),
        bundle=load_bundle(str(lab.config_json)),
        records=[one for one in log.records if one["bundle"] == str(lab.bundle)],
        log=log,
        started_s=started_s,
    )
    return reconstruction.reconstructed(evidence, load.load(str(lab.config_toml)), lab.env)


def test_a_created_container(lab: Lab) -> None:
    lab.asks(VISIBLE + "1", CAPABILITIES + "utility", "SECRET=x")
    assert lab.create().status == 0
    assert VISIBLE + "void" in lab.container_env()

    told = creation(lab, env=[VISIBLE + "1", CAPABILITIES + "utility"], image_env=[VISIBLE + "1"])

    assert told["asked"] == [
        {"text": "NVIDIA_VISIBLE_DEVICES asks for 1", "by": "the image"},
        {"text": CAPABILITIES + "utility", "by": "the user"},
    ]
    assert told["policy"] == ["no rules"]
    assert told["resolved"][:2] == ["mode jit-cdi", "driver capabilities utility"]
    assert told["went in"][1].endswith("/dev/nvidia1")
    assert {one["capability"] for one in told["left out"]} >= {"compute", "graphics"}
    assert told["unknown"] == []
    assert "SECRET" not in json.dumps(told)


def test_the_rules_of_the_policy_are_told_one_by_one(lab: Lab) -> None:
    lab.configure(lab.config_toml.read_text(encoding="utf-8") + RULES)
    lab.asks(VISIBLE + "0")
    assert lab.create().status == 0

    first, second = creation(lab)["policy"]

    assert first.startswith("'no everything' (deny) does not hold: asks-for: ")
    assert second == "'others' (allow) decides: it has no conditions"


def test_a_refused_container(lab: Lab) -> None:
    lab.configure(lab.config_toml.read_text(encoding="utf-8") + RULES)
    lab.asks(VISIBLE + "all")
    assert lab.create().status != 0

    told = creation(lab)

    assert told["policy"] == ["'no everything' (deny) decides: asks-for: all"]
    assert told["left out"] == []


def test_after_another_driver_what_was_left_out_is_uncertain(lab: Lab) -> None:
    lab.asks(VISIBLE + "1", CAPABILITIES + "utility")
    assert lab.create().status == 0
    plan = lab.kept("own.plan")
    lab.keep("own.plan", {**plan, "made": 1})

    told = creation(lab)

    assert told["left out"]
    (unknown,) = told["unknown"]
    assert unknown.startswith("what was left out is from the current plan, for driver 580")
    (lab.run_dir / "own.plan").unlink()
    assert "no other plan fits" in creation(lab)["unknown"][0]


def test_a_record_that_newer_ones_have_replaced(lab: Lab) -> None:
    lab.asks(VISIBLE + "1")
    assert lab.create().status == 0
    text = (lab.run_dir / "decisions.jsonl").read_text(encoding="utf-8")
    other = text.replace(str(lab.bundle), "/other")
    (lab.run_dir / "decisions.old.jsonl").write_text(other, encoding="utf-8")
    (lab.run_dir / "decisions.jsonl").write_text(other, encoding="utf-8")

    request, record = creation(lab, started_s=1e9)["unknown"]

    assert request.endswith("NVIDIA_VISIBLE_DEVICES=void replaced the request in its config.json")
    assert "before the oldest record: newer" in record


@pytest.mark.parametrize(
    ("env", "words", "text"),
    [
        (["A=1"], (), "none of 0 records is about it: it asked for no GPU"),
        (["A=1"], ("--device nvidia.com/gpu=2",), "its engine gave it the device by CDI"),
        ([VISIBLE + "void"], (), "its config.json was changed for a GPU"),
    ],
)
def test_a_container_without_a_record(
    env: list[str], words: tuple[str, ...], text: str, lab: Lab
) -> None:
    lab.asks(*env)
    unknown = creation(lab, started_s=1e9, env=[], words=words)["unknown"]
    assert text in unknown[-1]


def test_variables_of_a_specification_were_not_asked() -> None:
    document = {"process": {"env": ["NVIDIA_CTK_LIBCUDA_DIR=/x", "NVIDIA_GDS=enabled"]}}
    evidence = Evidence(
        creation=Creation(),
        bundle=Bundle("config.json", json.dumps(document)),
        records=[],
        log=decisions.Log(records=[], rings=[]),
    )
    told = reconstruction.reconstructed(evidence, Config(), {"NVCT_RUN_DIR": "/nowhere"})
    assert told["asked"] == [{"text": "NVIDIA_GDS=enabled", "by": ""}]


def test_texts_of_an_attacker_stay_in_their_line() -> None:
    evil = "\x1b[2J\n\u202e\udc80" + "x" * 5000
    told = {
        "name": evil, "id": "ab", "pid": 0, "uses": [], "decisions": [], "nodes": [], "problem": "",
        "creation": {
            "image": evil, "engine": evil, "asked": [{"text": evil, "by": evil}], "privileged": True,
            "policy": [evil], "resolved": [evil], "went in": [evil], "took": evil, "steps": evil,
            "left out": [{"capability": evil, "paths": 1, "why": evil}], "unknown": [evil],
        },
    }  # fmt: skip

    lines = [*explain_container.lines([told])]
    assert len(lines) == 10
    assert all(line.isprintable() and len(line) < 1300 for line in lines)
