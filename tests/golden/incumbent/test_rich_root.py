# SPDX-License-Identifier: Apache-2.0
"""A driver root with everything that nvidia-ctk 1.20.0 looks for in mode nvml, and what it finds.

The lists were observed by running it on such a root. Paths are container paths, V is the driver's
version; the host has more, which must stay out.
"""

import os
import socket
from pathlib import Path

import pytest

from nvct.host.discover import discover
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Inventory
from tests.support.host_tree import FakeNvml, HostTree, elf_bytes, nvml_gpu

VERSION = "999.88.77"
LIB = "usr/lib64"
LIBRARIES = {
    # stem: SONAME's number
    "libEGL_nvidia": "0",
    "libGLX_nvidia": "0",
    "libcuda": "1",
    "libnvidia-allocator": "1",
    "libnvidia-ml": "1",
    "libnvidia-nvvm": "4",
    "libnvidia-opticalflow": "1",
    "libnvidia-vulkan-producer": "",
}
PROGRAMS = (
    "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-debugdump", "nvidia-imex",
    "nvidia-imex-ctl", "nvidia-persistenced", "nvidia-smi", "nvidia-xconfig",
)  # fmt: skip
SHARE = (
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "glvnd/egl_vendor.d/10_nvidia.json",
    "nvidia/nvoptix.bin",
)
ETC = (
    "OpenCL/vendors/nvidia.icd",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
MOUNTS = {
    *(f"/usr/bin/{name}" for name in PROGRAMS),
    *(f"/usr/lib64/{stem}.so.V" for stem in LIBRARIES),
    "/usr/lib64/libnvidia-egl-gbm.so.1.1.2",
    "/usr/lib64/libnvidia-egl-wayland.so.1.1.13",
    "/usr/lib64/libnvidia-nvvm70.so.4",
    "/usr/lib64/vdpau/libvdpau_nvidia.so.V",
    "/usr/lib64/xorg/modules/drivers/nvidia_drv.so",
    "/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.V",
    "/lib/firmware/nvidia/V/gsp_ga10x.bin",
    "/lib/firmware/nvidia/V/gsp_tu10x.bin",
    *(f"/usr/share/{name}" for name in SHARE),
    *(f"/etc/{name}" for name in ETC),
    "/run/nvidia-persistenced/socket",
    "/var/run/nvidia-fabricmanager/socket",
}
LINKS = {
    "/usr/lib64/gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1",
    "/usr/lib64/libnvidia-vulkan-producer.so": "libnvidia-vulkan-producer.so.V",
    "/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so": "libglxserver_nvidia.so.V",
    "/usr/lib64/libEGL_nvidia.so.0": "libEGL_nvidia.so.V",
    "/usr/lib64/libGLX_indirect.so.0": "libGLX_nvidia.so.V",
    "/usr/lib64/libGLX_nvidia.so.0": "libGLX_nvidia.so.V",
    "/usr/lib64/libcuda.so": "libcuda.so.1",
    "/usr/lib64/libcuda.so.1": "libcuda.so.V",
    "/usr/lib64/libnvidia-allocator.so.1": "libnvidia-allocator.so.V",
    "/usr/lib64/libnvidia-allocator.so": "libnvidia-allocator.so.1",
    "/usr/lib64/libnvidia-ml.so.1": "libnvidia-ml.so.V",
    "/usr/lib64/libnvidia-nvvm.so.4": "libnvidia-nvvm.so.V",
    "/usr/lib64/libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1",
    "/usr/lib64/libnvidia-opticalflow.so.1": "libnvidia-opticalflow.so.V",
    "/usr/lib64/vdpau/libvdpau_nvidia.so.1": "libvdpau_nvidia.so.V",
}

# What nvct does otherwise, and why.
MORE_MOUNTS = {
    "/run/nvidia-fabricmanager/socket": "/var/run is /run wherever systemd is: one name",
    "/tmp/nvidia-mps": "the other program wants it and looks for a file, so it never finds it",
}
FEWER_MOUNTS = {"/var/run/nvidia-fabricmanager/socket"}
MORE_LINKS = {
    # The loader opens SONAMEs; the other program leaves these to ldconfig.
    "/usr/lib64/libnvidia-egl-gbm.so.1": "libnvidia-egl-gbm.so.1.1.2",
    "/usr/lib64/libnvidia-egl-wayland.so.1": "libnvidia-egl-wayland.so.1.1.13",
}


@pytest.fixture
def found(tmp_path: Path) -> Inventory:
    host = HostTree(tmp_path, version=VERSION).module().gpu(0)
    for stem, number in LIBRARIES.items():
        host.library(stem, f"{stem}.so.{number}" if number else f"{stem}.so", folder=LIB)
    host.link(f"driver/{LIB}/libnvidia-allocator.so", "libnvidia-allocator.so.1")
    for stem, version in (("gbm", "1.1.2"), ("wayland", "1.1.13")):
        name = f"libnvidia-egl-{stem}"
        host.write(f"driver/{LIB}/{name}.so.{version}", elf_bytes(f"{name}.so.1"))
    host.library("libnvidia-nvvm70", "libnvidia-nvvm70.so.4", suffix="4", folder=LIB)
    host.library("libvdpau_nvidia", "libvdpau_nvidia.so.1", folder=f"{LIB}/vdpau")
    modules = f"driver/{LIB}/xorg/modules"
    host.write(f"{modules}/drivers/nvidia_drv.so", elf_bytes("nvidia_drv.so"))
    server = f"libglxserver_nvidia.so.{VERSION}"
    host.write(f"{modules}/extensions/{server}", elf_bytes(server))
    for name in (*PROGRAMS, "nvidia-settings", "nvidia-modprobe"):
        host.write(f"driver/usr/bin/{name}", "#!/bin/sh\n", mode=0o755)
    for name in ("gsp_ga10x.bin", "gsp_tu10x.bin", "other.bin"):
        host.write(f"driver/lib/firmware/nvidia/{VERSION}/{name}")
    for place, name in enumerate((*SHARE, *ETC, "vulkan/icd.d/nvidia_icd.aarch64.json")):
        host.write(f"driver/{('etc', 'usr/share')[place % 2]}/{name}", "{}")
    host.write(f"driver/usr/lib/i386-linux-gnu/libcuda.so.{VERSION}", elf_bytes("x", "i386"))
    host.write("driver/tmp/nvidia-mps/control")
    for name in ("run/nvidia-persistenced", "var/run/nvidia-fabricmanager"):
        folder = host.driver / name
        folder.mkdir(parents=True)
        _socket(folder)
    options = DiscoveryOptions(
        nvml=FakeNvml(gpus=(nvml_gpu(0),)), stat_node=host.stat_node, machine="x86_64"
    )
    return discover(host.roots, options)


def _socket(folder: Path) -> None:
    # The path of a socket may have 108 bytes; a test's folder has nearly as many.
    before = os.getcwd()
    os.chdir(folder)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
    finally:
        os.chdir(before)


def test_every_mount_is_there_and_no_other(found: Inventory) -> None:
    mounts = {file.container_path.replace(VERSION, "V") for file in found.files}

    if os.geteuid():
        mounts.add("/tmp/nvidia-mps")  # it must be root's, and this test's folder is not
    assert mounts == (MOUNTS - FEWER_MOUNTS) | set(MORE_MOUNTS)


def test_every_link_is_there_and_no_other(found: Inventory) -> None:
    links = {
        link.path: link.target.replace(VERSION, "V") for file in found.files for link in file.links
    }

    assert links == {**LINKS, **MORE_LINKS}


def test_the_control_nodes_are_there(found: Inventory) -> None:
    names = {node.path for node in found.control_nodes}

    assert names == {
        "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl",
    }  # fmt: skip
