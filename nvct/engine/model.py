# SPDX-License-Identifier: Apache-2.0
"""Data types: an engine of this host, options for one, what its files say, a change of files.

An engine module (docker, containerd, crio, podman) has two functions without side effects::

    state(options, files) -> State       what the files say now
    plan(options, files) -> Change       the smallest edit that configures the options

`undo` plans the edits that revert a change. Only `transaction` writes an engine's files.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nvct.errors import DocumentError
from nvct.linux import files as host_files
from nvct.linux.files import MIB

FILE_LIMIT = 4 * MIB  # bytes; an engine's configuration is a few KB


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A runtime as an engine knows it: RuntimeClass handler, `--runtime` of Docker and Podman."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What to configure in an engine."""

    engine: str
    handlers: tuple[Handler, ...]
    default: str = ""  # name of the handler to make the default; "" leaves the default as it is
    cdi: bool = False  # switch the engine's own CDI on, if it has such a switch
    spec_dirs: tuple[str, ...] = ()  # CDI folders for the engine to read; () changes nothing
    config: str = ""
    drop_in: str | None = None  # "" is the main file; None lets the engine's module choose
    # If a file of others that is read after the drop-in registers a handler, edit that file.
    in_place: bool = False
    executable: str = ""  # the engine's program; "" for the one on PATH
    hooks_dir: str = ""  # folder of hook files to name in the configuration; "" names none
    dump: str = ""  # the configuration in force as the engine printed it; "" if its files are read
    engine_version: tuple[int, ...] = ()  # of the running engine, as (28, 5, 2), or ()
    # of the running engine; dockerd refuses a setting that is also in its file
    arguments: tuple[str, ...] = ()
    container_annotations: tuple[str, ...] = ()  # patterns; () leaves containerd's
    pod_annotations: tuple[str, ...] = ()
    # of new containerd handlers, if the runtime whose settings they copy has none
    runtime_type: str = "io.containerd.runc.v2"


def file_to_edit(
    options: EngineOptions, target: str, order: Sequence[str], sources: Mapping[str, str]
) -> str:
    """Return the target, or with `in_place` the last file in `order` that defines a handler.

    `sources` maps a handler's name to the last file that defines it.
    """
    if not options.in_place:
        return target
    named = (sources.get(handler.name, target) for handler in options.handlers)
    return max((target, *named), key=order.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What an engine's files say."""

    files: tuple[str, ...] = ()
    version: int = 0  # of the configuration's format (containerd), 0 if it has none
    # name → path of every registered runtime, ours or not; the path is "" if the engine looks up
    # the program
    handlers: Mapping[str, str]
    default: str = ""
    cdi: bool | None = None  # whether CDI is on; None if that depends on the engine's version
    spec_dirs: tuple[str, ...] = ()  # CDI folders that are named; () for the engine's defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdit:
    """The bytes of one file before and after; None if it does not exist."""

    path: str
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Edits that belong together."""

    edits: tuple[FileEdit, ...] = ()  # in the order of writing; only files that differ
    restart: bool = False  # a reload without a restart is not enough
    notes: tuple[str, ...] = ()


def change_of(
    path: str,
    before: bytes | None,
    after: bytes | None,
    *,
    restart: bool = False,
    notes: Iterable[str] = (),
) -> Change:
    """Return a change of one file, without edits if it stays as it is."""
    edits = () if after == before else (FileEdit(path=path, before=before, after=after),)
    return Change(edits=edits, restart=restart and bool(edits), notes=tuple(notes))


def text_of(data: bytes) -> str:
    """Return a file's text; bytes that are not UTF-8 survive."""
    return data.decode("utf-8", "surrogateescape")


def data_of(text: str) -> bytes:
    """Return the bytes of a text; see `text_of`."""
    return text.encode("utf-8", "surrogateescape")


def without_var(path: str) -> str:
    """Return a path with /run for /var/run, which is a link to it."""
    return path.removeprefix("/var") if f"{path}/".startswith("/var/run/") else path


class Files:
    """The host's files below a root: "/", or another folder in tests and containers.

    The kernel follows links out of the root, so a root other than "/" must be trusted.
    """

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def at(self, path: str) -> str:
        """Return a path of the engine as a path of this process."""
        return path if self.root == "/" else self.root.rstrip("/") + "/" + path.lstrip("/")

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, None if there is none; DocumentError if it cannot be read."""
        try:
            return host_files.read_bytes(self.at(path), FILE_LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise DocumentError(f"{path} cannot be read: {error.strerror}") from error

    def text(self, path: str) -> str | None:
        """Return a file's text, "" if it cannot be read, None if there is none."""
        try:
            data = self.read(path)
        except DocumentError:
            return ""
        return None if data is None else data.decode(errors="replace")

    def names(self, folder: str, suffix: str) -> list[str]:
        """Return the paths of a folder's files with a suffix, sorted; [] if there is no folder."""
        try:
            names = sorted(os.listdir(self.at(folder)))
        except OSError:
            return []
        return [f"{folder.rstrip('/')}/{name}" for name in names if name.endswith(suffix)]


class EditedFiles(Files):
    """The host's files as they are after some edits."""

    def __init__(self, files: Files, edits: Iterable[FileEdit]) -> None:
        super().__init__(files.root)
        self._files = files
        self._edits = {edit.path: edit.after for edit in edits}

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, None if there is none. Raises DocumentError as `Files.read`."""
        return self._edits[path] if path in self._edits else self._files.read(path)

    def names(self, folder: str, suffix: str) -> list[str]:
        """Return the paths of a folder's files with a suffix, sorted."""
        paths = set(self._files.names(folder, suffix))
        for path, data in self._edits.items():
            if data is None:
                paths.discard(path)
            elif posixpath.dirname(path) == folder.rstrip("/") and path.endswith(suffix):
                paths.add(path)
            elif path.startswith(f"{folder.rstrip('/')}/"):  # a folder on the way to a new file
                part = path[len(folder.rstrip("/")) + 1 :].split("/")[0]
                paths.add(f"{folder.rstrip('/')}/{part}")
        return sorted(paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine of this host."""

    engine: str
    pid: int = 0  # of its process, 0 if it does not run
    binary: str = ""  # the program's path below `root`
    version: str = ""  # such as "1.7.24", "" if the program is not run
    unit: str = ""  # the systemd unit that runs it, or would start it; "" for none
    user_unit: bool = False
    uid: int = 0
    path: str | None = None  # the variable PATH of its process; None if that is unknown
    socket: str = ""
    config: str = ""  # the main file that it reads, whether it exists or not
    config_dir: str = ""  # the folder of its drop-ins, unless the main file names that
    root: str = "/"  # root directory of these paths, for this process: "/" or /proc/PID/root
    platform: str = ""  # what set it up; "" is the distribution; see `platforms`
    edit: str = ""  # the file to edit in place of `config`, "" for `config` itself
    drop_in: str | None = None  # to write; "" for none; None lets the engine's module choose
    leave: bool = False  # its files must not be edited; `advice` says what to do instead
    restart: tuple[str, ...] = ()  # command to restart it; () restarts its unit
    advice: tuple[str, ...] = ()  # sentences for users who want to change its configuration
    notes: tuple[str, ...] = ()
    foreign: bool = False  # another user's, or in another file system: it cannot be trusted

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as numbers, () if it is unknown."""
        return tuple(int(part) for part in self.version.split(".")) if self.version else ()
