# SPDX-License-Identifier: Apache-2.0
"""Hook enable-cuda-compat: prefer the image's newer libcuda where the driver allows it.

CUDA images bring forward compatibility libraries in /usr/local/cuda/compat. They are for hosts
with an older driver; which ones, an ELF note of libcuda says, and where it has none the major
version does. The image's folder is only named to its dynamic linker, nothing of it runs here.
"""

from __future__ import annotations

import posix

from nvct.errors import DocumentError, ElfError, UnsafePathError
from nvct.hook import linker_conf
from nvct.linux import elf
from nvct.linux.constants import S_IFMT, S_IFREG
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from nvct.hook.context import Context
    from nvct.linux.root import Root

    Version: TypeAlias = tuple[int, ...]

DEFAULT_FOLDER = "/usr/local/cuda/compat"
LIBRARY = "libcuda.so."
NOTE_SECTION = ".note.cuda.fwd_compatibility"
NOTE_NAME = "NVIDIA Corporation"
LIST_LIMIT = 1024


def run(context: Context) -> None:
    """Put the folder first in the drop-in, where the next update-ldcache finds it.

    Raises:
        NvctError: the container's files don't allow it.
    """
    if not _host_versions(context):
        return
    root = context.root()
    old = linker_conf.read(root)
    chosen = choose(context)
    compat = [chosen] if chosen else []
    if compat == old.compat:
        return
    gone = [f for f in old.compat if f not in compat]
    if gone:
        from nvct.hook.update_ldcache import forget

        forget(context, gone)
    linker_conf.write(root, linker_conf.LinkerConf(compat, old.folders), context.kernel)


def _host_versions(context: Context) -> tuple[str, str] | None:
    options = context.options
    found = options.text("host-driver-version"), options.text("host-cuda-version")
    return found if any(found) else None


def choose(context: Context) -> str | None:
    """Return the folder of the compatibility libraries if they are to be used, else None."""
    host = _host_versions(context)
    if host is None:
        return None
    root = context.root()
    folder = root.resolve(context.options.text("cuda-compat-container-root", DEFAULT_FOLDER))
    if folder is None:
        return None
    names = [
        name
        for name in root.listdir(folder, LIST_LIMIT) or ()
        if name.startswith(LIBRARY)
        and "." in name[len(LIBRARY) :]
        and _is_regular(root, folder, name)
    ]
    if len(names) > 1:
        context.warn(f"{folder} has {len(names)} libcuda.so of full version; none is used")
    if len(names) != 1:
        return None
    version = _version(context, names[0][len(LIBRARY) :])
    note = _note(context, root, f"{folder}/{names[0]}")
    driver = _version(context, host[0]) if host[0] else None
    cuda = _version(context, host[1]) if host[1] else None
    if not is_wanted(driver, cuda, version, note):
        return None
    if not linker_conf.is_plain(folder):
        raise UnsafePathError(f"folder {folder!r} of CUDA compatibility libraries is not usable")
    return folder


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


def _note(context: Context, root: Root, path: str) -> Note | None:
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
        context.warn(f"{path} in the container: {error.message}")
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


def _version(context: Context, text: str) -> Version | None:
    version = parse_version(text)
    if version is None:
        context.warn(f"version {text!r} is not of the form 580.82 or 580.82.07")
    return version
