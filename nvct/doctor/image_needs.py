# SPDX-License-Identifier: Apache-2.0
"""Checks that an image has what the driver's libraries need to be loaded in it. Cold.

Containers get the driver's libraries from the host, and the C library, X11 and so on from their
image. So the image must have each library in DT_NEEDED of the driver's libraries, in a version
that defines the symbols, and its ICD files must name libraries that a container gets.

The image is an unpacked folder, and may be hostile: no path leads out of its folder, and every
file has a limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch

from nvct.doctor.model import Finding, Part, Severity, listed
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.errors import ElfError, HostError, NvctError
from nvct.host.driver import config_files
from nvct.host.driver.libraries import COMPAT_MACHINES, TRIPLETS, machine_directories, names_of
from nvct.host.driver.names import is_of_driver
from nvct.host.driver.symbol_versions import VersionedElf
from nvct.host.model import DriverFile, Inventory
from nvct.linux.root import Root

LIBC = "libc.so.6"
ESSENTIAL = ("libcuda.so", "libnvidia-ml.so")
"""Libraries of every program that uses a GPU. Faults of other libraries are only notes."""
ALTERNATIVES = ("libnvidia-pkcs11", "libnvidia-gtk", "libnvidia-wayland-client")
"""Libraries that are not checked: builds for several releases of another library (OpenSSL, GTK),
only one of which can fit, and parts of nvidia-settings."""
SHOWN = 3
ICD_FOLDERS = (
    ("/etc/vulkan/icd.d", "*.json"), ("/usr/share/vulkan/icd.d", "*.json"),
    ("/etc/glvnd/egl_vendor.d", "*.json"), ("/usr/share/glvnd/egl_vendor.d", "*.json"),
    ("/etc/OpenCL/vendors", "*.icd"),
)  # fmt: skip
UNPACK = "docker export CONTAINER | tar -x -C FOLDER unpacks it"


def check(node: Node) -> Part:
    """Check an unpacked image against the driver of this host."""
    folder = node.image
    if not folder:
        return Part.absent("no --image is given")
    if node.inventory is None:
        return Part.absent("this host has no usable driver: see the check driver")
    try:
        root = Root.open(folder)
    except (OSError, HostError) as error:
        text = f"{folder} cannot be read: {error}"
        return Part.of(Finding(Reason.ImageIncomplete, "unknown", text))
    with root:
        return _look(folder, ImageTree(root, os.uname().machine), node.inventory)


def _look(folder: str, tree: ImageTree, inventory: Inventory) -> Part:
    libraries = [file for file in inventory.files if file.kind == "library"]
    if tree.library(LIBC, 64) is None:
        found = [_no_libc(folder, tree)]
    else:
        every = [*_libraries(tree, libraries), *_drivers(tree, libraries)]
        # Only the first lines are printed.
        found = sorted(every, key=lambda finding: not finding.is_fault)
    if any(finding.is_fault or finding.severity == "unknown" for finding in found):
        return Part.of(*found)
    text = f"{folder} has what CUDA and NVML of this driver need"
    return Part.of(f"{text}; {len(libraries)} of its libraries were checked", *found)


def _no_libc(folder: str, tree: ImageTree) -> Finding:
    if tree.unread:
        text = f"{tree.unread[0]} in {folder} cannot be read: {LIBC} was not found"
        return Finding(Reason.ImageIncomplete, "unknown", text)
    machine = tree.other_machine(LIBC)
    if machine:
        text = f"{folder} is an image for {machine}, but this host is {os.uname().machine}"
        remedy = "Check the image for this host's architecture: `docker pull --platform`."
        return Finding(Reason.ImageIncomplete, "error", text, remedy)
    why = "its C library is musl" if tree.has_musl else "it has no C library"
    text = f"{folder} has no {LIBC}, {why}: the driver's libraries need glibc"
    remedy = "Use an image with glibc, such as one of Debian, Ubuntu or Red Hat UBI."
    return Finding(Reason.ImageIncomplete, "error", text, remedy)


def _libraries(tree: ImageTree, libraries: Sequence[DriverFile]) -> Iterator[Finding]:
    given = names_of(libraries)
    missing: dict[str, list[DriverFile]] = {}
    old: dict[tuple[str, str], list[DriverFile]] = {}
    for file in libraries:
        if os.path.basename(file.host_path).startswith(ALTERNATIVES):
            continue
        elf = _headers(file.host_path)
        if elf is None or (elf.bits == 32 and tree.library(LIBC, 32) is None):
            continue  # the image has no C library of 32 bits
        for name in dict.fromkeys(file.needed):
            if name in given:
                continue
            found = tree.library(name, elf.bits)
            if found is None:
                missing.setdefault(name, []).append(file)
            elif lacks := _lacks(found, elf.needs.get(name, ())):
                old.setdefault((name, lacks), []).append(file)
    unread = tree.unread[0] if tree.unread else ""
    for name, files in missing.items():
        yield _finding(files, f"the image has no {name}", unread)
    for (name, version), files in old.items():
        yield _finding(files, f"{name} of the image does not define {version}")


def _headers(path: str) -> VersionedElf | None:
    try:
        return _elf(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return None


def _elf(fd: int | None) -> VersionedElf | None:
    """Return a file's headers and versions, None if it is not an ELF file; close it."""
    if fd is None:
        return None
    try:
        return VersionedElf(fd)
    except ElfError:
        return None  # a linker script, for example
    finally:
        os.close(fd)


def _lacks(library: VersionedElf, versions: Sequence[str]) -> str:
    """Return the highest version that a library lacks, "" if none; it is "" without versions."""
    if not library.defines:
        return ""
    lacking = [version for version in versions if version not in library.defines]
    return max(lacking, key=_order, default="")


def _order(version: str) -> tuple[int, ...]:
    numbers = version.rpartition("_")[2].split(".")
    return tuple(int(number) if number.isdecimal() else 0 for number in numbers)


def _finding(files: Sequence[DriverFile], lack: str, unread: str = "") -> Finding:
    """Return the finding about a library or version that the image lacks.

    `unread` is a path of the image that could not be read and may have it.
    """
    names = [os.path.basename(file.host_path) for file in files]
    essential = [name for name in names if name.startswith(ESSENTIAL)]
    severity: Severity = "error" if essential else "note"
    shown = [*essential, *(name for name in names if name not in essential)]
    capabilities = sorted({file.capability or "all" for file in files})
    verb = "needs" if len(shown) == 1 else "need"
    text = f"{lack}: {listed(shown, SHOWN)} {verb} it ({', '.join(capabilities)})"
    if unread:
        severity, text = "unknown", f"{text}; but {unread} cannot be read and may have it"
    return Finding(Reason.ImageIncomplete, severity, text)


def _drivers(tree: ImageTree, libraries: Sequence[DriverFile]) -> Iterator[Finding]:
    given = names_of(libraries)
    for folder, pattern in ICD_FOLDERS:
        for path, text in tree.texts(folder, pattern):
            try:
                named = config_files.libraries_in(text, is_icd=path.endswith(".icd"))
            except (ValueError, RecursionError):
                continue
            for library in sorted(named):
                name = os.path.basename(library)
                if is_of_driver(name) and name not in given and not tree.library(name, 64):
                    text = f"{path} of the image names {library}, which containers do not get "
                    text += "on this host"
                    remedy = f"Remove {path} from the image: the driver brings its own."
                    yield Finding(Reason.ImageIncomplete, "warning", text, remedy)


CONFIG = "/etc/ld.so.conf"
CONFIG_LIMIT = 1 << 20
CONFIGS = 64  # Files of ld.so.conf that are read
FOLDERS = 64  # Folders that are searched
USUAL = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
MUSL = "ld-musl-"


class ImageTree:
    """The libraries of an image."""

    def __init__(self, root: Root, machine: str) -> None:
        self._root = root
        self._machine = machine
        self._elves: dict[tuple[str, int], VersionedElf | None] = {}
        self._names: dict[str, list[str]] = {}
        self.unread: list[str] = []
        usual = (*machine_directories(machine), *USUAL)
        every = dict.fromkeys((*self._configured(CONFIG, set()), *usual))
        folders = [folder.rstrip("/") for folder in every if folder.startswith("/")]
        for folder in folders[:FOLDERS]:
            for name in self._list(folder):
                self._names.setdefault(name, []).append(f"{folder}/{name}")

    @property
    def has_musl(self) -> bool:
        """Whether the image's C library is musl."""
        return any(name.startswith(MUSL) for name in self._names)

    def library(self, name: str, bits: int) -> VersionedElf | None:
        """Return the library that the dynamic linker loads for a name, None if there is none."""
        key = (name, bits)
        if key not in self._elves:
            found = (self._read(path) for path in self._names.get(name, ()))
            self._elves[key] = next(
                (elf for elf in found if elf and elf.bits == bits and self._is_for_us(elf)), None
            )
        return self._elves[key]

    def other_machine(self, name: str) -> str:
        """Return the machine that a library is built for if not this host's; else ""."""
        folders = (each for one in TRIPLETS for each in machine_directories(one))
        paths = [*self._names.get(name, ()), *(f"{folder}/{name}" for folder in folders)]
        found = (self._read(path) for path in paths)
        return next((elf.machine for elf in found if elf and not self._is_for_us(elf)), "")

    def _is_for_us(self, elf: VersionedElf) -> bool:
        return elf.machine in (self._machine, COMPAT_MACHINES.get(self._machine))

    def texts(self, folder: str, pattern: str) -> Iterator[tuple[str, str]]:
        """Yield path and text of each file in a folder whose name matches a pattern."""
        for name in self._list(folder)[:CONFIGS]:
            if fnmatch(name, pattern) and (text := self.text(f"{folder}/{name}")):
                yield f"{folder}/{name}", text

    def text(self, path: str) -> str:
        """Return a file's text, "" if it cannot be read."""
        try:
            data = self._root.read_file(path, CONFIG_LIMIT)
        except (OSError, NvctError, ValueError):
            self.unread.append(path)
            return ""
        return (data or b"").decode("utf-8", "replace")

    def _configured(self, path: str, read: set[str]) -> Iterator[str]:
        """Yield the folders in a file of ldconfig(8) and in the files that it includes."""
        if path in read or len(read) > CONFIGS:
            return
        read.add(path)
        for line in self.text(path).splitlines():
            word, _, rest = line.partition("#")[0].strip().partition(" ")
            if word == "include":
                folder, pattern = os.path.split(os.path.join("/etc", rest.strip()))
                for name in self._list(folder):
                    if fnmatch(name, pattern):
                        yield from self._configured(f"{folder}/{name}", read)
            elif word.startswith("/"):
                yield word

    def _list(self, folder: str) -> list[str]:
        try:
            return self._root.listdir(folder) or []
        except (OSError, NvctError, ValueError):
            self.unread.append(folder)
            return []

    def _read(self, path: str) -> VersionedElf | None:
        try:
            return _elf(self._root.file_fd(path))
        except (OSError, NvctError):
            self.unread.append(path)
            return None
