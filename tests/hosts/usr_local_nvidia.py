# SPDX-License-Identifier: Apache-2.0
"""The driver in /usr/local/nvidia, as volumes of nvidia-docker 1 and GKE's containers have it."""

from __future__ import annotations

from tests.hosts.base import Platform

SOURCE = """
https://github.com/NVIDIA/nvidia-docker at 01d2c94, src/nvidia/volumes.go: folders bin, lib (32-bit)
and lib64, the libraries with their SONAME links, libcuda.so and libGLX_indirect.so.0;
https://github.com/GoogleCloudPlatform/container-engine-accelerators (992db81257),
cmd/nvidia_gpu/nvidia_gpu.go: --container-path=/usr/local/nvidia. Libraries of a later driver are
named as in its packages.
"""
LIBRARIES = """
@/{libcuda,libcudadebugger,libnvcuvid}.so.V
@/{libEGL,libGLESv1_CM,libGLESv2,libGLX}_nvidia.so.V
@/libnvidia-{eglcore,encode,fbc,glcore,glsi,gpucomp,ml,nvvm,opencl,ptxjitcompiler,tls}.so.V
@/libvdpau_nvidia.so.V
"""
LINKS = """
@/{libcuda,libcudadebugger,libnvcuvid,libvdpau_nvidia}.so.1 -> STEM.so.V
@/{libEGL_nvidia.so.0,libGLX_nvidia.so.0} -> STEM.so.V
@/{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2} -> STEM.so.V
@/libnvidia-{encode,fbc,ml,opencl,ptxjitcompiler}.so.1 -> STEM.so.V
@/libnvidia-nvvm.so.4 -> STEM.so.V
@/libcuda.so -> libcuda.so.1
@/libGLX_indirect.so.0 -> libGLX_nvidia.so.V
"""
PROGRAMS = "nvidia-{smi,debugdump,persistenced,cuda-mps-control,cuda-mps-server}\n"
ROOT = "/usr/local/nvidia"
PLATFORM = Platform(
    source=SOURCE,
    driver_root=ROOT,
    files=(LIBRARIES + LINKS).replace("@", f"{ROOT}/lib64") + f"{ROOT}/bin/{PROGRAMS}" + """
/usr/local/nvidia/lib/{libcuda,libnvidia-ml}.so.V
/usr/local/nvidia/lib/{libcuda,libnvidia-ml}.so.1 -> STEM.so.V
""",
    mounts=LIBRARIES.replace("@", "/lib64") + f"/bin/{PROGRAMS}",
    links=LINKS.replace("@", "/lib64"),
    i386_dirs=(f"{ROOT}/lib/",),
    left_out={f"{ROOT}/lib/*": "32-bit: asked for by the capability compat32"},
)  # fmt: skip
