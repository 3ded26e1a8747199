# SPDX-License-Identifier: Apache-2.0
"""Finds the driver for `nvct install --find-driver`: what the doctor finds, for the installer."""

from __future__ import annotations

import os

from nvct.cli.options import say
from nvct.doctor import driver
from nvct.doctor import driver as drivers
from nvct.errors import HostError
from nvct.installer.host import HostPrograms


def find(host_here: str, driver_root: str) -> dict[str, str]:
    """Return the roots of the driver and its nodes, by the keys of driver-ready.

    If no driver works yet, the host's root is taken, where one may come; the reason is printed.

    Args:
        host_here: the host's root, as a path of this process.
        driver_root: the root of a driver container, as a path of the host.
    """
    host_here = host_here if os.path.isdir(host_here) else "/"
    driver_here = f"{host_here.rstrip('/')}{driver_root}"
    places = drivers.Places(host_here=host_here, driver=driver_root, driver_here=driver_here)
    found = drivers.find(places, "", HostPrograms)
    if isinstance(found, drivers.Driver):
        _make_links(found, places)
    else:
        context = f" ({found.context})" if found.context else ""
        say(f"no driver yet: {found.evidence}{context}; the driver is expected in /")
        found = drivers.Driver(
            is_host=True, root="/", root_here=host_here, dev_root="/", dev_root_here=host_here
        )
    here = {places.host: host_here, driver_root: driver_here}
    return {
        **found.values(),
        "DRIVER_ROOT_CTR_PATH": here[found.root],
        "DEV_ROOT_CTR_PATH": here[found.dev_root],
    }


def _make_links(found: drivers.Driver, places: drivers.Places) -> None:
    """Make the links in /dev/char without which systemd takes GPUs from running containers."""
    if found.wsl:
        return
    try:
        driver.make_links(found, places, say)
    except HostError as error:
        say(f"warning: {error.message}")
