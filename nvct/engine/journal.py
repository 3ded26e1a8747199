# SPDX-License-Identifier: Apache-2.0
"""The journal of changes of engines' files, for undo and for recovery after a crash.

There is one file ("page") per engine and main configuration file, in a folder that only root can
read. The page is on the disk before the first file of an engine is changed:

    {"format": 1, "done": RECORD, "pending": RECORD}

`done` is what undo restores, `pending` a change that is being made. If another process finds a
pending change, the process that made it was killed: each of its files is complete, and either in
its former or in its planned state.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, fields, replace

from nvct.engine.model import EngineOptions, Handler
from nvct.errors import DocumentError, UnsafePathError
from nvct.kernel.calls import KERNEL
from nvct.linux import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    from nvct.engine.model import State
    from nvct.linux.kernel import Kernel

    Kind = TypeVar("Kind")

FORMAT = 1
LIMIT = 64 * files.MIB
LOCK_TIMEOUT_S = 20.0
SUFFIX = ".json"
OTHERS_WRITE = 0o022
NOTHING = EngineOptions(engine="", handlers=())
FOLDER_MODE = 0o700  # engines' files may hold passwords of proxies and registries


class DamagedJournalError(DocumentError):
    """A page of the journal cannot be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of a change.

    Attributes:
        path: as the engine knows it.
        original: its bytes before the change, None if there was no file; undo restores them.
        replacement: its bytes after the change, None if the change removes it.
        mode: of the original, and uid and gid of its owner.
        folders: that the change creates for it, the outermost first.
    """

    path: str
    original: bytes | None
    replacement: bytes | None
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A change of an engine's files.

    Attributes:
        options: what was last configured; the handlers are all that ever were.
        entries: in the order of writing.
        restart: the engine has to be restarted to see it.
        reloaded: the engine was, or is being, made to read its files.
    """

    options: EngineOptions
    entries: tuple[Entry, ...]
    restart: bool = False
    reloaded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The journal of one engine."""

    done: Record | None = None
    pending: Record | None = None


class Journal:
    """The folder of journals.

    Args:
        folder: created when the first page is written.
        timeout_s: how long to wait for another process that holds the lock.
    """

    def __init__(
        self, folder: str, kernel: Kernel = KERNEL, *, timeout_s: float = LOCK_TIMEOUT_S
    ) -> None:
        self.folder = folder
        self.kernel = kernel
        self.timeout_s = timeout_s

    def lock(self) -> files.Lock:
        """Return the lock to hold while an engine's files are changed; create the folder.

        Raises:
            UnsafePathError: the folder belongs to another user, or others may write to it.
            OSError: the folder cannot be created.
        """
        self._make()
        return files.Lock(f"{self.folder}/lock", self.timeout_s)

    def path(self, engine: str, config: str) -> str:
        """Return the path of the page of an engine with this main file."""
        digest = hashlib.sha256(os.fsencode(config)).hexdigest()[:12]
        return f"{self.folder}/{engine}-{digest}{SUFFIX}"

    def load(self, path: str) -> Page:
        """Return a page; an empty one if the file does not exist.

        Raises:
            DocumentError: it cannot be read or is damaged.
        """
        try:
            data = files.read_bytes(path, LIMIT, check=check_owner)
        except (FileNotFoundError, NotADirectoryError):
            return Page()
        except OSError as error:
            raise DocumentError(f"{path} cannot be read: {error.strerror}") from error
        try:
            return _page(data)
        except (ValueError, RecursionError) as error:  # the latter of json, if nested deeply
            raise DamagedJournalError(
                f"the journal {path} is damaged: {error}",
                hint="move it away, or use undo --remove",
            ) from error

    def save(self, path: str, page: Page) -> None:
        """Write a page to the disk; an empty one removes the file.

        Raises:
            OSError: it cannot be written; the old page is unchanged.
        """
        if page == Page():
            remove(path, self.kernel)
            return
        text = json.dumps(_document(page), indent=1)
        files.write_atomic(path, text.encode(), mode=0o600, kernel=self.kernel)

    def set_aside(self, path: str) -> str:
        """Rename a damaged page, and return its new path.

        Raises:
            OSError: it cannot be renamed.
        """
        aside = f"{path}.damaged"
        number = 1
        while os.path.lexists(aside):
            number += 1
            aside = f"{path}.damaged{number}"
        folder, name = files.split(path)
        dir_fd = self.kernel.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.kernel.rename(
                name, os.path.basename(aside), source_dir_fd=dir_fd, target_dir_fd=dir_fd
            )
            self.kernel.fsync(dir_fd)
        finally:
            self.kernel.close(dir_fd)
        return aside

    def pages(self) -> dict[str, Page]:
        """Return every page by its path.

        Raises:
            DocumentError: one is damaged.
        """
        return {path: self.load(path) for path in self.paths()}

    def paths(self) -> list[str]:
        """Return the paths of all pages.

        Raises:
            DocumentError: the folder cannot be read.
        """
        try:
            names = sorted(os.listdir(self.folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise DocumentError(f"{self.folder} cannot be read: {error.strerror}") from error
        return [f"{self.folder}/{name}" for name in names if name.endswith(SUFFIX)]

    def _make(self) -> None:
        os.makedirs(self.folder, FOLDER_MODE, exist_ok=True)
        status = os.stat(self.folder)
        if status.st_uid != os.geteuid() or status.st_mode & OTHERS_WRITE:
            raise UnsafePathError(
                f"{self.folder} can be written to by others",
                hint=f"chown root and chmod {FOLDER_MODE:o} it, or name another with --state-dir",
            )


def remove(path: str, kernel: Kernel) -> None:
    """Remove a file if it exists, and wait until the disk has the change.

    Raises:
        OSError: it cannot be removed.
    """
    folder, name = files.split(path)
    dir_fd = kernel.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            kernel.unlink(name, dir_fd=dir_fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        kernel.fsync(dir_fd)
    finally:
        kernel.close(dir_fd)


def options_to_undo(options: EngineOptions, state: State, old: Record | None) -> EngineOptions:
    """Return the options that undo has to revert: what this and earlier changes configure.

    What the files said before is not ours, and stays at undo.
    """
    recorded = old.options if old else replace(NOTHING, engine=options.engine)
    names = {handler.name for handler in recorded.handlers}
    new = [
        handler
        for handler in options.handlers
        if handler.name not in names and state.handlers.get(handler.name) != handler.path
    ]
    current = {handler.name: handler for handler in options.handlers}
    has_spec_dirs = state.spec_dirs == options.spec_dirs
    spec_dirs = recorded.spec_dirs if has_spec_dirs else options.spec_dirs
    updated = (current.get(handler.name, handler) for handler in recorded.handlers)
    return replace(
        options,
        handlers=(*updated, *new),
        default=options.default if state.default != options.default else recorded.default,
        cdi=recorded.cdi or (options.cdi and state.cdi is not True),
        spec_dirs=spec_dirs,
        hooks_dir=options.hooks_dir or recorded.hooks_dir,
    )


def check_owner(path: str, status: os.stat_result) -> None:
    """Refuse a page that others could have written: undo writes files with its content."""
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS_WRITE:
        raise DocumentError(
            f"{path} can be written to by others",
            hint="check its content, then make it yours, with mode 600",
        )


def _document(page: Page) -> dict[str, Any]:
    return {"format": FORMAT, "done": _of(page.done), "pending": _of(page.pending)}


def _of(record: Record | None) -> dict[str, Any] | None:
    if record is None:
        return None
    document = asdict(record)
    document["wanted"] = document.pop("options")
    document["told"] = document.pop("reloaded")
    document["entries"] = [_entry_document(entry) for entry in document["entries"]]
    return document


def _entry_document(values: Mapping[str, object]) -> dict[str, object]:
    """Return an entry as format 1 spells it: its member `ours` is the replacement."""
    return {
        "ours" if name == "replacement" else name: (
            _text(value) if isinstance(value, bytes) else value
        )
        for name, value in values.items()
    }


def _page(data: bytes) -> Page:
    """Return the page that a file holds.

    Raises:
        ValueError: it holds none.
    """
    document = json.loads(data)
    if member(document, "format", int) != FORMAT:
        raise ValueError(f"format {document['format']!r} is not known here")
    return Page(done=_record(document, "done"), pending=_record(document, "pending"))


def member(document: object, name: str, kind: type[Kind]) -> Kind:
    """Return a member of an object.

    Raises:
        ValueError: there is none, or it is of another kind.
    """
    if not isinstance(document, dict) or name not in document:
        raise ValueError(f"{name} is missing")
    value = document[name]
    if type(value) is not kind:  # a bool is an int, too
        raise ValueError(f"{name} is {value!r:.60}")
    return value


def is_null(document: object, name: str) -> bool:
    """Return whether an object has a member that is null."""
    return isinstance(document, dict) and document.get(name, ...) is None


def _record(page: object, name: str) -> Record | None:
    if is_null(page, name):
        return None
    document = member(page, name, dict)
    return Record(
        options=_options(member(document, "wanted", dict)),
        entries=tuple(map(_entry, member(document, "entries", list))),
        restart=member(document, "restart", bool),
        reloaded=member(document, "told", bool),
    )


def _options(document: Mapping[str, object]) -> EngineOptions:
    """Return the options of a record; members that a later version added are ignored."""
    values: dict[str, Any] = {"engine": member(document, "engine", str)}
    for field in fields(EngineOptions):
        value = document.get(field.name)
        if field.name in document and field.type in _FITS:
            if not _FITS[field.type](value):
                raise ValueError(f"{field.name} is {value!r:.60}")
            values[field.name] = tuple(value) if isinstance(value, list) else value
    values["handlers"] = tuple(
        Handler(name=member(handler, "name", str), path=member(handler, "path", str))
        for handler in member(document, "handlers", list)
    )
    return EngineOptions(**values)


def _entry(document: object) -> Entry:
    path, folders = member(document, "path", str), member(document, "folders", list)
    for each in (path, *folders):
        if not (isinstance(each, str) and each.startswith("/")):
            raise ValueError(f"{each!r:.60} is no path of a file")
    numbers = {key: member(document, key, int) for key in ("mode", "uid", "gid")}
    for key, number in numbers.items():
        if number < 0:
            raise ValueError(f"{key} is {number}")
    original, replacement = (
        None if is_null(document, key) else _bytes(member(document, key, str))
        for key in ("original", "ours")
    )
    return Entry(
        path=path, original=original, replacement=replacement, folders=tuple(folders), **numbers
    )


def _is_list_of(kind: type) -> Callable[[object], bool]:
    """Return a function that reports whether a value is a list with elements of a kind."""
    return lambda value: isinstance(value, list) and all(type(item) is kind for item in value)


# Type of a field → check of its JSON value. The annotations of `EngineOptions` are strings.
_FITS: Mapping[object, Callable[[object], bool]] = {
    "str": lambda value: isinstance(value, str),
    "str | None": lambda value: value is None or isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "tuple[str, ...]": _is_list_of(str),
    "tuple[int, ...]": _is_list_of(int),
}


def _text(data: bytes) -> str:
    """Return bytes as text for JSON; bytes that are not UTF-8 survive."""
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
