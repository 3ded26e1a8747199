# SPDX-License-Identifier: Apache-2.0
"""The journal of changes of paths, for undo and for recovery after a crash.

There is one file ("page") per engine and main configuration file, and one for `nvct doctor --fix`,
in folders that only root can read. A page is on the disk before the first path is changed:

    {"format": 2, "done": RECORD, "pending": RECORD}

`done` is what undo restores, `pending` a change that is being made. If another process finds a
pending change, the process that made it was killed: each of its paths is complete, and either in
its former or in its planned state. Format 1, of earlier versions, is still read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from nvct import typed
from nvct.engine.model import EngineOptions, text_of
from nvct.engine.writing import ABSENT, PathState, opened, remove
from nvct.errors import DocumentError, UnsafePathError
from nvct.linux import files
from nvct.linux.kernel import KERNEL, Kernel

FORMAT = 2
LIMIT = 64 * files.MIB
LOCK_TIMEOUT_S = 20.0
SUFFIX = ".json"
OTHERS_WRITE = 0o022
NOTHING = EngineOptions(engine="", handlers=())
FOLDER_MODE = 0o700  # engines' files may hold passwords of proxies and registries


class DamagedJournalError(DocumentError):
    """A page of the journal cannot be understood."""


class NewerJournalError(DamagedJournalError):
    """A page is from a later version of nvct, which can undo it: it is not set aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One path of a change."""

    path: str  # as the engine knows it
    before: PathState
    after: PathState
    folders: tuple[str, ...] = ()  # that the change creates, the outermost first
    identity: str = ""  # see `writing.identity`; of the node or link that the change made

    def __post_init__(self) -> None:
        """Refuse values that only a damaged journal holds: ValueError."""
        for each in (self.path, *self.folders):
            if not each.startswith("/"):
                raise ValueError(f"{each!r:.60} is not an absolute path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A change of some paths."""

    # the last configured ones, with the handlers of all earlier changes; NOTHING for --fix
    options: EngineOptions = NOTHING
    entries: tuple[Entry, ...]
    restart: bool = False
    reloaded: bool = False  # the engine was, or is being, made to read its files
    boot: str = ""  # id of the boot in which --fix made nodes and links


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The journal of one engine, or of --fix."""

    done: Record | None = None
    pending: Record | None = None


class Journal:
    """The folder with the journal's pages, and their lock."""

    def __init__(
        self,
        folder: str,
        kernel: Kernel = KERNEL,
        *,
        timeout_s: float = LOCK_TIMEOUT_S,
        damage_hint: str = "move it away, or use undo --remove",
    ) -> None:
        self.folder = folder
        self.kernel = kernel
        self.timeout_s = timeout_s
        self.damage_hint = damage_hint

    def lock(self) -> files.Lock:
        """Return the lock for engines' files; create its folder. OSError, UnsafePathError."""
        self._make()
        return files.Lock(f"{self.folder}/lock", self.timeout_s)

    def path(self, engine: str, config: str) -> str:
        """Return the path of the page of an engine with this main file."""
        digest = hashlib.sha256(os.fsencode(config)).hexdigest()[:12]
        return f"{self.folder}/{engine}-{digest}{SUFFIX}"

    def load(self, path: str) -> Page:
        """Return a page, or an empty one; DocumentError if it is damaged or unreadable."""
        try:
            data = files.read_bytes(path, LIMIT, check=check_owner)
        except (FileNotFoundError, NotADirectoryError):
            return Page()
        except OSError as error:
            raise DocumentError(f"{path} cannot be read: {error.strerror}") from error
        try:
            return _page(data)
        except NewerJournalError as error:
            raise NewerJournalError(
                f"{path} was written by a later version of nvct: {error.message}",
                hint="undo with that version, or move the file away",
            ) from error
        except (ValueError, RecursionError) as error:  # the latter of json, if nested deeply
            raise DamagedJournalError(
                f"the journal {path} is damaged: {error}", hint=self.damage_hint
            ) from error

    def save(self, path: str, page: Page) -> None:
        """Write a page to the disk, or remove an empty one; an OSError leaves the old one."""
        if page == Page():
            remove(path, self.kernel)
            return
        text = json.dumps({"format": FORMAT, **typed.dump(page)}, indent=1)
        files.write_atomic(path, text.encode(), mode=0o600, kernel=self.kernel)

    def set_aside(self, path: str) -> str:
        """Rename a damaged page, and return its new path; OSError if that fails."""
        names = (f"{path}.damaged{number if number > 1 else ''}" for number in count(1))
        aside = next(name for name in names if not os.path.lexists(name))
        folder, name = files.split(path)
        with opened(folder, self.kernel) as fd:
            new_name = os.path.basename(aside)
            self.kernel.rename(name, new_name, source_dir_fd=fd, target_dir_fd=fd)
            self.kernel.fsync(fd)
        return aside

    def paths(self) -> list[str]:
        """Return the paths of all pages. Raises DocumentError if the folder cannot be read."""
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


def check_owner(path: str, status: os.stat_result) -> None:
    """Refuse a page that others could have written: undo writes files with its content."""
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS_WRITE:
        raise DocumentError(
            f"{path} can be written to by others",
            hint="check its content, then make it yours, with mode 600",
        )


def _page(data: bytes) -> Page:
    """Return the page that a file holds.

    Raises NewerJournalError if it is of a later format, and ValueError if it holds none.
    """
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 - as all damage
    number = document.pop("format", None)
    if type(number) is int and number > FORMAT:
        raise NewerJournalError(f"format {number} is unknown")
    if type(number) is not int or number not in (1, FORMAT):
        raise ValueError(f"format {number!r:.60} is unknown")
    for name, record in document.items():
        if isinstance(record, dict):
            if number == 1:
                document[name] = record = _of_format_1(record)
            options = record.get("options")
            if isinstance(options, dict):
                record["options"] = _known_options(options)
    return typed.load(Page, document, "its page")


def _known_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return a record's options: unknown ones are dropped, missing ones get defaults."""
    defaults: dict[str, object] = typed.dump(NOTHING)
    known = {name: value for name, value in options.items() if name in defaults}
    return {**defaults, **known} if {"engine", "handlers"} <= known.keys() else dict(options)


def _of_format_1(record: Mapping[str, Any]) -> dict[str, object]:
    """Return a record of format 1 as one of format 2; ValueError if a member is wrong."""
    try:
        if "boot" in record:  # of --fix
            entries = [{**entry, **_states_of_fix(entry)} for entry in record["entries"]]
            rest = {"options": typed.dump(NOTHING), "restart": False, "reloaded": False}
            return {**rest, "boot": record["boot"], "entries": entries}
        return {
            "options": record["wanted"],
            "entries": [_entry_of_engine(entry) for entry in record["entries"]],
            "restart": record["restart"],
            "reloaded": record["told"],
            "boot": "",
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a member is missing or of another kind: {error}") from error


def _states_of_fix(entry: Mapping[str, Any]) -> dict[str, object]:
    """Return the two states of an entry; format 1 had bytes in base64."""
    states: dict[str, object] = {}
    for name in ("before", "after"):
        state = dict(entry[name])
        data = base64.b64decode(state.pop("data"), validate=True)
        states[name] = {**state, "text": text_of(data)}
    return states


def _entry_of_engine(entry: Mapping[str, Any]) -> dict[str, object]:
    """Return an entry; format 1 had the content before and after, and one mode and owner."""
    members = {"path": entry["path"], "folders": entry["folders"], "identity": ""}
    for name, former_name in (("before", "original"), ("after", "ours")):
        text, mode = entry[former_name], stat.S_IFREG | entry["mode"]
        members[name] = (
            typed.dump(ABSENT)
            if text is None
            else {"mode": mode, "uid": entry["uid"], "gid": entry["gid"], "rdev": 0, "text": text}
        )
    return members
