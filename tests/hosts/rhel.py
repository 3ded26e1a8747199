# SPDX-License-Identifier: Apache-2.0
"""RHEL 9 with NVIDIA's own packages: /usr/lib64, and libglxserver_nvidia.so without a version."""

from tests.hosts.base import Platform

SOURCE = """
https://github.com/NVIDIA/yum-packaging-nvidia-driver (d06f50a507, branch 570) and its successor
https://github.com/negativo17/nvidia-driver (f769f88908): nvidia-driver.spec, %install and %files
of nvidia-driver{,-cuda,-libs,-cuda-libs}, libnvidia-{cfg,fbc,ml} and xorg-x11-nvidia for rhel 9.
egl-gbm, egl-wayland and egl-x11 are packages of EPEL; nvidia-persistenced is its own package.
"""
LIBRARIES = """
/usr/lib64/{libcuda,libcudadebugger,libnvcuvid,libnvoptix}.so.V
/usr/lib64/{libEGL,libGLESv1_CM,libGLESv2,libGLX}_nvidia.so.V
/usr/lib64/libnvidia-{allocator,cfg,eglcore,encode,fbc,glcore,glsi,glvkspirv,gpucomp,ml,ngx}.so.V
/usr/lib64/libnvidia-{nvvm,opencl,opticalflow,pkcs11-openssl3,present,ptxjitcompiler}.so.V
/usr/lib64/libnvidia-{rtcore,sandboxutils,tls,vksc-core}.so.V
/usr/lib64/{libnvidia-api.so.1,libnvidia-nvvm70.so.4}
/usr/lib64/libnvidia-egl-{gbm.so.1.1.2,wayland.so.1.1.19}
/usr/lib64/vdpau/libvdpau_nvidia.so.V
/usr/lib64/xorg/modules/{drivers/nvidia_drv.so,extensions/libglxserver_nvidia.so}
"""
LINKS_OF_PACKAGES = """
/usr/lib64/{libcuda,libcudadebugger,libnvcuvid,libnvoptix}.so.1 -> STEM.so.V
/usr/lib64/{libEGL_nvidia.so.0,libGLX_nvidia.so.0} -> STEM.so.V
/usr/lib64/{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2} -> STEM.so.V
/usr/lib64/libnvidia-{allocator,cfg,encode,fbc,ml,ngx,opencl,opticalflow}.so.1 -> STEM.so.V
/usr/lib64/libnvidia-{ptxjitcompiler,sandboxutils,vksc-core}.so.1 -> STEM.so.V
/usr/lib64/libnvidia-nvvm.so.4 -> STEM.so.V
/usr/lib64/libnvidia-egl-gbm.so.1 -> STEM.so.1.1.2
/usr/lib64/libnvidia-egl-wayland.so.1 -> STEM.so.1.1.19
/usr/lib64/{libcuda,libnvcuvid,libnvidia-encode}.so -> STEM.so.1
/usr/lib64/vdpau/libvdpau_nvidia.so.1 -> STEM.so.V
"""
PROGRAMS = "/usr/bin/nvidia-{smi,debugdump,persistenced,cuda-mps-control,cuda-mps-server}\n"
PLATFORM = Platform(
    source=SOURCE,
    files=LIBRARIES + LINKS_OF_PACKAGES + PROGRAMS + """
/lib -> usr/lib
/lib64 -> usr/lib64
/bin -> usr/bin
/sbin -> usr/sbin
/usr/lib64/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.V
/usr/bin/nvidia-{pcc,ngx-updater,bug-report.sh,powerd,sleep.sh}
/usr/lib64/nvidia/wine/{nvngx,_nvngx}.dll
/usr/lib/nvidia/alternate-install-present
/usr/lib/firmware/nvidia/V/gsp_{ga10x,tu10x}.bin
/etc/OpenCL/vendors/nvidia.icd
/etc/X11/xorg.conf.d/10-nvidia.conf
/usr/share/glvnd/egl_vendor.d/10_nvidia.json
/usr/share/egl/egl_external_platform.d/{10_nvidia_wayland,15_nvidia_gbm}.json
/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json
/usr/share/vulkan/implicit_layer.d/nvidia_layers.json
/usr/share/vulkansc/icd.d/nvidia_icd.x86_64.json
/usr/share/nvidia/{nvoptix.bin,nvidia-application-profiles-V-rc}
/usr/share/nvidia/files.d/sandboxutils-filelist.json
""",
    # gbm's backend is named by the library's SONAME, not by the version as in the package.
    cached=("/usr/lib64",),
    library_paths={"nvidia_icd.*": "/usr/lib64/"},
)  # fmt: skip
