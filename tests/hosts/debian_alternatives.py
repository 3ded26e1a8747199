# SPDX-License-Identifier: Apache-2.0
"""Debian's own packages: a private folder nvidia/current, which alternatives lead to."""

from tests.hosts.base import Platform

SOURCE = """
https://github.com/NVIDIA/debian-packaging-nvidia-driver (dbb36ab435, Debian's packaging): debian/
*.install.in and *.links.in (#PRIVATE# is nvidia/current, debian/rules), the slaves of
nvidia-alternative.postinst.in and README.alternatives. Version of Debian 12.
"""
LIB = "/usr/lib/x86_64-linux-gnu"
PRIVATE = f"{LIB}/nvidia/current"
LIBRARIES = f"""
{PRIVATE}/{{libcuda,libcudadebugger,libnvcuvid,libnvoptix,libvdpau_nvidia}}.so.V
{PRIVATE}/{{libEGL,libGLESv1_CM,libGLESv2,libGLX}}_nvidia.so.V
{PRIVATE}/libnvidia-{{allocator,cfg,encode,fbc,ml,nvvm,opencl,opticalflow,ptxjitcompiler}}.so.V
{PRIVATE}/libnvidia-api.so.1
{LIB}/libnvidia-{{eglcore,glcore,glsi,glvkspirv,ngx,pkcs11,pkcs11-openssl3,rtcore,tls}}.so.V
{LIB}/libnvidia-wayland-client.so.V
"""
LINKS_OF_PACKAGES = f"""
{PRIVATE}/{{libcuda,libcudadebugger,libnvcuvid,libnvoptix,libvdpau_nvidia}}.so.1 -> STEM.so.V
{PRIVATE}/{{libEGL_nvidia.so.0,libGLX_nvidia.so.0}} -> STEM.so.V
{PRIVATE}/{{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2}} -> STEM.so.V
{PRIVATE}/libnvidia-{{allocator,cfg,encode,fbc,ml,opencl,opticalflow}}.so.1 -> STEM.so.V
{PRIVATE}/libnvidia-ptxjitcompiler.so.1 -> STEM.so.V
{PRIVATE}/libnvidia-nvvm.so.4 -> STEM.so.V
{PRIVATE}/{{libcuda,libnvcuvid,libnvidia-encode,libnvidia-fbc,libnvidia-ml}}.so -> STEM.so.1
{PRIVATE}/libnvidia-opticalflow.so -> STEM.so.1
{PRIVATE}/libnvidia-nvvm.so -> STEM.so.4
"""
# Slaves of the alternative "nvidia": NAME -> /etc/alternatives/nvidia--NAME-TRIPLET -> PRIVATE.
SLAVES = (
    "libGLX_nvidia.so.0", "libEGL_nvidia.so.0", "libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1",
    "libnvidia-allocator.so.1", "libnvidia-encode.so.1", "libnvidia-nvvm.so.4",
)  # fmt: skip
ALTERNATIVES = "".join(
    f"{LIB}/{name} -> /etc/alternatives/nvidia--{name}-x86_64-linux-gnu\n"
    f"/etc/alternatives/nvidia--{name}-x86_64-linux-gnu -> {PRIVATE}/{name}\n"
    for name in SLAVES
)
CONF = "nvidia-drm-outputclass.conf"
PLATFORM = Platform(
    source=SOURCE,
    version="535.261.03",
    files=LIBRARIES + LINKS_OF_PACKAGES + ALTERNATIVES + f"""
/lib -> usr/lib
/bin -> usr/bin
/usr/lib/nvidia/current/nvidia-{{smi,debugdump,bug-report.sh,ngx-updater,powerd}}
/usr/lib/nvidia/current/{{nvidia_drv.so,libglxserver_nvidia.so.V}}
/usr/lib/nvidia/current/libglxserver_nvidia.so -> STEM.so.V
/usr/bin/nvidia-smi -> /etc/alternatives/nvidia--nvidia-smi
/etc/alternatives/nvidia--nvidia-smi -> /usr/lib/nvidia/current/nvidia-smi
/usr/bin/nvidia-debugdump -> /etc/alternatives/nvidia--nvidia-debugdump
/etc/alternatives/nvidia--nvidia-debugdump -> /usr/lib/nvidia/current/nvidia-debugdump
/usr/bin/nvidia-{{cuda-mps-control,cuda-mps-server,persistenced}}
{LIB}/vdpau/libvdpau_nvidia.so.1 -> /etc/alternatives/nvidia--libvdpau_nvidia.so.1
/etc/alternatives/nvidia--libvdpau_nvidia.so.1 -> {PRIVATE}/libvdpau_nvidia.so.1
{LIB}/gbm/nvidia-drm_gbm.so -> /etc/alternatives/nvidia--nvidia-drm_gbm.so
/etc/alternatives/nvidia--nvidia-drm_gbm.so -> {PRIVATE}/nvidia-drm_gbm.so
{PRIVATE}/nvidia-drm_gbm.so -> libnvidia-allocator.so.V
/usr/lib/firmware/nvidia/V/gsp_{{ga10x,tu10x}}.bin
/etc/OpenCL/vendors/nvidia.icd
/etc/nvidia/current/{CONF}
/etc/alternatives/nvidia--{CONF} -> /etc/nvidia/current/{CONF}
/etc/nvidia/{CONF} -> /etc/alternatives/nvidia--{CONF}
/usr/share/X11/xorg.conf.d/{CONF} -> /etc/nvidia/{CONF}
/usr/share/glvnd/egl_vendor.d/10_nvidia.json
/usr/share/vulkan/icd.d/nvidia_icd.json
/usr/share/vulkan/implicit_layer.d/nvidia_layers.json
/usr/share/nvidia/{{nvoptix.bin,nvidia-application-profiles-V-rc}}
""",
    cached=(LIB,),
    left_out={
        "*/nvidia_drv.so": "in Debian's own folder, which only its Xorg is told of",
        "*/libglxserver_nvidia.so.*": "in Debian's own folder, which only its Xorg is told of",
    },
)  # fmt: skip
