# SPDX-License-Identifier: Apache-2.0
"""Value: an engine as it was found on this host, and which of its files may be edited."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine of this host.

    Attributes:
        engine: docker, containerd, crio or podman.
        pid: of its process, 0 where it does not run (Podman need not run).
        binary: the program's path, in its own file system.
        version: such as "1.7.24", "" where it could not be asked.
        unit: the systemd unit it runs in or would be started by, "" for none.
        user_unit: whether that is a unit of a user's own manager.
        uid: the user it runs as.
        socket: path of its API, "" where it has none.
        config: the main file that it reads, whether that exists or not.
        config_dir: the folder of drop-ins that it reads besides, "" where there is none or the
            main file names them.
        root: the file system these paths are in, as we reach it: "/", or /proc/PID/root.
        platform: who set it up, "" for the distribution or the admin; see `platforms`.
        edit: the file to edit in place of `config`, "" for `config` itself.
        drop_in: the drop-in to write; None is the engine's own best choice, "" none.
        leave: its files are not to be edited: `advice` says what to do.
        restart: the command that makes it read its files again, () for its unit's restart.
        advice: sentences for who wants a change.
        notes: sentences about what is odd here.
        foreign: another user or file system has brought it: nothing that it says is followed.
    """

    engine: str
    pid: int = 0
    binary: str = ""
    version: str = ""
    unit: str = ""
    user_unit: bool = False
    uid: int = 0
    socket: str = ""
    config: str = ""
    config_dir: str = ""
    root: str = "/"
    platform: str = ""
    edit: str = ""
    drop_in: str | None = None
    leave: bool = False
    restart: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    foreign: bool = False

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as numbers, () where it is unknown."""
        return tuple(int(part) for part in self.version.split(".")) if self.version else ()
