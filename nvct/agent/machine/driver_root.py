# SPDX-License-Identifier: Apache-2.0
"""The driver's roots: of the environment, or those that `nvct install` has found.

What was found chooses among the roots that the environment names, and no other: a process with all
rights loads its code from there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from nvct.errors import HostError
from nvct.host.roots import Roots
from nvct.installer import ready

DRIVER_READY_ENV = "NVCT_DRIVER_READY_FILE"
ROOT_ENV = "DRIVER_ROOT_CTR_PATH"
DEV_ROOT_ENV = "DEV_ROOT_CTR_PATH"  # Where the root with the host's /dev is mounted
HOST_ROOT_ENV = "HOST_ROOT_MOUNT"
"""Where the host's root is mounted: with the container engine's socket, and the hook."""
FOLDER_ENV = "NVCT_DRIVER_FOLDER"
"""Where the root of a driver container would be, in this container."""


def with_driver_roots(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with the driver's roots that `nvct install` has found, if it has.

    HostError if its file cannot be read, or names another root than the environment.
    """
    path = env.get(DRIVER_READY_ENV, "")
    if not os.path.exists(path):
        return env
    found = ready.read(path)
    known = {
        "/",
        *(env[name].rstrip("/") for name in (ROOT_ENV, DEV_ROOT_ENV, FOLDER_ENV) if name in env),
    }
    for name in (ROOT_ENV, DEV_ROOT_ENV):
        if (root := found.get(name, "/")) != "/" and root.rstrip("/") not in known:
            raise HostError(
                f"{path}: {name}={root!r} is none of the folders of this container's driver",
                hint=f"{FOLDER_ENV} names that of a driver container",
            )
    # The driver may be in a container of its own; the host's root stays where it is.
    host = {HOST_ROOT_ENV: env[ROOT_ENV]} if ROOT_ENV in env else {}
    return {**host, **env, **found}


def machine_roots(env: Mapping[str, str]) -> Roots:
    """Return the roots of a container with the host's /dev and processes.

    HostError if the file of `nvct install` cannot be read.
    """
    root = with_driver_roots(env).get(ROOT_ENV, "")
    return Roots(
        driver_root=root if os.path.isdir(root) else "/",
        # Of the host, as /dev of this container: the driver's root may be mounted read-only.
        dev_root="/" if os.path.exists("/dev/nvidiactl") else None,
    )
