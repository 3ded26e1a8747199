# SPDX-License-Identifier: Apache-2.0
"""The journal of `nvct doctor --fix`: what each path was before, for undo and after a crash.

It is one file that only root can write. It is on the disk before the first change of a step:

    {"format": 1, "done": RECORD, "pending": RECORD}

`done` is the last --fix that ended well, `pending` one that runs or was killed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from nvct.doctor.mending.path_state import PathState
from nvct.engine import journal as journals
from nvct.errors import DocumentError, HostError
from nvct.linux import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvct.linux.kernel import Kernel

FORMAT = 1
NAME = "doctor.journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One path that --fix changes.

    Attributes:
        path: of the file, link or device node.
        before: what was there; undo puts it back.
        after: what --fix makes of it.
        folders: that --fix makes for it, the outermost first.
        identity: of the node or link that --fix made; "" while it is not made.
    """

    path: str
    before: PathState
    after: PathState
    folders: tuple[str, ...] = ()
    identity: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The changes of one --fix, in their order, and the boot in which they were made."""

    boot: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The journal."""

    done: Record | None = None
    pending: Record | None = None


def load(folder: str) -> Page:
    """Return the journal in a folder; an empty one if there is none.

    Raises:
        DocumentError: it cannot be read, is damaged, or others could have written it.
    """
    path = f"{folder}/{NAME}"
    try:
        return _page(files.read_bytes(path, journals.LIMIT, check=journals.check_owner))
    except (FileNotFoundError, NotADirectoryError):
        return Page()
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # the latter of json, if nested deeply
        raise DocumentError(
            f"the journal {path} is damaged: {error}", hint="move it away: nothing can be undone"
        ) from error


def save(folder: str, page: Page, kernel: Kernel) -> None:
    """Write the journal to the disk; an empty one removes the file.

    Raises:
        HostError: it cannot be written; the old journal is unchanged.
    """
    path = f"{folder}/{NAME}"
    try:
        if page == Page():
            journals.remove(path, kernel)
            return
        document = {
            "format": FORMAT,
            "done": _record_to_dict(page.done),
            "pending": _record_to_dict(page.pending),
        }
        text = json.dumps(document, indent=1)
        files.write_atomic(path, text.encode(), mode=0o600, kernel=kernel)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror}") from error


def _record_to_dict(record: Record | None) -> dict[str, Any] | None:
    if record is None:
        return None
    entries = [
        {
            "path": entry.path,
            "before": entry.before.to_dict(),
            "after": entry.after.to_dict(),
            "folders": list(entry.folders),
            "identity": entry.identity,
        }
        for entry in record.entries
    ]
    return {"boot": record.boot, "entries": entries}


def _page(data: bytes) -> Page:
    """Return the journal that a file holds.

    Raises:
        ValueError: it holds none.
    """
    document = json.loads(data)
    if journals.member(document, "format", int) != FORMAT:
        raise ValueError(f"format {document['format']!r} is not known here")
    return Page(done=_record(document, "done"), pending=_record(document, "pending"))


def _record(document: object, name: str) -> Record | None:
    if journals.is_null(document, name):
        return None
    record = journals.member(document, name, dict)
    entries = tuple(map(_entry, journals.member(record, "entries", list)))
    return Record(boot=journals.member(record, "boot", str), entries=entries)


def _entry(document: object) -> Entry:
    path = journals.member(document, "path", str)
    folders = journals.member(document, "folders", list)
    for each in (path, *folders):
        if not (isinstance(each, str) and each.startswith("/")):
            raise ValueError(f"{each!r:.60} is no path of a file")
    before, after = (
        PathState.from_dict(journals.member(document, name, dict)) for name in ("before", "after")
    )
    return Entry(
        path=path,
        before=before,
        after=after,
        folders=tuple(folders),
        identity=journals.member(document, "identity", str),
    )
