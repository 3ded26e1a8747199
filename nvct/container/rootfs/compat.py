# SPDX-License-Identifier: Apache-2.0
"""Decides whether a container uses the CUDA forward compatibility libraries of its image.

CUDA images have them in /usr/local/cuda/compat, for hosts with an older driver. An ELF note of
libcuda lists the supported drivers; without a note the major versions are compared.
"""

from __future__ import annotations

import posix

from nvct import paths
from nvct.container.rootfs import linker
from nvct.errors import DocumentError, ElfError, UnsafePathError
from nvct.linux import elf
from nvct.linux.constants import S_IFMT, S_IFREG
from nvct.linux.files import lstat_or_none
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from nvct.container.plan.model import Compat
    from nvct.linux.root import Root

    Version: TypeAlias = tuple[int, ...]
    Warn: TypeAlias = Callable[[str], None]

LIBRARY = "libcuda.so."
NOTE_SECTION = ".note.cuda.fwd_compatibility"
NOTE_NAME = "NVIDIA Corporation"
CUDA_KEY, DRIVER_KEY = "cuda version", "driver"
LIST_LIMIT = 1024


def choose(root: Root, versions: Compat, warn: Warn) -> str | None:
    """Return the folder of the compatibility libraries if they are used, else None.

    `versions` are those of the host's driver and its CUDA, and the libraries' folder in images.
    Raises UnsafePathError if the linker's files cannot have the folder's name.
    """
    folder = root.resolve(versions.get("folder") or paths.COMPAT_FOLDER)
    if folder is None:
        return None
    names = _libraries(root, folder)
    if len(names) > 1:
        warn(f"{folder} has {len(names)} files libcuda.so.VERSION; none is used")
    if len(names) != 1:
        return None
    version = _version(warn, names[0][len(LIBRARY) :])
    note = _note(warn, root, f"{folder}/{names[0]}")
    driver, cuda = versions.get("driver"), versions.get("cuda")
    host = _version(warn, driver) if driver else None, _version(warn, cuda) if cuda else None
    if not is_wanted(*host, version, note):
        return None
    if not linker.is_plain(folder):
        raise UnsafePathError(f"folder {folder!r} of CUDA compatibility libraries is not usable")
    return folder


def _libraries(root: Root, folder: str) -> list[str]:
    listed = root.listdir(folder, LIST_LIMIT) or ()
    names = [n for n in listed if n.startswith(LIBRARY) and "." in n[len(LIBRARY) :]]
    if not names:
        return names
    fd = root.path_fd(folder)
    if fd is None:
        return []
    try:
        statuses = [(name, lstat_or_none(name, fd)) for name in names]
    finally:
        posix.close(fd)
    return [name for name, status in statuses if status and status.st_mode & S_IFMT == S_IFREG]


def is_wanted(
    driver: Version | None, cuda: Version | None, compat: Version | None, note: Note | None
) -> bool:
    """Report whether compatibility libraries are used, as in the incumbent's v1.20."""
    if note is not None:
        if driver is not None and compat is not None:
            return driver[0] in note.drivers and compat > driver
        return cuda is not None and note.cuda is not None and note.cuda > cuda
    if cuda is not None or driver is None or compat is None:
        return False
    return driver[0] < compat[0]


class Note:
    """The ELF note of a compatibility libcuda."""

    __slots__ = ("cuda", "drivers")

    def __init__(self, cuda: Version | None, drivers: frozenset[int]) -> None:
        self.cuda = cuda
        self.drivers = drivers  # supported major versions of host drivers; may be empty


def _note(warn: Warn, root: Root, path: str) -> Note | None:
    """Return the note of a file, None without one; warn if the file or note is damaged."""
    fd = root.file_fd(path)
    if fd is None:
        return None
    try:
        notes = elf.Elf(fd).notes(NOTE_SECTION)
        for name, _, description in notes:
            if name == NOTE_NAME:
                return parse_note(description)
    except (ElfError, DocumentError) as error:
        warn(f"{path} in the container: {error.message}")
    finally:
        posix.close(fd)
    return None


def parse_note(description: bytes) -> Note:
    """Parse the description of a note, as encoding/json of Go does for the incumbent's v1.20.

    NVIDIA's libraries have the members `CUDA version` and `driver`, the incumbent's struct `CUDA
    Version` and `Driver`: Go ignores case. A missing member or null counts as empty. Raises
    DocumentError if it is not a JSON object, or a member has the wrong type.
    """
    text = description.rstrip(b"\0").decode("utf-8", "surrogateescape")
    value = jsontext.parse(text, "CUDA compatibility note")
    if not isinstance(value, dict):
        raise DocumentError("CUDA compatibility note is not a JSON object")
    members = {str(key).casefold(): content for key, content in value.items()}
    cuda, drivers = members.get(CUDA_KEY) or "", members.get(DRIVER_KEY) or []
    if not isinstance(cuda, str) or not isinstance(drivers, list):
        raise DocumentError("CUDA compatibility note has an unusable CUDA version or driver list")
    if not all(type(driver) is int for driver in drivers):
        raise DocumentError("CUDA compatibility note names a driver that is not a number")
    return Note(parse_version(cuda), frozenset(drivers))  # type: ignore[arg-type]  # all int


def parse_version(text: str) -> Version | None:
    """Return a version of one to three numbers as three, None if it is malformed."""
    parts = text.split(".")
    if len(parts) > 3:
        return None
    if not all(p.isascii() and p.isdecimal() and len(p) < 10 for p in parts):
        return None
    numbers = [int(p) for p in parts]
    return tuple(numbers + [0] * (3 - len(numbers)))


def _version(warn: Warn, text: str) -> Version | None:
    version = parse_version(text)
    if version is None:
        warn(f"version {text!r} is not of the form 580.82 or 580.82.07")
    return version
