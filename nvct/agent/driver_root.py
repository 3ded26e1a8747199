# SPDX-License-Identifier: Apache-2.0
"""The driver's roots: of the environment, or those that `nvct install` has found."""

from __future__ import annotations

import os

from nvct.installer import ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DRIVER_READY_ENV = "NVCT_DRIVER_READY_FILE"
DEV_ROOT_ENV = "DEV_ROOT_CTR_PATH"
"""Where the root with the host's /dev is mounted."""


def with_driver_roots(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with the driver's roots that `nvct install` has found, if it has.

    Raises:
        HostError: its file cannot be read.
    """
    path = env.get(DRIVER_READY_ENV, "")
    return {**env, **ready.read(path)} if os.path.exists(path) else env
