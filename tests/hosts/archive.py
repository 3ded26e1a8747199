# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver archive: what its installer puts on a host, wherever a vendor tells it to.

The libraries of 580 for x86_64, "@" for their folder: "Installed components" in the driver's
README (https://download.nvidia.com/XFree86/Linux-x86_64/565.57.01/README/installedcomponents.html)
and the list of https://github.com/CachyOS/CachyOS-PKGBUILDS (nvidia/nvidia-580xx-utils/PKGBUILD,
9acaa8eca3), which names every file of NVIDIA-Linux-x86_64-580.105.08.run. The links are those of
the archive's manifest, as Ubuntu's *.links repeat them.
"""

LIBRARIES = """
@/{libcuda,libcudadebugger,libnvcuvid,libnvoptix}.so.V
@/{libEGL,libGLESv1_CM,libGLESv2,libGLX}_nvidia.so.V
@/libnvidia-{allocator,cfg,eglcore,encode,fbc,glcore,glsi,glvkspirv,gpucomp,gtk3,ml,ngx,nvvm}.so.V
@/libnvidia-{opencl,opticalflow,pkcs11,pkcs11-openssl3,present,ptxjitcompiler,rtcore}.so.V
@/libnvidia-{sandboxutils,tls,vksc-core,wayland-client}.so.V
@/{libnvidia-api.so.1,libnvidia-nvvm70.so.4}
@/libnvidia-egl-{gbm.so.1.1.2,wayland.so.1.1.20}
@/libnvidia-egl-{xcb,xlib}.so.1.0.3
@/vdpau/libvdpau_nvidia.so.V
"""
SONAME_LINKS = """
@/{libcuda,libcudadebugger,libnvcuvid,libnvoptix}.so.1 -> STEM.so.V
@/{libEGL_nvidia.so.0,libGLX_nvidia.so.0} -> STEM.so.V
@/{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2} -> STEM.so.V
@/libnvidia-{allocator,cfg,encode,fbc,ml,ngx,opencl,opticalflow}.so.1 -> STEM.so.V
@/libnvidia-{ptxjitcompiler,sandboxutils,vksc-core}.so.1 -> STEM.so.V
@/libnvidia-nvvm.so.4 -> STEM.so.V
@/libnvidia-egl-gbm.so.1 -> STEM.so.1.1.2
@/libnvidia-egl-wayland.so.1 -> STEM.so.1.1.20
@/libnvidia-egl-{xcb,xlib}.so.1 -> STEM.so.1.0.3
@/vdpau/libvdpau_nvidia.so.1 -> STEM.so.V
"""
DEVELOPMENT_LINKS = """
@/{libcuda,libnvcuvid}.so -> STEM.so.1
@/libnvidia-{allocator,cfg,encode,fbc,ml,opticalflow,ptxjitcompiler}.so -> STEM.so.1
@/libnvidia-nvvm.so -> STEM.so.4
@/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.1
"""
# Of other packages where there are such; the installer brings them with --install-libglvnd.
LOADERS = """
@/{libEGL.so.1.1.0,libGL.so.1.7.0,libGLESv1_CM.so.1.2.0,libGLESv2.so.2.1.0,libOpenCL.so.1.0.0}
@/{libGLX.so.0,libOpenGL.so.0,libGLdispatch.so.0}
@/libEGL.so.1 -> libEGL.so.1.1.0
@/libGL.so.1 -> libGL.so.1.7.0
@/libGLESv1_CM.so.1 -> libGLESv1_CM.so.1.2.0
@/libGLESv2.so.2 -> libGLESv2.so.2.1.0
@/libOpenCL.so.1 -> libOpenCL.so.1.0.0
"""
PROGRAMS = "@/nvidia-{smi,debugdump,persistenced,xconfig,cuda-mps-control,cuda-mps-server}\n"
OTHER_PROGRAMS = """
@/nvidia-{bug-report.sh,modprobe,ngx-updater,pcc,powerd,settings,sleep.sh,installer,uninstall}
"""
GLVND = "images have GLVND and OpenCL's loader; they are not the driver's"
LEFT_OUT = {
    "*/nvidia-*install*": "changes the host's files",
    "*/libEGL.so.*": GLVND,
    "*/libGL.so.*": GLVND,
    "*/libGLESv1_CM.so.*": GLVND,
    "*/libGLESv2.so.*": GLVND,
    "*/libGLX.so.*": GLVND,
    "*/libOpenGL.so.*": GLVND,
    "*/libGLdispatch.so.*": GLVND,
    "*/libOpenCL.so.*": GLVND,
}


def at(folder: str, *tables: str) -> str:
    """Return tables for a folder."""
    return "\n".join(tables).replace("@", folder)
