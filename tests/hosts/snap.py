# SPDX-License-Identifier: Apache-2.0
"""Ubuntu Core 22: the docker snap sees the driver of the snap nvidia-core22 in its own folder."""

from __future__ import annotations

from tests.hosts.base import Platform

SOURCE = """
https://github.com/canonical/docker-snap (055a0394f9): nvidia/lib, cdi_generate: the content of the
interface graphics-core22 at $SNAP/graphics, --library-search-path
$SNAP/graphics/lib/x86_64-linux-gnu, $SNAP/graphics/share among the data directories. The content
snap stages Ubuntu's packages: https://github.com/canonical/nvidia-assemble and the list of
ubuntu.py, without Xorg's modules and firmware.
"""
CONTENT = "/snap/docker/2963/graphics"
LIB = f"{CONTENT}/lib/x86_64-linux-gnu"
LIBRARIES = f"""
{LIB}/{{libcuda,libcudadebugger,libnvcuvid,libnvoptix}}.so.V
{LIB}/{{libEGL,libGLESv1_CM,libGLESv2,libGLX}}_nvidia.so.V
{LIB}/libnvidia-{{allocator,cfg,eglcore,encode,fbc,glcore,glsi,glvkspirv,gpucomp,ml,ngx,nvvm}}.so.V
{LIB}/libnvidia-{{opencl,opticalflow,pkcs11-openssl3,ptxjitcompiler,rtcore,tls}}.so.V
{LIB}/libnvidia-egl-gbm.so.1.1.2
"""
LINKS_OF_PACKAGES = f"""
{LIB}/{{libcuda,libcudadebugger,libnvcuvid,libnvoptix}}.so.1 -> STEM.so.V
{LIB}/{{libEGL_nvidia.so.0,libGLX_nvidia.so.0}} -> STEM.so.V
{LIB}/{{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2}} -> STEM.so.V
{LIB}/libnvidia-{{allocator,cfg,encode,fbc,ml,opencl,opticalflow,ptxjitcompiler}}.so.1 -> STEM.so.V
{LIB}/libnvidia-nvvm.so.4 -> STEM.so.V
{LIB}/libnvidia-egl-gbm.so.1 -> STEM.so.1.1.2
{LIB}/libcuda.so -> STEM.so.1
"""
PLATFORM = Platform(
    source=SOURCE,
    search_paths=(LIB,),
    config_search_paths=(f"{CONTENT}/share",),
    files=LIBRARIES + LINKS_OF_PACKAGES + f"""
{CONTENT}/bin/nvidia-{{smi,debugdump}}
{CONTENT}/share/glvnd/egl_vendor.d/10_nvidia.json
{CONTENT}/share/egl/egl_external_platform.d/15_nvidia_gbm.json
{CONTENT}/share/vulkan/icd.d/nvidia_icd.json
{CONTENT}/share/vulkan/implicit_layer.d/nvidia_layers.json
/usr/lib/x86_64-linux-gnu/libc.so.6
""",
    mounts=LIBRARIES + """
/usr/share/glvnd/egl_vendor.d/10_nvidia.json
/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json
/etc/vulkan/icd.d/nvidia_icd.json
/etc/vulkan/implicit_layer.d/nvidia_layers.json
""",
    links=LINKS_OF_PACKAGES + f"""
{LIB}/libnvidia-ngx.so.1 -> STEM.so.V
{LIB}/libnvidia-opticalflow.so -> STEM.so.1
{LIB}/libGLX_indirect.so.0 -> libGLX_nvidia.so.V
{LIB}/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.1
""",
    left_out={
        f"{CONTENT}/bin/*": "nvidia-ctk finds it by its PATH, which nvct does not ask",
        "*/libc.so.6": "the image's own",
    },
)  # fmt: skip
