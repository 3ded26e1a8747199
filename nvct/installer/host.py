# SPDX-License-Identifier: Apache-2.0
"""The host from inside a container: its files have other paths, its programs run in its root.

The engine's main file and drop-in are mounted somewhere, the rest of the host below one folder.
The engine's configuration has the host's paths.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence

from nvct.engine import command, modules
from nvct.engine.command import Completed, Enter
from nvct.engine.model import Files
from nvct.installer.request import Request

NO_CHROOT = "SYSTEMD_IGNORE_CHROOT"
"""systemctl does nothing in what it takes for a chroot; the host's root is none."""


class HostFiles(Files):
    """The host's files; a path that is already one of this container is not changed.

    `unmoved` folders are mounted at their host's path, or belong to this container.
    """

    def __init__(
        self,
        host_root: str = "/",
        unmoved: Sequence[str] = (),
        mounts: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__("/")
        self._host_root = "/" if host_root == "/" else host_root.rstrip("/")
        self._unmoved = tuple(unmoved)
        self._mounts = tuple(mounts)

    def at(self, path: str) -> str:
        """Return a path of the engine as a path of this process."""
        for _, mount_point in self._mounts:
            if _is_in(path, mount_point):
                return path
        for host, mount_point in self._mounts:
            if _is_in(path, host):
                return mount_point + path[len(host) :]
        if self._host_root == "/" or _is_in(path, self._host_root):
            return path
        if any(_is_in(path, folder) for folder in self._unmoved):
            return path
        return self._host_root + path


def files_of(request: Request) -> HostFiles:
    """Return the host's files with the mounts of the request.

    Files that the user names are paths of this container; the usual ones may exist only below the
    host's root.
    """
    if request.paths_are_of_host:
        return HostFiles(_root(request))
    config = posixpath.dirname(request.config)
    usual = request.config == modules.CONFIG.get(request.engine)
    unmoved = [config] if os.path.isdir(config) or not usual else []
    mounts = []
    if request.drop_in:
        mount_point = posixpath.dirname(request.drop_in)
        if request.drop_in_host:
            mounts.append((posixpath.dirname(request.drop_in_host), mount_point))
        else:
            unmoved.append(mount_point)
    return HostFiles(_root(request), unmoved, mounts)


def drop_in_of(request: Request) -> str | None:
    """Return the drop-in's path on the host."""
    return request.drop_in_host or request.drop_in if request.drop_in else request.drop_in


def socket_of(request: Request) -> str:
    """Return the engine's socket as a path of this process: mounted, or below the host's root."""
    path = request.socket
    if not path or os.path.exists(path):
        return path
    mounted = here(request, path)
    return mounted if os.path.exists(mounted) else path


def here(request: Request, path: str) -> str:
    """Return a path of the host as a path of this process."""
    return HostFiles(_root(request)).at(path)


def _root(request: Request) -> str:
    return request.host_root if os.path.isdir(request.host_root) else "/"


class HostPrograms:
    """Runs the host's programs in the host's root."""

    def __init__(self, root: str) -> None:
        self.root = root

    def __call__(
        self,
        argv: Sequence[str],
        timeout_s: float = command.TIMEOUT_S,
        env: dict[str, str] | None = None,
        enter: Enter | None = None,
    ) -> Completed:
        """Run a program to its end; see `command.run`."""
        if self.root == "/":
            return command.run(argv, timeout_s, env=env, enter=enter)
        env = {**(env or command.ENV), NO_CHROOT: "1"}

        def enter_root() -> None:
            if enter:
                enter()
            os.chroot(self.root)
            os.chdir("/")

        try:
            return command.run(argv, timeout_s, env=env, enter=enter_root)
        except OSError as error:
            if enter:
                raise
            reason = f"{self.root} cannot be entered: {error.strerror}"
            return command.Completed(status=command.NOT_ENTERED, err=reason)


def programs_of(request: Request) -> HostPrograms:
    """Return the runner of the host's programs."""
    return HostPrograms(_root(request))


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
