# SPDX-License-Identifier: Apache-2.0
"""Snapshots: the parts of a host that discovery reads, as small readable data without secrets.

A snapshot is a folder, or a tar file of one: `snapshot.json`, and the texts of the kernel and of
the driver's configuration as files below `proc`, `sys`, `etc` and `driver`. Everything else is a
table in snapshot.json, so that unpacking a snapshot creates no link and no device::

    about     format, version, machine, driver, paths of the roots
    links     path -> text of the symbolic link
    elf       path -> [mode, size, machine, SONAME, NEEDED]: headers only, no code
    files     path -> [mode, size] of files without recorded content
    folders   path -> [mode, uid, gid] of directories that matter even if empty
    nodes     path -> [major, minor, mode, uid, gid]
    sockets   path -> [mode, uid, gid]
    cache     [name, path, machine] of ld.so.cache
    nvml      the report of NVML, or its error

Contract: the reader does not trust a snapshot: it refuses paths that lead out of the tree. Each
UUID is replaced by an invented one, the same in every place; hostnames are removed.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from typing import IO, Any, BinaryIO, TypeAlias, cast

from nvct.errors import DocumentError, HostError, OSErrorsAs
from nvct.host.snapshot.redaction import Uuids, cleaned
from nvct.linux.files import write_atomic

FORMAT = 1
INDEX = "snapshot.json"
HINT = "nvct snapshot makes one"
PARTS = ("driver", "proc", "sys", "dev", "etc", "run")
TEXT_LIMIT = 1 << 20
ENTRY_LIMIT = 100_000
TOTAL_LIMIT, INDEX_LIMIT = 64 << 20, 16 << 20
"""Bytes of all files, and of the index; snapshots of real hosts have less than 2 MiB."""
HEADER_LIMIT = 64 << 10  # bytes that an archive can have for one entry, besides its content
CHUNK = 1 << 16
VERSION = "proc/driver/nvidia/version"
BUILDER = re.compile(r"\([^()\s@]+@[^()\s]+\)")

Numbers: TypeAlias = "list[int]"


@dataclass(slots=True)
class Snapshot:
    """A recorded host; the module describes the fields. Every path starts with one of PARTS."""

    about: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    elf: dict[str, list[Any]] = field(default_factory=dict)
    files: dict[str, Numbers] = field(default_factory=dict)
    folders: dict[str, Numbers] = field(default_factory=dict)
    nodes: dict[str, Numbers] = field(default_factory=dict)
    sockets: dict[str, Numbers] = field(default_factory=dict)
    cache: list[list[str]] = field(default_factory=list)
    nvml: dict[str, Any] = field(default_factory=dict)

    def has(self, path: str) -> bool:
        """Report whether a path is recorded as a file or folder, not as a link."""
        return any(path in table for table in (self.texts, self.elf, self.files, self.folders))


TABLES = tuple(f.name for f in fields(Snapshot) if f.name != "texts")


def redacted(
    snapshot: Snapshot, *, hostname: str = "", keep_uuids: bool = False, uuids: Uuids | None = None
) -> Snapshot:
    """Return a snapshot with invented UUIDs, without the module's builder and build host."""
    clean = str if keep_uuids else uuids or Uuids()
    tables = {name: cleaned(getattr(snapshot, name), clean) for name in TABLES}
    texts = {clean(path): clean(text) for path, text in sorted(snapshot.texts.items())}
    if VERSION in texts:  # the only text with a hostname, for modules built on that host
        texts[VERSION] = BUILDER.sub("(builder@host)", texts[VERSION])
        if hostname:
            texts[VERSION] = texts[VERSION].replace(hostname, "host")
    return Snapshot(texts=texts, **tables)


def entries(snapshot: Snapshot) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of a snapshot's files, sorted by path."""
    tables = {name: getattr(snapshot, name) for name in TABLES}
    everything = {INDEX: _index(tables)}
    everything |= {path: text.encode() for path, text in snapshot.texts.items()}
    yield from sorted(everything.items())


def _index(tables: dict[str, Any]) -> bytes:
    """Return snapshot.json with a line for each entry, so that diff(1) can compare two files."""
    members = []
    for name, table in tables.items():
        if name in ("about", "nvml"):
            body = json.dumps(table, indent=1, sort_keys=True)
        elif isinstance(table, dict):
            lines = (f"  {json.dumps(k)}: {json.dumps(table[k])}" for k in sorted(table))
            body = "{\n" + ",\n".join(lines) + "\n }"
        else:
            body = "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in table) + "\n ]"
        members.append(f' "{name}": {body}')
    return ("{\n" + ",\n".join(members) + "\n}\n").encode()


def save(snapshot: Snapshot, path: str) -> None:
    """Write a snapshot to a new folder, or to a file if the name ends in .tar.gz or .tgz.

    HostError if the snapshot cannot be written, or the folder exists.
    """
    with OSErrorsAs(HostError, f"cannot write a snapshot to {path}"):
        if path.endswith((".tar.gz", ".tgz")):
            write_atomic(path, packed(snapshot), follow=True)
            return
        os.mkdir(path)
        for name, data in entries(snapshot):
            target = f"{path}/{name}"
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "xb") as file:
                file.write(data)


def packed(snapshot: Snapshot) -> bytes:
    """Return a snapshot as a gzipped tar file; equal snapshots give equal bytes."""
    return archived(entries(snapshot))


def archived(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Return files as a gzipped tar file without times and owners."""
    archive_file = io.BytesIO()
    with tarfile.open(fileobj=archive_file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(archive_file.getvalue(), mtime=0)


def load(path: str) -> Snapshot:
    """Read a snapshot from a folder or a tar file.

    HostError if the path cannot be read; DocumentError if the path is not a snapshot, has another
    version, or is not safe.
    """
    try:
        if not os.path.isdir(path):
            files = _from_archive(path)
        else:
            files = _from_folder(path) if _has_index(path) else {}
    except tarfile.ReadError as error:
        # tarfile's own message would have the errors of all its readers.
        message = f"{path} is not a snapshot: it is not a whole tar archive"
        raise DocumentError(message, hint=HINT) from error
    except _damage() as error:
        raise DocumentError(f"{path} is not a snapshot: {error}") from error
    except OSError as error:
        raise HostError(f"cannot read snapshot {path}: {error.strerror}") from error
    files = _without_folder(files)
    index = files.pop(INDEX, None)
    if index is None:
        raise DocumentError(f"{path} is not a snapshot: it has no {INDEX}", hint=HINT)
    if len(index) > INDEX_LIMIT:
        raise DocumentError(f"{path} is too large for a snapshot: {INDEX}")
    try:
        tables = json.loads(index)
        if tables["about"]["format"] != FORMAT:
            raise DocumentError(f"{path} is a snapshot of another version", hint="record it again")
        texts = {name: data.decode() for name, data in files.items()}
        snapshot = Snapshot(texts=texts, **{name: tables[name] for name in TABLES})
        _check(snapshot)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DocumentError(f"{path} is a damaged snapshot: {error!r}") from error
    return snapshot


def _from_folder(path: str) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    bytes_left = TOTAL_LIMIT
    for folder, _, names in os.walk(path):
        for name in names:
            full = os.path.join(folder, name)
            if not os.path.islink(full):
                with open(full, "rb") as file:
                    data = file.read(bytes_left + 1)
                bytes_left -= len(data)
                if bytes_left < 0 or len(files) >= ENTRY_LIMIT:
                    raise DocumentError(f"{path} is too large for a snapshot: {name}")
                files[os.path.relpath(full, path)] = data
    return files


def _from_archive(path: str) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    bytes_left = TOTAL_LIMIT
    with open(path, "rb") as packed_file, _unpacked(packed_file) as unpacked:
        limited = _LimitedReader(unpacked)
        with tarfile.open(fileobj=limited, mode="r:") as archive:  # type: ignore[call-overload]
            for _ in range(ENTRY_LIMIT):
                limited.room = HEADER_LIMIT
                member = archive.next()
                if member is None:
                    return files
                archive.members = []  # else tarfile keeps every entry
                bytes_left -= member.size
                if bytes_left < 0:
                    raise DocumentError(f"{path} is too large for a snapshot: {member.name}")
                if member.isreg():
                    limited.room = member.size + HEADER_LIMIT
                    data = archive.extractfile(member)
                    parts = iter(partial(data.read, CHUNK), b"") if data else ()
                    files[os.path.normpath(member.name)] = b"".join(parts)
    raise DocumentError(f"{path} is too large for a snapshot: it has {ENTRY_LIMIT} entries")


def _unpacked(file: BinaryIO) -> IO[bytes]:
    start = file.read(6)
    file.seek(0)
    for mark, name in ((b"\x1f\x8b", "gzip"), (b"BZh", "bz2"), (b"\xfd7zXZ\0", "lzma")):
        if start.startswith(mark):
            try:
                module = import_module(name)
            except ImportError as error:  # the bundle's Python has gzip alone
                raise tarfile.ReadError(f"this Python has no {name}") from error
            return cast("IO[bytes]", module.open(file, "rb"))
    return file


def _damage() -> tuple[type[Exception], ...]:
    lzma = sys.modules.get("lzma")
    errors = tarfile.TarError, EOFError, gzip.BadGzipFile
    return (*errors, lzma.LZMAError) if lzma else errors


class _LimitedReader:
    """A file with a limit on reads, because tarfile reads as much as an archive's headers say."""

    def __init__(self, file: IO[bytes]) -> None:
        self.room = HEADER_LIMIT
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes; ReadError if that exceeds the limit."""
        if size > self.room:
            raise tarfile.ReadError("a header is too large")
        data = self._file.read(size)
        self.room -= len(data)
        return data


def _has_index(folder: str) -> bool:
    """Report whether a folder or one of its entries has an INDEX; other folders are not read."""
    folders = [folder, *(f"{folder}/{name}" for name in os.listdir(folder))]
    return any(os.path.isfile(f"{candidate}/{INDEX}") for candidate in folders)


def _without_folder(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return files by their paths relative to the folder of the index, which `tar` can add."""
    index_path = min((name for name in files if name.endswith(f"/{INDEX}")), key=len, default="")
    if INDEX in files or not index_path:
        return files
    prefix = index_path.removesuffix(INDEX)
    return {name[len(prefix) :]: data for name, data in files.items() if name.startswith(prefix)}


def _check(snapshot: Snapshot) -> None:
    """Refuse paths that lead out of the tree, and files below links."""
    tables = (snapshot.texts, snapshot.links, snapshot.elf, snapshot.files, snapshot.folders)
    for table in (*tables, snapshot.nodes, snapshot.sockets):
        if len(table) > ENTRY_LIMIT:
            raise DocumentError(f"the snapshot has more than {ENTRY_LIMIT} entries of one kind")
        for path in table:
            part, _, below = path.partition("/")
            if part not in PARTS or "\0" in path or not below or os.path.normpath(path) != path:
                raise DocumentError(f"the snapshot has a path outside its folders: {path!r}")
            parents = path.split("/")
            if any("/".join(parents[:n]) in snapshot.links for n in range(1, len(parents))):
                raise DocumentError(f"the snapshot has a path below one of its links: {path!r}")
    for path, text in snapshot.links.items():
        inside = os.path.normpath(os.path.join(os.path.dirname(path), text))
        # Links of the driver are resolved inside its root; the kernel follows other links.
        if not path.startswith("driver/") and inside.partition("/")[0] not in PARTS[1:]:
            raise DocumentError(f"the snapshot has a link that leads out of it: {path!r}")
