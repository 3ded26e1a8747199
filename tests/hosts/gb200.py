# SPDX-License-Identifier: Apache-2.0
"""A compute tray of GB200 NVL72, aarch64: four GPUs, IMEX, NSCQ; no NGX, no 32-bit libraries."""

from tests.hosts.base import Platform

SOURCE = """
https://github.com/negativo17/nvidia-driver (f769f88908), nvidia-driver.spec: what aarch64 has and
has not (libnvcuextend; no vksc, no pkcs11, no Wine); https://github.com/pop-os/
nvidia-graphics-drivers (5a62809004), whose folders are /usr/lib/aarch64-linux-gnu on arm64;
https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide for nvidia-imex and its control tool.
"""
LIB = "/usr/lib/aarch64-linux-gnu"
LIBRARIES = f"""
{LIB}/{{libcuda,libcudadebugger,libnvcuvid,libnvcuextend,libnvoptix}}.so.V
{LIB}/{{libEGL,libGLESv1_CM,libGLESv2,libGLX}}_nvidia.so.V
{LIB}/libnvidia-{{allocator,cfg,eglcore,encode,fbc,glcore,glsi,glvkspirv,gpucomp,ml,ngx,nscq}}.so.V
{LIB}/libnvidia-{{nvvm,opencl,opticalflow,present,ptxjitcompiler,rtcore,sandboxutils,tls}}.so.V
{LIB}/libnvidia-tileiras.so.V
{LIB}/{{libnvidia-api.so.1,libnvidia-nvvm70.so.4,libnvidia-egl-gbm.so.1.1.3}}
{LIB}/vdpau/libvdpau_nvidia.so.V
"""
LINKS_OF_PACKAGES = f"""
{LIB}/{{libcuda,libcudadebugger,libnvcuvid,libnvcuextend,libnvoptix}}.so.1 -> STEM.so.V
{LIB}/{{libEGL_nvidia.so.0,libGLX_nvidia.so.0}} -> STEM.so.V
{LIB}/{{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2}} -> STEM.so.V
{LIB}/libnvidia-{{allocator,cfg,encode,fbc,ml,ngx,opencl,opticalflow}}.so.1 -> STEM.so.V
{LIB}/libnvidia-{{ptxjitcompiler,sandboxutils}}.so.1 -> STEM.so.V
{LIB}/libnvidia-nscq.so.2 -> STEM.so.V
{LIB}/libnvidia-nvvm.so.4 -> STEM.so.V
{LIB}/libnvidia-egl-gbm.so.1 -> STEM.so.1.1.3
{LIB}/{{libcuda,libnvcuvid,libnvidia-encode}}.so -> STEM.so.1
{LIB}/vdpau/libvdpau_nvidia.so.1 -> STEM.so.V
"""
PROGRAMS = """
/usr/bin/nvidia-{smi,debugdump,persistenced,imex,imex-ctl,cuda-mps-control,cuda-mps-server}
/usr/bin/nv-fabricmanager
"""
SHARED = """
/etc/OpenCL/vendors/nvidia.icd
/usr/share/glvnd/egl_vendor.d/10_nvidia.json
/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json
/usr/share/nvidia/nvoptix.bin
"""
PLATFORM = Platform(
    source=SOURCE,
    machine="aarch64",
    version="590.48.01",
    model="NVIDIA GB200",
    gpus=4,
    files=LIBRARIES + LINKS_OF_PACKAGES + PROGRAMS + SHARED + f"""
/lib -> usr/lib
/bin -> usr/bin
{LIB}/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.1
/usr/bin/nvidia-{{modprobe,bug-report.sh,ngx-updater}}
/usr/share/vulkan/icd.d/nvidia_icd.aarch64.json
/usr/share/vulkan/implicit_layer.d/nvidia_layers.json
/usr/lib/firmware/nvidia/V/gsp_{{ga10x,tu10x}}.bin
""",
    cached=(LIB,),
    sockets=("nvidia-persistenced/socket", "nvidia-fabricmanager/socket"),
)  # fmt: skip
