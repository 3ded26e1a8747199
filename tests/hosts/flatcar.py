# SPDX-License-Identifier: Apache-2.0
"""Flatcar: the driver in /opt/nvidia/current, laid over /usr as a system extension as well."""

from tests.hosts.base import Platform

SOURCE = """
https://github.com/flatcar/scripts (14c9198e3f): sdk_container/src/third_party/coreos-overlay/
x11-drivers/nvidia-drivers-service/files/bin/setup-nvidia: every *.so.* of the archive is copied
flat to /opt/nvidia/VERSION/KERNEL/usr/lib64, ldconfig makes the SONAME links there, eight programs
go to /opt/bin. https://github.com/flatcar/sysext-bakery (790fef0c9a), nvidia-runtime.sysext,
_nvidia-runtime-helper: /opt/nvidia/current becomes a system extension, laid over /usr, with
usr/bin/nvidia-smi a link. No firmware and no JSON files are copied.
"""
OPT = "/opt/nvidia/V/6.12.58-flatcar/usr/lib64"
NAMES = """
@/{libcuda,libcudadebugger,libnvcuvid,libnvoptix,libvdpau_nvidia}.so.V
@/{libEGL,libGLESv1_CM,libGLESv2,libGLX}_nvidia.so.V
@/libnvidia-{allocator,cfg,eglcore,encode,fbc,glcore,glsi,glvkspirv,gpucomp,gtk3,ml,ngx,nvvm}.so.V
@/libnvidia-{opencl,opticalflow,pkcs11,pkcs11-openssl3,ptxjitcompiler,rtcore,sandboxutils}.so.V
@/libnvidia-{tls,wayland-client}.so.V
@/{libnvidia-api.so.1,libnvidia-egl-gbm.so.1.1.2,libnvidia-egl-wayland.so.1.1.19}
"""
LINKS_OF_LDCONFIG = """
@/{libcuda,libcudadebugger,libnvcuvid,libnvoptix,libvdpau_nvidia}.so.1 -> STEM.so.V
@/{libEGL_nvidia.so.0,libGLX_nvidia.so.0} -> STEM.so.V
@/{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2} -> STEM.so.V
@/libnvidia-{allocator,cfg,encode,fbc,ml,ngx,opencl,opticalflow}.so.1 -> STEM.so.V
@/libnvidia-{ptxjitcompiler,sandboxutils}.so.1 -> STEM.so.V
@/libnvidia-nvvm.so.4 -> STEM.so.V
@/libnvidia-egl-gbm.so.1 -> STEM.so.1.1.2
@/libnvidia-egl-wayland.so.1 -> STEM.so.1.1.19
"""
OTHERS = "@/{libglxserver_nvidia.so.V,libGLX.so.0,libOpenGL.so.0,libGLdispatch.so.0}\n"
INSTALLED = NAMES + LINKS_OF_LDCONFIG + OTHERS
PLATFORM = Platform(
    source=SOURCE,
    version="570.195.03",
    files=INSTALLED.replace("@", OPT)
    + INSTALLED.replace("@", "/usr/lib64")
    + """
/opt/nvidia/current -> V/6.12.58-flatcar
/lib -> usr/lib
/lib64 -> usr/lib64
/bin -> usr/bin
/usr/bin/nvidia-smi -> /opt/bin/nvidia-smi
/opt/bin/nvidia-{smi,debugdump,persistenced,xconfig,modprobe,settings}
/opt/bin/nvidia-{cuda-mps-control,cuda-mps-server}
""",
    cached=("/opt/nvidia/current/usr/lib64",),
    left_out={
        "/opt/nvidia/*": "the same files as in /usr/lib64, which is searched first",
        "*/lib[GO]*.so.0": "images have GLVND",
    },
)  # fmt: skip
