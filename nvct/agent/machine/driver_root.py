# SPDX-License-Identifier: Apache-2.0
"""The driver's roots: from the environment, or from the file of `nvct install`.

The file can only choose among the roots that the environment names, because a process with all
rights loads code from there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from nvct.errors import HostError
from nvct.host.roots import Roots
from nvct.installer import ready

DRIVER_READY_ENV = "NVCT_DRIVER_READY_FILE"
ROOT_ENV = "DRIVER_ROOT_CTR_PATH"
DEV_ROOT_ENV = "DEV_ROOT_CTR_PATH"  # Where the root that has the host's /dev is mounted
HOST_ROOT_ENV = "HOST_ROOT_MOUNT"
"""Where the host's root is mounted, which has the container engine's socket and the hook."""
FOLDER_ENV = "NVCT_DRIVER_FOLDER"
"""Where this container would see the root of a driver container."""


def with_driver_roots(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment, with the roots from the file of `nvct install` if it exists.

    HostError if the file cannot be read, or names a root that the environment does not.
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
                f"{path}: {name}={root!r} is not a driver root that this container knows",
                hint=f"{FOLDER_ENV} must name the root of a driver container",
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
        # The host's /dev is this container's /dev: the driver's root may be mounted read-only.
        dev_root="/" if os.path.exists("/dev/nvidiactl") else None,
    )
