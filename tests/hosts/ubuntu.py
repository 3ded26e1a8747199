# SPDX-License-Identifier: Apache-2.0
"""Ubuntu 24.04 with the packages of nvidia-driver-580: multiarch folder, GLVND, /usr merged."""

from tests.hosts.base import Platform

SOURCE = """
https://github.com/pop-os/nvidia-graphics-drivers (Ubuntu's packaging, 580.159.03, 5a62809004):
debian/{libnvidia-*-580,nvidia-compute-utils-580,nvidia-utils-580,nvidia-kernel-common-580,
nvidia-firmware-580-*,xserver-xorg-video-nvidia-580}.{install,links}; libnvidia-egl-wayland1 and
libnvidia-egl-gbm1 are Ubuntu's own packages, libnvidia-api.so.1 has no link.
"""
LIBRARIES = """
/usr/lib/x86_64-linux-gnu/{libcuda,libcudadebugger,libnvcuvid,libnvoptix}.so.V
/usr/lib/x86_64-linux-gnu/{libEGL,libGLESv1_CM,libGLESv2,libGLX}_nvidia.so.V
/usr/lib/x86_64-linux-gnu/libnvidia-{allocator,cfg,eglcore,encode,fbc,glcore,glsi,glvkspirv}.so.V
/usr/lib/x86_64-linux-gnu/libnvidia-{gpucomp,ml,ngx,nvvm,opencl,opticalflow,present}.so.V
/usr/lib/x86_64-linux-gnu/libnvidia-{pkcs11-openssl3,ptxjitcompiler,rtcore,tls,vksc-core}.so.V
/usr/lib/x86_64-linux-gnu/{libnvidia-api.so.1,libnvidia-nvvm70.so.4}
/usr/lib/x86_64-linux-gnu/libnvidia-egl-{gbm.so.1.1.3,wayland.so.1.1.13}
/usr/lib/x86_64-linux-gnu/libnvidia-egl-{xcb,xlib}.so.1.0.5
/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.V
/usr/lib/x86_64-linux-gnu/nvidia/xorg/{libglxserver_nvidia.so.V,nvidia_drv.so}
"""
LINKS_OF_PACKAGES = """
/usr/lib/x86_64-linux-gnu/{libcuda,libcudadebugger,libnvcuvid,libnvoptix}.so.1 -> STEM.so.V
/usr/lib/x86_64-linux-gnu/{libEGL_nvidia.so.0,libGLX_nvidia.so.0} -> STEM.so.V
/usr/lib/x86_64-linux-gnu/{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2} -> STEM.so.V
/usr/lib/x86_64-linux-gnu/libnvidia-{allocator,cfg,encode,fbc,ml,opencl}.so.1 -> STEM.so.V
/usr/lib/x86_64-linux-gnu/libnvidia-{opticalflow,ptxjitcompiler}.so.1 -> STEM.so.V
/usr/lib/x86_64-linux-gnu/libnvidia-nvvm.so.4 -> STEM.so.V
/usr/lib/x86_64-linux-gnu/libnvidia-egl-gbm.so.1 -> STEM.so.1.1.3
/usr/lib/x86_64-linux-gnu/libnvidia-egl-wayland.so.1 -> STEM.so.1.1.13
/usr/lib/x86_64-linux-gnu/libnvidia-egl-{xcb,xlib}.so.1 -> STEM.so.1.0.5
/usr/lib/x86_64-linux-gnu/{libcuda,libnvcuvid}.so -> STEM.so.1
/usr/lib/x86_64-linux-gnu/libnvidia-{allocator,cfg,encode,fbc,ml}.so -> STEM.so.1
/usr/lib/x86_64-linux-gnu/libnvidia-{opticalflow,ptxjitcompiler}.so -> STEM.so.1
/usr/lib/x86_64-linux-gnu/libnvidia-{nvvm,nvvm70}.so -> STEM.so.4
/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.1 -> STEM.so.V
/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so -> STEM.so.1
/usr/lib/x86_64-linux-gnu/nvidia/xorg/libglxserver_nvidia.so -> STEM.so.V
/usr/lib/x86_64-linux-gnu/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.1
"""
PROGRAMS = """
/usr/bin/nvidia-{smi,debugdump,persistenced,xconfig,cuda-mps-control,cuda-mps-server}
"""
PLATFORM = Platform(
    source=SOURCE,
    files=LIBRARIES + LINKS_OF_PACKAGES + PROGRAMS + """
/lib -> usr/lib
/bin -> usr/bin
/usr/bin/nvidia-{pcc,ngx-updater,bug-report.sh,powerd,sleep.sh}
/usr/lib/x86_64-linux-gnu/nvidia/wine/{nvngx,_nvngx}.dll
/usr/lib/firmware/nvidia/V/gsp_{ga10x,tu10x}.bin
/etc/OpenCL/vendors/nvidia.icd
/usr/share/glvnd/egl_vendor.d/10_nvidia.json
/usr/share/egl/egl_external_platform.d/{10_nvidia_wayland,15_nvidia_gbm}.json
/usr/share/egl/egl_external_platform.d/20_nvidia_{xcb,xlib}.json
/usr/share/vulkan/icd.d/nvidia_icd.json
/usr/share/vulkan/implicit_layer.d/nvidia_layers.json
/usr/share/vulkansc/icd.d/nvidia_icd_vksc.json
/usr/share/X11/xorg.conf.d/10-nvidia.conf
/usr/share/nvidia/{nvoptix.bin,nvidia-application-profiles-V-rc}
/usr/share/nvidia/files.d/sandboxutils-filelist.json
""",
)  # fmt: skip
