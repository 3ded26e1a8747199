# SPDX-License-Identifier: Apache-2.0
"""Talos Linux with its NVIDIA extension: everything below /usr/local, found by ld.so.cache."""

from tests.hosts import archive
from tests.hosts.base import Platform

SOURCE = """
https://github.com/siderolabs/extensions (26822f5c95): nvidia-gpu/nvidia-container-toolkit/
nvidia-pkgs/production/pkg.yaml (the arguments of nvidia-installer: prefixes /usr/local, JSON files
in /usr/share and /etc, firmware in /usr/lib/firmware, no OpenCL ICD, ldconfig, nvidia-smi's links)
and production/nvidia-cdi-gen.yaml (what nvidia-ctk cdi generate is given, persistenced's socket).
The files of the driver are those of the archive, without GLVND.
"""
LIB = "/usr/local/lib"
MODULES = "@/xorg/modules/{drivers/nvidia_drv.so,extensions/libglxserver_nvidia.so.V}\n"
GLX_LINK = "@/xorg/modules/extensions/libglxserver_nvidia.so -> libglxserver_nvidia.so.V\n"
SHARED = """
/usr/share/glvnd/egl_vendor.d/10_nvidia.json
/usr/share/egl/egl_external_platform.d/{10_nvidia_wayland,15_nvidia_gbm}.json
/usr/share/egl/egl_external_platform.d/20_nvidia_{xcb,xlib}.json
/etc/vulkan/icd.d/nvidia_icd.json
/etc/vulkan/implicit_layer.d/nvidia_layers.json
/etc/vulkansc/icd.d/nvidia_icd_vksc.json
"""
PLATFORM = Platform(
    source=SOURCE,
    files=archive.at(
        LIB,
        archive.LIBRARIES,
        archive.SONAME_LINKS,
        archive.DEVELOPMENT_LINKS,
        MODULES,
        GLX_LINK,
    )
    + archive.at("/usr/local/bin", archive.PROGRAMS, archive.OTHER_PROGRAMS)
    + SHARED
    + """
/lib -> usr/lib
/lib64 -> usr/lib64
/bin -> usr/bin
/usr/bin/{nvidia-smi,nvidia-modprobe,nvidia-pcc} -> /usr/local/bin/STEM
/usr/lib/firmware/nvidia/V/gsp_{ga10x,tu10x}.bin
/usr/local/share/nvidia/{nvoptix.bin,nvidia-application-profiles-V-rc}
/usr/local/bin/nvidia-{ctk,cdi-hook,container-runtime,persistenced-wrapper}
""",
    cached=(LIB,),
    sockets=("nvidia-persistenced/socket",),
    left_out={
        "*/nvidia-ctk": "not the driver's",
        "*/nvidia-cdi-hook": "not the driver's",
        "*/nvidia-container-runtime": "not the driver's",
        "*/nvidia-persistenced-wrapper": "starts the host's daemon",
    }
    | archive.LEFT_OUT,
)
