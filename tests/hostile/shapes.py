# SPDX-License-Identifier: Apache-2.0
"""Hostile images, one in each row, with the CVE or rule that the row tests.

The CVEs are those of NVIDIA's container toolkit, 2024 to 2026; S1 to S12 are the rules that were
drawn from them. `@` in a link's target stands for a folder of the host that is watched.
"""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nvct_sim.elf_writer import shared_object

Maker = Callable[[Path, Path], object]

MACHINE = os.uname().machine
LIBRARIES = f"usr/lib/{MACHINE}-linux-gnu"
COMPAT = "usr/local/cuda/compat"
VIEW = "usr/local/nvidia"
OF_SPEC = ".nvct/driver"
ICD = "etc/vulkan/icd.d/nvidia_icd.json"
CACHE, CONF, CONF_D = "etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d"
MUSL, MUSL_PATH = f"lib/ld-musl-{MACHINE}.so.1", f"etc/ld-musl-{MACHINE}.path"
UP = "../" * 20
MANY = 70_000
HOLES = 1 << 40
FAKE_ELF = b"\x7fELF\2\1\1" + bytes(9) + b"\3\0\x3e\0" + b"\xff" * 300
EVIL = "open({marker!r}, 'w')\n"
MODULES = ("json", "os", "posix", "sitecustomize", "usercustomize", "nvct", "encodings", "_json")


@dataclass(frozen=True)
class Shape:
    """One hostile image.

    Attributes:
        name: of the row.
        stands_for: CVE or rule.
        puts: (path in the root, function that makes the file) in order.
        env: variables of the image.
    """

    name: str
    stands_for: str
    puts: tuple[tuple[str, Maker], ...] = ()
    env: tuple[str, ...] = ()


def setuid(path: Path, outside: Path) -> None:
    """Make a setuid file."""
    path.write_bytes(b"mine")
    path.chmod(0o4755)


def link(target: str) -> Maker:
    """Make a link; `@` is the watched folder."""

    def make(path: Path, outside: Path) -> None:
        path.symlink_to(target.replace("@", str(outside)))

    return make


def text(data: bytes) -> Maker:
    """Make a file."""
    return lambda path, _: path.write_bytes(data)


def holes(path: Path, outside: Path) -> None:
    """Make a file of a terabyte without any block."""
    del outside
    with path.open("wb") as file:
        file.truncate(HOLES)


def fifo(path: Path, outside: Path) -> None:
    """Make a FIFO without a writer."""
    del outside
    os.mkfifo(path)


def device(major: int, minor: int) -> Maker:
    """Make a character device."""
    return lambda path, _: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))


def folder(path: Path, outside: Path) -> None:
    """Make an empty folder."""
    del outside
    path.mkdir()


def crowd(path: Path, outside: Path) -> None:
    """Take the prepared folder of very many names; whoever cleans up puts it back."""
    (outside.parent / "crowd").rename(path)


def library(**options: object) -> Maker:
    """Make a real library."""
    return lambda path, _: path.write_bytes(shared_object(MACHINE, **options))  # type: ignore[arg-type]  # passed on


def modules(path: Path, outside: Path) -> None:
    """Make Python modules that leave a mark when they are imported."""
    for name in MODULES:
        code = EVIL.format(marker=str(outside / "marker"))
        (path.parent / f"{name}.py").write_text(code, encoding="utf-8")
    path.write_bytes(FAKE_ELF)


ENV = (
    "LD_PRELOAD=/proc/self/cwd/poc.so", "LD_LIBRARY_PATH=/proc/self/cwd", "LD_AUDIT=/poc.so",
    "PYTHONPATH=/proc/self/cwd:.", "PYTHONSTARTUP=json.py", "PYTHONHOME=/proc/self/cwd",
    "PYTHONINSPECT=1", "PYTHONWARNINGS=error::json.X", "NVCT_RUN_DIR=/proc/self/cwd",
    "NVCT_DEBUG=1", "GCONV_PATH=/proc/self/cwd", "XDG_CONFIG_HOME=/proc/self/cwd",
    "NVIDIA_CTK_LIBCUDA_DIR=/proc/self/cwd", "NVIDIA_CTK_CONFIG_FILE_PATH=/proc/self/cwd/c",
)  # fmt: skip
TOCTOU, FILES, LINKS, VIRUS = (
    "CVE-2024-0132, CVE-2025-23359", "CVE-2024-0133", "CVE-2024-0134, CVE-2026-24260",
    "CVE-2025-23266",
)  # fmt: skip
LDCACHE, LDCONFIG = "CVE-2025-23267", "CVE-2024-0135, CVE-2024-0136, CVE-2024-0137"

SHAPES = (
    # Links in the place of folders: whoever joins strings mounts, writes or reads on the host.
    Shape("compat-to-root", TOCTOU, ((COMPAT, link("/")),)),
    Shape("compat-to-host", TOCTOU, ((COMPAT, link("@")),)),
    Shape("compat-up", TOCTOU, ((COMPAT, link(f"{UP}@")),)),
    Shape("compat-library-to-host", TOCTOU,
          ((COMPAT, folder), (f"{COMPAT}/libcuda.so.999.1", link("@/libcuda.so.999.1")))),
    Shape("libraries-to-host", TOCTOU, ((f"{LIBRARIES}/nvidia", link("@")),)),
    Shape("libcuda-to-host", FILES, ((f"{LIBRARIES}/libcuda.so.1", link(f"{UP}@/new")),)),
    Shape("smi-to-host", FILES, (("usr/bin/nvidia-smi", link("@/new")),)),
    Shape("etc-to-host", LINKS, (("etc", link("@")),)),
    Shape("etc-to-cwd", LINKS, (("etc", link("/proc/self/cwd")),)),
    Shape("etc-to-init", LINKS, (("etc", link("/proc/1/root@")),)),
    Shape("view-to-root", LINKS, ((VIEW, link("/")),)),
    Shape("view-to-host", LINKS, ((VIEW, link("@")),)),
    Shape("view-dangling", LINKS, ((VIEW, link("@/new")),)),
    Shape("view-parent-to-host", LINKS, (("usr/local", link(f"{UP}@")),)),
    Shape("profile-to-host", LINKS, (("etc/nvidia", link("@")),)),
    # ld.so.cache and its configuration.
    Shape("cache-to-host", LDCACHE, ((CACHE, link("@/ld.so.cache")),)),
    Shape("cache-to-itself", LDCACHE, ((CACHE, link("/etc/ld.so.cache")),)),
    Shape("cache-to-kernel", LDCACHE, ((CACHE, link("/proc/kmsg")),)),
    Shape("cache-fifo", LDCACHE, ((CACHE, fifo),)),
    Shape("cache-device", LDCACHE, ((CACHE, device(1, 5)),)),
    Shape("cache-folder", LDCACHE, ((CACHE, folder),)),
    Shape("cache-holes", LDCACHE, ((CACHE, holes),)),
    Shape("cache-garbage", LDCACHE, ((CACHE, text(b"glibc-ld.so.cache1.1" + b"\xff" * 999)),)),
    Shape("conf-d-to-etc", LDCACHE, ((CONF_D, link("/etc")),)),
    Shape("conf-d-to-host", LDCACHE, ((CONF_D, link("@")),)),
    Shape("conf-d-crowd", LDCACHE, ((CONF_D, crowd),)),
    Shape("conf-loop", LDCACHE, ((CONF, text(b"include /etc/ld.so.conf.d/*.conf\ninclude /etc/*\n")),)),
    Shape("dropin-fifo", LDCACHE, ((f"{CONF_D}/00-nvct.conf", fifo),)),
    Shape("dropin-holes", LDCACHE, ((f"{CONF_D}/00-nvct.conf", holes),)),
    Shape("dropin-newlines", LDCACHE,
          ((f"{CONF_D}/00-nvct.conf", text(b"# CUDA forward compatibility\n/a\x1b[2J\n/\n" * 999)),)),
    Shape("ldconfig-evil", LDCONFIG, (("sbin/ldconfig", text(b"#!/bin/sh\ntouch /hostile-ran\n")),)),
    # What lies where the driver goes.
    Shape("view-file", "S8", ((VIEW, text(b"mine")),)),
    Shape("view-fifo", "S8", ((VIEW, fifo),)),
    Shape("view-full", "S8", ((VIEW, folder), (f"{VIEW}/lib64", link("@")), (f"{VIEW}/drv", link("/")))),
    Shape("libcuda-fifo", "S4", ((f"{LIBRARIES}/libcuda.so.9", fifo),)),
    Shape("libcuda-device", "S4", ((f"{LIBRARIES}/libcuda.so.9", device(1, 5)),)),
    Shape("libcuda-holes", "S4", ((f"{LIBRARIES}/libcuda.so.9", holes),)),
    Shape("libcuda-folder", "S4", ((f"{LIBRARIES}/libcuda.so.1", folder),)),
    Shape("libcuda-fake", "S12", ((f"{LIBRARIES}/libcuda.so.9", text(FAKE_ELF)),)),
    Shape("libcuda-soname", "S12",
          ((f"{LIBRARIES}/libcuda.so.9", library(soname="../../../../etc/x\n\x1b[2J")),)),
    Shape("libcuda-newline", "S12", ((f"{LIBRARIES}/libcuda.so\n\x1b[2J.9", text(FAKE_ELF)),)),
    Shape("compat-fake", "S4",
          ((COMPAT, folder), (f"{COMPAT}/libcuda.so.999.1", text(FAKE_ELF)))),
    Shape("compat-fifo", "S4", ((COMPAT, folder), (f"{COMPAT}/libcuda.so.999.1", fifo))),
    Shape("compat-holes", "S4", ((COMPAT, folder), (f"{COMPAT}/libcuda.so.999.1", holes))),
    Shape("compat-newline", "S4",
          ((COMPAT, folder), (f"{COMPAT}/libcuda.so.9\n9.1", library(soname="libcuda.so.1")))),
    Shape("compat-crowd", "S12", ((COMPAT, crowd),)),
    # musl.
    Shape("musl-path-to-host", LDCACHE, ((MUSL, text(FAKE_ELF)), (MUSL_PATH, link("@/path")))),
    Shape("musl-path-fifo", LDCACHE, ((MUSL, text(FAKE_ELF)), (MUSL_PATH, fifo))),
    Shape("musl-path-holes", LDCACHE, ((MUSL, text(FAKE_ELF)), (MUSL_PATH, holes))),
    Shape("musl-path-newlines", LDCACHE,
          ((MUSL, text(FAKE_ELF)), (MUSL_PATH, text(b"/lib\n\n:\n/\xff\x1b[2J\n" * 99)))),
    # The environment of an image, and files where a program may look for modules.
    Shape("environment", VIRUS, (("poc.so", modules),), ENV),
)  # fmt: skip

LIVE = (
    # What only a hook meets that works in a live container: elsewhere runc makes these folders.
    # A link in the place of /dev is left out: runc 1.1.5 itself makes links where it leads to.
    Shape("live-smi-to-file", FILES, (("usr/bin/nvidia-smi", link("@/ld.so.conf")),)),
    Shape("live-bin-to-host", LINKS, (("usr/bin", link("@/bin")),)),
    Shape("live-usr-to-host", LINKS, (("usr", link(f"{UP}@")),)),
    Shape("live-libraries-to-host", LINKS, ((LIBRARIES, link("@/lib64")),)),
    Shape("live-library-to-host", FILES,
          ((f"{LIBRARIES}/{{libcuda}}", link(f"{UP}@/libcuda.so.999.1")),)),
    Shape("live-library-folder", "S4", ((f"{LIBRARIES}/{{libnvidia-ml}}", folder),)),
    Shape("live-run-to-host", LINKS, (("run", link("@")),)),
    Shape("live-socket-up", LINKS, (("run/nvidia-persistenced", link("/dev/../../../..")),)),
    Shape("live-var-run-by-fd", LINKS, (("var/run", link("/proc/self/fd/../root@")),)),
    Shape("live-firmware-to-root", LINKS, (("lib/firmware", link("/")),)),
    Shape("live-conf-d-by-init", LDCACHE, ((CONF_D, link("/proc/1/root@")),)),
    Shape("live-local-by-self", LINKS, (("usr/local", link("/proc/self/root")),)),
)  # fmt: skip

SPEC = (
    # What a specification's mount of a view and its hook meet, which look at no image before.
    Shape("spec-place-to-host", LINKS, ((".nvct", link(f"{UP}@")),)),
    Shape("spec-view-to-host", LINKS, ((f"{OF_SPEC}", link("@/new")),)),
    Shape("spec-view-to-etc", LINKS, ((f"{OF_SPEC}", link("/etc")),)),
    Shape("spec-view-to-proc", LINKS, ((f"{OF_SPEC}", link("/proc")),)),
    Shape("spec-view-by-fd", LINKS, ((f"{OF_SPEC}", link("/proc/self/fd/../root@")),)),
    Shape("spec-view-to-itself", LINKS, ((f"{OF_SPEC}", link("driver")),)),
    Shape("spec-place-file", "S8", ((".nvct", text(b"mine")),)),
    Shape("spec-place-fifo", "S8", ((".nvct", fifo),)),
    Shape("spec-view-file", "S8", ((f"{OF_SPEC}", text(b"mine")),)),
    Shape("spec-view-fifo", "S8", ((f"{OF_SPEC}", fifo),)),
    Shape("spec-view-full", "S8",
          ((OF_SPEC, folder), (f"{OF_SPEC}/lib64", link("@")), (f"{OF_SPEC}/x", text(b"mine")))),
    Shape("spec-icd-to-host", FILES, ((ICD, link("@/ld.so.conf")),)),
    Shape("spec-icd-fifo", "S4", ((ICD, fifo),)),
    Shape("spec-icd-device", "S4", ((ICD, device(1, 5)),)),
    Shape("spec-icd-folder", "S4", ((ICD, folder),)),
    Shape("spec-icd-setuid", "S8", ((ICD, setuid),)),
    Shape("spec-icds-to-host", LINKS, (("etc/vulkan/icd.d", link("@")),)),
    Shape("spec-icds-to-fds", LINKS, (("etc/vulkan/icd.d", link("/proc/self/fd")),)),
    Shape("spec-icds-to-proc", LINKS, (("etc/vulkan/icd.d", link("/proc/1/root@")),)),
    Shape("spec-icds-to-view", LINKS, (("etc/vulkan/icd.d", link(f"/{OF_SPEC}/lib64")),)),
    Shape("spec-icds-loop", LINKS, (("etc/vulkan/icd.d", link("icd.d")),)),
    Shape("spec-icds-file", "S4", (("etc/vulkan", text(b"mine")),)),
    Shape("spec-programs-crowd", "S12", (("usr/bin", crowd),)),
    Shape("spec-programs-to-view", LINKS, (("usr/bin", link(f"/{OF_SPEC}/bin")),)),
    Shape("spec-libraries-to-view", LINKS, ((LIBRARIES, link(f"/{OF_SPEC}/lib64")),)),
    Shape("spec-etc-to-view", LINKS, (("etc", link(f"/{OF_SPEC}/lib64")),)),
    Shape("spec-conf-d-to-view", LINKS, ((CONF_D, link(f"/{OF_SPEC}")),)),
)  # fmt: skip
