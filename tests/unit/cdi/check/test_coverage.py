# SPDX-License-Identifier: Apache-2.0
"""GPUs and MIG devices of specs compared with those of a machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from nvct.cdi.check import conflicts, coverage
from nvct.cdi.make import generate
from nvct.cdi.read.registry import Registry, SpecFile
from nvct.cdi.types import Spec
from nvct.host.model import Inventory
from tests.support.host_tree import HostTree
from tests.support.inventories import Machine, mig_uuid

UUID = [HostTree.uuid(index) for index in range(3)]


def spec_of(inventory: Inventory, **options: object) -> Spec:
    return generate.generate(inventory, generate.Options(**options))  # type: ignore[arg-type]


def compare(live: Inventory, *specs: Spec) -> list[conflicts.Drift]:
    registry = Registry()
    for number, spec in enumerate(specs):
        spec_file = SpecFile(path=f"/{number}.yaml", spec=spec)
        registry.specs.append(spec_file)
        for device in spec["devices"]:
            registry.devices[f"{spec['kind']}={device['name']}"] = (spec_file, device)
    changed, missing = coverage.compare(conflicts.in_force(registry), live)
    return [*changed, *missing]


def texts(live: Inventory, *specs: Spec) -> list[str]:
    return [difference.text for difference in compare(live, *specs)]


def test_a_machine_fits_its_own_spec(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 3)
    machine.partition(1, 2)
    live = machine.inventory()

    for strategies in (["index"], ["uuid"], ["type-index"], ["index", "uuid", "type-index"]):
        assert texts(live, spec_of(live, device_name_strategies=strategies)) == []


def test_a_gpu_that_no_spec_has_is_reported(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 3)
    live = machine.inventory()

    (difference,) = compare(live, spec_of(live, device_ids=["0", "2"]))

    assert difference.text == f"no CDI spec gives GPU 1 ({UUID[1]})"
    assert (difference.kind, difference.source, difference.path) == (
        "gpu-missing",
        "",
        f"{tmp_path}/dev/nvidia1",
    )


def test_two_specs_may_share_the_gpus(tmp_path: Path) -> None:
    live = Machine(tmp_path, 2).inventory()
    specs = [spec_of(live, device_ids=[str(n)], all_device=False, cls=f"gpu{n}") for n in range(2)]

    assert texts(live, *specs) == []


def test_without_any_spec_every_gpu_is_reported(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.partition(1, 1)

    assert texts(machine.inventory()) == [
        f"no CDI spec gives GPU 0 ({UUID[0]})",
        f"no CDI spec gives MIG device 1:0 ({mig_uuid(1, 0)})",
    ]


def test_a_gpu_that_left_the_machine_is_reported_with_all_its_names(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    spec = spec_of(machine.inventory(), all_device=False)
    machine.gpus.remove(1)

    (difference,) = compare(machine.inventory(), spec)

    names = (f"nvidia.com/gpu={name}" for name in ("1", UUID[1]))
    assert difference.text == f"/0.yaml: {' and '.join(names)}: the host has no such GPU"
    assert difference.kind == "gpu-gone"
    assert difference.devices == ("nvidia.com/gpu=1", f"nvidia.com/gpu={UUID[1]}")


def test_a_gpu_with_another_minor_is_reported(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    spec = spec_of(machine.inventory(), device_name_strategies=["uuid"], all_device=False)

    drifts = compare(machine.inventory(minors={0: 1, 1: 0}), spec)

    assert [difference.kind for difference in drifts] == ["gpu-moved", "gpu-moved"]
    assert drifts[0].text == (
        f"/0.yaml: nvidia.com/gpu={UUID[0]}: the spec gives /dev/nvidia0, but it has /dev/nvidia1 now"
    )


def test_a_gpu_that_went_into_mig_mode_is_reported(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    spec = spec_of(machine.inventory(), device_name_strategies=["index"], all_device=False)
    machine.partition(0, 1)

    assert texts(machine.inventory(), spec) == [
        "/0.yaml: nvidia.com/gpu=0: is in MIG mode now",
        f"no CDI spec gives MIG device 0:0 ({mig_uuid(0, 0)})",
    ]


def test_mig_devices_that_are_missing_new_or_changed_are_reported(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.partition(0, 3)
    spec = spec_of(machine.inventory())
    (first, *rest) = machine.inventory().gpus
    a, b, c = first.mig
    gone = machine.inventory(gpus=(replace(first, mig=(a, b)), *rest))
    other = replace(b, uuid="MIG-00000000-0000-0000-0000-00000000000b", nodes=c.nodes)
    changed = machine.inventory(gpus=(replace(first, mig=(a, other)), *rest))

    name = "nvidia.com/gpu="
    assert texts(gone, spec) == [
        f"/0.yaml: {name}0:2 and {name}{c.uuid}: the host has no such MIG device"
    ]
    assert sorted(texts(changed, spec)) == [
        (
            f"/0.yaml: {name}0:1: the spec gives /dev/nvidia-caps/nvidia-cap12 "
            "/dev/nvidia-caps/nvidia-cap13 /dev/nvidia0, but it has /dev/nvidia-caps/nvidia-cap14 "
            "/dev/nvidia-caps/nvidia-cap15 /dev/nvidia0 now"
        ),
        f"/0.yaml: {name}0:2 and {name}{b.uuid} and {name}{c.uuid}: the host has no such MIG device",
    ]


@pytest.mark.parametrize(("warnings", "kinds"), [(("NVML refused",), []), ((), ["mig-gone"] * 2)])
def test_mig_devices_that_could_not_be_listed_are_not_reported_as_gone(
    warnings: tuple[str, ...], kinds: list[str], tmp_path: Path
) -> None:
    machine = Machine(tmp_path, 1)
    machine.partition(0, 2)
    spec = spec_of(machine.inventory(), device_name_strategies=["index"], all_device=False)
    gpu = replace(machine.inventory().gpus[0], mig=())

    drifts = compare(machine.inventory(gpus=(gpu,), warnings=warnings), spec)

    # One line: both names have the same to say.
    assert [difference.kind for difference in drifts] == kinds[:1]
    assert [len(difference.devices) for difference in drifts] == [len(kinds)][: len(drifts)]


def test_a_gpu_whose_node_is_missing_is_left_to_the_check_of_nodes(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    spec = spec_of(machine.inventory(), all_device=False)
    gpu = replace(machine.inventory().gpus[0], node=None)

    assert texts(machine.inventory(gpus=(gpu,)), spec) == []


def test_nvidia_uvm_that_was_loaded_after_the_spec_is_reported_of_a_spec_with_cuda(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path, 1)
    live = machine.inventory()
    control = (machine.node("nvidiactl"),)
    early = machine.inventory(control_nodes=control)
    files = tuple(f for f in live.files if "libcuda" not in f.host_path)

    assert texts(live, spec_of(early)) == [
        f"/0.yaml: {tmp_path}/dev/nvidia-uvm exists now, but the spec does not give it"
    ]
    assert texts(early, spec_of(live)) == []
    assert texts(live, spec_of(machine.inventory(files=files, control_nodes=control))) == []


def test_specs_of_the_whole_machine_and_of_other_things_give_no_gpu(tmp_path: Path) -> None:
    live = Machine(tmp_path, 1).inventory()
    management = spec_of(live, vendor="management.nvidia.com")
    channels: Spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/imex-channel",
        "devices": [{"name": "7", "containerEdits": {"deviceNodes": [{"path": "/dev/chan7"}]}}],
    }

    assert texts(live, management, channels) == [f"no CDI spec gives GPU 0 ({UUID[0]})"]


def test_names_that_say_no_gpu_are_not_compared(tmp_path: Path) -> None:
    live = Machine(tmp_path, 2).inventory()
    spec = spec_of(live, device_ids=["0"])
    spec["devices"].append(
        {"name": "left", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}]}}
    )

    assert texts(live, spec) == []
