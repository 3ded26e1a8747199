# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct validate driver, toolkit. They write the status files for GPU operators."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

import click

from nvct.cli.context import say
from nvct.cli.gostyle import GoGroup, GoStyle
from nvct.cli.options import all_of
from nvct.doctor import driver as drivers
from nvct.doctor import messages
from nvct.doctor.driver import Driver
from nvct.doctor.model import Finding
from nvct.errors import HostError, NvctError, line
from nvct.installer import ready
from nvct.installer.host import HostPrograms

Found = TypeVar("Found")

_shared = all_of(
    click.option("--sleep-interval-seconds", "-s", "pause_s", type=click.FloatRange(min=0.01),
                 default=5, show_default=True, envvar="SLEEP_INTERVAL_SECONDS",
                 help="Time between two tries."),
    click.option("--with-wait", "-w", is_flag=True, envvar="WITH_WAIT",
                 help="Repeat until the check succeeds."),
    click.option("--output-dir", "-o", default=ready.FOLDER, show_default=True,
                 envvar="OUTPUT_DIR", help="Folder of the status files."),
)  # fmt: skip


@click.group(cls=GoGroup)
def validate() -> None:
    """Check the driver or the toolkit, and write the status files that operators wait for."""


@validate.command(cls=GoStyle)
@click.option("--host-root", default="/", show_default=True, envvar="HOST_ROOT",
              help="The host's root, on the host.")  # fmt: skip
@click.option("--host-root-ctr-path", "host_here", default="/host", show_default=True,
              envvar="HOST_ROOT_CTR_PATH",
              help="The same folder, as this process sees it.")  # fmt: skip
@click.option("--driver-install-dir", "driver_root", default="/run/nvidia/driver",
              show_default=True, envvar="DRIVER_INSTALL_DIR",
              help="A driver container's root, on the host.")  # fmt: skip
@click.option("--driver-install-dir-ctr-path", "driver_here", default="/run/nvidia/driver",
              show_default=True, envvar="DRIVER_INSTALL_DIR_CTR_PATH",
              help="The same folder, as this process sees it.")  # fmt: skip
@click.option("--require-driver-container", "managed", is_flag=True,
              envvar="NVCT_REQUIRE_DRIVER_CONTAINER",
              help="If the host has no driver, require .driver-ctr-ready.")  # fmt: skip
@click.option("--disable-dev-char-symlink-creation", "no_links", is_flag=True,
              envvar="DISABLE_DEV_CHAR_SYMLINK_CREATION",
              help="Make no links in /host-dev-char, where the host's /dev/char is.")  # fmt: skip
@click.option("--driver-validation-skip-gpu-init", "no_init", is_flag=True,
              envvar="DRIVER_VALIDATION_SKIP_GPU_INIT",
              help="Run nvidia-smi only for its version.")  # fmt: skip
@_shared
def driver(
    *,
    host_root: str,
    host_here: str,
    driver_root: str,
    driver_here: str,
    managed: bool,
    no_links: bool,
    no_init: bool,
    output_dir: str,
    with_wait: bool,
    pause_s: float,
) -> None:
    """Check that the driver works, and write driver-ready.

    driver-ready names the folders of the driver and its device nodes, for a shell or nvct install.

    Example: nvct validate driver --with-wait
    """
    ready.remove(output_dir, ready.DRIVER)
    places = drivers.Places(
        host=host_root, host_here=host_here if os.path.isdir(host_here) else "/",
        driver=driver_root, driver_here=driver_here, init=not no_init,
    )  # fmt: skip
    marker = f"{output_dir.rstrip('/')}/{ready.DRIVER_CONTAINER}"

    def try_once() -> Driver:
        found = drivers.find(places, marker if managed else "", HostPrograms)
        if not isinstance(found, drivers.Driver):
            raise messages.to_error(found)
        if not found.is_host and os.path.exists(marker):
            _write_components(output_dir, drivers.components(marker, places.sys))
        return found

    found = _until(try_once, pause_s if with_wait else None)
    if not no_links and not found.wsl:
        drivers.make_links(found, places, say)
    say(f"wrote {ready.write(output_dir, ready.DRIVER, found.values())}")


@validate.command(cls=GoStyle)
@click.option("--skip-validation", is_flag=True, envvar="SKIP_VALIDATION",
              help="Only write the file.")  # fmt: skip
@_shared
def toolkit(*, skip_validation: bool, output_dir: str, with_wait: bool, pause_s: float) -> None:
    """Check that this container has GPUs, and write toolkit-ready.

    Run it in a container that the installed runtime started.

    Example: nvct validate toolkit --with-wait
    """
    ready.remove(output_dir, ready.TOOLKIT)
    if skip_validation:
        say("warning: not validated, because of --skip-validation")
    else:

        def try_once() -> None:
            if finding := drivers.in_this_container(os.environ):
                raise messages.to_error(finding)

        _until(try_once, pause_s if with_wait else None)
    say(f"wrote {ready.write(output_dir, ready.TOOLKIT)}")


def _until(try_once: Callable[[], Found], pause_s: float | None) -> Found:
    """Return the function's result; with a pause, repeat the call until it succeeds."""
    last = ""
    while True:
        try:
            return try_once()
        except NvctError as error:
            if pause_s is None:
                raise
            message = line("waiting", error)
            if message != last:
                say(message)
            last = message
        time.sleep(pause_s)


def _write_components(output_dir: str, found: dict[str, Finding]) -> None:
    """Write the status files of a driver container's other modules."""
    for name, finding in found.items():
        ready.remove(output_dir, name)
        if finding.is_fault:
            raise messages.to_error(finding)
        ready.write(output_dir, name)


def find_driver(
    host_here: str, driver_root: str, *, expects_container: bool = False
) -> dict[str, str]:
    """Return the roots of the driver and its device nodes, by the keys of driver-ready.

    If no driver works yet, the reason is printed, and the root where the driver is expected is
    returned: the host's if the host has nvidia-smi, or if no driver container's folder exists and
    none is to come (`expects_container`); else a driver container's.
    """
    host_here = host_here if os.path.isdir(host_here) else "/"
    driver_here = f"{host_here.rstrip('/')}{driver_root}"
    places = drivers.Places(host_here=host_here, driver=driver_root, driver_here=driver_here)
    found = drivers.find(places, "", HostPrograms)
    if isinstance(found, drivers.Driver):
        try:  # without these, systemd takes GPUs from running containers
            if not found.wsl:
                drivers.make_links(found, places, say)
        except HostError as error:
            say(f"warning: {error.message}")
    else:
        context = f" ({found.context})" if found.context else ""
        expects_container = expects_container or os.path.isdir(driver_here)
        is_host = bool(drivers.smi_of(host_here)) or not expects_container
        root = "/" if is_host else driver_root
        say(f"no driver yet: {found.evidence}{context}; the driver is expected in {root}")
        found = drivers.Driver(is_host=is_host, root=root, dev_root=root)
    here = {places.host: host_here, driver_root: driver_here}
    return {
        **found.values(),
        "DRIVER_ROOT_CTR_PATH": here[found.root],
        "DEV_ROOT_CTR_PATH": here[found.dev_root],
    }
