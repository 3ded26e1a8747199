# SPDX-License-Identifier: Apache-2.0
"""A Jetson AGX Orin with JetPack 6: an integrated GPU, described by lists."""

from tests.hosts.jetson_base import Board
from tests.support.jetson import ORIN

SOURCE = """
The lines are a part of devices.csv and drivers.csv of nvidia-l4t-init R36.2, as recorded in
https://github.com/NVIDIA/nvidia-container-toolkit (d34b304): testdata/lookup/rootfs-orin. Owner
and group of the nodes: a public note on an Orin, "crw-rw---- 1 root video 10, 124 /dev/nvmap",
"487, 1 /dev/nvhost-gpu". Where the links of V4L2 lead: OE4T/meta-tegra,
tegra-container-passthrough; where those of libcuda lead, and that there are no fb0 and fb1: a
public note on R36.4; the other texts of links are presumed, relative as in the packages of L4T.
The name and UUID of the GPU: go-nvlib, pkg/nvlib/info/property-extractor.go.
"""
GPU = "/dev/{nvhost-{as,ctrl,ctxsw,dbg,nvsched,power,prof,sched,tsg}-gpu,nvhost-gpu}"
IGPU0 = "/dev/nvgpu/igpu0/{as,channel,ctrl,ctxsw,dbg,nvsched,power,prof,prof-ctx,sched,tsg}"
OTHERS = (
    "/dev/{host1x-fence,nvidia-modeset,nvidia0,nvidiactl,nvmap,nvsciipc,v4l2-nvdec,v4l2-nvenc}"
)
DRM = "/dev/dri/{card0,card1,renderD128,renderD129}"

L = "/usr/lib/aarch64-linux-gnu"
LIBRARIES = f"""
{L}/gstreamer-1.0/libgst{{nvarguscamerasrc,nvjpeg,nvvidconv,nvvideo4linux2}}.so
{L}/libgstnvegl-1.0.so.0
{L}/nvidia/libcuda.so.1.1
{L}/nvidia/libGLX_nvidia.so.0
{L}/nvidia/libnv{{argus,cucompat,cudla,dla_compiler,mm,os,rm_gpu,rm_mem,rm_host1x,sciipc}}.so
{L}/nvidia/libnvbufsurface.so.1.0.0
{L}/nvidia/libnvidia-{{eglcore,glcore,glsi,glvkspirv,gpucomp,rmapi-tegra,rtcore,tls}}.so.V
{L}/nvidia/libnvidia-{{nvvm,ptxjitcompiler}}.so.V
{L}/nvidia/libnvidia-allocator.so.1
{L}/nvidia/libnvidia-egl-gbm.so.1.1.0
{L}/nvidia/libnvidia-egl-wayland.so.1.1.11
{L}/nvidia/libnvidia-ml.so.1
{L}/nvidia/libv4l2_nvvideocodec.so
{L}/tegra-egl/{{libEGL_nvidia.so.0,libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2}}
"""
OTHER_FILES = f"""
{L}/nvidia/nvidia_icd.json
{L}/tegra-egl/nvidia.json
{L}/nvidia/weston/{{drm-backend.so,weston-launch}}
/lib/firmware/tegra23x/nvhost_nvdec050_desc_prod.bin
/usr/sbin/nvidia-smi
/var/nvidia/nvcam/settings/imx219.nito
"""
LISTED_LINKS = f"""
{L}/libcuda.so -> nvidia/libcuda.so
{L}/nvidia/libcuda.so -> libcuda.so.1.1
{L}/nvidia/libcuda.so.1 -> libcuda.so.1.1
{L}/libnvcucompat.so -> nvidia/libnvcucompat.so
{L}/nvidia/libnvbufsurface.so -> libnvbufsurface.so.1.0.0
{L}/nvidia/libnvidia-egl-gbm.so.1 -> libnvidia-egl-gbm.so.1.1.0
{L}/nvidia/libnvidia-egl-wayland.so.1 -> libnvidia-egl-wayland.so.1.1.11
{L}/nvidia/libnvidia-nvvm.so.4 -> libnvidia-nvvm.so.V
{L}/nvidia/libnvidia-ptxjitcompiler.so.1 -> libnvidia-ptxjitcompiler.so.V
{L}/nvidia/libnvidia-allocator.so -> libnvidia-allocator.so.1
{L}/gbm/nvidia-drm_gbm.so -> ../nvidia/libnvidia-allocator.so.1
{L}/libv4l/plugins/nv/libv4l2_nvvideocodec.so -> ../../../nvidia/libv4l2_nvvideocodec.so
{L}/libv4l2.so.0.0.999999 -> nvidia/libv4l2.so.0
{L}/nvidia/libv4l2.so.0 -> libnvv4l2.so
/etc/vulkan/icd.d/nvidia_icd.json -> {L}/nvidia/nvidia_icd.json
/usr/share/glvnd/egl_vendor.d/10_nvidia.json -> ../../../lib/aarch64-linux-gnu/tegra-egl/nvidia.json
"""
# A line of type lib whose path is a link: nvidia-ctk mounts libnvv4l2.so and leaves the name out.
LINKED_LIBRARY = f"{L}/libv4l2.so.0 -> libv4l2.so.0.0.999999"
FOLDER_LINK = f"{L}/tegra -> nvidia"
V4L2 = f"{L}/nvidia/libnvv4l2.so"

PLATFORM = Board(
    source=SOURCE,
    version="540.3.0",
    release="# R36 (release), REVISION: 2.0, GCID: 0, BOARD: generic, EABI: aarch64\n",
    lists=(
        ("dev", "/dev/dri/card*\n/dev/dri/renderD*\n/dev/{fb0,fb1}"),
        ("dir", "/dev/dri/by-path"),
        ("dev", f"{GPU}\n{IGPU0}\n{OTHERS}"),
        ("lib", f"{L}/libv4l2.so.0\n{LIBRARIES}\n{V4L2}\n{OTHER_FILES}"),
        ("sym", LISTED_LINKS + FOLDER_LINK),
    ),
    there=f"{GPU}\n{IGPU0}\n{OTHERS}\n{DRM}\n"
    "/dev/dri/by-path/platform-17000000.gpu-render -> ../renderD128",
    files=LIBRARIES + OTHER_FILES + LISTED_LINKS + f"{LINKED_LIBRARY}\n{FOLDER_LINK}\n{V4L2}\n"
    "/usr/bin/{tegrastats,nvpmodel}",
    left_out={"/usr/bin/*": "no list names it"},
    reported=(ORIN,),
)
