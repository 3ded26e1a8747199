# SPDX-License-Identifier: Apache-2.0
"""Changes of a server: its libraries, programs, configuration and GPUs."""

import json
import os

from nvct.errors import NvmlError
from nvct.host import discovery_options
from nvct.linux import ldcache
from nvct_sim.elf_writer import shared_object
from tests.hosts.variants import Lab, listen, on, server
from tests.support.host_tree import BUSES, LIB, VERSION, FakeNvml, HostTree, elf_bytes, nvml_gpu

UNKNOWN_UUID = "GPU-????????-????-????-????-????????????"
SHARED = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    "OpenCL/vendors/nvidia.icd",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
)  # fmt: skip - the names that nvidia-container-toolkit v1.20 looks for


def library(host: HostTree, name: str, soname: str, machine: str = "x86_64") -> None:
    host.write(f"driver/{LIB}/{name}", elf_bytes(soname, machine))


def cache(host: HostTree, machine: str, *paths: str) -> None:
    entries = [(os.path.basename(path), path) for path in paths]
    host.write("driver/etc/ld.so.cache", ldcache.merge(None, entries, machine=machine))


# Libraries


@on(server)
def library_of_another_machine(lab: Lab) -> None:
    library(lab.host, f"libnvidia-odd.so.{VERSION}", "libnvidia-odd.so.1", "aarch64")


@on(server)
def links_stay_in_the_driver_root(lab: Lab) -> None:
    inside = lab.host.write(
        f"driver/opt/real/libnvidia-far.so.{VERSION}", elf_bytes("libfar.so.1")
    )
    outside = lab.host.write(f"outside/libnvidia-out.so.{VERSION}", elf_bytes("libout.so.1"))
    up = "../" * 12 + str(outside).lstrip("/")
    targets = {"far": f"/opt/real/{inside.name}", "out": str(outside), "up": up}
    for name, target in targets.items():
        lab.host.link(f"driver/{LIB}/libnvidia-{name}.so.{VERSION}", target)


@on(server)
def link_to_a_library_of_another_driver(lab: Lab) -> None:
    lab.host.library("libnvidia-cfg", suffix="570.10.01")
    lab.host.link(f"driver/{LIB}/libnvidia-cfg.so.{VERSION}", "libnvidia-cfg.so.570.10.01")


@on(server)
def names_similar_to_the_drivers(lab: Lab) -> None:
    for name in (
        "libnvidia-container.so.1.17.8",
        "libnvme.so.1.3.0",
        "libnvidia-egl-foo.so.1.0.0",
    ):
        library(lab.host, name, "x")


@on(server)
def nvvm_with_the_drivers_version(lab: Lab) -> None:
    lab.host.library("libnvidia-nvvm", "libnvidia-nvvm.so.4")


@on(server)
def sonames_that_are_no_names_of_libraries(lab: Lab) -> None:
    hostile = ("..", ".", "lib\n.so.1", "etc", "libx::y.so", "../../../etc/passwd")
    for number, soname in enumerate(hostile):
        library(lab.host, f"libnvidia-evil{number}.so.{VERSION}", soname)


@on(server)
def cache_of_another_machine(lab: Lab) -> None:
    lab.host.library("libnvidia-cfg", "libnvidia-cfg.so.1", folder="opt/lib")
    cache(lab.host, "i386", "/opt/lib/libnvidia-cfg.so.1")


@on(server)
def cache_of_a_hundred_folders(lab: Lab) -> None:
    cache(lab.host, "x86_64", *(f"/opt/{n}/libnvidia-cfg.so.{n}" for n in range(100)))


@on(server)
def vdpau_behind_a_link(lab: Lab) -> None:
    lab.host.library("libvdpau_nvidia", "libvdpau_nvidia.so.1", folder="opt/vdpau")
    lab.host.link("driver/usr/lib64/vdpau", "/opt/vdpau")


@on(server)
def library_in_two_folders(lab: Lab) -> None:
    lab.host.library("libnvidia-cfg", folder="usr/lib64").library(
        "libnvidia-cfg", folder="usr/lib"
    )


@on(server)
def glvnd_of_the_driver(lab: Lab) -> None:
    lab.host.library("libEGL", "libEGL.so.1")


@on(server)
def platform_library_of_two_folders(lab: Lab) -> None:
    for folder in ("opt/lib", "usr/lib64"):
        lab.host.library(
            "libnvidia-egl-gbm", "libnvidia-egl-gbm.so.1", suffix="1.1.2", folder=folder
        )
        lab.host.library("libnvidia-cfg", folder=folder)
    cache(lab.host, "x86_64", "/opt/lib/libnvidia-cfg.so.1")


@on(server)
def platform_library_of_two_versions(lab: Lab) -> None:
    for version in ("1.1.9", "1.1.10"):
        library(lab.host, f"libnvidia-egl-gbm.so.{version}", "libnvidia-egl-gbm.so.1")


@on(server)
def platform_library_without_headers(lab: Lab) -> None:
    lab.host.write(f"driver/{LIB}/libnvidia-egl-xcb.so.1.0.3", "nothing")


@on(server)
def link_of_a_library_that_is_there(lab: Lab) -> None:
    lab.host.library("libnvidia-vulkan-producer")
    name = f"libnvidia-vulkan-producer.so.{VERSION}"
    lab.host.link(f"driver/{LIB}/libnvidia-vulkan-producer.so", name)


@on(server)
def xorg_module_beside_the_libraries(lab: Lab) -> None:
    for folder in (f"{LIB}/nvidia/xorg", "usr/lib/xorg/modules/drivers"):
        lab.host.write(f"driver/{folder}/nvidia_drv.so", elf_bytes("nvidia_drv.so"))


@on(server)
def xorg_module_of_another_machine(lab: Lab) -> None:
    xorg_module_beside_the_libraries(lab)
    library(lab.host, "nvidia/xorg/nvidia_drv.so", "nvidia_drv.so", "aarch64")


@on(server)
def xorg_module_behind_alternatives(lab: Lab) -> None:
    name = f"libglxserver_nvidia.so.{VERSION}"
    lab.host.write(f"driver/usr/lib/nvidia/current/{name}", elf_bytes(name))
    folder = "usr/lib/xorg/modules/extensions"
    lab.host.link(f"driver/{folder}/libglxserver_nvidia.so", "/etc/alternatives/glx")
    lab.host.link("driver/etc/alternatives/glx", f"/usr/lib/nvidia/current/{name}")


@on(server)
def xorg_module_of_another_driver(lab: Lab) -> None:
    folder, name = "driver/usr/lib/xorg/modules/extensions", "libglxserver_nvidia.so"
    lab.host.write(f"{folder}/{name}.570.10", elf_bytes(f"{name}.570.10"))
    lab.host.link(f"{folder}/{name}", f"{name}.570.10")


@on(server)
def explicit_libraries(lab: Lab) -> None:
    lab.options["flags"] = frozenset({discovery_options.EXPLICIT_LIBRARIES})
    lab.host.library("libOpenCL", "libOpenCL.so.1", suffix="1.0.0")
    lab.host.library("libGLdispatch", "libGLdispatch.so.0", suffix="0.0.0")
    lab.host.link(f"driver/{LIB}/libOpenCL.so", "libOpenCL.so.1")


@on(server)
def explicit_libraries_without_the_flag(lab: Lab) -> None:
    lab.host.library("libEGL", "libEGL.so.1", suffix="1.1.0")


# 32-bit libraries


FOLDERS_32 = (
    "usr/lib/i386-linux-gnu", "usr/lib32", "usr/lib", "lib32", "lib/i386-linux-gnu",
)  # fmt: skip


@on(server)
def compat32(lab: Lab) -> None:
    lab.options["compat32"] = True
    for number, folder in enumerate(FOLDERS_32):
        soname = f"libnvidia-x{number}.so.1"
        path = f"driver/{folder}/libnvidia-x{number}.so.{VERSION}"
        lab.host.write(path, shared_object("i386", soname=soname))
    for path, soname in (
        (f"usr/lib32/vdpau/libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1"),
        (f"opt/lib32/libcuda.so.{VERSION}", "libcuda.so.1"),
        ("usr/lib/i386-linux-gnu/libnvidia-egl-gbm.so.1.1.3", "libnvidia-egl-gbm.so.1"),
    ):
        lab.host.write(f"driver/{path}", shared_object("i386", soname=soname))
    lab.host.write(f"driver/usr/lib32/libnvidia-ml.so.{VERSION}", elf_bytes("x", "aarch64"))
    lab.host.write(f"driver/usr/lib32/libnvidia-cfg.so.{VERSION}", "not ELF")
    lab.host.link("driver/opt/lib32/libcuda.so.1", f"libcuda.so.{VERSION}")
    cache(lab.host, "i386", "/opt/lib32/libcuda.so.1")


@on(server)
def compat32_that_nobody_asks_for(lab: Lab) -> None:
    compat32(lab)
    lab.options["compat32"] = False


@on(server)
def compat32_on_a_machine_without_it(lab: Lab) -> None:
    compat32(lab)
    lab.options["machine"] = "aarch64"
    lab.host.write(f"driver/usr/lib64/libcuda.so.{VERSION}", elf_bytes("libcuda.so.1", "aarch64"))


# Programs, firmware, sockets


@on(server)
def program_that_is_not_executable(lab: Lab) -> None:
    lab.host.write("driver/usr/bin/nvidia-debugdump", mode=0o644)


@on(server)
def programs_of_fabric_imex_mps_and_display(lab: Lab) -> None:
    for name in ("nv-fabricmanager", "nvidia-imex", "nvidia-imex-ctl", "nvidia-persistenced",
                 "nvidia-cuda-mps-server", "nvidia-xconfig"):  # fmt: skip
        lab.host.write(f"driver/usr/bin/{name}", "ELF", mode=0o755)


@on(server)
def setuid_program(lab: Lab) -> None:
    lab.host.write("driver/usr/bin/nvidia-smi", "ELF", mode=0o4755)


@on(server)
def script_for_a_program(lab: Lab) -> None:
    """A host of which /usr/bin has scripts for the programs of the driver's own folder."""
    lab.host.write("driver/usr/bin/nvidia-smi", "#!/bin/sh\nexec .../nvidia-smi", mode=0o755)
    lab.host.write("driver/usr/bin/nvidia-debugdump", "#!/bin/sh\n", mode=0o755)
    lab.host.write("driver/usr/local/nvidia/bin/nvidia-smi", elf_bytes(""), mode=0o755)


@on(server)
def firmware_of_others(lab: Lab) -> None:
    lab.host.write("driver/lib/firmware/nvidia/570.10.01/gsp_ga10x.bin", "firmware")
    lab.host.write("driver/lib/firmware/nvidia/ga102/gsp/booter.bin", "nouveau's firmware")
    lab.host.write("sys/module/firmware_class/parameters/path", "/lib/firmware\n")


@on(server)
def sockets_of_the_driver_root(lab: Lab) -> None:
    listen(lab.host, "driver/run/nvidia-persistenced/socket")
    listen(lab.host, "driver/var/run/nvidia-fabricmanager/socket")


@on(server)
def socket_of_the_host_and_mps(lab: Lab) -> None:
    listen(lab.host, "run/nvidia-persistenced/socket")
    (lab.host.driver / "tmp/nvidia-mps").mkdir(parents=True)


@on(server)
def sockets_without_ipc(lab: Lab) -> None:
    socket_of_the_host_and_mps(lab)
    lab.options["flags"] = frozenset({discovery_options.NO_IPC})


@on(server)
def no_sockets_at_their_paths(lab: Lab) -> None:
    lab.host.write("driver/run/nvidia-persistenced/socket")
    lab.host.link("driver/run/nvidia-fabricmanager/socket", "/etc/passwd")
    lab.host.link("driver/tmp/nvidia-mps", "/etc")


# Configuration


def _configuration(lab: Lab, folder: str) -> None:
    for name in SHARED:
        lab.host.write(f"driver/{folder}/{name}", "{}")


@on(server)
def configuration_in_etc(lab: Lab) -> None:
    _configuration(lab, "etc")


@on(server)
def configuration_in_usr_share(lab: Lab) -> None:
    _configuration(lab, "usr/share")


@on(server)
def configuration_in_usr_local_share(lab: Lab) -> None:
    _configuration(lab, "usr/local/share")


@on(server)
def configuration_in_two_folders(lab: Lab) -> None:
    for folder in ("usr/share", "etc"):
        lab.host.write(f"driver/{folder}/vulkan/icd.d/nvidia_icd.json", "{}")


@on(server)
def vulkan_of_other_machines(lab: Lab) -> None:
    for name in ("x86_64", "aarch64", "i686"):
        lab.host.write(f"driver/usr/share/vulkan/icd.d/nvidia_icd.{name}.json", "{}")


@on(server)
def similar_configuration(lab: Lab) -> None:
    for name in ("glvnd/egl_vendor.d/50_mesa.json", "egl/egl_external_platform.d/20_other_xcb.json",
                 "vulkan/icd.d/radeon_icd.x86_64.json", "vulkan/icd.d/nvidia_icd.json.bak",
                 "vulkan/icd.d/nvidia_icd.a\nb.json", "X11/xorg.conf.d/20-nvidia-mine.conf",
                 "nvidia/nvidia-application-profiles-580.159.04-rc"):  # fmt: skip
        lab.host.write(f"driver/usr/share/{name}", "{}")


@on(server)
def configuration_outside_of_the_driver_root(lab: Lab) -> None:
    lab.host.write("secret.json", "{}")
    lab.host.link("driver/etc/vulkan/icd.d/nvidia_icd.json", "../../../../secret.json")


@on(server)
def configuration_of_search_paths(lab: Lab) -> None:
    lab.options["config_search_paths"] = (f"{lab.host.base}/elsewhere",)
    lab.host.write("driver/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n")
    lab.host.write("elsewhere/vulkan/icd.d/nvidia_icd.json", "{}")
    lab.host.write("elsewhere/nvidia/nvoptix.bin")


@on(server)
def configuration_that_names_missing_libraries(lab: Lab) -> None:
    document = {"ICD": {"library_path": "libEGL_nvidia.so.0"}}
    path = "driver/usr/share/glvnd/egl_vendor.d/10_nvidia.json"
    lab.host.write(path, json.dumps(document))
    lab.host.write("driver/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n")


# GPUs


@on(server)
def uuid_of_nvml(lab: Lab) -> None:
    lab.host.gpu(1, uuid=UNKNOWN_UUID)
    lab.options["nvml"] = FakeNvml(gpus=(nvml_gpu(0), nvml_gpu(1)))


@on(server)
def gpu_without_a_uuid(lab: Lab) -> None:
    lab.host.gpu(1, uuid=UNKNOWN_UUID)
    lab.options["nvml"] = FakeNvml(error=NvmlError("broken"))


@on(server)
def gpu_that_a_virtual_machine_has(lab: Lab) -> None:
    for index, kind in ((1, "0x030200"), (2, "0x020000")):  # a GPU, and a network card
        bus = f"0000:{BUSES[index]}:00.0"
        lab.host.write(f"sys/bus/pci/devices/{bus}/vendor", "0x10de\n")
        lab.host.write(f"sys/bus/pci/devices/{bus}/class", f"{kind}\n")
        lab.host.link(f"sys/bus/pci/drivers/vfio-pci/{bus}", f"../../devices/{bus}")


@on(server)
def gpu_that_nvml_leaves_out_for_its_node(lab: Lab) -> None:
    lab.host.gpu(1).instance(1, 7, 0, (66, 67))
    (lab.host.base / "dev/nvidia0").unlink()
    lab.options["nvml"] = FakeNvml(gpus=(nvml_gpu(1, instances=((7, 0),)),))
