# SPDX-License-Identifier: Apache-2.0
"""The GPU operator's driver container, its root seen at /run/nvidia/driver."""

from tests.hosts import archive
from tests.hosts.base import Platform

SOURCE = """
https://github.com/NVIDIA/gpu-driver-container (06a208ca97): ubuntu24.04/nvidia-driver mounts the
container's root at /run/nvidia/driver, installs with x-prefix, x-module-path and x-library-path
/tmp/null and without GLVND, and points the kernel's firmware path to
/run/nvidia/driver/lib/firmware; ubuntu24.04/install.sh adds nvidia-fabricmanager, libnvidia-nscq,
libnvsdm and nvidia-imex. The files of the driver are those of the archive.
"""
ROOT = "/run/nvidia/driver"
LIB = "/usr/lib/x86_64-linux-gnu"
LIBRARIES = archive.LIBRARIES + "@/{libnvsdm,libnvidia-nscq}.so.V\n"
PROGRAMS = archive.PROGRAMS + "@/nvidia-{imex,imex-ctl}\n@/nv-fabricmanager\n"
CONFIGURATION = """
@/etc/OpenCL/vendors/nvidia.icd
@/usr/share/glvnd/egl_vendor.d/10_nvidia.json
@/usr/share/egl/egl_external_platform.d/{10_nvidia_wayland,15_nvidia_gbm}.json
@/usr/share/egl/egl_external_platform.d/20_nvidia_{xcb,xlib}.json
@/usr/share/nvidia/nvoptix.bin
@/etc/vulkan/icd.d/nvidia_icd.json
@/etc/vulkan/implicit_layer.d/nvidia_layers.json
@/etc/vulkansc/icd.d/nvidia_icd_vksc.json
"""
FIRMWARE = "@/firmware/nvidia/V/gsp_{ga10x,tu10x}.bin\n"
PLATFORM = Platform(
    source=SOURCE,
    driver_root=ROOT,
    firmware_path=f"{ROOT}/lib/firmware",
    files=archive.at(
        ROOT + LIB, LIBRARIES, archive.SONAME_LINKS, archive.DEVELOPMENT_LINKS
    ) + archive.at(f"{ROOT}/usr/bin", PROGRAMS, archive.OTHER_PROGRAMS) + archive.at(
        ROOT, CONFIGURATION, "@/lib -> usr/lib\n@/bin -> usr/bin\n"
    ) + archive.at(f"{ROOT}/usr/lib", FIRMWARE) + "/usr/bin/nvidia-smi\n",
    cached=(LIB,),
    left_out={"/usr/bin/nvidia-smi": "the host's own, of another driver"} | archive.LEFT_OUT,
)  # fmt: skip
