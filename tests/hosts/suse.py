# SPDX-License-Identifier: Apache-2.0
"""openSUSE Tumbleweed and SLES with the G06 packages: lib64, and 32-bit libraries in /usr/lib."""

from tests.hosts.base import Platform

SOURCE = """
https://github.com/openSUSE/nvidia-driver-G06 (ef2c2dc606): nvidia-video-G06.spec, %install and
%files of nvidia-{video,compute,compute-utils,common,gl}-G06 and their -32bit, 575.51.02;
libnvidia-egl-gbm1 and libnvidia-egl-wayland1 are openSUSE's own, as is nvidia-persistenced.
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
/usr/lib64/xorg/modules/{drivers/nvidia_drv.so,extensions/libglxserver_nvidia.so.V}
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
/usr/lib64/{libcuda,libnvcuvid,libnvidia-encode,libnvidia-ml}.so -> STEM.so.1
/usr/lib64/vdpau/libvdpau_nvidia.so.1 -> STEM.so.V
/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so -> STEM.so.V
/usr/lib64/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.1
"""
PROGRAMS = "/usr/bin/nvidia-{smi,debugdump,persistenced,cuda-mps-control,cuda-mps-server}\n"
PLATFORM = Platform(
    source=SOURCE,
    version="575.51.02",
    files=LIBRARIES + LINKS_OF_PACKAGES + PROGRAMS + """
/lib -> usr/lib
/lib64 -> usr/lib64
/bin -> usr/bin
/usr/lib64/libvdpau_nvidia.so -> vdpau/libvdpau_nvidia.so.1
/usr/lib/{libcuda,libnvcuvid,libnvidia-ml,libnvidia-nvvm,libnvidia-opencl,libGLX_nvidia}.so.V
/usr/lib/libnvidia-{allocator,eglcore,encode,fbc,glcore,glsi,glvkspirv,gpucomp,tls}.so.V
/usr/lib/{libcuda,libnvcuvid,libnvidia-ml}.so.1 -> STEM.so.V
/usr/lib/libcuda.so -> libcuda.so.1
/usr/lib/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.1
/usr/lib/vdpau/libvdpau_nvidia.so.V
/usr/bin/nvidia-{pcc,ngx-updater,bug-report.sh,powerd,sleep.sh}
/usr/lib64/nvidia/wine/{nvngx,_nvngx,nvngx_dlssg}.dll
/usr/lib/nvidia/alternate-install-present
/usr/lib/firmware/nvidia/V/gsp_{ga10x,tu10x}.bin
/etc/OpenCL/vendors/nvidia.icd
/usr/share/glvnd/egl_vendor.d/10_nvidia.json
/usr/share/egl/egl_external_platform.d/{10_nvidia_wayland,15_nvidia_gbm}.json
/usr/share/vulkan/icd.d/nvidia_icd.{x86_64,i686}.json
/usr/share/vulkan/implicit_layer.d/nvidia_layers.json
/usr/share/vulkansc/icd.d/nvidia_icd.x86_64.json
/usr/share/nvidia/{nvoptix.bin,nvidia-application-profiles-V-rc}
/usr/share/nvidia/files.d/sandboxutils-filelist.json
""",
    cached=("/usr/lib64",),
    i386_dirs=("/usr/lib/",),
    library_paths={"nvidia_icd.x86_64.json": "/usr/lib64/", "nvidia_icd.i686.json": "/usr/lib/"},
    left_out={
        "/usr/lib/*.so.*": "32-bit: asked for by the capability compat32",
        "*/nvidia_icd.i686.json": "32-bit: asked for by the capability compat32",
    },
)  # fmt: skip
