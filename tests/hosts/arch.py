# SPDX-License-Identifier: Apache-2.0
"""Arch Linux: 64-bit libraries in /usr/lib, 32-bit ones in /usr/lib32, links of every library."""

from tests.hosts.base import Platform

SOURCE = """
https://github.com/CachyOS/CachyOS-PKGBUILDS (9acaa8eca3), Arch's nvidia-utils for 580.105.08:
nvidia/nvidia-580xx-utils/PKGBUILD, package_nvidia-580xx-utils, package_opencl-nvidia-580xx and
create_links (the SONAME and "NAME.so" of every library); nvidia/lib32-nvidia-580xx-utils.
egl-wayland, egl-gbm and egl-x11 are Arch's packages; /usr/lib64 and /lib are links to lib.
"""
NUMBERED = "libnvidia-{allocator,cfg,encode,fbc,ml,ngx,opencl,opticalflow}"
PLAIN = "libnvidia-{eglcore,glcore,glsi,glvkspirv,gpucomp,present,rtcore,tls}"
LIBRARIES = f"""
/usr/lib/{{libcuda,libcudadebugger,libnvcuvid,libnvoptix}}.so.V
/usr/lib/{{libEGL,libGLESv1_CM,libGLESv2,libGLX}}_nvidia.so.V
/usr/lib/{NUMBERED}.so.V
/usr/lib/{PLAIN}.so.V
/usr/lib/libnvidia-{{nvvm,pkcs11,pkcs11-openssl3,ptxjitcompiler,sandboxutils,vksc-core}}.so.V
/usr/lib/{{libnvidia-api.so.1,libnvidia-nvvm70.so.4}}
/usr/lib/libnvidia-egl-{{gbm.so.1.1.2,wayland.so.1.1.20}}
/usr/lib/libnvidia-egl-{{xcb,xlib}}.so.1.0.4
/usr/lib/vdpau/libvdpau_nvidia.so.V
/usr/lib/nvidia/xorg/libglxserver_nvidia.so.V
/usr/lib/xorg/modules/drivers/nvidia_drv.so
"""
LINKS_OF_PACKAGES = f"""
/usr/lib/{{libcuda,libcudadebugger,libnvcuvid,libnvoptix}}.so.1 -> STEM.so.V
/usr/lib/{{libEGL_nvidia.so.0,libGLX_nvidia.so.0}} -> STEM.so.V
/usr/lib/{{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2}} -> STEM.so.V
/usr/lib/{NUMBERED}.so.1 -> STEM.so.V
/usr/lib/libnvidia-{{ptxjitcompiler,sandboxutils,vksc-core}}.so.1 -> STEM.so.V
/usr/lib/libnvidia-nvvm.so.4 -> STEM.so.V
/usr/lib/libnvidia-egl-gbm.so.1 -> STEM.so.1.1.2
/usr/lib/libnvidia-egl-wayland.so.1 -> STEM.so.1.1.20
/usr/lib/libnvidia-egl-{{xcb,xlib}}.so.1 -> STEM.so.1.0.4
/usr/lib/vdpau/libvdpau_nvidia.so.1 -> STEM.so.V
/usr/lib/{{libcuda,libcudadebugger,libnvcuvid,libnvoptix}}.so -> STEM.so.1
/usr/lib/{{libEGL,libGLX}}_nvidia.so -> STEM.so.0
/usr/lib/libGLESv1_CM_nvidia.so -> STEM.so.1
/usr/lib/libGLESv2_nvidia.so -> STEM.so.2
/usr/lib/{NUMBERED}.so -> STEM.so.1
/usr/lib/{PLAIN}.so -> STEM.so.V
/usr/lib/libnvidia-{{pkcs11,pkcs11-openssl3}}.so -> STEM.so.V
/usr/lib/libnvidia-{{api,ptxjitcompiler,sandboxutils,vksc-core}}.so -> STEM.so.1
/usr/lib/libnvidia-{{nvvm,nvvm70}}.so -> STEM.so.4
/usr/lib/vdpau/libvdpau_nvidia.so -> STEM.so.1
/usr/lib/nvidia/xorg/libglxserver_nvidia.so -> STEM.so.V
"""
PROGRAMS = """
/usr/bin/nvidia-{smi,debugdump,persistenced,xconfig,cuda-mps-control,cuda-mps-server}
"""
SHARED = """
/etc/OpenCL/vendors/nvidia.icd
/usr/share/glvnd/egl_vendor.d/10_nvidia.json
/usr/share/egl/egl_external_platform.d/{10_nvidia_wayland,15_nvidia_gbm}.json
/usr/share/egl/egl_external_platform.d/20_nvidia_{xcb,xlib}.json
/usr/share/X11/xorg.conf.d/10-nvidia-drm-outputclass.conf
/usr/share/nvidia/nvoptix.bin
"""
PLATFORM = Platform(
    source=SOURCE,
    version="580.105.08",
    files=LIBRARIES + LINKS_OF_PACKAGES + PROGRAMS + SHARED + """
/lib -> usr/lib
/lib64 -> usr/lib
/usr/lib64 -> lib
/bin -> usr/bin
/sbin -> usr/bin
/usr/sbin -> bin
/usr/lib/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.V
/usr/lib/nvidia/xorg/libglxserver_nvidia.so.1 -> STEM.so.V
/usr/lib32/{libcuda,libnvidia-ml,libnvidia-eglcore,libnvidia-glcore,libGLX_nvidia}.so.V
/usr/lib32/{libcuda,libnvidia-ml}.so.1 -> STEM.so.V
/usr/bin/nvidia-{pcc,ngx-updater,bug-report.sh,modprobe,powerd,sleep.sh}
/usr/lib/nvidia/wine/{nvngx,_nvngx,nvngx_dlssg}.dll
/usr/lib/firmware/nvidia/V/gsp_{ga10x,tu10x}.bin
/usr/share/vulkan/icd.d/nvidia_icd.json
/usr/share/vulkan/implicit_layer.d/nvidia_layers.json
/usr/share/vulkansc/icd.d/nvidia_icd_vksc.json
/usr/share/nvidia/nvidia-application-profiles-V-rc
""",
    cached=("/usr/lib",),
    left_out={
        "/usr/lib32/*": "32-bit: asked for by the capability compat32",
    },
)  # fmt: skip
