# SPDX-License-Identifier: Apache-2.0
import os
import stat
import subprocess
import uuid
from typing import Any

import pytest

from nvct_sim import mig as state_mig
from tests.support.nvml_node import NvmlNode, code_of, gpu_uuid


def mig_devices(nvml: Any, gpu: Any) -> list[Any]:
    count = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    get = nvml.nvmlDeviceGetMigDeviceHandleByIndex
    codes = [code_of(get, gpu, n) for n in range(count)]
    assert set(codes) <= {nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND}
    return [get(gpu, n) for n, code in enumerate(codes) if code == nvml.NVML_SUCCESS]


def start(nvml: Any, gpu: int = 1, *, on: bool = True) -> Any:
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu)
    if on:
        nvml.nvmlDeviceSetMigMode(handle, 1)
    return handle


def capability(node: NvmlNode, path: str) -> str:
    return (node.tree / "proc/driver/nvidia/capabilities" / path / "access").read_text()


def caps(node: NvmlNode) -> list[str]:
    return sorted(p.name for p in (node.dev / "nvidia-caps").iterdir())


# --- reading --------------------------------------------------------------------------------


def test_a_gpu_without_mig_returns_not_supported(node: NvmlNode, nvml: Any) -> None:
    node.change_gpu(0, "migcapable", 0)
    gpu = start(nvml, 0, on=False)

    assert code_of(nvml.nvmlDeviceGetMigMode, gpu) == nvml.NVML_ERROR_NOT_SUPPORTED
    assert code_of(nvml.nvmlDeviceSetMigMode, gpu, 1) == nvml.NVML_ERROR_NOT_SUPPORTED
    assert code_of(nvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, 0) == 3
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 0


def test_mig_devices_are_enumerated_with_their_parents(node: NvmlNode, nvml: Any) -> None:
    uuids = node.add_mig_devices(2, 3)
    gpu = start(nvml, 2, on=False)
    assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 7

    devices = mig_devices(nvml, gpu)

    assert [nvml.nvmlDeviceGetUUID(m) for m in devices] == uuids
    assert [nvml.nvmlDeviceGetIndex(m) for m in devices] == [0, 1, 2]
    assert [nvml.nvmlDeviceGetGpuInstanceId(m) for m in devices] == [7, 8, 9]
    assert [nvml.nvmlDeviceGetComputeInstanceId(m) for m in devices] == [0, 0, 0]
    for device in devices:
        assert nvml.nvmlDeviceIsMigDeviceHandle(device).value == 1
        parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
        assert nvml.nvmlDeviceGetUUID(parent) == gpu_uuid(2)
        assert nvml.nvmlDeviceGetName(device) == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
        assert nvml.nvmlDeviceGetMemoryInfo(device).total == 9856 << 20
    assert nvml.nvmlDeviceIsMigDeviceHandle(gpu).value == 0
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(uuids[1])) == uuids[1]
    old = f"MIG-{gpu_uuid(2)}/8/0"
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(old)) == uuids[1]


@pytest.mark.parametrize(
    "missing", ["nvidia2", "nvidia-caps/nvidia-cap345", "nvidia-caps/nvidia-cap346"]
)
def test_a_mig_device_needs_the_gpu_and_both_capability_nodes(
    node: NvmlNode, nvml: Any, missing: str
) -> None:
    uuids = node.add_mig_devices(2, 2)  # the second has 345 = 3 + 2 * 135 + 8 * 9
    assert {"nvidia-cap345", "nvidia-cap346"} <= set(caps(node))
    (node.dev / missing).unlink()
    nvml.nvmlInit()

    assert code_of(nvml.nvmlDeviceGetHandleByUUID, uuids[1]) == nvml.NVML_ERROR_NOT_FOUND
    if missing != "nvidia2":
        devices = mig_devices(nvml, nvml.nvmlDeviceGetHandleByIndex(2))
        assert [nvml.nvmlDeviceGetUUID(m) for m in devices] == uuids[:1]


def test_a_container_with_the_second_mig_device_sees_it_as_its_first(
    node: NvmlNode, nvml: Any
) -> None:
    uuids = node.add_mig_devices(2, 3)
    for name in ("nvidia-cap336", "nvidia-cap337", "nvidia-cap354", "nvidia-cap355"):
        (node.dev / "nvidia-caps" / name).unlink()
    gpu = start(nvml, 2, on=False)

    device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)

    assert nvml.nvmlDeviceGetUUID(device) == uuids[1]
    assert nvml.nvmlDeviceGetIndex(device) == 0
    assert code_of(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 1) == nvml.NVML_ERROR_NOT_FOUND


# --- creating and destroying ----------------------------------------------------------------


def test_creating_an_instance_shows_in_state_procfs_and_dev(node: NvmlNode, nvml: Any) -> None:
    gpu = start(nvml)
    before = node.lines()

    instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
    compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)

    info = nvml.nvmlGpuInstanceGetInfo(instance)
    assert (info.id, info.profileId, info.placement.start, info.placement.size) == (2, 9, 0, 4)
    assert nvml.nvmlDeviceGetUUID(info.device) == gpu_uuid(1)
    part = nvml.nvmlComputeInstanceGetInfo(compute)
    assert (part.id, part.profileId, part.placement.size) == (0, 2, 3)
    minor = 3 + 135 + 2 * 9
    assert node.lines()[len(before) :] == [
        "gi\tgpu=1\tid=2\tprofile=9\tstart=0\tsize=4",
        f"cap\tgpu=1\tgi=2\tminor={minor}",
        f"ci\tgpu=1\tgi=2\tid=0\tprofile=2\tstart=0\tsize=3\tuuid={state_mig.mig_uuid(gpu_uuid(1), 2, 0)}",
        f"cap\tgpu=1\tgi=2\tci=0\tminor={minor + 1}",
    ]
    access = "DeviceFileMinor: {}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    assert capability(node, "gpu1/mig/gi2") == access.format(minor)
    assert capability(node, "gpu1/mig/gi2/ci0") == access.format(minor + 1)
    assert caps(node) == [f"nvidia-cap{minor}", f"nvidia-cap{minor + 1}"]
    (device,) = mig_devices(nvml, gpu)
    assert nvml.nvmlDeviceGetName(device).endswith(" MIG 3g.40gb")


def test_unknown_records_survive_a_change(node: NvmlNode, nvml: Any) -> None:
    node.add("future\tkey=value", "gi\tcolour=red\tid=2\tgpu=3\tprofile=9\tstart=0\tsize=4")
    gpu = start(nvml)
    instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 9)

    nvml.nvmlGpuInstanceDestroy(instance)

    assert node.lines()[-2:] == [
        "future\tkey=value", "gi\tcolour=red\tid=2\tgpu=3\tprofile=9\tstart=0\tsize=4",
    ]  # fmt: skip


def test_ids_and_uuids_are_those_of_nvct_sim(node: NvmlNode, nvml: Any) -> None:
    gpu = start(nvml, 1)
    found = []

    for _ in range(7):
        instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        info = nvml.nvmlGpuInstanceGetInfo(instance)
        found.append((info.placement.start, info.id))

    assert found == [(0, 11), (1, 12), (2, 13), (3, 14), (4, 7), (5, 8), (6, 9)]
    uuids = {nvml.nvmlDeviceGetUUID(m) for m in mig_devices(nvml, gpu)}
    assert uuids == {state_mig.mig_uuid(gpu_uuid(1), gi, 0) for _, gi in found}
    assert all(uuid.UUID(text[4:]).version == 5 for text in uuids)
    assert code_of(nvml.nvmlDeviceCreateGpuInstance, gpu, 19) == 23


def test_without_a_visible_tree_nothing_changes(node: NvmlNode, nvml: Any) -> None:
    gpu = start(nvml)
    node.write(
        [f"tree\t{node.tree}/not/here" if x.startswith("tree\t") else x for x in node.lines()]
    )
    before = node.lines()

    assert code_of(nvml.nvmlDeviceCreateGpuInstance, gpu, 19) == nvml.NVML_ERROR_NO_PERMISSION

    assert node.lines() == before
    assert caps(node) == []


def test_a_read_only_state_returns_no_permission(node: NvmlNode, nvml: Any) -> None:
    gpu = start(nvml)
    # The library has the file open and can still read it.
    node.state_file.rename(node.tree / "elsewhere")
    node.state_file.mkdir()  # nobody, not even root, can write to a folder as a file

    assert code_of(nvml.nvmlDeviceCreateGpuInstance, gpu, 19) == nvml.NVML_ERROR_NO_PERMISSION
    assert caps(node) == []


@pytest.mark.parametrize("room", [0, 20, 50], ids=["for nothing", "for less", "for one of two"])
def test_a_full_state_is_an_error_and_stays_as_it_is(node: NvmlNode, nvml: Any, room: int) -> None:
    gpu = start(nvml)
    frame = len("nvct-sim\t1\t9\n" + "\n" + "note\t\n" + "end\t9\n")
    taken = len("\n".join(node.lines())) + frame
    node.add("note\t" + "x" * (262144 - 8192 - 1 - taken - room))
    before = node.lines()
    assert len(node.state_file.read_bytes()[8192:].rstrip(b"\0")) == 262144 - 8192 - 1 - room

    assert code_of(nvml.nvmlDeviceCreateGpuInstance, gpu, 19) == nvml.NVML_ERROR_MEMORY

    assert node.lines() == before
    assert caps(node) == []
    assert nvml.nvmlDeviceGetCount() == 4


def test_a_tree_with_device_nodes_gets_real_capability_nodes(node: NvmlNode, nvml: Any) -> None:
    control = node.dev / "nvidiactl"
    control.unlink()
    try:
        os.mknod(control, stat.S_IFCHR | 0o666, os.makedev(508, 255))
    except OSError as error:
        pytest.skip(f"needs root: {error.strerror}")
    node.write([x.replace("nvidia-caps=236", "nvidia-caps=508") for x in node.lines()])
    gpu = start(nvml)

    nvml.nvmlDeviceCreateGpuInstance(gpu, 19)

    status = (node.dev / "nvidia-caps/nvidia-cap237").stat()
    assert stat.S_ISCHR(status.st_mode)
    assert (status.st_rdev, stat.S_IMODE(status.st_mode)) == (os.makedev(508, 237), 0o444)


def test_processes_that_create_at_once_do_not_disturb_each_other(node: NvmlNode) -> None:
    node.change_gpu(1, "mig", 1)
    command = [str(node.built["nvidia-smi"]), "mig", "-cgi", "19", "-C"]

    running = [
        subprocess.Popen(command, env=node.environment, stdout=subprocess.PIPE) for _ in range(9)
    ]
    outputs = [process.communicate(timeout=60)[0].decode() for process in running]

    assert sorted(process.returncode for process in running) == [0] * 7 + [23] * 2, outputs
    assert sum(line.startswith("gi\t") for line in node.lines()) == 7
    assert sum(line.startswith("ci\t") for line in node.lines()) == 7
    assert node.smi("-L", "-i", "1").stdout.count("  MIG 1g.10gb ") == 7
    assert len(caps(node)) == 14
