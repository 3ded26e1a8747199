# SPDX-License-Identifier: Apache-2.0
"""Undoes an installation, and says what stays on the host and why."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from collections.abc import Callable

from nvct.errors import HostError
from nvct.installer import engine, instance, publication, ready, refresh_units
from nvct.installer.host import HostFiles, socket_of
from nvct.installer.programs import TREES
from nvct.installer.request import Request
from nvct.paths import AGENT_DIR

BUNDLES = "io.containerd.runtime.v2.task/*/*"
"""Of containerd's containers, beside its socket; one's file `runtime` names its runtime."""
KEPT = {
    "/var/lib/nvct": "running containers may use its files",
    "/run/nvct": "a cache, which is gone after the next boot",
}
"""What the runtimes make on a host, and why it is kept."""


def run(request: Request, say: Callable[[str], None]) -> None:
    """Give the engine its former files, and remove the programs unless a container uses them.

    Raises:
        HostError: an installer runs, or a file cannot be removed.
        As `engine.undo`.
    """
    files = HostFiles(request.host_root if os.path.isdir(request.host_root) else "/")
    folder = files.at(os.path.dirname(request.toolkit))  # which is a mount point of a container
    if not os.path.isdir(f"{request.toolkit}/{TREES}"):
        say(f"nothing is installed: {request.toolkit} has no programs of nvct")
        _remove_empty(folder)
        return
    with instance.Instance(request.pid_file):
        refresh_units.stop(request, say)
        publication.withdraw(request, say)
        users = []
        if request.engine:
            users = users_of(request, socket_of(request))
        if request.engine and not request.leave_engine:
            engine.undo(request, engine.setup(request), say)
        if users:
            say(f"{request.toolkit} stays: {users[0]}; remove it when no container uses it")
        else:
            _remove(request.toolkit)
            _remove_empty(folder)
            say(f"removed {request.toolkit}")
        for path, reason in KEPT.items():
            if os.path.isdir(files.at(path)):
                say(f"{path} stays: {reason}")
    _remove_empty(files.at(os.path.dirname(request.pid_file)))
    _remove_empty(files.at(AGENT_DIR))
    _remove_ready(files)
    driver_root = files.at(request.driver_root)  # of a driver container: the chart's pods make it
    _remove_empty(driver_root)
    _remove_empty(os.path.dirname(driver_root))


def users_of(request: Request, socket: str) -> list[str]:
    """Return why the programs are in use: a sentence for each container that they started.

    Args:
        request: has the engine and the programs' folder.
        socket: of the engine, as a path of this process.
    """
    if request.engine != "containerd":
        return [f"{request.engine} may need its programs to end containers"]
    users = []
    for path in sorted(glob.glob(f"{os.path.dirname(socket)}/{BUNDLES}/runtime")):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                runtime = file.read()
        except OSError:
            continue  # the container has ended
        if runtime.startswith(f"{request.toolkit}/"):
            users.append(f"container {os.path.basename(os.path.dirname(path))} runs by it")
    return users


def _remove(toolkit: str) -> None:
    """Remove the programs.

    Raises:
        HostError: they cannot be removed.
    """
    try:
        shutil.rmtree(toolkit)
    except OSError as error:
        raise HostError(f"{error.filename or toolkit}: {error.strerror}") from error


def _remove_ready(files: HostFiles) -> None:
    """Remove the file in which the installer tells the agents where the driver is."""
    folder = files.at(ready.OWN_FOLDER)
    with contextlib.suppress(HostError):
        ready.remove(folder, ready.DRIVER)
    _remove_empty(folder)


def _remove_empty(folder: str) -> None:
    with contextlib.suppress(OSError):  # it has something else
        os.rmdir(folder)
