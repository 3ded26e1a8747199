# SPDX-License-Identifier: Apache-2.0
"""Values: what is wanted of an engine, what its files say, and a change of them.

An engine module (docker, containerd, crio, podman) has three functions without an effect::

    state(wanted, files) -> State       what the files say now
    plan(wanted, files) -> Change       the smallest edit that makes them say what is wanted
    removal(wanted, files) -> Change    the smallest edit that takes our handlers out again

`transaction` carries a change out; nothing else writes an engine's files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from nvct.errors import DocumentError
from nvct.linux import files as host_files
from nvct.linux.files import MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_LIMIT = 4 * MIB  # bytes; an engine's configuration is a few KB


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A runtime as an engine knows it: RuntimeClass handler, `--runtime` of Docker and Podman."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What an engine should be told.

    Attributes:
        engine: docker, containerd, crio or podman.
        handlers: to register.
        default: name of the handler that containers get which name none; "" leaves it alone.
        cdi: switch the engine's own CDI on, where it has such a switch.
        spec_dirs: CDI folders to name where the engine's are not already these; () leaves them.
        config: the engine's main file.
        drop_in: the file beside it to write instead; "" edits the main file; None is the engine's
            own best choice.
        source: "file", or "command": ask the engine (`executable`) for what is in force.
        executable: of the engine; "" finds it on PATH.
        hook: path of nvidia-container-runtime-hook, where hooks are wanted (podman, crio).
        hooks_dir: folder of hook files to name in the configuration; "" leaves it alone.
        dump: what the engine printed as the configuration in force, where `source` is "command":
            the caller runs the engine, `plan` only reads this.
        engine_version: of the engine that runs, as (28, 5, 2); () where nobody knows.
        arguments: of the engine that runs: docker's may say what its file then must not.
        container_annotations: patterns of container annotations that containerd is to hand to the
            handlers; () leaves them.
        pod_annotations: the same, of pods.
        runtime_type: of containerd's handlers, where the runtime that they are like has none.
    """

    engine: str
    handlers: tuple[Handler, ...]
    default: str = ""
    cdi: bool = False
    spec_dirs: tuple[str, ...] = ()
    config: str = ""
    drop_in: str | None = None
    source: str = "file"
    executable: str = ""
    hook: str = ""
    hooks_dir: str = ""
    dump: str = ""
    engine_version: tuple[int, ...] = ()
    arguments: tuple[str, ...] = ()
    container_annotations: tuple[str, ...] = ()
    pod_annotations: tuple[str, ...] = ()
    runtime_type: str = "io.containerd.runc.v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What an engine's files say.

    Attributes:
        files: that were read, main file first.
        version: of the configuration's format (containerd), 0 where it has none.
        handlers: name → path of every runtime that is registered, ours or not; a path is "" where
            the engine looks it up.
        default: name of the default runtime, "" where none is named.
        cdi: whether CDI is on; None where only the engine's version says so.
        spec_dirs: CDI folders that are named; () where the engine's own hold.
    """

    files: tuple[str, ...] = ()
    version: int = 0
    handlers: Mapping[str, str]
    default: str = ""
    cdi: bool | None = None
    spec_dirs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdit:
    """One file before and after; None is no file."""

    path: str
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Edits that belong together.

    Attributes:
        engine: whose they are.
        edits: in the order of writing; only files that differ.
        restart: a reload is not enough.
        notes: sentences for whoever asked, such as what else to do.
    """

    engine: str
    edits: tuple[FileEdit, ...] = ()
    restart: bool = False
    notes: tuple[str, ...] = ()


class Files:
    """The host's files, as paths below a root: "/" or, in tests and containers, a tree.

    Links are followed as the system does: a root other than "/" is our own tree or mount.
    """

    def __init__(self, root: str = "/") -> None:
        """Keep the root."""
        self.root = root

    def at(self, path: str) -> str:
        """Return where a path of the engine's lies for us."""
        return path if self.root == "/" else self.root.rstrip("/") + "/" + path.lstrip("/")

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, None if there is none.

        Raises:
            DocumentError: it is no regular file, too large, or cannot be read.
        """
        try:
            return host_files.read_bytes(self.at(path), FILE_LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise DocumentError(f"{path} cannot be read: {error.strerror}") from error

    def names(self, folder: str, suffix: str) -> list[str]:
        """Return the paths of a folder's files with a suffix, sorted; [] if there is no folder."""
        try:
            names = sorted(os.listdir(self.at(folder)))
        except OSError:
            return []
        return [f"{folder.rstrip('/')}/{name}" for name in names if name.endswith(suffix)]
