# SPDX-License-Identifier: Apache-2.0
"""The first process of a box: it makes the mounts, reports readiness, and reaps children."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from nvct.linux.constants import MS_BIND, MS_REC
from nvct.linux.kernel import KERNEL
from nvct_sim import attach
from nvct_sim import tree as nodes

READY = "ready\n"
REFUSED = (errno.EPERM, errno.EACCES, errno.ENODEV, errno.ENOSYS)
"""Errors of a kernel that does not allow or support a mount."""
LIBRARIES = f"/usr/lib/{os.uname().machine}-linux-gnu"
STATE = ("docker", "containerd", "containers", "cni", "kubelet", "nvct")
"""Folders in /var/lib that are empty at first, and vanish with the box."""


def main(engines: str, node: str, work: str, driver_root: str) -> None:
    """Mount a tree of engines over /usr and a node over the rest; then reap for ever."""
    try:
        _furnish(engines, node, work, driver_root)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        sys.exit(str(error))
    sys.stdout.write(READY)
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while signal.sigwait({signal.SIGCHLD}):
        _reap()


def _furnish(engines: str, node: str, work: str, driver_root: str) -> None:
    stage = Path(work, "stage")
    stage.mkdir(exist_ok=True)
    KERNEL.mount("box", str(stage), "tmpfs", 0, "mode=755")
    _lay_over_usr(engines, stage)
    for folder in ("/var/lib", "/opt"):
        if Path(folder).is_dir():
            _keep_private(folder, stage)
    for name in STATE:
        Path("/var/lib", name).mkdir(exist_ok=True)
        KERNEL.mount("box", f"/var/lib/{name}", "tmpfs", 0, "mode=755")
    _cgroups(stage)
    attach.attach(nodes.load(Path(node)), driver_root=driver_root, host_run=False)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def _lay_over_usr(engines: str, stage: Path) -> None:
    """Overlay the tree's /usr on this host's; the libraries of the newer release come first."""
    own_libraries = stage / "libraries"
    own_libraries.mkdir()
    KERNEL.mount(LIBRARIES, str(own_libraries), None, MS_BIND)
    host_is_newer = _glibc(f"{own_libraries}/libc.so.6") > _glibc(
        f"{engines}{LIBRARIES}/libc.so.6"
    )
    KERNEL.mount("box", "/usr", "overlay", 0, f"lowerdir={engines}/usr:/usr")
    if host_is_newer:
        KERNEL.mount(
            "box", LIBRARIES, "overlay", 0, f"lowerdir={own_libraries}:{engines}{LIBRARIES}"
        )


def _glibc(library: str) -> tuple[int, ...]:
    """Return the release of a glibc from its file, () if the file does not have it."""
    try:
        match = re.search(rb"stable release version ([0-9.]+[0-9])", Path(library).read_bytes())
    except FileNotFoundError:
        return ()
    return tuple(map(int, match[1].split(b"."))) if match else ()


def _keep_private(folder: str, stage: Path) -> None:
    """Keep writes to a folder of the host private to the box."""
    upper = stage / folder.replace("/", "-")
    work = upper.with_name(f"{upper.name}.work")
    upper.mkdir()
    work.mkdir()
    options = f"lowerdir={folder},upperdir={upper},workdir={work}"
    KERNEL.mount("box", folder, "overlay", 0, options)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _cgroups(stage: Path) -> None:
    """On a hybrid host show only the hierarchies of version 1, which engines then use."""
    both = Path("/sys/fs/cgroup/unified")
    if not both.is_dir():
        return
    shown = stage / "cgroup"
    shown.mkdir()
    for path in both.parent.iterdir():
        if path == both:
            continue
        if path.is_symlink():
            (shown / path.name).symlink_to(path.readlink())
        elif os.path.ismount(path):
            (shown / path.name).mkdir()
            KERNEL.mount(str(path), str(shown / path.name), None, MS_BIND)
    KERNEL.mount(str(shown), str(both.parent), None, MS_BIND | MS_REC)
    for path in shown.iterdir():  # elsewhere, a machine has no control groups
        if os.path.ismount(path):
            subprocess.run(["umount", str(path)], check=True)
