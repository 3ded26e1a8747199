# SPDX-License-Identifier: Apache-2.0
"""Whether CUDA forward compatibility libraries of an image are for this host.

CUDA images bring them in /usr/local/cuda/compat. They are for hosts with an older driver; which
ones, an ELF note of libcuda says, and where it has none the major version does.
"""

from __future__ import annotations

import posix

from nvct import paths
from nvct.container.rootfs import linker_conf
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
    """Return the folder of the compatibility libraries if they are to be used, else None.

    Args:
        root: the container's.
        versions: of the host's driver and of the CUDA that it brings, and where images have the
            libraries.
        warn: told of what cannot be used.

    Raises:
        UnsafePathError: the folder cannot be named to the dynamic linker.
    """
    place = root.resolve(versions.get("folder") or paths.COMPAT_FOLDER)
    if place is None:
        return None
    names = _libraries(root, place)
    if len(names) > 1:
        warn(f"{place} has {len(names)} libcuda.so of full version; none is used")
    if len(names) != 1:
        return None
    version = _version(warn, names[0][len(LIBRARY) :])
    note = _note(warn, root, f"{place}/{names[0]}")
    driver, cuda = versions.get("driver"), versions.get("cuda")
    host = _version(warn, driver) if driver else None, _version(warn, cuda) if cuda else None
    if not is_wanted(*host, version, note):
        return None
    if not linker_conf.is_plain(place):
        raise UnsafePathError(f"folder {place!r} of CUDA compatibility libraries is not usable")
    return place


def _libraries(root: Root, folder: str) -> list[str]:
    """Return the names of regular files libcuda.so.X.Y in a folder, which is walked to once."""
    names = [name for name in root.listdir(folder, LIST_LIMIT) or () if _is_full(name)]
    if not names:
        return names
    fd = root.path_fd(folder)
    if fd is None:
        return []
    try:
        found = [(name, lstat_or_none(name, fd)) for name in names]
    finally:
        posix.close(fd)
    return [n for n, status in found if status and status.st_mode & S_IFMT == S_IFREG]


def _is_full(name: str) -> bool:
    return name.startswith(LIBRARY) and "." in name[len(LIBRARY) :]


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
        return cuda is not None and note.cuda is not None and note.cuda > cuda
    if cuda is not None or driver is None or compat is None:
        return False
    return driver[0] < compat[0]


class Note:
    """The ELF note of a compatibility libcuda.

    Attributes:
        cuda: the CUDA version it brings, None where it names none.
        drivers: the major versions of host drivers it runs on; empty where it names none.
    """

    __slots__ = ("cuda", "drivers")

    def __init__(self, cuda: Version | None, drivers: frozenset[int]) -> None:
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
    """Read a note's description, as the incumbent's v1.20 does by Go's encoding/json.

    NVIDIA's libraries write `CUDA version` and `driver`, the incumbent's struct says
    `CUDA Version` and `Driver`: Go ignores case. What is missing or null is empty.

    Raises:
        DocumentError: it is no JSON object, or a member has another type.
    """
    text = description.rstrip(b"\0").decode("utf-8", "surrogateescape")
    value = jsontext.parse(text, "CUDA compatibility note")
    if not isinstance(value, dict):
        raise DocumentError("CUDA compatibility note is no JSON object")
    members = {str(key).casefold(): content for key, content in value.items()}
    cuda, drivers = members.get(CUDA_KEY) or "", members.get(DRIVER_KEY) or []
    if not isinstance(cuda, str) or not isinstance(drivers, list):
        raise DocumentError("CUDA compatibility note has a CUDA version or drivers of no use")
    if not all(type(driver) is int for driver in drivers):
        raise DocumentError("CUDA compatibility note names a driver that is no number")
    return Note(parse_version(cuda), frozenset(drivers))  # type: ignore[arg-type]  # all int


def parse_version(text: str) -> Version | None:
    """Return a version of up to three numbers as three, None where it is none."""
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
