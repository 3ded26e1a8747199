# SPDX-License-Identifier: Apache-2.0
"""The driver's roots: of the environment, or those that `nvct install` has found."""

from __future__ import annotations

import os

from nvct.host.roots import Roots
from nvct.installer import ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DRIVER_READY_ENV = "NVCT_DRIVER_READY_FILE"
ROOT_ENV = "DRIVER_ROOT_CTR_PATH"
DEV_ROOT_ENV = "DEV_ROOT_CTR_PATH"
"""Where the root with the host's /dev is mounted."""


def with_driver_roots(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with the driver's roots that `nvct install` has found, if it has.

    Raises:
        HostError: its file cannot be read.
    """
    path = env.get(DRIVER_READY_ENV, "")
    return {**env, **ready.read(path)} if os.path.exists(path) else env


def machine_roots(env: Mapping[str, str]) -> Roots:
    """Return the roots of a container with the host's /dev and processes.

    Raises:
        HostError: the file of `nvct install` cannot be read.
    """
    root = with_driver_roots(env).get(ROOT_ENV, "")
    return Roots(
        driver_root=root if os.path.isdir(root) else "/",
        # Of the host, as /dev of this container: the driver's root may be mounted read-only.
        dev_root="/" if os.path.exists("/dev/nvidiactl") else None,
    )
