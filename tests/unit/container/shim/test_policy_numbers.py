# SPDX-License-Identifier: Apache-2.0
"""A rule refuses a device under any name: device numbers are compared."""

from typing import Any

import pytest

from tests.support.host_tree import BUSES, HostTree
from tests.support.policy_lab import cap, nodes, outcome, part
from tests.support.shim_lab import Lab

UUID = HostTree.uuid(0)
BUS_ID = f"0000:{BUSES[0]}:00.0"
MIG = "MIG-00000000-0001-0000-cccc-000000000000"


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.driver(gpus=3)
    return lab


OTHERS: dict[str, dict[str, Any]] = {
    "its node": nodes((195, 0)),
    "its node under another's path": nodes((195, 0), path="/dev/nvidia1"),
    "one of its DRM nodes": nodes((226, 128)),
    "its node beside another": nodes((195, 1), (195, 0)),
}


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu=0", f"nvidia.com/gpu={UUID}", f"nvidia.com/gpu={BUS_ID}"]
)
@pytest.mark.parametrize("other_edits", OTHERS)
def test_a_device_under_another_kind_is_the_same_device(
    other_edits: str, name: str, lab: Lab
) -> None:
    lab.spec(
        "other.json",
        kind="example.com/other",
        devices={"x": OTHERS[other_edits], "y": nodes((195, 1))},
    )

    assert outcome(lab, "example.com/other=x", name) == "deny"
    assert outcome(lab, "example.com/other=y", name) == "allow"
    assert outcome(lab, "1", name) == "allow"
    assert outcome(lab, "all", name) == "deny"


def mount(source: str) -> dict[str, Any]:
    return {"mounts": [{"hostPath": source, "containerPath": "/x", "options": ["bind"]}]}


def test_control_nodes_are_not_devices(lab: Lab) -> None:
    control = [(195, 255), (195, 254)]
    devices = {"0": nodes((195, 0), *control), "1": nodes((195, 1), *control)}
    lab.spec("other.json", kind="example.com/other", devices=devices)

    assert outcome(lab, "nvidia.com/gpu=1", "example.com/other=0") == "allow"
    assert outcome(lab, "example.com/other=1", "example.com/other=0") == "allow"
    assert outcome(lab, "nvidia.com/gpu=0", "example.com/other=0") == "deny"


def test_a_node_that_all_devices_of_a_kind_share_belongs_to_none_of_them(lab: Lab) -> None:
    """As /dev/kfd, which each GPU of AMD comes with."""
    devices = {"0": nodes((235, 0), (226, 1)), "1": nodes((235, 0), (226, 2))}
    lab.spec("amd.json", kind="amd.com/gpu", devices=devices)
    lab.spec(
        "other.json", kind="example.com/other", devices={"a": devices["0"], "b": devices["1"]}
    )

    assert outcome(lab, "amd.com/gpu=1", "amd.com/gpu=0") == "allow"
    assert outcome(lab, "example.com/other=b", "amd.com/gpu=0") == "allow"
    assert outcome(lab, "example.com/other=a", "amd.com/gpu=0") == "deny"


def test_a_rule_against_management_devices_allows_a_gpu(lab: Lab) -> None:
    """A rule against a device of several GPUs refuses only the nodes that no GPU has."""
    everything = nodes((195, 0), (195, 1), (195, 2), (236, 1), (236, 2))
    lab.spec("management.json", kind="management.nvidia.com/gpu", devices={"all": everything})
    lab.spec("cap.json", kind="example.com/cap", devices={"config": nodes((236, 1))})

    for name in ("management.nvidia.com/gpu=all", "management.nvidia.com/gpu=*", "management.*"):
        assert outcome(lab, "1", name) == "allow", name
        assert outcome(lab, "all", name) == "allow", name
        assert outcome(lab, "example.com/cap=config", name) == "deny", name
        assert outcome(lab, "management.nvidia.com/gpu=all", name) == "deny", name
    assert outcome(lab, "management.nvidia.com/gpu=all", "nvidia.com/gpu=1") == "deny"


def test_a_device_of_all_gpus_is_refused_as_a_whole(lab: Lab) -> None:
    together = nodes((195, 0), (195, 1), (195, 2))
    lab.spec("other.json", kind="example.com/other", devices={"all": together})
    lab.spec("third.json", kind="acme.com/third", devices={"x": together})

    assert outcome(lab, "acme.com/third=x", "example.com/other=all") == "deny"
    assert outcome(lab, "0", "example.com/other=all") == "allow"


def with_mig(lab: Lab) -> None:
    """Put GPU 0 into MIG mode: two devices that share a GPU instance, and one of their own."""
    for gi, ci, caps in ((1, 0, (12, 13)), (1, 1, (12, 14)), (2, 0, (21, 22))):
        lab.host.instance(0, gi, ci, caps)
    for library in lab.host.driver.rglob("libnvidia-ml.so*"):
        library.unlink()  # a file of ELF headers without code
    all_of = {"deviceNodes": [*part(0, 12, 13)["deviceNodes"], cap(14), cap(21), cap(22)]}
    devices = {
        "0:0": part(0, 12, 13), "0:1": part(0, 12, 14), "0:2": part(0, 21, 22),
        MIG: part(0, 12, 13), "1": nodes((195, 1)), "all": all_of,
    }  # fmt: skip
    lab.spec(devices=devices)


@pytest.mark.parametrize("requested", ["0:0", "0:2", MIG, "0:0,0:1", "all"])
@pytest.mark.parametrize("name", ["0", UUID, BUS_ID])
def test_a_refused_gpu_in_mig_mode_gives_no_mig_device(
    name: str, requested: str, lab: Lab
) -> None:
    with_mig(lab)
    names = ",".join(f"nvidia.com/gpu={word}" for word in requested.split(","))

    assert outcome(lab, names, f"nvidia.com/gpu={name}") == "deny"
    assert outcome(lab, "nvidia.com/gpu=1", f"nvidia.com/gpu={name}") == "allow"


@pytest.mark.parametrize(
    ("name", "requested", "result"),
    [("0:0", MIG, "deny"), (MIG, "0:0", "deny"), ("0:0", "0:1", "allow"), ("0:1", "0:0", "allow"),
     ("0:0", "0:2", "allow"), ("0:2", "0:0", "allow"), ("0:0", "1", "allow"), ("0:0", "all", "deny"),
     ("1", "0:0", "allow"), ("0:1", "0:0,0:1", "deny")],
)  # fmt: skip
def test_rules_distinguish_a_gpu_from_its_mig_devices(
    name: str, requested: str, result: str, lab: Lab
) -> None:
    with_mig(lab)
    names = ",".join(f"nvidia.com/gpu={word}" for word in requested.split(","))

    assert outcome(lab, names, f"nvidia.com/gpu={name}") == result


@pytest.mark.parametrize(
    ("name", "minor"), [("nvidia.com/mig=config", 1), ("nvidia.com/mig=monitor", 2)]
)
def test_an_extra_under_another_name_is_the_same_extra(name: str, minor: int, lab: Lab) -> None:
    with_mig(lab)
    lab.spec("other.json", kind="example.com/other", devices={"x": nodes((236, minor))})

    assert outcome(lab, "example.com/other=x", name) == "deny"
    assert outcome(lab, "example.com/other=x", "nvidia.com/*") == "deny"
    assert outcome(lab, "example.com/other=x", "nvidia.com/imex-channel=*") == "allow"


@pytest.mark.parametrize(("word", "minor"), [("mig-config", 1), ("mig-monitor", 2)])
def test_a_rule_that_refuses_an_extra_by_its_word_refuses_its_node(
    word: str, minor: int, lab: Lab
) -> None:
    with_mig(lab)
    lab.spec("other.json", kind="example.com/other", devices={"x": nodes((236, minor))})
    rule: dict[str, Any] = {"asks-for": [word]}

    assert outcome(lab, "example.com/other=x", **rule) == "deny"
    assert outcome(lab, "nvidia.com/gpu=0:0", **rule) == "allow"


def test_a_rule_that_allows_a_device_allows_it_by_no_other_name(lab: Lab) -> None:
    lab.spec("other.json", kind="example.com/other", devices={"x": nodes((195, 0))})
    rule = {"then": "allow", "default": "deny"}

    assert outcome(lab, "example.com/other=x", "nvidia.com/gpu=0", **rule) == "deny"
    assert outcome(lab, "0", "nvidia.com/gpu=0", **rule) == "allow"


def test_a_spec_with_a_missing_file_still_defines_the_devices_of_a_rule(lab: Lab) -> None:
    device = {
        **nodes((195, 7)),
        "mounts": [{"hostPath": "/is/gone", "containerPath": "/x", "options": ["bind"]}],
    }
    lab.spec("gone.json", kind="acme.com/gone", devices={"a": device, "b": nodes((195, 8))})
    lab.spec(
        "other.json",
        kind="example.com/other",
        devices={"x": nodes((195, 7)), "y": nodes((195, 8))},
    )

    assert outcome(lab, "example.com/other=x", "acme.com/gone=a") == "deny"
    assert outcome(lab, "example.com/other=y", "acme.com/gone=a") == "allow"


def test_an_unavailable_device_is_reported_as_unavailable(lab: Lab) -> None:
    """With a real create; the other tests of this file evaluate the policy only."""
    lab.spec("other.json", kind="example.com/other", devices={"x": mount("/is/gone")})
    lab.keys["nvct.policy"] = {"default": "allow"}
    lab.keys["[nvct.policy.rules]"] = {"devices": ["nvidia.com/gpu=0"], "then": "deny"}
    lab.configure()
    lab.asks("NVIDIA_VISIBLE_DEVICES=example.com/other=x")

    result = lab.create()

    assert result.status == 1
    assert "/is/gone is gone" in result.stderr


def test_a_create_is_denied_by_number(lab: Lab) -> None:
    lab.spec("other.json", kind="example.com/other", devices={"x": nodes((195, 0))})
    lab.keys["nvct.policy"] = {"default": "allow"}
    lab.keys["[nvct.policy.rules]"] = {"devices": [f"nvidia.com/gpu={UUID}"], "then": "deny"}
    lab.configure()
    lab.asks("NVIDIA_VISIBLE_DEVICES=example.com/other=x")

    result = lab.create()

    assert result.status == 1
    assert (
        "policy rule 'rule 1' denies NVIDIA_VISIBLE_DEVICES='example.com/other=x'" in result.stderr
    )
    lab.asks("NVIDIA_VISIBLE_DEVICES=1")
    assert lab.create().status == 0
