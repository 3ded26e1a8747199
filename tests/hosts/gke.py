# SPDX-License-Identifier: Apache-2.0
"""GKE (Container-Optimized OS): the driver in /home/kubernetes/bin/nvidia, nodes in /dev."""

from tests.hosts import archive
from tests.hosts.base import Platform

SOURCE = """
https://github.com/GoogleCloudPlatform/container-engine-accelerators (992db81257):
daemonset.yaml (install and Vulkan directories), cmd/nvidia_gpu/nvidia_gpu.go (--host-path,
--host-vulkan-icd-path), cmd/nvidia_gpu/device-plugin.yaml (lib64); and the installer,
https://cos.googlesource.com/cos/tools, src/cmd/cos_gpu_installer/internal/installer/installer.go:
overlays that catch /usr/bin in bin and /usr/lib/x86_64-linux-gnu in lib64, --install-libglvnd,
--no-install-compat32-libs, firmware in firmware/nvidia. The files of the driver are those of the
archive; what the installer puts elsewhere than in the overlays does not stay on the node.
"""
ROOT = "/home/kubernetes/bin/nvidia"
FIRMWARE = "@/nvidia/V/gsp_{ga10x,tu10x}.bin\n"
PLATFORM = Platform(
    source=SOURCE,
    driver_root=ROOT,
    firmware_path=f"{ROOT}/firmware",
    files=archive.at(
        f"{ROOT}/lib64",
        archive.LIBRARIES,
        archive.SONAME_LINKS,
        archive.DEVELOPMENT_LINKS,
        archive.LOADERS,
    )
    + archive.at(f"{ROOT}/bin", archive.PROGRAMS, archive.OTHER_PROGRAMS)
    + archive.at(f"{ROOT}/firmware", FIRMWARE)
    + f"{ROOT}/vulkan/icd.d/nvidia_icd.json\n",
    left_out=archive.LEFT_OUT,
    gpus=8,
)
