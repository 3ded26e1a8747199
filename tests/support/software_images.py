# SPDX-License-Identifier: Apache-2.0
"""Images with programs that search the driver: from this host's files or a release's packages.

    host        this host's root with its compilers, by an overlay
    debian      glibc, libraries in /usr/lib/TRIPLET
    unmerged    as in Debian 11's images: libc in /lib/TRIPLET, packages' libraries below /usr
    distroless  as unmerged, without ldconfig and ld.so.cache
    rhel        glibc, libraries in /usr/lib64
    nix         a dynamic linker only in /nix/store, and LD_LIBRARY_PATH=/usr/lib/TRIPLET
    musl        the loader of musl

Any other name is a release of Debian or Ubuntu (tests.support.debian_root). All but musl and the
releases have PROBE, which loads a library and prints its path.
"""

import shutil
import subprocess
from pathlib import Path

from nvct_sim.elf_writer import MACHINES
from nvct_sim.rootfs import LOADERS
from tests.support import debian_root, images

MACHINE = images.MACHINE
TRIPLET = MACHINES[MACHINE].triplet
LIBDIR = f"/usr/lib/{TRIPLET}"
PROBE = "/usr/bin/load-library"
STORE = "/nix/store/0000-glibc-2.40/lib"
SMALL = ("debian", "unmerged", "distroless", "rhel", "nix", "musl")
RELEASES = ("bullseye", "bookworm", "trixie", "bionic", "focal", "jammy", "noble")
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
int main(int argc, char **argv) {
    struct link_map *map;
    void *handle = dlopen(argv[argc - 1], RTLD_NOW);
    if (!handle || dlinfo(handle, RTLD_DI_LINKMAP, &map)) { fputs(dlerror(), stderr); return 1; }
    puts(map->l_name);
    return 0;
}
"""
PACKAGES = (
    "busybox-static", "libc-bin", "gcc", "libc6-dev", "cmake", "make", "python3-minimal", "python3",
    "clinfo", "ffmpeg",
)  # fmt: skip
NOT_MERGED = ("bullseye", "bionic")
BEHIND_ALTERNATIVES = ("blas", "lapack", "pulseaudio")
OF_MESA = dict.fromkeys(("bullseye", "bionic", "focal", "jammy"), "mesa-utils-extra")
"""Package of eglinfo, if not mesa-utils."""
OF_VULKAN = {"bionic": "vulkan-utils"}


def build(name: str, folder: Path) -> None:
    """Make an image of SMALL in a new folder.

    Raises:
        ContainerNotPossibleError: this host lacks a file of the image.
    """
    kind = name if name in ("rhel", "musl") else "debian"
    images.build(kind, folder)
    if name == "musl":
        return
    source = folder.with_suffix(".c")
    source.write_text(SOURCE, encoding="ascii")
    flags = []
    if name == "nix":
        flags = [f"-Wl,--dynamic-linker={STORE}/{Path(LOADERS[MACHINE]).name}",
                 f"-Wl,-rpath,{STORE}"]  # fmt: skip
    subprocess.run(["gcc", source, "-o", folder / PROBE[1:], "-ldl", *flags], check=True)
    if name in ("unmerged", "distroless"):
        _unmerge(folder)
    if name == "distroless":
        (folder / "usr/sbin/ldconfig").unlink()
        (folder / "etc/ld.so.cache").unlink()
    if name == "nix":
        _to_store(folder)


def lower(name: str, made: Path) -> Path:
    """Return the folder of an image: the host's, one that `build` made below `made`, a release's.

    Raises:
        ContainerNotPossibleError: a release is not available here.
    """
    if name == "host":
        return Path("/")
    if name not in RELEASES:
        return made / name
    more = (OF_VULKAN.get(name, "vulkan-tools"), OF_MESA.get(name, "mesa-utils"))
    return debian_root.root(name, *PACKAGES, *more, bare=True)


def prepare(root: Path, release: str) -> None:
    """Do the work of a release's essential packages and maintainer scripts.

    Nothing is copied through a link of the image, which would lead to this host's files.
    """
    for name in ("bin", "sbin", "lib", "lib64"):
        own, merged = root / name, root / "usr" / name
        if release not in NOT_MERGED:
            merged.mkdir(exist_ok=True)
            if own.is_dir():
                subprocess.run(["cp", "-a", f"{own}/.", merged], check=True)
                shutil.rmtree(own)
            own.symlink_to(f"usr/{name}")
    for name in ("proc", "sys", "dev", "tmp", "etc/ld.so.conf.d", "usr/local/bin"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "bin/sh").unlink(missing_ok=True)
    (root / "bin/sh").symlink_to("busybox")
    folders = [LIBDIR, f"/lib/{TRIPLET}", *(f"{LIBDIR}/{name}" for name in BEHIND_ALTERNATIVES)]
    (root / "etc/ld.so.conf.d/test.conf").write_text("".join(f"{f}\n" for f in folders))
    (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    for words in (["/bin/busybox", "--install", "-s", "/usr/local/bin"], ["/sbin/ldconfig"]):
        subprocess.run(["chroot", root, *words], check=True, capture_output=True)


def _unmerge(folder: Path) -> None:
    """Move libc and the loader out of /usr."""
    for name in ("lib", "lib64"):
        (folder / name).unlink()
    old, new = folder / LIBDIR[1:], folder / "lib" / TRIPLET
    new.mkdir(parents=True)
    (folder / "lib64").mkdir()
    for path in old.iterdir():
        path.rename(new / path.name)
    for path in (folder / "usr/lib64").iterdir():
        path.rename(folder / "lib64" / path.name)
    (old / "libfile-of-a-package.so").write_bytes(b"")
    ldconfig = folder / "usr/sbin/ldconfig"
    conf = folder / "etc/ld.so.conf.d/libc.conf"
    conf.write_text(f"/lib/{TRIPLET}\n/usr/lib/{TRIPLET}\n")
    subprocess.run([ldconfig, "-r", folder, "-X"], check=True, capture_output=True)


def _to_store(folder: Path) -> None:
    """Move the loader and all libraries to a store."""
    store = folder / STORE[1:]
    store.mkdir(parents=True)
    for place in (folder / "usr/lib64", folder / LIBDIR[1:]):
        for path in place.iterdir():
            path.rename(store / path.name)
    (folder / LIBDIR[1:]).rmdir()
    (folder / "usr/sbin/ldconfig").unlink()
    shutil.rmtree(folder / "etc/ld.so.conf.d")
    for name in ("ld.so.cache", "ld.so.conf"):
        (folder / "etc" / name).unlink()
