# SPDX-License-Identifier: Apache-2.0
"""Looks up the driver's library and the hooks that a CDI spec names on this host.

A spec mounts the driver's files one by one, or as one view.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from nvct.cdi.types import Mount
from nvct.container.rootfs.view_links import OF_SPEC

HookProblem: TypeAlias = Literal["hook-gone", "hook-no-program", "hook-no-env"]

# Driver branches have three digits; libcuda.so.1.1 of WSL has no driver version.
DRIVER_LIBRARY = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d{3,}\.\d+(?:\.\d+)*)$")


def is_view(mount: Mount) -> bool:
    """Return whether a mount is that of a view."""
    return mount["containerPath"] == OF_SPEC


def driver_library(mount: Mount) -> str:
    """Return the host path of libcuda or libnvidia-ml that a mount gives, "" if it gives none."""
    path = mount["hostPath"]
    if DRIVER_LIBRARY.search(path):
        return path
    if not is_view(mount):
        return ""
    try:
        names = sorted(os.listdir(f"{path}/lib64"))
    except OSError:
        return ""
    paths = [f"{path}/lib64/{name}" for name in names]
    return next((path for path in paths if DRIVER_LIBRARY.search(path)), "")


def version_of(library: str) -> str:
    """Return the driver's version in the name of libcuda or libnvidia-ml, "" if there is none."""
    match = DRIVER_LIBRARY.search(library)
    return match[1] if match else ""


def hook_problem(path: str, env: Sequence[str]) -> tuple[HookProblem, str] | None:
    """Return why a hook cannot be used, None if it can."""
    if not os.path.exists(path):
        return "hook-gone", f"its hook {path} is missing"
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        return "hook-no-program", f"its hook {path} is not executable"
    if not env:
        # runc would start it with the container's environment (CVE-2025-23266).
        return "hook-no-env", f"hook {path} has no env, so an image could run code in it"
    return None
