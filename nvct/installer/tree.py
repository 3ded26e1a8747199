# SPDX-License-Identifier: Apache-2.0
"""Copies a relocatable tree of programs to a folder named after the hash of its content.

Containers may be using an installed tree, so it is never changed: a new one is copied beside it,
and gets its name only when it is complete and on the disk. Contract: a copy has only directories,
regular files and links that stay inside; only the owner can write; nothing is setuid.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from nvct.errors import HostError, UsageError
from nvct.linux.files import temporary_name

CHUNK = 1 << 20
NAME_LENGTH = 16
FOLDER_MODE = 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file, folder or link of a tree: its path in the tree and its status."""

    path: str
    status: os.stat_result
    target: str = ""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def mode(self) -> int:
        """The permissions of a copy."""
        return FOLDER_MODE if self.status.st_mode & 0o100 or self.is_folder else 0o644


def members(root: str) -> Iterator[Member]:
    """Yield a tree's members, a folder before its content; UsageError if a link leads out."""
    for folder, folders, files in os.walk(root, onerror=_raise):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = os.path.relpath(os.path.join(folder, name), root)
            status = os.lstat(os.path.join(folder, name))
            kind = stat.S_IFMT(status.st_mode)
            if kind == stat.S_IFLNK:
                yield Member(path=path, status=status, target=_target(root, path))
            elif kind in (stat.S_IFDIR, stat.S_IFREG):
                yield Member(path=path, status=status)
            else:
                raise UsageError(f"{os.path.join(root, path)} is not a file, folder or link")


def digest(root: str) -> str:
    """Return a hash of a tree's paths, permissions, content and links. Raises as `members`."""
    whole = hashlib.sha256()
    for member in members(root):
        kind = "d" if member.is_folder else "l" if member.target else f"f{member.mode:o}"
        content = ""
        if kind.startswith("f"):
            content = _digest_of(os.path.join(root, member.path))
        whole.update(f"{kind}\0{member.path}\0{member.target}\0{content}\n".encode())
    return whole.hexdigest()[:NAME_LENGTH]


def copy(source: str, parent: str) -> str:
    """Copy a tree into a folder, named after the hash of its content; return the copy's path.

    A complete existing copy is used; a damaged one is replaced. Raises UsageError if the tree has
    a member that cannot be copied, and HostError if reading or writing fails.
    """
    target = parent
    try:
        target = os.path.join(parent, digest(source))
        if os.path.lexists(target):
            if digest(target) == os.path.basename(target):
                return target
            os.rename(target, os.path.join(parent, temporary_name()))
        os.makedirs(parent, exist_ok=True)
        temporary = os.path.join(parent, temporary_name())
        _copy(source, temporary)
        if digest(temporary) != os.path.basename(target):
            raise HostError(f"{source} changed while it was copied", hint="try again")
        os.sync()
        os.rename(temporary, target)
    except OSError as error:
        path = error.filename or target
        raise HostError(f"{source} cannot be copied: {path}: {error.strerror}") from error
    return target


def prune(parent: str, keep: set[str]) -> None:
    """Remove all trees and incomplete copies in a folder, except the trees to keep."""
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        if path not in keep:
            shutil.rmtree(path, ignore_errors=True)


def _copy(source: str, target: str) -> None:
    os.mkdir(target)
    os.chmod(target, FOLDER_MODE)
    first: dict[tuple[int, int], str] = {}
    for member in members(source):
        into = os.path.join(target, member.path)
        key = member.status.st_dev, member.status.st_ino
        if member.target:
            os.symlink(member.target, into)
        elif member.is_folder:
            os.mkdir(into)
            os.chmod(into, member.mode)
        elif key in first:
            os.link(first[key], into)  # one program under several names
        else:
            shutil.copyfile(os.path.join(source, member.path), into)
            os.chmod(into, member.mode)
            if member.status.st_nlink > 1:
                first[key] = into


def _target(root: str, path: str) -> str:
    target = os.readlink(os.path.join(root, path))
    whole = os.path.normpath(os.path.join(os.path.dirname(path), target))
    if os.path.isabs(target) or whole == ".." or whole.startswith("../"):
        raise UsageError(
            f"{os.path.join(root, path)} leads out of the tree, to {target}",
            hint="--toolkit-source-root must name a relocatable tree, as make bundle makes it",
        )
    return target


def _digest_of(path: str) -> str:
    state = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(CHUNK):
            state.update(part)
    return state.hexdigest()


def _raise(error: OSError) -> None:
    raise error
