# SPDX-License-Identifier: Apache-2.0
"""The directories that discovery reads: the driver's user space, /dev, /proc, /sys, /etc, /run.

Contract: no other module below `nvct/host` has a literal path of one of these directories. A
container path is a host path without the driver root, which is cut off at a component's boundary.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from nvct.errors import UsageError

# WSL's libraries of the Windows GPU drivers, https://learn.microsoft.com/windows/wsl.
WSL_LIBRARIES = "/usr/lib/wsl/lib"
DXCORE = "libdxcore.so"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Directories that take the place of the host's own."""

    driver_root: str = "/"  # root of the driver's user space, e.g. /run/nvidia/driver
    # the directory that holds dev/. None stands for the driver root if that has dev/nvidiactl,
    # else for /; construction replaces None
    dev_root: str | None = None
    proc: str = "/proc"  # the procfs of the kernel that has the GPUs
    sys: str = "/sys"  # the sysfs of that kernel
    etc: str = "/etc"
    run: str = "/run"

    def __post_init__(self) -> None:
        """Normalize each directory, choose the dev root; UsageError if one is not absolute."""
        for name in ("driver_root", "proc", "sys", "etc", "run"):
            object.__setattr__(self, name, _absolute(name, getattr(self, name)))
        dev_root = self.dev_root
        if dev_root is None:
            # As nvidia-container-toolkit v1.20: a driver container has its own nodes.
            has_nodes = os.path.lexists(join(self.driver_root, "dev/nvidiactl"))
            dev_root = self.driver_root if has_nodes else "/"
        object.__setattr__(self, "dev_root", _absolute("dev_root", dev_root))

    @property
    def dev(self) -> str:
        """Return the directory of the device nodes on the host."""
        return join(self.dev_root or "/", "dev")

    def container_path(self, host_path: str) -> str:
        """Return the container path of a host path: the driver root is cut off."""
        return below(self.driver_root, host_path)

    def host_path(self, container_path: str) -> str:
        """Return the host path of a container path in the driver root."""
        return join(self.driver_root, container_path)


def join(root: str, path: str) -> str:
    """Return a path, absolute or not, below a root."""
    # normpath keeps a leading "//", which has a meaning of its own in POSIX.
    return "/" + os.path.normpath(root.rstrip("/") + "/" + path.lstrip("/")).lstrip("/")


def below(root: str, path: str) -> str:
    """Return an absolute path with `root` cut off; a path outside `root` is returned unchanged."""
    path = join("/", path)
    prefix = root.rstrip("/") + "/"
    if path == root:
        return "/"
    return path[len(prefix) - 1 :] if path.startswith(prefix) else path


def _absolute(name: str, path: str) -> str:
    if not path.startswith("/"):
        raise UsageError(
            f"the {name.replace('_', ' ')} {path!r} is not absolute", hint="start it with a /"
        )
    return join("/", path)
