# SPDX-License-Identifier: Apache-2.0
"""Small container images of different kinds, made from files of this host.

    debian    glibc, libraries in /usr/lib/TRIPLET
    rhel      glibc, libraries in /usr/lib64, which is not a driver folder on a Debian host
    musl      like Alpine: the loader of musl, no ld.so.cache, nothing of glibc
    scratch   one statically linked program and nothing else

Each holds busybox as its shell. What a program of the driver needs is glibc, so nvidia-smi runs
in the first two only; `PROBE` in a musl image is a library that needs the driver's libcuda.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from nvct.linux import constants as c
from nvct.linux.kernel import KERNEL
from nvct_sim import rootfs
from nvct_sim.elf_writer import MACHINES, shared_object

MACHINE = platform.machine()
MUSL = f"/lib/ld-musl-{MACHINE}.so.1"
PROBE = "/opt/needs-libcuda.so"
ALPINE_DIRS = (
    "bin", "sbin", "lib", "usr/bin", "usr/sbin", "usr/lib", "usr/local", "etc", "proc", "sys",
    "dev", "run", "tmp", "opt",
)  # fmt: skip


def has_musl() -> bool:
    """Report whether this host has the loader of musl to copy."""
    return Path(MUSL).exists()


def build(kind: str, folder: Path) -> None:
    """Make an image of a kind in a folder, which must be empty or missing.

    Raises:
        ContainerNotPossibleError: this host lacks a file of the image.
    """
    _KINDS[kind](folder)


def _rhel(folder: Path) -> None:
    """Move the libraries of a Debian image to Fedora's folders."""
    rootfs.build_rootfs(folder)
    triplet = folder / "usr/lib" / MACHINES[MACHINE].triplet
    for path in triplet.iterdir():
        path.rename(folder / "usr/lib64" / path.name)
    triplet.rmdir()
    for name in ("debian_version", "os-release", "ld.so.conf.d/libc.conf"):
        (folder / "etc" / name).unlink(missing_ok=True)
    (folder / "etc/redhat-release").write_text("A release of nothing in particular\n")
    # Fedora's ldconfig has this folder built in; this host's is from another distribution.
    (folder / "etc/ld.so.conf").write_text("include ld.so.conf.d/*.conf\n/usr/lib64\n")
    subprocess.run(
        [folder / "usr/sbin/ldconfig", "-r", folder, "-X"], check=True, capture_output=True
    )


def _musl(folder: Path) -> None:
    for name in ALPINE_DIRS:
        (folder / name).mkdir(parents=True)
    _busybox(folder)
    loader = folder / MUSL[1:]
    if has_musl():
        shutil.copy(Path(MUSL).resolve(), loader)
    else:
        loader.write_bytes(b"")  # marks a musl image
    (folder / f"lib/libc.musl-{MACHINE}.so.1").symlink_to(Path(MUSL).name)
    (folder / "etc/alpine-release").write_text("3.20.0\n")
    (folder / "etc/passwd").write_text(rootfs.USERS)
    (folder / "etc/group").write_text(rootfs.GROUPS)
    (folder / PROBE[1:]).write_bytes(shared_object(MACHINE, needed=["libcuda.so.1"]))


def _scratch(folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    _busybox(folder)


def _busybox(folder: Path) -> None:
    """Put busybox and the commands that probes use into /bin."""
    shutil.copy(rootfs.static_busybox(), folder / "bin/busybox")
    for name in ("sh", "ls", "find", "sort", "grep", "cat", "readlink", "id"):
        (folder / "bin" / name).symlink_to("busybox")


def give_away(root: Path, owner: int) -> None:
    """Copy a tree, so that it shares no files with another tree, and change its owner."""
    other = root.with_name("copied")
    shutil.copytree(root, other, symlinks=True)
    shutil.rmtree(root)
    other.rename(root)
    for folder, folders, files in os.walk(root):
        for name in [".", *folders, *files]:
            os.lchown(os.path.join(folder, name), owner, owner)


def mount_idmapped(root: Path, owner: int) -> None:
    """Mount a directory over itself with mapped IDs: the host's root appears as another user.

    Raises:
        OSError: the kernel or file system does not support it.
    """
    with subprocess.Popen(
        ["sleep", "60"],
        preexec_fn=lambda: KERNEL.unshare(c.CLONE_NEWUSER),  # noqa: PLW1509  no threads here
    ) as process:
        try:
            for which in ("uid_map", "gid_map"):
                Path(f"/proc/{process.pid}/{which}").write_text(f"0 {owner} 65536")
            user = os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY)
        finally:
            process.kill()
    tree = KERNEL.open_tree(c.AT_FDCWD, str(root), c.OPEN_TREE_CLONE)
    try:
        KERNEL.mount_setattr(
            tree, "", c.AT_EMPTY_PATH, attr_set=c.MOUNT_ATTR_IDMAP, userns_fd=user
        )
        KERNEL.move_mount(tree, "", c.AT_FDCWD, str(root), c.MOVE_MOUNT_F_EMPTY_PATH)
    finally:
        os.close(tree)
        os.close(user)


_KINDS: dict[str, Callable[[Path], None]] = {
    "debian": rootfs.build_rootfs,
    "rhel": _rhel,
    "musl": _musl,
    "scratch": _scratch,
}
