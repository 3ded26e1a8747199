# SPDX-License-Identifier: Apache-2.0
"""Records the user space of a driver: names, links, ELF headers and small text files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence

from nvct import paths
from nvct.errors import NvctError
from nvct.host import procfs
from nvct.host.driver import programs
from nvct.host.driver.libraries import machine_directories as libraries_of
from nvct.host.model import Inventory
from nvct.host.roots import Roots, below, join
from nvct.host.snapshot.document import Snapshot
from nvct.linux import elf, ldcache

LIKE = re.compile(r"nvidia|^libcuda|^libnv|^nv[-_]|^libtegra|^libdxcore|^gsp_", re.IGNORECASE)
TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu", "i386-linux-gnu", "arm-linux-gnueabihf")
LIBRARY_DIRS = (
    "/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/lib32", "/lib32", "/usr/local/lib",
    *(f"/usr/lib/{t}" for t in TRIPLETS), *(f"/lib/{t}" for t in TRIPLETS),
    "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/opt/nvidia/lib64",
    "/run/opengl-driver/lib", "/run/opengl-driver-32/lib", "/usr/lib/wsl/lib",
    "/usr/lib/wsl/drivers",
)  # fmt: skip
PROGRAM_DIRS = (
    *paths.DEFAULT_PATH_DIRS, "/usr/local/nvidia/bin", "/opt/nvidia/bin",
    "/run/current-system/sw/bin", "/usr/lib/wsl/lib",
)  # fmt: skip
PROGRAM_NAMES = ("nvidia-", "nv-")
DEEPER = re.compile(r"nvidia|^nv|^(vdpau|gbm|xorg|modules|drivers|extensions|tegra|current|tls)$")
OWN_FOLDERS = ("nvidia", "/wsl/", "/tegra", "/gbm", "/vdpau")
DEPTH = 4
SHARE = ("/usr/share", "/usr/local/share", "/etc", "/run/opengl-driver/share")
CONFIG_DIRS = (
    "vulkan/icd.d", "vulkan/implicit_layer.d", "vulkan/explicit_layer.d", "glvnd/egl_vendor.d",
    "egl/egl_external_platform.d", "X11/xorg.conf.d", "OpenCL/vendors", "nvidia",
)  # fmt: skip
TEXTS = (".json", ".icd", ".csv")
TEXT_LIMIT = 64 << 10
RELEASE = re.compile(r"\d+\.\d+(\.\d+)*")
USUAL_LINKS = ("/lib", "/lib32", "/lib64", "/bin", "/sbin", "/var/run", "/usr/lib64")
LINK_LIMIT = 255  # path components, including those of links; the kernel allows 40 links
CSV_LINE = re.compile(r"^\s*(dev|dir|lib|sym)\s*,\s*(/\S+)", re.MULTILINE)
MACHINE_OF = {flags: machine for machine, flags in ldcache.FLAGS.items()}


class _Recorder:
    """Records paths of the driver root, with every link on the way to them."""

    def __init__(self, snapshot: Snapshot, root: str) -> None:
        self.snapshot = snapshot
        self.root = root
        self.links: dict[str, str | None] = {}
        self.resolved: dict[str, str | None] = {}
        self.needed: dict[str, None] = {}

    def add(self, path: str) -> str | None:
        """Record a path; return it with links resolved, None if it does not exist."""
        if path not in self.resolved:
            self.resolved[path] = self._walk(path)
        return self.resolved[path]

    def names(self, path: str) -> list[str]:
        """Record a directory; return its names, [] if it does not exist."""
        real = self.add(path)
        return procfs.list_directory(join(self.root, real)) if real else []

    def _walk(self, path: str) -> str | None:
        current, todo, steps_left = "", path.split("/")[::-1], LINK_LIMIT
        while todo:
            part, steps_left = todo.pop(), steps_left - 1
            if steps_left < 0:
                return None
            if part == "..":
                current = current.rpartition("/")[0]
            if part in ("", ".", ".."):
                continue
            candidate = f"{current}/{part}"
            text = self._text_of(candidate)
            if text is None:
                current = candidate
                continue
            self.snapshot.links[f"driver{candidate}"] = text
            current = "" if text.startswith("/") else current
            todo += text.split("/")[::-1]
        return self._keep(current or "/")

    def _text_of(self, path: str) -> str | None:
        if path not in self.links:
            try:
                self.links[path] = os.readlink(join(self.root, path))
            except OSError:
                self.links[path] = None
        return self.links[path]

    def _keep(self, real: str) -> str | None:
        """Record the file at a path without links; return the path, None if it does not exist."""
        key, host_path = f"driver{real}", join(self.root, real)
        if real == "/" or self.snapshot.has(key):
            return real
        try:
            status = os.lstat(host_path)
        except OSError:
            return None
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            self.snapshot.folders[key] = [mode, status.st_uid, status.st_gid]
        elif stat.S_ISSOCK(status.st_mode):
            self.snapshot.sockets[key] = [mode, status.st_uid, status.st_gid]
        elif stat.S_ISREG(status.st_mode):
            self._file(key, host_path, mode, status.st_size)
        return real

    def _file(self, key: str, host_path: str, mode: int, size: int) -> None:
        name = os.path.basename(key)
        if name.endswith(TEXTS) and size < TEXT_LIMIT:
            self.snapshot.texts[key] = procfs.read_text(host_path) or ""
            return
        if ".so" in name or name.startswith(PROGRAM_NAMES):
            try:
                with open(host_path, "rb") as file:
                    headers = elf.Elf(file.fileno())
                    needed = headers.needed
            except (OSError, NvctError):
                pass  # recorded below as a file that is not ELF, as discovery sees it
            else:
                entry = [mode, size, headers.machine, headers.soname, needed]
                self.snapshot.elf[key] = entry
                self.needed.update(dict.fromkeys(needed))
                return
        self.snapshot.files[key] = [mode, size]


def record(
    snapshot: Snapshot,
    roots: Roots,
    inventory: Inventory | None,
    *,
    library_dirs: Sequence[str] = (),
    shares: Sequence[str] = (),
) -> str | None:
    """Record the driver root, and return the host's path of its NVML library.

    `library_dirs` and `shares` are further directories, inside the driver root, of libraries and
    of configuration files.
    """
    machine = str(snapshot.about["machine"])
    recorder = _Recorder(snapshot, roots.driver_root)
    for path in USUAL_LINKS:
        recorder.add(path)
    cached = _cache(recorder)
    libraries = [*library_dirs, *libraries_of(machine), *LIBRARY_DIRS]
    libraries += [os.path.dirname(path) for name, path, _ in cached if _is(name)]
    for path in _of_inventory(inventory) if inventory else ():
        recorder.add(below(roots.driver_root, path))
    visited: set[str] = set()
    for folder in dict.fromkeys(libraries):
        _library_dir(recorder, folder, DEPTH, visited)
    for folder in PROGRAM_DIRS:
        for name in recorder.names(folder):
            if name.startswith(PROGRAM_NAMES):
                recorder.add(f"{folder}/{name}")
    _firmware(recorder, roots)
    _config(recorder, [*shares, *SHARE])
    _record_needed(recorder, libraries, cached)
    snapshot.cache = [list(entry) for entry in cached if recorder.resolved.get(entry[1])]
    for folder in ("/run", "/var/run"):
        sockets(snapshot, f"driver{folder}", join(roots.driver_root, folder))
    recorder.add("/tmp/nvidia-mps")  # noqa: S108  the driver's own folder
    return _nvml_library(snapshot, roots.driver_root, machine)


def _is(name: str) -> bool:
    return LIKE.search(name) is not None


def _cache(recorder: _Recorder) -> list[tuple[str, str, str]]:
    real = recorder.add("/etc/ld.so.cache")
    if real is None:
        return []
    try:
        with open(join(recorder.root, real), "rb") as file:
            cached = ldcache.parse(file.read(ldcache.LIMIT)).entries
    except (OSError, NvctError) as error:
        text = error.message if isinstance(error, NvctError) else error.strerror
        recorder.snapshot.about["ld.so.cache"] = text
        return []
    # A replay rebuilds the cache from the recorded entries.
    recorder.snapshot.files.pop(f"driver{real}", None)
    return [(e[0], e[1], MACHINE_OF[e[2]]) for e in cached if e[2] in MACHINE_OF]


def _library_dir(recorder: _Recorder, folder: str, depth: int, visited: set[str]) -> None:
    real = recorder.add(folder)
    if real is None or real in visited:
        return
    visited.add(real)
    is_drivers = any(word in real for word in OWN_FOLDERS)
    for name in procfs.list_directory(join(recorder.root, real)):
        path = f"{real}/{name}"
        if is_drivers or _is(name):
            recorder.add(path)
        if depth and (DEEPER.search(name) or "/wsl/" in real):
            _library_dir(recorder, path, depth - 1, visited)


def _firmware(recorder: _Recorder, roots: Roots) -> None:
    for folder in programs.directories(roots):
        for version in recorder.names(f"{folder}/nvidia"):
            if RELEASE.fullmatch(version):  # other folders are chips', for nouveau
                for name in recorder.names(f"{folder}/nvidia/{version}"):
                    recorder.add(f"{folder}/nvidia/{version}/{name}")


def _config(recorder: _Recorder, shares: Iterable[str]) -> None:
    for share in shares:
        for kind in CONFIG_DIRS:
            folder = f"{share}/{kind}"
            for name in recorder.names(folder):
                if _is(name) or kind in ("nvidia", "egl/egl_external_platform.d"):
                    recorder.add(f"{folder}/{name}")
    csv = "/etc/nvidia-container-runtime/host-files-for-container.d"
    for name in recorder.names(csv):
        recorder.add(f"{csv}/{name}")
    lists = [text for path, text in recorder.snapshot.texts.items() if path.endswith(".csv")]
    for kind, path in CSV_LINE.findall("\n".join(lists)):
        if kind != "dev":
            recorder.add(path)


def _record_needed(
    recorder: _Recorder, libraries: Iterable[str], cached: list[tuple[str, str, str]]
) -> None:
    by_name: dict[str, list[str]] = {}
    for name, path, _ in cached:
        by_name.setdefault(name, []).append(path)
        if _is(name):
            recorder.add(path)
    folders = [*dict.fromkeys(libraries)]
    present = {folder: set(recorder.names(folder)) for folder in folders}
    for name in [*recorder.needed]:
        for path in by_name.get(name, []):
            recorder.add(path)
        for folder in folders:
            if name in present[folder]:
                recorder.add(f"{folder}/{name}")


def sockets(snapshot: Snapshot, key: str, host_path: str) -> None:
    """Record the sockets of the driver's daemons below a run directory."""
    if os.path.islink(host_path):
        return
    for folder in procfs.list_directory(host_path):
        if not _is(folder):
            continue
        for name in procfs.list_directory(f"{host_path}/{folder}"):
            status = os.lstat(f"{host_path}/{folder}/{name}")
            if stat.S_ISSOCK(status.st_mode):
                mode = stat.S_IMODE(status.st_mode)
                snapshot.sockets[f"{key}/{folder}/{name}"] = [mode, status.st_uid, status.st_gid]


def _of_inventory(inventory: Inventory) -> Iterator[str]:
    for file in inventory.every_file():
        yield from (file.host_path, file.container_path)
    yield from (entry.path for entry in inventory.left_out)


def _nvml_library(snapshot: Snapshot, root: str, machine: str) -> str | None:
    """Return the host's path of this machine's NVML library, preferably the loaded driver's."""
    libraries = [
        path for path, entry in snapshot.elf.items()
        if os.path.basename(path).startswith("libnvidia-ml.so.") and entry[2] == machine
    ]  # fmt: skip
    version = f".{snapshot.about.get('driver')}"
    best = sorted(libraries, key=lambda path: (not path.endswith(version), path))
    return join(root, best[0].removeprefix("driver")) if best else None
