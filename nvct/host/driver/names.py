# SPDX-License-Identifier: Apache-2.0
"""Names of the driver's libraries, and the capability of each.

Contract: values and pure functions. A library with the driver's version as its suffix is the
driver's, whatever its name; the tables give its capability. They are complete for the drivers 390
to 615 of x86_64, as Ubuntu's and Debian's packages have them (tests/hosts/real), and for those of
aarch64 up to 590, as the file lists of Arch's and Bottlerocket's packages have them.
"""

from __future__ import annotations

import re

from nvct.host.model import Capability

# As libnvidia-container v1.20; libraries that it does not list are classed by their use.
CLASSES: dict[Capability, tuple[str, ...]] = {
    "utility": (
        "libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq", "libnvidia-sandboxutils",
        "libnvsdm",  # NVSwitch telemetry
        "libnvidia-imex", "libnvidia-fmdrv",  # 615: of the IMEX daemon and the fabric manager
        "libnvidia-vgpu", "libnvidia-vgxcfg",  # a hypervisor's
    ),
    "compute": (
        "libcuda", "libcudadebugger", "libnvidia-opencl", "libnvidia-gpucomp",
        "libnvidia-ptxjitcompiler", "libnvidia-fatbinaryloader", "libnvidia-allocator",
        "libnvidia-compiler", "libnvidia-compiler-next", "libnvidia-pkcs11",
        "libnvidia-pkcs11-openssl3", "libnvidia-nvvm", "libnvidia-nvvm70", "libnvidia-tileiras",
        "libnvcuextend",  # of aarch64 alone; libcuda loads it
    ),
    "video": ("libvdpau_nvidia", "libnvidia-encode", "libnvidia-opticalflow", "libnvcuvid"),
    "graphics": (
        "libnvidia-eglcore", "libnvidia-glcore", "libnvidia-tls", "libnvidia-glsi",
        "libnvidia-fbc", "libnvidia-ifr", "libnvidia-rtcore", "libnvoptix", "libGLX_nvidia",
        "libEGL_nvidia", "libGLESv2_nvidia", "libGLESv1_CM_nvidia", "libnvidia-glvkspirv",
        "libnvidia-cbl", "libnvidia-vulkan-producer", "libnvidia-present", "libnvidia-vksc-core",
        "libnvidia-api",  # NVAPI, which games ask through Wine
        "libnvidia-gtk2", "libnvidia-gtk3", "libnvidia-wayland-client",  # of nvidia-settings
        "libglxserver_nvidia", "libnvidia-egl-gbm", "libnvidia-egl-wayland",
        "libnvidia-egl-wayland2", "libnvidia-egl-xcb", "libnvidia-egl-xlib",
    ),
    "ngx": ("libnvidia-ngx",),
}  # fmt: skip
CLASS_OF: dict[str, Capability] = {name: c for c, names in CLASSES.items() for name in names}

# Libraries that a library of another class loads at run time, without a DT_NEEDED entry: the
# first compiles shaders, gbm's backend is a link to the second, and Vulkan loads the third
# (NVIDIA's sandboxutils-filelist.json of 615).
ALSO: dict[str, tuple[Capability, ...]] = {
    "libnvidia-gpucomp": ("graphics",),
    "libnvidia-allocator": ("graphics",),
    "libnvidia-opticalflow": ("graphics",),
}

# Libraries with versions of their own: libnvidia-nvvm70 (580 and later), libnvidia-nvvm up to
# driver 495 (4.0.0), and NVAPI, whose only name is its SONAME.
OTHER_VERSIONS: dict[re.Pattern[str], str] = {
    re.compile(r"libnvidia-nvvm(?:70)?\.so\.\d{1,2}(?:\.\d+)*"): "compiler that libcuda loads",
    re.compile(r"libnvidia-api\.so\.\d{1,2}(?:\.\d+)*"): "NVAPI, which has no version of its own",
}
# EGL and GL of drivers that are installed without GLVND. They have the SONAMEs of GLVND's
# libraries in images: an image with these in their place would not find the driver.
WITHOUT_GLVND = frozenset({"libEGL", "libGL", "libGLESv1_CM", "libGLESv2"})
DRIVER_SUFFIX = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)*)$")
NAME = re.compile(r"lib[^/]+?\.so(?=\.|$)")


def stem(name: str) -> str:
    """Return a library's name up to ".so", the name itself if it has no ".so"."""
    match = NAME.match(name)
    return match[0].removesuffix(".so") if match else name


def class_of(name: str) -> Capability:
    """Return the capability of a library, "" if the tables do not list it."""
    return CLASS_OF.get(stem(name), "")


def is_of_driver(name: str) -> bool:
    """Return whether a library's name looks like one of the driver's."""
    name_stem = stem(name)
    return name_stem in CLASS_OF or (
        "nvidia" in name_stem and not name_stem.startswith("libnvidia-container")
    )


def is_safe(path: str) -> bool:
    """Return whether a path is valid in a CDI spec, in a hook's arguments and in a message.

    Control characters, bytes that are not UTF-8, and "::", which separates the two halves of
    `--link`, are not valid.
    """
    return path.isprintable() and "::" not in path


# From NVIDIA's "CUDA Toolkit, driver and architecture matrix"; for 595 and 615, the result of
# their libcuda's cuDriverGetVersion.
OF_BRANCH = {
    410: "10.0", 418: "10.1", 440: "10.2", 450: "11.0", 455: "11.1", 460: "11.2", 465: "11.3",
    470: "11.4", 495: "11.5", 510: "11.6", 515: "11.7", 520: "11.8", 525: "12.0", 530: "12.1",
    535: "12.2", 545: "12.3", 550: "12.4", 555: "12.5", 560: "12.6", 565: "12.7", 570: "12.8",
    575: "12.9", 580: "13.0", 590: "13.1", 595: "13.2", 615: "13.4",
}  # fmt: skip


def cuda_version_of(version: str) -> str:
    """Return the CUDA version of a driver's branch, "" if the branch is unknown."""
    branch = version.partition(".")[0]
    return OF_BRANCH.get(int(branch), "") if branch.isascii() and branch.isdigit() else ""
