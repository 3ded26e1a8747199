# SPDX-License-Identifier: Apache-2.0
"""Specs of the coherent GPUs and of the others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.cdi.make.generate import COHERENT_KEY, Options, generate, split
from nvct.cdi.read.validate import validate
from nvct.cdi.types import Spec
from nvct.host.discover import discover
from nvct.host.model import Inventory
from tests.support.host_tree import FakeNvml, HostTree, nvml_gpu


def look(host: HostTree, *is_coherent: bool | None) -> Inventory:
    inventory = discover(host.roots, host.options())
    pairs = zip(inventory.gpus, is_coherent, strict=True)
    return replace(inventory, gpus=tuple(replace(gpu, coherent=known) for gpu, known in pairs))


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path).module().user_space().gpu(0).gpu(1)


def names(spec: Spec) -> list[str]:
    return [device["name"] for device in spec["devices"]]


def test_gpus_are_in_the_whole_spec_and_in_the_one_of_their_kind(host: HostTree) -> None:
    specs = split(generate(look(host, True, False)))  # noqa: FBT003

    assert {suffix: (spec["kind"], names(spec)) for suffix, spec in specs.items()} == {
        "": ("nvidia.com/gpu", ["0", "1", host.uuid(0), host.uuid(1), "all"]),
        "coherent": ("nvidia.com/gpu.coherent", ["0", host.uuid(0), "all"]),
        "noncoherent": ("nvidia.com/gpu.noncoherent", ["1", host.uuid(1), "all"]),
    }
    for spec in specs.values():
        validate(spec, source="test")


def test_all_of_a_part_contains_its_devices(host: HostTree) -> None:
    part = split(generate(look(host, True, True)))["coherent"]  # noqa: FBT003

    edits = {device["name"]: device["containerEdits"] for device in part["devices"]}
    paths = [node["path"] for node in edits["all"]["deviceNodes"]]
    both = [node["path"] for name in ("0", "1") for node in edits[name]["deviceNodes"]]
    assert sorted(paths) == sorted(both)


def test_common_edits_are_in_every_part(host: HostTree) -> None:
    whole, part = split(generate(look(host, True, True))).values()  # noqa: FBT003

    assert part["containerEdits"] == whole["containerEdits"]


def test_annotation_is_in_none_of_them_and_the_whole_needs_no_more_than_before(
    host: HostTree,
) -> None:
    annotated = generate(look(host, True, False))  # noqa: FBT003
    specs = split(annotated)

    assert COHERENT_KEY in json.dumps(annotated)
    assert COHERENT_KEY not in json.dumps(specs)
    assert specs[""] == generate(look(host, None, None))
    assert {spec["cdiVersion"] for spec in specs.values()} == {"0.5.0", "0.6.0"}


def test_other_annotations_stay(host: HostTree) -> None:
    annotated = generate(look(host, True, True))  # noqa: FBT003
    annotated["devices"][0]["annotations"]["example.com/a"] = "b"

    assert split(annotated)["coherent"]["devices"][0]["annotations"] == {"example.com/a": "b"}


def test_parts_have_no_device_all_where_the_whole_has_none(host: HostTree) -> None:
    specs = split(generate(look(host, True, True), Options(all_device=False)))  # noqa: FBT003

    assert names(specs["coherent"]) == ["0", "1", host.uuid(0), host.uuid(1)]


def test_spec_with_unknown_coherence_is_not_split(host: HostTree) -> None:
    spec = generate(look(host, None, None))

    assert split(spec) == {"": spec}


def test_mig_devices_are_in_the_whole_spec_alone(tmp_path: Path) -> None:
    host = HostTree(tmp_path).module().user_space().gpu(0).instance(0, 7, 0, (66, 67))
    nvml = FakeNvml(gpus=(nvml_gpu(0, instances=((7, 0),)),))
    options = host.options(nvml)
    inventory = discover(host.roots, options)
    gpus = tuple(replace(gpu, coherent=True) for gpu in inventory.gpus)

    spec = generate(replace(inventory, gpus=gpus))

    assert list(split(spec)) == [""]
    assert COHERENT_KEY not in json.dumps(spec)
