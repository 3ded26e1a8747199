# SPDX-License-Identifier: Apache-2.0
"""What the trees of all platforms share: their form, and how their tables are read.

A platform is a module with a `PLATFORM`. Its tables are texts: one path a line, with braces as in
a shell ("libnvidia-{ml,cfg}.so.V"), "V" for the driver's version, " -> TARGET" for a symbolic
link, "STEM" in a target for the path's name up to ".so", and "#" for comments. What is installed
is put into a directory as small real files. Documentation, units of systemd and kernel modules
are not in the tables.
"""

import fnmatch
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nvct.host import modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Inventory
from nvct.linux import ldcache
from nvct_sim.elf_writer import shared_object
from tests.support.host_tree import VERSION, HostTree

# SONAMEs as the links of the distributions' packages tell them: debian/*.links of Ubuntu's
# nvidia-graphics-drivers-580, which has none for those that end in "V" here.
SONAMES = {
    "libEGL_nvidia": "0", "libGLESv1_CM_nvidia": "1", "libGLESv2_nvidia": "2",
    "libGLX_nvidia": "0", "libcuda": "1", "libcudadebugger": "1", "libnvcuvid": "1",
    "libnvidia-allocator": "1", "libnvidia-api": "1", "libnvidia-cfg": "1",
    "libnvidia-egl-gbm": "1", "libnvidia-egl-wayland": "1", "libnvidia-egl-wayland2": "1",
    "libnvidia-egl-xcb": "1", "libnvidia-egl-xlib": "1", "libnvidia-encode": "1",
    "libnvidia-fbc": "1", "libnvidia-ifr": "1", "libnvidia-ml": "1", "libnvidia-ngx": "1",
    "libnvidia-nscq": "2",
    "libnvidia-nvvm": "4", "libnvidia-nvvm70": "4", "libnvidia-opencl": "1",
    "libnvidia-opticalflow": "1", "libnvidia-ptxjitcompiler": "1", "libnvidia-sandboxutils": "1",
    "libnvidia-vksc-core": "1", "libnvoptix": "1", "libvdpau_nvidia": "1", "libnvsdm": "1",
    "libOpenCL": "1", "libEGL": "1", "libGL": "1", "libGLESv1_CM": "1", "libGLESv2": "2",
    "libGLX": "0", "libOpenGL": "0", "libGLdispatch": "0", "libnvcuextend": "1",
}  # fmt: skip
# What the driver's configuration files name, as its archive has them.
CONFIGURATION = {
    "nvidia.icd": "libnvidia-opencl.so.1",
    "10_nvidia.json": "libEGL_nvidia.so.0",
    "nvidia_icd": "libGLX_nvidia.so.0",
    "nvidia_icd_vksc": "libnvidia-vksc-core.so.1",
    "nvidia_layers": "libGLX_nvidia.so.0",
    "09_nvidia_wayland2.json": "libnvidia-egl-wayland2.so.1",
    "10_nvidia_wayland.json": "libnvidia-egl-wayland.so.1",
    "15_nvidia_gbm.json": "libnvidia-egl-gbm.so.1",
    "20_nvidia_xcb.json": "libnvidia-egl-xcb.so.1",
    "20_nvidia_xlib.json": "libnvidia-egl-xlib.so.1",
}
LEFT_OUT = {
    "*/nvidia-pcc": "a compiler for Vulkan SC, run when programs are built",
    "*/nvidia-ngx-updater": "updates NGX on the host",
    "*/nvidia-bug-report.sh": "needs the host",
    "*/nvidia-powerd": "a daemon of the host",
    "*/nvidia-sleep.sh": "suspends the host",
    "*/nvidia-settings": "sets up the host's displays",
    "*/nvidia-modprobe": "setuid, and loads kernel modules",
    "*/nvidia-application-profiles-*": "a hook writes the containers' own",
    "*/sandboxutils-filelist.json": "for the host's libnvidia-sandboxutils",
    "*/alternate-install-present": "for NVIDIA's own installer",
    "*.dll": "Wine's",
}
"""Files of packages that no container gets (fnmatch pattern: reason)."""
EXECUTABLE = re.compile(r"/(?:s?bin|origBin)/|/nvidia-(?:smi|debugdump)$")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A host. What its containers get is golden: tests/golden/hosts/NAME.json.

    Attributes:
        source: where the tables are from.
        files: what is installed, at the host's paths.
        left_out: files that are installed and no container gets, beside LEFT_OUT.
        cached: directories whose libraries the driver root's ld.so.cache lists.
        firmware_path: of the kernel's module firmware_class.
        sockets: of daemons that run, below /run.
        library_paths: folders that JSON files have before a library (fnmatch of the file: folder).
        i386_dirs: where 32-bit libraries are.
        warnings: that looking at it gives, and no others.
    """

    source: str
    files: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    version: str = VERSION
    machine: str = "x86_64"
    mode: str = "nvml"
    driver_root: str = "/"
    search_paths: tuple[str, ...] = ()
    config_search_paths: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    firmware_path: str = ""
    sockets: tuple[str, ...] = ()
    library_paths: Mapping[str, str] = field(default_factory=dict)
    i386_dirs: tuple[str, ...] = ("/usr/lib/i386-linux-gnu/", "/usr/lib32/")
    gpus: int = 1
    model: str = "NVIDIA H100 80GB HBM3"
    warnings: tuple[str, ...] = ()

    def expand(self, table: str) -> Iterator[tuple[str, str]]:
        """Yield path and link target of each line of a table."""
        for line in table.splitlines():
            text = line.partition("#")[0].strip()
            for entry in _braces(re.sub(r"\bV\b", self.version, text)) if text else ():
                path, _, target = entry.partition(" -> ")
                stem = os.path.basename(path).partition(".so")[0]
                yield path, target.replace("STEM", stem)

    def paths(self, table: str) -> set[str]:
        """Return the paths of a table."""
        return {path for path, _ in self.expand(table)}

    def reason(self, path: str) -> str:
        """Return why containers do not get a file, "" where nothing is said."""
        reasons = {**self.left_out, **LEFT_OUT}
        found = (why for pattern, why in reasons.items() if fnmatch.fnmatch(path, pattern))
        return next(found, "")

    def build(self, base: Path) -> HostTree:
        """Make the host below a directory."""
        inside = self.driver_root.lstrip("/")
        host = HostTree(base, version=self.version, driver_path=f"host/{inside}".rstrip("/"))
        host.driver.mkdir(parents=True)
        self._kernel(host)
        for path, target in self.expand(self.files):
            if target:
                host.link(f"host{path}", target)
            else:
                mode = 0o755 if EXECUTABLE.search(path) else 0o644
                host.write(f"host{path}", self._content(path), mode=mode)
        self._cache(host)
        return host

    def _kernel(self, host: HostTree) -> None:
        if self.mode == "wsl":
            host.write("dev/dxg", mode=0o666)
            return
        host.module()
        for index in range(self.gpus):
            host.gpu(index, model=self.model)
        if self.firmware_path:
            place = "sys/module/firmware_class/parameters/path"
            host.write(place, f"{host.base}/host{self.firmware_path}\n")
        for name in self.sockets:
            _listen(host.base / "run" / name)

    def _content(self, path: str) -> bytes:
        name = os.path.basename(path)
        stem, dot, suffix = name.partition(".so")
        if dot and (not suffix or suffix[0] == "."):
            soname = f"{stem}.so.{SONAMES[stem]}" if stem in SONAMES else name
            # WSL's loaders stand for the library that they load.
            soname = {"libcuda_loader": "libcuda.so.1"}.get(stem, soname)
            if stem in ("libglxserver_nvidia", "libnvidia-vulkan-producer"):
                soname = f"{stem}.so"
            is_32 = path.startswith(self.i386_dirs)
            return shared_object("i386" if is_32 else self.machine, soname=soname)
        key = "nvidia_icd_vksc" if "/vulkansc/" in path else name.partition(".")[0]
        library = CONFIGURATION.get(name) or CONFIGURATION.get(key)
        if library is None:
            return f"{name}\n".encode()
        if name.endswith(".icd"):
            return f"{library}\n".encode()
        folders = (
            f for pattern, f in self.library_paths.items() if fnmatch.fnmatch(name, pattern)
        )
        library = next(folders, "") + library
        key = "layers" if name.startswith("nvidia_layers") else "ICD"
        entry = {"library_path": library, "api_version": "1.4.312"}
        content = [entry] if key == "layers" else entry
        return json.dumps({"file_format_version": "1.0.0", key: content}).encode()

    def _cache(self, host: HostTree) -> None:
        if not self.cached:
            return
        entries = []
        for folder in self.cached:
            names = os.listdir(f"{host.driver}{folder}")
            entries += [(n, f"{folder}/{n}") for n in names if re.search(r"\.so\.\d{1,2}$", n)]
        cache = ldcache.merge(None, sorted(entries), machine=self.machine)
        host.write(f"{host.driver_path}/etc/ld.so.cache", cache)

    def look(self, host: HostTree) -> Inventory:
        """Look at the host as the commands do."""
        return modes.discover(
            "auto",
            host.roots,
            DiscoveryOptions(
                nvml=None,
                stat_node=host.stat_node,
                machine=self.machine,
                search_paths=[f"{host.base}/host{path}" for path in self.search_paths],
                config_search_paths=[f"{host.base}/host{p}" for p in self.config_search_paths],
            ),
        )


def _braces(text: str) -> Iterator[str]:
    match = re.search(r"\{([^{}]*)\}", text)
    if match is None:
        yield text
        return
    for word in match[1].split(","):
        yield from _braces(text[: match.start()] + word.strip() + text[match.end() :])


def _listen(path: Path) -> None:
    """Make a socket; in its folder, because a test's path is too long for an address."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def plain(host: HostTree, text: str) -> str:
    """Return a text with the host's own paths, without the directory that it was made in."""
    return text.replace(f"{host.base}/host", "").replace(str(host.base), "")


def render(document: object, indent: int = 0) -> str:
    """Return JSON that a person can compare: what fits one line is on one line."""
    text = json.dumps(document)
    inner = " " * (indent + 1)
    if len(text) + indent <= 110 or not isinstance(document, (dict, list)):
        return text
    if isinstance(document, dict):
        parts = [f"{json.dumps(k)}: {render(v, indent + 1)}" for k, v in document.items()]
        opening, closing = "{", "}"
    else:
        parts = [render(value, indent + 1) for value in document]
        opening, closing = "[", "]"
    lines = f",\n{inner}".join(parts)
    return f"{opening}\n{inner}{lines}\n{' ' * indent}{closing}"
