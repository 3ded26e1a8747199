# SPDX-License-Identifier: Apache-2.0
"""Checks that the DT_NEEDED libraries of the driver's libraries exist.

Contract: nothing is added and no file is opened; one warning for each library that lacks some.
Libraries that images bring are not checked.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from nvct.errors import LdCacheError, printable
from nvct.host.driver import names as driver_names
from nvct.host.driver.libraries import Search
from nvct.host.model import DriverFile

# Libraries of images, up to ".so": an image has its own or does not use the libraries that need
# them.
IMAGE = frozenset({
    # glibc, and the compiler's run time
    "libc", "libm", "libdl", "libpthread", "librt", "libutil", "libresolv", "libanl", "libnsl",
    "libmvec", "libgcc_s", "libstdc++", "libatomic",
    # X11, DRM, Wayland and GLVND: for programs that draw
    "libX11", "libX11-xcb", "libXext", "libXrandr", "libXv", "libXrender", "libXi", "libXfixes",
    "libdrm", "libgbm", "libwayland-client", "libwayland-server", "libwayland-egl",
    "libwayland-cursor", "libxkbcommon", "libGL", "libGLX", "libEGL", "libGLESv1_CM", "libGLESv2",
    "libGLdispatch", "libOpenGL", "libOpenCL", "libvdpau", "libvulkan", "libpixman-1",
    # OpenSSL, of which libnvidia-pkcs11 exists in two builds
    "libcrypto", "libssl",
    # GTK and its dependencies: libnvidia-gtk2 and libnvidia-gtk3 are nvidia-settings'
    "libz", "libjansson", "libfontconfig", "libfreetype",
})  # fmt: skip
IMAGE_PREFIXES = (
    "ld-linux", "ld64", "libxcb", "libgtk-", "libgdk", "libgio-", "libglib-", "libgobject-",
    "libgmodule-", "libgthread-", "libpango", "libcairo", "libatk", "libharfbuzz",
)  # fmt: skip
SHOWN = 3


def check(search: Search, files: Sequence[DriverFile], dirs: Sequence[str]) -> None:
    """Warn of each library that has a missing dependency.

    A dependency must be among the files that containers get, on the host, or an image's own. One
    with a name of the driver must be among the files that containers get.
    """
    for compat in (False, True):
        group = [
            file
            for file in files
            if file.kind == "library" and (file.capability == "compat32") is compat
        ]
        available = _names(group)
        for file in group:
            missing = [
                name
                for name in dict.fromkeys(file.needed)
                if name not in available
                and not _is_of_images(name)
                and (driver_names.is_of_driver(name) or not _is_on_host(search, dirs, name))
            ]
            if missing:
                search.findings.warn(_sentence(search, file, missing, dirs))


def _names(files: Sequence[DriverFile]) -> set[str]:
    """Return every name by which the linker of a container finds one of the libraries."""
    available = {os.path.basename(file.container_path) for file in files}
    available |= {file.soname for file in files}
    return available | {os.path.basename(link.path) for file in files for link in file.links}


def _is_of_images(name: str) -> bool:
    return driver_names.stem(name) in IMAGE or name.startswith(IMAGE_PREFIXES)


def _is_on_host(search: Search, dirs: Sequence[str], name: str) -> bool:
    if any(name in search.tree.name_set(directory) for directory in dirs):
        return True
    try:
        cache = search.tree.linker_cache()
        return bool(cache and cache.find(name))
    except LdCacheError:  # the cache is damaged, which was reported, or the name contains a NUL
        return False


def _sentence(
    search: Search, file: DriverFile, missing: Sequence[str], dirs: Sequence[str]
) -> str:
    names = " and ".join(printable(name) for name in missing[:SHOWN])
    if len(missing) > SHOWN:
        names += f" and {len(missing) - SHOWN} more"
    verb = "is" if len(missing) == 1 else "are"
    location = f"not in {search.tree.host_root}"
    if all(_is_on_host(search, dirs, name) for name in missing):
        location = f"in {search.tree.host_root} but not what containers get"
    return f"{os.path.basename(file.host_path)} needs {names}, which {verb} {location}"
