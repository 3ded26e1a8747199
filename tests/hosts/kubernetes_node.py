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
    mounts=LIBRARIES + PROGRAMS + """
/lib/firmware/nvidia/V/gsp_{ga10x,tu10x}.bin
/run/nvidia-persistenced/socket
""",
    links=LINKS + "/usr/lib/x86_64-linux-gnu/libnvidia-opticalflow.so -> STEM.so.1",
    cached=("/usr/lib/x86_64-linux-gnu",),
    sockets=("nvidia-persistenced/socket",),
    gpus=8,
    nodes="""
/dev/{nvidiactl,nvidia-uvm,nvidia-uvm-tools,nvidia-modeset}
/dev/nvidia{0,1,2,3,4,5,6,7}
/dev/dri/card{1,2,3,4,5,6,7,8}
/dev/dri/renderD{128,129,130,131,132,133,134,135}
/dev/dri/by-path/pci-0000:{18,2a,3a,5d,9a,ab,ba,db}:00.0-{card,render}
""",
)  # fmt: skip
