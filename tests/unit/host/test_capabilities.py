# SPDX-License-Identifier: Apache-2.0
"""An inventory cut down to driver capabilities."""

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.errors import UsageError
from nvct.host import capabilities
from nvct.host.model import (
    Capability,
    DeviceNode,
    DriverFile,
    FileKind,
    Gpu,
    Inventory,
    LeftOut,
    Link,
    NamedDevice,
)

LIB = "/usr/lib64"


def node(name: str, capability: Capability = "") -> DeviceNode:
    return DeviceNode(
        path=f"/dev/{name}", host_path=f"/dev/{name}", major=195, minor=0, mode=0o666, uid=0,
        gid=0, reason="test", capability=capability,
    )  # fmt: skip


def file(
    path: str,
    capability: Capability = "",
    *,
    kind: FileKind = "library",
    needed: tuple[str, ...] = (),
    soname: str = "",
) -> DriverFile:
    return DriverFile(
        host_path=f"/driver{path}", container_path=path, reason="test", kind=kind,
        capability=capability, needed=needed, soname=soname,
    )  # fmt: skip


MACHINE = Inventory(
    driver_version="580.1",
    gpus=(
        Gpu(
            index=0, minor=0, uuid="GPU-0", bus_id="0000:18:00.0", model="H100",
            node=node("nvidia0"),
            drm_nodes=(node("dri/card1", "graphics"),),
            by_path=(Link(target="../card1", path="/dev/dri/by-path/pci-0000:18:00.0-card"),),
        ),
    ),
    control_nodes=(
        node("nvidia-modeset", "display"), node("nvidia-uvm", "compute"), node("nvidiactl"),
    ),
    files=(
        file(f"{LIB}/libcuda.so.580.1", "compute", soname="libcuda.so.1"),
        file(f"{LIB}/libnvidia-gpucomp.so.580.1", "compute"),
        file(f"{LIB}/libnvidia-allocator.so.580.1", "compute"),
        file(f"{LIB}/libnvidia-ml.so.580.1", "utility"),
        file(f"{LIB}/libnvcuvid.so.580.1", "video", needed=("libcuda.so.1",)),
        file(f"{LIB}/libGLX_nvidia.so.580.1", "graphics", needed=("libnvidia-odd.so.1",)),
        file(f"{LIB}/libnvidia-odd.so.580.1", "utility", soname="libnvidia-odd.so.1"),
        file(f"{LIB}/libnvidia-ngx.so.580.1", "ngx"),
        file(f"{LIB}/libnvidia-new.so.580.1"),
        file("/usr/lib32/libcuda.so.580.1", "compat32", soname="libcuda.so.1"),
        file("/usr/lib32/libGLX_nvidia.so.580.1", "compat32"),
        file("/usr/bin/nvidia-smi", "utility", kind="binary"),
        file("/usr/bin/nvidia-cuda-mps-control", "compute", kind="binary"),
        file("/tmp/nvidia-mps", "compute", kind="socket"),
        file("/etc/OpenCL/vendors/nvidia.icd", "compute", kind="config"),
        file("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "graphics", kind="config"),
        file("/lib/firmware/nvidia/580.1/gsp_ga10x.bin", kind="firmware"),
    ),
    left_out=(LeftOut(path="/usr/bin/nvidia-settings", reason="a program of the host"),),
)  # fmt: skip


def cut(*words: str) -> Inventory:
    return capabilities.restrict(MACHINE, capabilities.parse(words))


def libraries(inventory: Inventory, folder: str = LIB) -> set[str]:
    paths = (f.container_path for f in inventory.files if f.kind == "library")
    return {p.removeprefix(f"{folder}/").partition(".so")[0] for p in paths if folder in p}


def others(inventory: Inventory) -> set[str]:
    return {os.path.basename(f.container_path) for f in inventory.files if f.kind != "library"}


def controls(inventory: Inventory) -> list[str]:
    return [os.path.basename(node.path) for node in inventory.control_nodes]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], capabilities.DEFAULT),
        (["all"], capabilities.DEFAULT),
        (["", " , "], capabilities.DEFAULT),
        (["compute,utility"], frozenset({"compute", "utility"})),
        ([" video ", "compat32"], frozenset({"video", "compat32"})),
        (["all,compat32"], frozenset(capabilities.NAMES)),
    ],
)
def test_words_and_comma_lists_are_capabilities(
    words: list[str], expected: frozenset[Capability]
) -> None:
    assert capabilities.parse(words) == expected


def test_unknown_word_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        capabilities.parse(["compute,grphics"])

    assert caught.value.message == "capability 'grphics' is unknown"
    assert caught.value.hint == (
        "use all, or any of compute utility graphics video display ngx compat32"
    )


def test_default_is_all_but_thirty_two_bit_libraries() -> None:
    inventory = cut()

    assert len(inventory.files) == len(MACHINE.files) - 2
    assert inventory.gpus == MACHINE.gpus
    assert inventory.control_nodes == MACHINE.control_nodes


def test_utility_has_its_files_and_those_of_no_capability() -> None:
    inventory = cut("utility")

    assert libraries(inventory) == {"libnvidia-ml", "libnvidia-odd", "libnvidia-new"}
    assert others(inventory) == {"nvidia-smi", "gsp_ga10x.bin"}
    assert controls(inventory) == ["nvidiactl"]
    assert inventory.gpus[0].node is not None


def test_graphics_has_the_gpus_drm_nodes_and_others_have_not() -> None:
    assert cut("graphics").gpus == MACHINE.gpus

    (gpu,) = cut("compute", "utility").gpus
    assert (gpu.drm_nodes, gpu.by_path) == ((), ())


def test_video_implies_cudas_libraries_and_nodes_but_not_its_programs() -> None:
    inventory = cut("video")

    assert libraries(inventory) == {
        "libcuda", "libnvidia-gpucomp", "libnvidia-allocator", "libnvcuvid", "libnvidia-new",
    }  # fmt: skip
    assert controls(inventory) == ["nvidia-uvm", "nvidiactl"]
    assert others(inventory) == {"nvidia.icd", "gsp_ga10x.bin"}


def test_display_is_graphics_and_the_modeset_node() -> None:
    display, graphics = cut("display"), cut("graphics")

    assert display.files == graphics.files
    assert display.gpus == graphics.gpus
    assert controls(display) == ["nvidia-modeset", "nvidiactl"]
    assert controls(graphics) == ["nvidiactl"]


def test_library_that_another_one_is_linked_to_stays_with_it() -> None:
    assert "libnvidia-odd" in libraries(cut("graphics"))
    assert "libnvidia-odd" not in libraries(cut("compute"))


def test_library_that_another_class_loads_at_run_time_stays_with_it() -> None:
    assert {"libnvidia-gpucomp", "libnvidia-allocator"} <= libraries(cut("graphics"))
    assert "libnvidia-gpucomp" not in libraries(cut("utility"))


def test_thirty_two_bit_libraries_are_those_of_the_capabilities_beside() -> None:
    assert libraries(cut("compute", "compat32"), "/usr/lib32") == {"libcuda"}
    assert libraries(cut("all", "compat32"), "/usr/lib32") == {"libcuda", "libGLX_nvidia"}
    assert libraries(cut("compute"), "/usr/lib32") == set()


def test_removed_files_are_left_out_with_a_reason_and_earlier_ones_stay() -> None:
    reasons = {entry.path: entry.reason for entry in cut("utility", "ngx").left_out}

    assert reasons["/driver/usr/bin/nvidia-cuda-mps-control"] == (
        "for compute; requested: ngx, utility"
    )
    assert reasons["/dev/nvidia-uvm"] == "for compute; requested: ngx, utility"
    assert reasons["/usr/bin/nvidia-settings"] == "a program of the host"
    assert list(reasons) == sorted(reasons)


def test_devices_of_other_modes_are_cut_as_well() -> None:
    device = NamedDevice(
        name="all",
        nodes=(node("dxg"), node("dri/card0", "graphics")),
        files=(file("/usr/lib/libnvidia-ngx.so.1", "ngx"), file("/usr/lib/libdxcore.so")),
    )

    (inventory,) = capabilities.restrict(replace(MACHINE, devices=(device,)), {"compute"}).devices

    assert [n.path for n in inventory.nodes] == ["/dev/dxg"]
    assert [f.container_path for f in inventory.files] == ["/usr/lib/libdxcore.so"]


@given(st.frozensets(st.sampled_from(capabilities.NAMES)))
def test_cutting_twice_is_cutting_once_and_nothing_is_lost(
    requested: frozenset[Capability],
) -> None:
    inventory = capabilities.restrict(MACHINE, requested)

    assert capabilities.restrict(inventory, requested) == inventory
    everything = {f.host_path for f in MACHINE.files}
    kept = {f.host_path for f in inventory.files}
    assert kept | {entry.path for entry in inventory.left_out} >= everything
    assert not kept & {entry.path for entry in inventory.left_out}


@given(
    st.frozensets(st.sampled_from(capabilities.NAMES)),
    st.frozensets(st.sampled_from(capabilities.NAMES)),
)
def test_more_capabilities_never_give_less(
    fewer: frozenset[Capability], more: frozenset[Capability]
) -> None:
    few = capabilities.restrict(MACHINE, fewer)
    many = capabilities.restrict(MACHINE, fewer | more)

    assert set(few.files) <= set(many.files)
    assert set(few.control_nodes) <= set(many.control_nodes)
