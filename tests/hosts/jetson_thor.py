# SPDX-License-Identifier: Apache-2.0
"""An IGX Thor with JetPack 7 and a discrete GPU: two devices, of which one is integrated."""

from tests.hosts.jetson_base import Board
from tests.support.jetson import RTX, THOR

SOURCE = """
The lines are a part of devices.csv and drivers.csv of nvidia-l4t-init R38, as recorded in
https://github.com/NVIDIA/nvidia-container-toolkit (d34b304): testdata/lookup/rootfs-thor-dgpu; so
are the nodes, nvidia0 to nvidia2, nvidiactl and nvmap with the group video. Which GPU has which:
pkg/nvcdi/lib-csv_test.go. The places on the PCI bus: pkg/nvcdi/lib-csv.go. The texts of links are
presumed, relative as in the packages of L4T. libnvidia-encode.so and its kin have a SONAME that
ends in .so.1, as everywhere.
"""
GPU = "/dev/{nvhost-{as,ctrl,ctxsw,dbg,power,prof,sched,tsg}-gpu,nvhost-gpu}"
IGPU0 = "/dev/nvgpu/igpu0/{as,channel,ctrl,ctxsw,dbg,nvsched,power,prof,prof-ctx,sched,tsg}"
SHARED = "/dev/{host1x-fence,nvidia-modeset,nvidiactl,nvmap,nvsciipc,v4l2-nvdec,v4l2-nvenc}"
OWN = "/dev/{nvidia0,nvidia1}"
DRM = "/dev/dri/{card0,card1,card2,renderD128,renderD129,renderD130}"
UVM = "/dev/{nvidia-uvm,nvidia-uvm-tools}"

L = "/usr/lib/aarch64-linux-gnu"
LIBRARIES = f"""
{L}/nvidia/{{libcuda.so.1.1,libcuda_instrumentation.so,libdrm.so.2,libGLX_nvidia.so.0}}
{L}/nvidia/{{libnvcuvid,libnvidia-encode,libnvidia-opticalflow}}.so
{L}/nvidia/libnv{{cucompat,cudla,cuextend,os,rm_gpu,rm_mem,rm_host1x,sciipc}}.so
{L}/nvidia/libnvidia-{{eglcore,glcore,glsi,glvkspirv,gpucomp,rmapi-tegra,rtcore,tls}}.so.V
{L}/nvidia/libnvidia-{{nvvm,nvvm70,ptxjitcompiler}}.so.V
{L}/nvidia/{{libnvidia-allocator,libnvidia-ml,libnvidia-egl-xcb,libnvidia-egl-xlib}}.so.1
{L}/tegra-egl/{{libEGL_nvidia.so.0,libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2}}
"""
OTHER_FILES = f"""
{L}/nvidia/nvidia_icd.json
{L}/tegra-egl/nvidia.json
/etc/vulkansc/icd.d/nvidia_icd_vksc.json
/lib/firmware/tegra23x/nvhost_nvdec050_desc_prod.bin
/usr/bin/nvidia-cuda-mps-{{control,server}}
/usr/sbin/nvidia-smi
"""
LISTED_LINKS = f"""
{L}/libcuda.so -> nvidia/libcuda.so
{L}/nvidia/libcuda.so -> libcuda.so.1.1
{L}/nvidia/libcuda.so.1 -> libcuda.so.1.1
{L}/nvidia/libnvidia-nvvm.so.4 -> libnvidia-nvvm.so.V
{L}/nvidia/libnvidia-nvvm70.so.4 -> libnvidia-nvvm70.so.V
{L}/nvidia/libnvidia-ptxjitcompiler.so.1 -> libnvidia-ptxjitcompiler.so.V
{L}/gbm/nvidia-drm_gbm.so -> ../nvidia/libnvidia-allocator.so.1
/etc/vulkan/icd.d/nvidia_icd.json -> {L}/nvidia/nvidia_icd.json
/usr/share/glvnd/egl_vendor.d/10_nvidia.json -> ../../../lib/aarch64-linux-gnu/tegra-egl/nvidia.json
"""
INFORMATION = "Model: \t\t {}\nGPU UUID: \t {}\nBus Location: \t {}\nDevice Minor: \t {}\n"

PLATFORM = Board(
    source=SOURCE,
    version="580.00",
    release="# R38 (release), REVISION: 2.0, GCID: 0, BOARD: generic, EABI: aarch64\n",
    lists=(
        ("dev", "/dev/dri/card*\n/dev/dri/renderD*\n/dev/{fb0,fb1}"),
        ("dir", "/dev/dri/by-path"),
        ("dev", f"{GPU}\n{IGPU0}\n{SHARED}\n{OWN}"),
        ("lib", LIBRARIES + OTHER_FILES),
        ("sym", LISTED_LINKS),
    ),
    there=f"{GPU}\n{IGPU0}\n{SHARED}\n{OWN}\n{DRM}\n{UVM}\n/dev/nvidia2\n"
    "/dev/dri/by-path/pci-0000:03:00.0-card -> ../card2",
    files=LIBRARIES + OTHER_FILES + LISTED_LINKS + "/usr/bin/tegrastats",
    left_out={"/usr/bin/tegrastats": "no list names it"},
    reported=(THOR, RTX),
    drm=f"/bus/pci/devices/{RTX.bus_id}/drm/{{card2,renderD130}}",
    in_procfs=tuple(
        (gpu.bus_id, INFORMATION.format(gpu.name, gpu.uuid, gpu.bus_id, gpu.minor))
        for gpu in (THOR, RTX)
    ),
)
