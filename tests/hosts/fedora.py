# SPDX-License-Identifier: Apache-2.0
"""A recorded Fedora 43 workstation with RPM Fusion's 580.119.02: /usr/sbin is a link to bin.

Silverblue and its kin have the same packages below an ostree's /usr: see silverblue.py.
"""

from tests.hosts.base import Platform

SOURCE = """
Recorded on a host with a GeForce RTX 4090: what "nvidia-ctk cdi generate" says that it selects (a
public note, "Library Issues on container start after system update", 2026-02-28), and "rpm -ql"
of RPM Fusion's xorg-x11-drv-nvidia{,-libs,-cuda,-cuda-libs,-power} and nvidia-settings 580.142 (a
public note, 2026-05). nvidia-ctk takes no libnvidia-api.so.1, libnvidia-nvvm70.so.4 or
vulkansc/icd.d there; nvct does.
"""
LIBRARIES = """
/usr/lib64/{libcuda,libcudadebugger,libnvcuvid,libnvoptix}.so.V
/usr/lib64/{libEGL,libGLESv1_CM,libGLESv2,libGLX}_nvidia.so.V
/usr/lib64/libnvidia-{allocator,cfg,eglcore,encode,fbc,glcore,glsi,glvkspirv,gpucomp,gtk3}.so.V
/usr/lib64/libnvidia-{ml,ngx,nvvm,opencl,opticalflow,pkcs11-openssl3,present}.so.V
/usr/lib64/libnvidia-{ptxjitcompiler,rtcore,sandboxutils,tls,vksc-core,wayland-client}.so.V
/usr/lib64/libnvidia-egl-{gbm.so.1.1.3,wayland.so.1.1.21}
/usr/lib64/{libnvidia-api.so.1,libnvidia-nvvm70.so.4}
/usr/lib64/vdpau/libvdpau_nvidia.so.V
"""
LINKS_OF_PACKAGES = """
/usr/lib64/{libcuda,libcudadebugger,libnvcuvid,libnvoptix}.so.1 -> STEM.so.V
/usr/lib64/{libEGL_nvidia.so.0,libGLX_nvidia.so.0} -> STEM.so.V
/usr/lib64/{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2} -> STEM.so.V
/usr/lib64/libnvidia-{allocator,cfg,encode,fbc,ml,ngx,opencl,opticalflow}.so.1 -> STEM.so.V
/usr/lib64/libnvidia-{ptxjitcompiler,sandboxutils,vksc-core}.so.1 -> STEM.so.V
/usr/lib64/libnvidia-nvvm.so.4 -> STEM.so.V
/usr/lib64/libnvidia-egl-gbm.so.1 -> STEM.so.1.1.3
/usr/lib64/libnvidia-egl-wayland.so.1 -> STEM.so.1.1.21
/usr/lib64/{libcuda,libnvcuvid,libnvidia-encode,libnvidia-ml}.so -> STEM.so.1
/usr/lib64/libnvidia-nvvm.so -> STEM.so.4
/usr/lib64/vdpau/libvdpau_nvidia.so.1 -> STEM.so.V
"""
PROGRAMS = "nvidia-{smi,debugdump,persistenced,cuda-mps-control,cuda-mps-server}"
FILES = LIBRARIES + LINKS_OF_PACKAGES + f"/usr/bin/{PROGRAMS}" + """
/usr/lib64/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.V
/usr/bin/nvidia-{pcc,ngx-updater,bug-report.sh,powerd,sleep.sh,settings,modprobe}
/usr/lib64/nvidia/wine/{nvngx,_nvngx,nvngx_dlssg}.dll
/usr/lib/nvidia/alternate-install-present
/usr/lib/firmware/nvidia/V/gsp_{ga10x,tu10x}.bin
/etc/OpenCL/vendors/nvidia.icd
/usr/share/glvnd/egl_vendor.d/10_nvidia.json
/usr/share/egl/egl_external_platform.d/{10_nvidia_wayland,15_nvidia_gbm}.json
/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json
/usr/share/vulkan/implicit_layer.d/nvidia_layers.json
/usr/share/vulkansc/icd.d/nvidia_icd_vksc.x86_64.json
/usr/share/nvidia/{nvoptix.bin,nvidia-application-profiles-V-rc}
/usr/share/nvidia/files.d/sandboxutils-filelist.json
"""  # fmt: skip
PLATFORM = Platform(
    source=SOURCE,
    version="580.119.02",
    model="NVIDIA GeForce RTX 4090",
    files=FILES + """
/lib -> usr/lib
/lib64 -> usr/lib64
/bin -> usr/bin
/sbin -> usr/sbin
/usr/sbin -> bin
""",
    cached=("/usr/lib64",),
)  # fmt: skip
