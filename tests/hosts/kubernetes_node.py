# SPDX-License-Identifier: Apache-2.0
"""A recorded Kubernetes node with H100s and the packages of a headless 580.159.04."""

from tests.hosts.base import Platform

SOURCE = """
Recorded in a container that nvidia-container-toolkit had filled: the mounts that CRIU names as
external in a public checkpoint script (OpenFold2 NIM on H100, 2026). The node has its libraries in
the multiarch folder, NSCQ, IMEX and a running persistenced; no graphics packages.
"""
LIBRARIES = """
/usr/lib/x86_64-linux-gnu/{libcuda,libcudadebugger,libnvcuvid}.so.V
/usr/lib/x86_64-linux-gnu/libnvidia-{cfg,gpucomp,ml,nscq,nvvm,opencl,opticalflow}.so.V
/usr/lib/x86_64-linux-gnu/libnvidia-{pkcs11-openssl3,ptxjitcompiler,sandboxutils}.so.V
/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.V
"""
PROGRAMS = """
/usr/bin/nvidia-{smi,debugdump,persistenced,imex,imex-ctl,cuda-mps-control,cuda-mps-server}
"""
LINKS = """
/usr/lib/x86_64-linux-gnu/{libcuda,libcudadebugger,libnvcuvid}.so.1 -> STEM.so.V
/usr/lib/x86_64-linux-gnu/libnvidia-{cfg,ml,opencl,opticalflow}.so.1 -> STEM.so.V
/usr/lib/x86_64-linux-gnu/libnvidia-{ptxjitcompiler,sandboxutils}.so.1 -> STEM.so.V
/usr/lib/x86_64-linux-gnu/libnvidia-nscq.so.2 -> STEM.so.V
/usr/lib/x86_64-linux-gnu/libnvidia-nvvm.so.4 -> STEM.so.V
/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.1 -> STEM.so.V
/usr/lib/x86_64-linux-gnu/libcuda.so -> STEM.so.1
"""
PLATFORM = Platform(
    source=SOURCE,
    files=LIBRARIES + PROGRAMS + LINKS + """
/lib -> usr/lib
/bin -> usr/bin
/usr/bin/nvidia-modprobe
/usr/lib/firmware/nvidia/V/gsp_{ga10x,tu10x}.bin
""",
    # Containers have /lib -> usr/lib, where the recorded list has the firmware.
    cached=("/usr/lib/x86_64-linux-gnu",),
    sockets=("nvidia-persistenced/socket",),
    gpus=8,
)  # fmt: skip
