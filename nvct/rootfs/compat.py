# SPDX-License-Identifier: Apache-2.0
"""Whether CUDA forward compatibility libraries of an image are for this host.

CUDA images bring them in /usr/local/cuda/compat. They are for hosts with an older driver; which
ones, an ELF note of libcuda says, and where it has none the major version does.
"""

from __future__ import annotations

import posix

from nvct.errors import DocumentError, ElfError, UnsafePathError
from nvct.linux import elf
from nvct.linux.constants import S_IFMT, S_IFREG
from nvct.oci import jsontext
from nvct.rootfs import linker_conf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from nvct.linux.root import Root

    Version: TypeAlias = tuple[int, ...]
    Warn: TypeAlias = Callable[[str], None]

LIBRARY = "libcuda.so."
NOTE_SECTION = ".note.cuda.fwd_compatibility"
NOTE_NAME = "NVIDIA Corporation"
LIST_LIMIT = 1024


def choose(root: Root, host: tuple[str, str], folder: str, warn: Warn) -> str | None:
    """Return the folder of the compatibility libraries if they are to be used, else None.

    Args:
        root: the container's.
        host: the host's driver version and the CUDA version that it brings; "" where unknown.
        folder: where the image has them.
        warn: told of what cannot be used.

    Raises:
        UnsafePathError: the folder cannot be named to the dynamic linker.
    """
    place = root.resolve(folder)
    if place is None:
        return None
    names = [
        name
        for name in root.listdir(place, LIST_LIMIT) or ()
        if name.startswith(LIBRARY)
        and "." in name[len(LIBRARY) :]
        and _is_regular(root, place, name)
    ]
    if len(names) > 1:
        warn(f"{place} has {len(names)} libcuda.so of full version; none is used")
    if len(names) != 1:
        return None
    version = _version(warn, names[0][len(LIBRARY) :])
    note = _note(warn, root, f"{place}/{names[0]}")
    driver = _version(warn, host[0]) if host[0] else None
    cuda = _version(warn, host[1]) if host[1] else None
    if not is_wanted(driver, cuda, version, note):
        return None
    if not linker_conf.is_plain(place):
        raise UnsafePathError(f"folder {place!r} of CUDA compatibility libraries is not usable")
    return place


def _is_regular(root: Root, folder: str, name: str) -> bool:
    found = root.lstat(f"{folder}/{name}")
    return found is not None and found.st_mode & S_IFMT == S_IFREG


def is_wanted(
    driver: Version | None, cuda: Version | None, compat: Version | None, note: Note | None
) -> bool:
    """Tell whether compatibility libraries are for this host (as v1.20 of the incumbent does).

    Args:
        driver: the host's driver version.
        cuda: the CUDA version that the host's driver brings.
        compat: the driver version that the libraries are of.
        note: what libcuda says about itself.
    """
    if note is not None:
        if driver is not None and compat is not None:
            return driver[0] in note.drivers and compat > driver
        return cuda is not None and note.cuda > cuda
    if cuda is not None or driver is None or compat is None:
        return False
    return driver[0] < compat[0]


class Note:
    """The ELF note of a compatibility libcuda.

    Attributes:
        cuda: the CUDA version it brings.
        drivers: the major versions of host drivers it runs on.
    """

    __slots__ = ("cuda", "drivers")

    def __init__(self, cuda: Version, drivers: frozenset[int]) -> None:
        """Keep both."""
        self.cuda = cuda
        self.drivers = drivers


def _note(warn: Warn, root: Root, path: str) -> Note | None:
    """Read the note; a damaged file or note counts as none, with a warning."""
    fd = root.file_fd(path)
    if fd is None:
        return None
    try:
        notes = elf.read(fd).notes(NOTE_SECTION)
        for name, _, description in notes:
            if name == NOTE_NAME:
                return parse_note(description)
    except (ElfError, DocumentError) as error:
        warn(f"{path} in the container: {error.message}")
    finally:
        posix.close(fd)
    return None


def parse_note(description: bytes) -> Note:
    """Read a note's description.

    Raises:
        DocumentError: it isn't the JSON object it should be.
    """
    text = description.rstrip(b"\0").decode("utf-8", "surrogateescape")
    value = jsontext.parse(text, "CUDA compatibility note")
    cuda = value.get("CUDA Version") if isinstance(value, dict) else None
    drivers = value.get("Driver") if isinstance(value, dict) else None
    version = parse_version(cuda) if isinstance(cuda, str) else None
    if version is None or not isinstance(drivers, list):
        raise DocumentError("CUDA compatibility note names no CUDA version or no drivers")
    return Note(version, frozenset(d for d in drivers if type(d) is int))


def parse_version(text: str) -> Version | None:
    """Return a version of two or three numbers as three, None where it is none."""
    parts = text.split(".")
    if len(parts) not in {2, 3}:
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
