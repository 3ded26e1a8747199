# SPDX-License-Identifier: Apache-2.0
"""Layers of an image: gzipped tars that depend on the files' names, modes and content only."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO

LEVEL = 6


class ImageError(Exception):
    """An input cannot become a part of the image."""


@dataclass(frozen=True)
class Entry:
    """A file, folder or link of a layer.

    Attributes:
        path: relative to the image's root.
        kind: as tarfile's.
        mode: permissions.
        target: of a link; of a hard link, its path in the layer.
        owner: user and group.
        content: of a file.
    """

    path: str
    kind: bytes = tarfile.REGTYPE
    mode: int = 0o644
    target: str = ""
    owner: tuple[int, int] = (0, 0)
    content: bytes | Path = b""

    def info(self) -> tarfile.TarInfo:
        """Return its header; the time is 0, as it must not depend on when a file was made."""
        info = tarfile.TarInfo(self.path)
        info.type, info.mode, info.linkname = self.kind, self.mode, self.target
        info.uid, info.gid = self.owner
        if self.kind == tarfile.REGTYPE:
            content = self.content
            info.size = len(content) if isinstance(content, bytes) else content.stat().st_size
        return info


@dataclass(frozen=True)
class Layer:
    """A layer in a file.

    Attributes:
        file: the gzipped tar.
        digest: of the file, in hexadecimal.
        size: of the file, in bytes.
        diff_id: digest of the tar.
        unpacked: size of the tar, in bytes.
        comment: what is in it.
    """

    file: Path
    digest: str
    size: int
    diff_id: str
    unpacked: int
    comment: str


def write(entries: Iterable[Entry], file: Path, comment: str) -> Layer:
    """Write a layer, in the order of the paths; a folder comes before its content.

    Raises:
        ImageError: there are two different entries of one path.
    """
    by_path: dict[str, Entry] = {}
    for entry in entries:
        if by_path.setdefault(entry.path, entry) != entry:
            raise ImageError(f"{comment}: /{entry.path} is there twice")
    # A hard link comes after all files, so after its own.
    ordered = sorted(by_path.values(), key=lambda e: (e.kind == tarfile.LNKTYPE, e.path))
    with file.open("wb") as out:
        packed = _Hashed(out)
        with gzip.GzipFile("", "wb", LEVEL, packed, mtime=0) as zipped:  # type: ignore[call-overload]
            plain = _Hashed(zipped)
            with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for entry in ordered:
                    with _opened(entry.content) as content:
                        tar.addfile(entry.info(), content)
    return Layer(file, packed.digest, packed.size, plain.digest, plain.size, comment)


def of_folder(
    root: Path, target: str, is_taken: Callable[[str], bool] = lambda _: True
) -> list[Entry]:
    """Return the entries of a folder's content, owned by root and only writable by its owner.

    Args:
        root: the folder.
        target: its path in the image.
        is_taken: whether a file, by its path in the folder, is taken; empty folders are not.
    """
    entries: list[Entry] = []
    links: dict[int, list[Entry]] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            source = Path(folder, name)
            place = str(source.relative_to(root))
            path, status = f"{target}/{place}", source.lstat()
            if stat.S_ISDIR(status.st_mode) or not is_taken(place):
                continue
            if stat.S_ISLNK(status.st_mode):
                entries.append(Entry(path, tarfile.SYMTYPE, 0o777, os.readlink(source)))
                continue
            mode = 0o755 if status.st_mode & 0o100 else 0o644
            links.setdefault(status.st_ino, []).append(Entry(path, mode=mode, content=source))
    for same in links.values():
        original, *others = sorted(same, key=lambda entry: entry.path)
        entries.append(original)
        entries += (Entry(e.path, tarfile.LNKTYPE, e.mode, original.path) for e in others)
    return entries + folders_of(entry.path for entry in entries)


def of_tar(file: Path, is_taken: Callable[[str], bool]) -> list[Entry]:
    """Return the entries of a tar; the device nodes in it are left out.

    Raises:
        ImageError: it cannot be read.
    """
    entries = []
    try:
        with tarfile.open(file) as tar:
            for member in tar:
                path = os.path.normpath(member.name)
                if path == "." or member.isdev() or not is_taken(path):
                    continue
                target = os.path.normpath(member.linkname) if member.islnk() else member.linkname
                content = tar.extractfile(member) if member.isreg() else None
                owner, data = (member.uid, member.gid), content.read() if content else b""
                mode = member.mode & 0o7777
                entries.append(Entry(path, member.type, mode, target, owner, data))
    except (OSError, tarfile.TarError) as error:
        raise ImageError(f"{file} cannot be read as a tar: {error}") from error
    return entries


def folders_of(paths: Iterable[str]) -> list[Entry]:
    """Return the folders above paths, outermost first."""
    parents = set()
    for path in paths:
        while path := os.path.dirname(path):
            parents.add(path)
    return [Entry(path, tarfile.DIRTYPE, 0o755) for path in sorted(parents)]


def _opened(content: bytes | Path) -> BinaryIO:
    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")


class _Hashed:
    """Passes on what is written, and keeps its digest and size."""

    def __init__(self, out: BinaryIO | gzip.GzipFile) -> None:
        self._out = out
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.size += len(data)
        self._out.write(data)
        return len(data)

    def flush(self) -> None:
        self._out.flush()

    def tell(self) -> int:
        return self.size
