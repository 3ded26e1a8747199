# SPDX-License-Identifier: Apache-2.0
"""The driver in /usr/local/nvidia: the volume of nvidia-docker 1, and GKE's containers."""

from tests.hosts.base import Platform

SOURCE = """
https://github.com/NVIDIA/nvidia-docker (3422bca272), src/nvidia/volumes.go: folders bin, lib
(32-bit) and lib64, the list of programs and libraries, their SONAME links, libcuda.so and
libGLX_indirect.so.0; https://github.com/GoogleCloudPlatform/container-engine-accelerators
(992db81257), cmd/nvidia_gpu/nvidia_gpu.go: --container-path=/usr/local/nvidia. The driver is 470,
the last one that has all of the list but libnvidia-fatbinaryloader.
"""
LIBRARIES = """
@/{libcuda,libnvcuvid,libvdpau_nvidia}.so.V
@/{libEGL,libGLESv1_CM,libGLESv2,libGLX}_nvidia.so.V
@/libnvidia-{compiler,eglcore,encode,fbc,glcore,glsi,ifr,ml,opencl,ptxjitcompiler,tls}.so.V
@/libnvidia-egl-wayland.so.1.1.7
"""
LINKS = """
@/{libcuda,libnvcuvid,libvdpau_nvidia}.so.1 -> STEM.so.V
@/{libEGL_nvidia.so.0,libGLX_nvidia.so.0} -> STEM.so.V
@/{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2} -> STEM.so.V
@/libnvidia-{encode,fbc,ifr,ml,opencl,ptxjitcompiler}.so.1 -> STEM.so.V
@/libnvidia-egl-wayland.so.1 -> STEM.so.1.1.7
@/libGLX_indirect.so.0 -> libGLX_nvidia.so.V
"""
LOADERS = """
@/{libEGL.so.1.1.0,libGL.so.1.7.0,libGLESv1_CM.so.1.2.0,libGLESv2.so.2.1.0}
@/{libGLX.so.0,libOpenGL.so.0,libGLdispatch.so.0}
"""
PROGRAMS = "nvidia-{smi,debugdump,persistenced,cuda-mps-control,cuda-mps-server}\n"
ROOT = "/usr/local/nvidia"
PLATFORM = Platform(
    source=SOURCE,
    driver_root=ROOT,
    version="470.256.02",
    model="Tesla V100-SXM2-16GB",
    files=(LIBRARIES + LINKS + LOADERS).replace("@", f"{ROOT}/lib64")
    + f"{ROOT}/bin/{PROGRAMS}"
    + """
/usr/local/nvidia/lib64/libcuda.so -> libcuda.so.V
/usr/local/nvidia/lib/{libcuda,libnvidia-ml,libnvidia-compiler}.so.V
/usr/local/nvidia/lib/{libcuda,libnvidia-ml}.so.1 -> STEM.so.V
""",
    i386_dirs=(f"{ROOT}/lib/",),
    left_out={
        f"{ROOT}/lib/*": "32-bit: asked for by the capability compat32",
        "*/libEGL.so.*": "images have GLVND",
        "*/libGL.so.*": "images have GLVND",
        "*/libGLESv?*.so.?.?.0": "images have GLVND",
        "*/libGLX.so.0": "images have GLVND",
        "*/libOpenGL.so.0": "images have GLVND",
        "*/libGLdispatch.so.0": "images have GLVND",
    },
)
