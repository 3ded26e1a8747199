# SPDX-License-Identifier: Apache-2.0
"""Ubuntu Core 22: the docker snap sees the driver of the snap nvidia-core22 in its own folder."""

from tests.hosts.base import Platform

SOURCE = """
https://github.com/canonical/nvidia-core22 (10bc26dfb7), snap/snapcraft.yaml: the packages
libnvidia-{cfg1,common,compute,decode,encode,extra,gl,fbc1}-535-server and libnvidia-egl-wayland1,
bin/nvidia-smi alone of the programs, and what the slot graphics-core22 shows;
https://github.com/canonical/docker-snap (055a0394f9), nvidia/lib, cdi_generate:
--library-search-path $SNAP/graphics/lib/x86_64-linux-gnu, and $SNAP/graphics/share among the data
directories (its etc is named here as well). No Xorg modules and no firmware are in the snap.
"""
CONTENT = "/snap/docker/2963/graphics"
LIB = f"{CONTENT}/lib/x86_64-linux-gnu"
LIBRARIES = f"""
{LIB}/{{libcuda,libcudadebugger,libnvcuvid,libnvoptix}}.so.V
{LIB}/{{libEGL,libGLESv1_CM,libGLESv2,libGLX}}_nvidia.so.V
{LIB}/libnvidia-{{allocator,cfg,eglcore,encode,fbc,glcore,glsi,glvkspirv,ml,ngx,nvvm}}.so.V
{LIB}/libnvidia-{{opencl,opticalflow,pkcs11,pkcs11-openssl3,ptxjitcompiler,rtcore,tls}}.so.V
{LIB}/libnvidia-egl-{{gbm.so.1.1.0,wayland.so.1.1.9}}
{LIB}/libnvidia-api.so.1
{LIB}/vdpau/libvdpau_nvidia.so.V
"""
LINKS_OF_PACKAGES = f"""
{LIB}/{{libcuda,libcudadebugger,libnvcuvid,libnvoptix}}.so.1 -> STEM.so.V
{LIB}/{{libEGL_nvidia.so.0,libGLX_nvidia.so.0}} -> STEM.so.V
{LIB}/{{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2}} -> STEM.so.V
{LIB}/libnvidia-{{allocator,cfg,encode,fbc,ml,opencl,opticalflow,ptxjitcompiler}}.so.1 -> STEM.so.V
{LIB}/libnvidia-nvvm.so.4 -> STEM.so.V
{LIB}/libnvidia-egl-gbm.so.1 -> STEM.so.1.1.0
{LIB}/libnvidia-egl-wayland.so.1 -> STEM.so.1.1.9
{LIB}/{{libcuda,libnvcuvid}}.so -> STEM.so.1
{LIB}/libnvidia-{{allocator,cfg,encode,fbc,ml,opticalflow,ptxjitcompiler}}.so -> STEM.so.1
{LIB}/libnvidia-nvvm.so -> STEM.so.4
{LIB}/vdpau/libvdpau_nvidia.so.1 -> STEM.so.V
{LIB}/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.1
"""
PLATFORM = Platform(
    source=SOURCE,
    version="535.274.02",
    search_paths=(LIB,),
    config_search_paths=(f"{CONTENT}/etc", f"{CONTENT}/share"),
    files=LIBRARIES + LINKS_OF_PACKAGES + f"""
{LIB}/{{libEGL.so.1.1.0,libGL.so.1.7.0,libvulkan.so.1.3.204}}
{LIB}/libEGL.so.1 -> libEGL.so.1.1.0
{CONTENT}/bin/nvidia-smi
{CONTENT}/etc/OpenCL/vendors/nvidia.icd
{CONTENT}/share/glvnd/egl_vendor.d/{{10_nvidia,50_mesa}}.json
{CONTENT}/share/egl/egl_external_platform.d/{{10_nvidia_wayland,15_nvidia_gbm}}.json
{CONTENT}/share/vulkan/icd.d/{{nvidia_icd,radeon_icd.x86_64}}.json
{CONTENT}/share/vulkan/implicit_layer.d/nvidia_layers.json
{CONTENT}/share/nvidia/nvoptix.bin
""",
    left_out={
        f"{CONTENT}/bin/*": "nvidia-ctk finds it by its PATH, which nvct does not ask",
        "*/50_mesa.json": "Mesa's",
        "*/radeon_icd.*": "Mesa's",
        "*/libvulkan.so.*": "the images' own",
        "*/libEGL.so.*": "the images' own",
        "*/libGL.so.*": "the images' own",
    },
)  # fmt: skip
