# SPDX-License-Identifier: Apache-2.0
"""Value: an engine as it was detected on this host, and which of its files may be edited."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine of this host.

    Attributes:
        engine: docker, containerd, crio or podman.
        pid: of its process, 0 if it does not run.
        binary: the program's path, in its own file system.
        version: such as "1.7.24", "" if the program is not run.
        unit: the systemd unit that runs it, or would start it; "" for none.
        user_unit: whether that is a unit of a user's own service manager.
        path: the variable PATH of its process; None if that is unknown.
        socket: path of its API, "" if it has none.
        config: the main file that it reads, whether it exists or not.
        config_dir: the folder of drop-ins that it reads, too; "" if there is none or the main
            file names them.
        root: the root directory of these paths, as a path of this process: "/" or /proc/PID/root.
        platform: what set it up, "" for the distribution or the administrator; see `platforms`.
        edit: the file to edit in place of `config`, "" for `config` itself.
        drop_in: the drop-in to write; None for the engine module's choice, "" for none.
        leave: its files must not be edited; `advice` says what to do instead.
        restart: the command that makes it read its files again, () for its unit's restart.
        advice: sentences for users who want to change its configuration.
        notes: sentences about unusual findings.
        foreign: it belongs to another user or file system, and cannot be trusted.
    """

    engine: str
    pid: int = 0
    binary: str = ""
    version: str = ""
    unit: str = ""
    user_unit: bool = False
    uid: int = 0
    path: str | None = None
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
        """The version as numbers, () if it is unknown."""
        return tuple(int(part) for part in self.version.split(".")) if self.version else ()
