# SPDX-License-Identifier: Apache-2.0
"""A bare word that a CDI specification defines is a device, in every mode."""

import pytest

from tests.support.shim_lab import Lab

DEVICES = {"gpu0": {"env": ["GPU=0"]}, "gpu1": {"env": ["GPU=1"]}, "0": {"env": ["GPU=index"]},
           "mig0:0": {"env": ["MIG=1"]}, "my.gpu_x-1": {"env": ["X=1"]}}  # fmt: skip


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.driver(gpus=2)
    lab.spec(devices=DEVICES)
    return lab


def message(lab: Lab, value: str, program: str = "nvidia-container-runtime") -> str:
    lab.asks(f"NVIDIA_VISIBLE_DEVICES={value}")
    result = lab.create(program=program)
    return " ".join(lab.container_env()[1:]) if result.status == 0 else result.stderr


@pytest.mark.parametrize("mode", ["auto", "cdi", "legacy", "jit-cdi"])
def test_a_name_of_a_spec_is_a_device(mode: str, lab: Lab) -> None:
    lab.configure(mode=mode)

    assert message(lab, "gpu0") == "COMMON=1 GPU=0"
    assert message(lab, "mig0:0,my.gpu_x-1") == "COMMON=1 MIG=1 X=1"
    assert message(lab, "gpu1,0") == "COMMON=1 GPU=index"
    for word in ("GPU0", "../gpu0", "runtime.nvidia.com/gpu=gpu0", "gpu0,gpu9"):
        assert "names no device" in message(lab, word), word
    assert "names no device" in message(lab, "none,gpu9")
    assert "GPU=" not in message(lab, "none,gpu0")
    assert "mixes the CDI name" in message(lab, "gpu0,nvidia.com/gpu=gpu1") or mode == "cdi"


@pytest.mark.parametrize(
    "program", ["nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy"]
)
def test_the_programs_name_chooses_the_mode(program: str, lab: Lab) -> None:
    assert message(lab, "gpu1", program) == "COMMON=1 GPU=1"


def test_names_without_a_kind_are_of_the_default_kind(lab: Lab) -> None:
    lab.spec("other.json", kind="acme.com/card", devices={"left": {"env": ["CARD=left"]}})
    lab.keys["nvidia-container-runtime.modes.cdi"]["default-kind"] = "acme.com/card"
    lab.configure()

    assert message(lab, "left") == "COMMON=1 CARD=left"
    assert "names no device" in message(lab, "gpu0")


def test_mounts_name_devices_of_a_spec(lab: Lab) -> None:
    lab.configure(
        "accept-nvidia-visible-devices-as-volume-mounts = true\n"
        + lab.config_toml.read_text(encoding="utf-8")
    )
    mount_point = "/var/run/nvidia-container-devices/gpu1"
    lab.asks(mounts=[{"source": "/dev/null", "destination": mount_point}])

    assert lab.create().status == 0
    assert "GPU=1" in lab.document()["process"]["env"]


def test_without_a_spec_the_message_is_unchanged(lab: Lab) -> None:
    (lab.home / "cdi/gpu.json").unlink()
    assert "names no device; use all, none, void" in message(lab, "gpu0")
    (lab.home / "cdi/gpu.json").write_text("{", encoding="utf-8")
    assert "names no device; use all, none, void" in message(lab, "gpu0")


def test_a_name_that_two_files_define_is_a_conflict(lab: Lab) -> None:
    lab.spec("again.json", devices={"gpu0": {"env": ["GPU=another"]}})

    assert "is defined by" in message(lab, "gpu0")


@pytest.mark.parametrize("name", ["nvidia.com/gpu=gpu0", "nvidia.com/*"])
def test_a_policy_matches_the_full_name_of_a_device(name: str, lab: Lab) -> None:
    lab.keys["nvct.policy"] = {"default": "allow"}
    lab.keys["[nvct.policy.rules]"] = {"devices": [name], "then": "deny"}
    lab.configure()

    assert "denies NVIDIA_VISIBLE_DEVICES='gpu0'" in message(lab, "gpu0")
