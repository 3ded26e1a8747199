# SPDX-License-Identifier: Apache-2.0
"""Debian 12 with NVIDIA's own installer: multiarch folder, Xorg's modules, 32-bit libraries."""

from tests.hosts import archive
from tests.hosts.base import Platform

SOURCE = """
"Installed components" of the driver's README, chapter 5,
https://download.nvidia.com/XFree86/Linux-x86_64/565.57.01/README/installedcomponents.html
(X driver in /usr/lib/xorg/modules/drivers, GLX module in extensions, JSON files in /usr/share,
32-bit libraries beside); https://github.com/GoogleCloudPlatform/cos-gpu-installer (e50bc06e55),
entrypoint.sh, whose overlays show where the installer puts them in a Debian image:
/usr/lib/x86_64-linux-gnu, and so /usr/lib/i386-linux-gnu. Names of 580 as in the archive.
"""
LIB = "/usr/lib/x86_64-linux-gnu"
MODULES = "/usr/lib/xorg/modules/{drivers/nvidia_drv.so,extensions/libglxserver_nvidia.so.V}\n"
GLX_LINK = "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so -> libglxserver_nvidia.so.V\n"
SHARED = """
/etc/OpenCL/vendors/nvidia.icd
/usr/share/glvnd/egl_vendor.d/10_nvidia.json
/usr/share/egl/egl_external_platform.d/{10_nvidia_wayland,15_nvidia_gbm}.json
/usr/share/egl/egl_external_platform.d/20_nvidia_{xcb,xlib}.json
/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf
/usr/share/nvidia/nvoptix.bin
/etc/vulkan/icd.d/nvidia_icd.json
/etc/vulkan/implicit_layer.d/nvidia_layers.json
/etc/vulkansc/icd.d/nvidia_icd_vksc.json
"""
PLATFORM = Platform(
    source=SOURCE,
    files=archive.at(LIB, archive.LIBRARIES, archive.SONAME_LINKS, archive.DEVELOPMENT_LINKS)
    + archive.at("/usr/bin", archive.PROGRAMS, archive.OTHER_PROGRAMS)
    + SHARED + MODULES + GLX_LINK + """
/lib -> usr/lib
/bin -> usr/bin
/usr/lib/i386-linux-gnu/lib{cuda,nvidia-ml,nvidia-ptxjitcompiler,nvidia-eglcore,GLX_nvidia}.so.V
/usr/lib/i386-linux-gnu/{libcuda,libnvidia-ml,libnvidia-ptxjitcompiler}.so.1 -> STEM.so.V
/usr/lib/i386-linux-gnu/vdpau/libvdpau_nvidia.so.V
/usr/lib/firmware/nvidia/V/gsp_{ga10x,tu10x}.bin
/usr/lib/nvidia/alternate-install-present
/usr/share/nvidia/nvidia-application-profiles-V-rc
""",
    cached=(LIB,),
    left_out={"/usr/lib/i386-linux-gnu/*": "32-bit: asked for by the capability compat32"}
    | archive.LEFT_OUT,
)  # fmt: skip
