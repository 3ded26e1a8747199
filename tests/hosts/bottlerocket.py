# SPDX-License-Identifier: Apache-2.0
"""Bottlerocket: a folder of libraries of its own, in ld.so.cache; programs in libexec."""

from tests.hosts.base import Platform

SOURCE = """
https://github.com/bottlerocket-os/bottlerocket-kernel-kit (2f501629a9):
packages/kmod-6.1-nvidia/kmod-6.1-nvidia.spec, %files tesla-535 and open-gpu-535,
nvidia-ld.so.conf.in and nvidia-tesla-path.env.in. The folder is flat: libvdpau_nvidia is beside
the others. Its GLVND and its libEGL of before GLVND are the images' business.
"""
LIB = "/usr/lib/nvidia/tesla"
LIBRARIES = f"""
{LIB}/{{libcuda,libcudadebugger,libnvcuvid,libnvoptix,libvdpau_nvidia}}.so.V
{LIB}/{{libEGL,libGLESv1_CM,libGLESv2,libGLX}}_nvidia.so.V
{LIB}/libnvidia-{{allocator,cfg,eglcore,encode,fbc,glcore,glsi,glvkspirv,ml,ngx,nvvm,opencl}}.so.V
{LIB}/libnvidia-{{opticalflow,pkcs11,pkcs11-openssl3,ptxjitcompiler,rtcore,tls}}.so.V
{LIB}/libnvidia-vulkan-producer.so.V
{LIB}/libnvidia-api.so.1
"""
LINKS_OF_PACKAGES = f"""
{LIB}/{{libcuda,libcudadebugger,libnvcuvid,libnvoptix,libvdpau_nvidia}}.so.1 -> STEM.so.V
{LIB}/{{libEGL_nvidia.so.0,libGLX_nvidia.so.0}} -> STEM.so.V
{LIB}/{{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2}} -> STEM.so.V
{LIB}/libnvidia-{{allocator,cfg,encode,fbc,ml,ngx,opencl,opticalflow}}.so.1 -> STEM.so.V
{LIB}/libnvidia-ptxjitcompiler.so.1 -> STEM.so.V
{LIB}/libnvidia-nvvm.so.4 -> STEM.so.V
"""
PROGRAMS = """
/usr/libexec/nvidia/tesla/bin/{nvidia-smi,nvidia-debugdump,nvidia-persistenced,nv-fabricmanager}
"""
PLATFORM = Platform(
    source=SOURCE,
    version="535.216.03",
    files=LIBRARIES + LINKS_OF_PACKAGES + PROGRAMS + f"""
/lib -> usr/lib
/bin -> usr/bin
/usr/bin/nvidia-modprobe
/usr/libexec/nvidia/tesla/bin/nvswitch-audit
{LIB}/libEGL.so.{{1.1.0,V}}
{LIB}/libEGL.so.1 -> libEGL.so.1.1.0
{LIB}/{{libGL.so.1.7.0,libGLESv1_CM.so.1.2.0,libGLESv2.so.2.1.0,libOpenCL.so.1.0.0}}
{LIB}/libGL.so.1 -> libGL.so.1.7.0
{LIB}/libGLESv1_CM.so.1 -> libGLESv1_CM.so.1.2.0
{LIB}/libGLESv2.so.2 -> libGLESv2.so.2.1.0
{LIB}/libOpenCL.so.1 -> libOpenCL.so.1.0.0
/usr/lib/firmware/nvidia/V/gsp_{{ga10x,tu10x}}.bin
""",
    cached=(LIB,),
    left_out={
        "*/nvswitch-audit": "a tool for the fabric's administrator",
        "*/libEGL.so.*": "images have GLVND; libEGL.so.V would take its place",
        "*/libGL.so.*": "images have GLVND",
        "*/libGLESv1_CM.so.*": "images have GLVND",
        "*/libGLESv2.so.*": "images have GLVND",
        "*/libOpenCL.so.*": "images have OpenCL's loader",
    },
)  # fmt: skip
