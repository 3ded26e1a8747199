# SPDX-License-Identifier: Apache-2.0
"""NixOS: no FHS and no ld.so.cache; /run/opengl-driver leads to links into the store."""

from tests.hosts.base import Platform

SOURCE = """
https://github.com/NixOS/nixpkgs: pkgs/os-specific/linux/nvidia-x11/builder.sh (01f31c2ee7: what is
in lib, lib/vdpau, share, etc and bin, and the links "NAME.so" and "NAME.so.1" of every library, .0
for EGL and GLX); nixos/modules/hardware/graphics.nix makes /run/opengl-driver, a link to a tree of
links (addDriverRunpath.driverLink); the firmware path is /run/current-system/firmware
(nixos/modules/services/hardware/udev.nix). libGLdispatch and its kin and libnvidia-gtk are taken
out by builder.sh, which also sets the interpreter of every program to the store's; egl-wayland has
its own package since.
"""
STORE = "/nix/store/q1w2e3r4t5y6u7i8o9p0a1s2d3f4g5h6-nvidia-x11-580.159.04-6.12.57"
GRAPHICS = "/nix/store/a1s2d3f4g5h6j7k8l9z0x1c2v3b4n5m6-graphics-drivers"
FIRMWARE = "/nix/store/z1x2c3v4b5n6m7a8s9d0f1g2h3j4k5l6-firmware/lib/firmware"
NAMES = """
@/{libcuda,libcudadebugger,libnvcuvid,libnvoptix}.so.V
@/{libEGL,libGLESv1_CM,libGLESv2,libGLX}_nvidia.so.V
@/libnvidia-{allocator,cfg,eglcore,encode,fbc,glcore,glsi,glvkspirv,gpucomp,ml,ngx,nvvm}.so.V
@/libnvidia-{opencl,opticalflow,pkcs11,pkcs11-openssl3,present,ptxjitcompiler,rtcore}.so.V
@/libnvidia-{sandboxutils,tls,vksc-core}.so.V
@/{libnvidia-api.so.1,libnvidia-nvvm70.so.4}
"""
SONAME_LINKS = """
@/{libcuda,libcudadebugger,libnvcuvid,libnvoptix}.so.1 -> STEM.so.V
@/{libEGL_nvidia.so.0,libGLX_nvidia.so.0} -> STEM.so.V
@/{libGLESv1_CM_nvidia.so.1,libGLESv2_nvidia.so.2} -> STEM.so.V
@/libnvidia-{allocator,cfg,encode,fbc,ml,ngx,opencl,opticalflow}.so.1 -> STEM.so.V
@/libnvidia-{ptxjitcompiler,sandboxutils,vksc-core}.so.1 -> STEM.so.V
@/libnvidia-nvvm.so.4 -> STEM.so.V
"""
# The driver's output in the store, and the tree of links that is one of its uses.
IN_STORE = NAMES.replace("@", f"{STORE}/lib") + f"{STORE}/lib/vdpau/libvdpau_nvidia.so.V\n"
TREE = "\n".join(
    f"{line} -> {STORE}/lib/STEM.so.V" if line.endswith(".so.V") else ""
    for line in NAMES.replace("@", f"{GRAPHICS}/lib").splitlines()
)
PLATFORM = Platform(
    source=SOURCE,
    firmware_path=FIRMWARE,
    files=IN_STORE
    + TREE
    + SONAME_LINKS.replace("@", f"{GRAPHICS}/lib").replace("-> ", f"-> {STORE}/lib/")
    + f"""
{GRAPHICS}/lib/libnvidia-api.so.1 -> {STORE}/lib/libnvidia-api.so.1
{GRAPHICS}/lib/libnvidia-nvvm70.so.4 -> {STORE}/lib/libnvidia-nvvm70.so.4
{GRAPHICS}/lib/vdpau -> {STORE}/lib/vdpau
{GRAPHICS}/share -> {STORE}/share
{GRAPHICS}/etc -> {STORE}/etc
{STORE}/share/glvnd/egl_vendor.d/10_nvidia.json
{STORE}/share/vulkan/icd.d/nvidia_icd.x86_64.json
{STORE}/share/vulkan/implicit_layer.d/nvidia_layers.json
{STORE}/bin/nvidia-{{smi,debugdump,cuda-mps-control,cuda-mps-server}}
{STORE}/origBin/nvidia-smi
{FIRMWARE}/nvidia/V/gsp_{{ga10x,tu10x}}.bin
/run/opengl-driver -> {GRAPHICS}
/run/current-system/sw/bin/nvidia-smi -> {STORE}/bin/nvidia-smi
/run/current-system/sw/bin/nvidia-debugdump -> {STORE}/bin/nvidia-debugdump
/run/current-system/sw/bin/nvidia-cuda-mps-control -> {STORE}/bin/nvidia-cuda-mps-control
/run/current-system/sw/bin/nvidia-cuda-mps-server -> {STORE}/bin/nvidia-cuda-mps-server
""",
    library_paths={"*": f"{STORE}/lib/"},
    left_out={
        "*/bin/*": "needs the dynamic linker of the store, which containers do not have",
        "*/origBin/*": "on no PATH",
    },
)  # fmt: skip
