# SPDX-License-Identifier: Apache-2.0
"""A bare word that a CDI specification defines is a device, in every mode."""

from __future__ import annotations

import json

import pytest

from tests.support.explained import explained
from tests.support.shim_lab import Lab

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICES = {"gpu0": {"env": ["GPU=0"]}, "gpu1": {"env": ["GPU=1"]}, "0": {"env": ["GPU=index"]},
           "mig0:0": {"env": ["MIG=1"]}, "my.gpu_x-1": {"env": ["X=1"]}}  # fmt: skip


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    made.driver(gpus=2)
    made.spec(devices=DEVICES)
    yield made
    made.remove()


def asked(lab: Lab, value: str, program: str = "nvidia-container-runtime") -> str:
    """Return what a container gets, or the error."""
    lab.asks(f"NVIDIA_VISIBLE_DEVICES={value}")
    said = lab.create(program=program)
    return " ".join(lab.container_env()[1:]) if said.status == 0 else said.stderr


@pytest.mark.parametrize("mode", ["auto", "cdi", "legacy", "jit-cdi"])
def test_a_name_of_a_spec_is_a_device(mode: str, lab: Lab) -> None:
    lab.configure(mode=mode)

    assert asked(lab, "gpu0") == "COMMON=1 GPU=0"
    assert asked(lab, "mig0:0,my.gpu_x-1") == "COMMON=1 MIG=1 X=1"
    assert asked(lab, "gpu1,0") == "COMMON=1 GPU=index"
    for word in (
        "GPU0",
        "gpu2",
        "gpu",
        "gpu0-",
        "../gpu0",
        "gpu0 gpu1",
        "runtime.nvidia.com/gpu=gpu0",
    ):
        assert "names no device" in asked(lab, word), word
    assert "names no device" in asked(lab, "gpu0,gpu9")
    assert "names no device" in asked(lab, "none,gpu9")
    assert "GPU=" not in asked(lab, "none,gpu0")
    assert "mixes the CDI name" in asked(lab, "gpu0,nvidia.com/gpu=gpu1") or mode == "cdi"


def test_words_of_the_driver_are_no_names_of_a_spec(lab: Lab) -> None:
    """In mode auto an index is this host's, as ever, whatever the spec calls 0."""
    assert "GPU=index" not in asked(lab, "0")
    lab.configure(mode="cdi")
    assert asked(lab, "0") == "COMMON=1 GPU=index"


@pytest.mark.parametrize(
    "program", ["nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy"]
)
def test_the_programs_name_chooses_the_mode(program: str, lab: Lab) -> None:
    assert asked(lab, "gpu1", program) == "COMMON=1 GPU=1"


def test_the_default_kind_is_whose_names_count(lab: Lab) -> None:
    lab.spec("other.json", kind="acme.com/card", devices={"left": {"env": ["CARD=left"]}})
    lab.keys["nvidia-container-runtime.modes.cdi"]["default-kind"] = "acme.com/card"
    lab.configure()

    assert asked(lab, "left") == "COMMON=1 CARD=left"
    assert "names no device" in asked(lab, "gpu0")


def test_mounts_name_devices_of_a_spec(lab: Lab) -> None:
    lab.configure(
        "accept-nvidia-visible-devices-as-volume-mounts = true\n"
        + lab.config_toml.read_text(encoding="utf-8")
    )
    place = "/var/run/nvidia-container-devices/gpu1"
    lab.asks(mounts=[{"source": "/dev/null", "destination": place}])

    assert lab.create().status == 0
    assert "GPU=1" in lab.document()["process"]["env"]


def test_without_a_spec_the_sentence_is_as_ever(lab: Lab) -> None:
    (lab.home / "cdi/gpu.json").unlink()
    assert "names no device; use all, none, void" in asked(lab, "gpu0")
    (lab.home / "cdi/gpu.json").write_text("{", encoding="utf-8")
    assert "names no device; use all, none, void" in asked(lab, "gpu0")


def test_a_name_that_two_files_define_is_told_as_that(lab: Lab) -> None:
    lab.spec("again.json", devices={"gpu0": {"env": ["GPU=another"]}})

    assert "is defined by" in asked(lab, "gpu0")


def test_it_is_explained(lab: Lab) -> None:
    told = explained(lab, "--env", "NVIDIA_VISIBLE_DEVICES=gpu0")

    assert told["outcome"] == "GPU"
    assert told["devices"] == [
        {"name": "nvidia.com/gpu=gpu0", "spec": str(lab.home / "cdi/gpu.json")}
    ]
    assert "GPU=0" in told["inject"]["env"]


@pytest.mark.parametrize("name", ["nvidia.com/gpu=gpu0", "nvidia.com/*"])
def test_a_policy_knows_it_by_its_full_name(name: str, lab: Lab) -> None:
    lab.keys["nvct.policy"] = {"default": "allow"}
    lab.keys["[nvct.policy.rules]"] = {"devices": [name], "then": "deny"}
    lab.configure()

    assert "denies NVIDIA_VISIBLE_DEVICES='gpu0'" in asked(lab, "gpu0")


def test_a_policy_knows_its_node(lab: Lab) -> None:
    node = {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1}
    lab.spec(devices={"gpu1": {"deviceNodes": [node]}})
    lab.keys["nvct.policy"] = {"default": "allow"}
    lab.keys["[nvct.policy.rules]"] = {"devices": ["nvidia.com/gpu=1"], "then": "deny"}
    lab.configure()

    assert "denies NVIDIA_VISIBLE_DEVICES='gpu1'" in asked(lab, "gpu1")


def test_extras_come_with_it(lab: Lab) -> None:
    lab.asks("NVIDIA_VISIBLE_DEVICES=gpu0", "NVIDIA_GDS=enabled")

    assert "NVIDIA_GDS=enabled" in lab.create().stderr  # this host has none
    assert json.loads(lab.config_json.read_text(encoding="utf-8"))["process"]["env"]
