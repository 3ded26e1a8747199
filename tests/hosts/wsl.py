# SPDX-License-Identifier: Apache-2.0
"""WSL 2: /dev/dxg, and the folder of NVIDIA's driver in Windows's driver store."""

from tests.hosts.base import Platform

SOURCE = """
A recorded spec of nvidia-ctk in docker/buildx, createNvidiaGPU of the docker-container driver (the
folder nvmdi.inf_amd64_978a3b585e321cd9, nine files, one node, the link of nvidia-smi); the folder
/usr/lib/wsl/lib as https://learn.microsoft.com/windows/wsl describes it. nvct makes the SONAME
links that ldconfig makes from the two folders in the container.
"""
STORE = "/usr/lib/wsl/drivers/nvmdi.inf_amd64_978a3b585e321cd9"
FILES = f"""
/usr/lib/wsl/lib/libdxcore.so
{STORE}/{{libcuda.so.1.1,libcuda_loader.so,libnvdxgdmal.so.1,libnvidia-ml.so.1}}
{STORE}/{{libnvidia-ml_loader.so,libnvidia-ptxjitcompiler.so.1,nvcubins.bin,nvidia-smi}}
"""
PLATFORM = Platform(
    source=SOURCE,
    mode="wsl",
    files=FILES + f"""
/usr/lib/wsl/lib/{{libcuda.so.1.1,libcuda.so.1,libcuda.so,libnvidia-ml.so.1,nvidia-smi}}
/usr/lib/wsl/lib/{{libd3d12.so,libd3d12core.so}}
/usr/lib/wsl/drivers/iigd_dch.inf_amd64_0123456789abcdef/libigc64.so
{STORE}/nvidia-smi.exe
""",
    left_out={
        "/usr/lib/wsl/lib/lib[cn]*": "copies of what is in the driver's folder",
        "/usr/lib/wsl/lib/nvidia-smi": "a copy of that in the driver's folder",
        "*/libd3d12*": "Direct3D, which is Windows's own",
        "*/iigd_dch.*": "another vendor's driver",
        "*.exe": "for Windows",
    },
)  # fmt: skip
