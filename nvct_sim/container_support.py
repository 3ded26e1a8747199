# SPDX-License-Identifier: Apache-2.0
"""Test whether this machine can run containers on a simulated node, by running one."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nvct.errors import ContainerNotPossibleError, NvctError
from nvct.kernel.calls import KERNEL
from nvct.linux.constants import MS_BIND
from nvct_sim import attach, process, rootfs

CAP_SYS_ADMIN, CAP_MKNOD = 21, 27  # capabilities(7)
PROBE_TIMEOUT_S = 20.0
NAMESPACES = ("pid", "ipc", "uts", "mount")


def can_run_containers(
    *, runtime: str = "runc", programs: Sequence[str] = rootfs.PROGRAM_DIRS
) -> str | None:
    """Return the reason why containers on a simulated node cannot run here, None if they can."""
    try:
        check(runtime=runtime, programs=programs)
    except ContainerNotPossibleError as error:
        return error.message
    return None


def check(*, runtime: str = "runc", programs: Sequence[str] = rootfs.PROGRAM_DIRS) -> None:
    """Check that this machine has what a simulated node and its containers need.

    Raises:
        ContainerNotPossibleError: a requirement is missing.
    """
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    held = int(line.split()[1], 16)
    for name, bit in (("CAP_SYS_ADMIN", CAP_SYS_ADMIN), ("CAP_MKNOD", CAP_MKNOD)):
        if not held >> bit & 1:
            raise ContainerNotPossibleError(f"this process lacks {name}", hint="run as root")
    path = rootfs.find_program(runtime, programs)
    if path is None:
        raise ContainerNotPossibleError(f"no {runtime} on this host", hint=f"install {runtime}")
    rootfs.static_busybox(programs)
    _try_mounts()
    _try_container(path, programs)


def _try_mounts() -> None:
    """Make each kind of mount that attach() makes, in a namespace that ends at once."""
    with tempfile.TemporaryDirectory(prefix="nvct-sim-") as folder:

        def prepare() -> None:
            attach.make_private()
            KERNEL.mount("nvct-sim", folder, "tmpfs")
            for name in ("upper", "work"):
                Path(folder, name).mkdir()
            options = f"lowerdir=/etc,upperdir={folder}/upper,workdir={folder}/work"
            KERNEL.mount("nvct-sim", "/etc", "overlay", 0, options)
            KERNEL.mount("/etc", "/proc/driver", None, MS_BIND)

        try:
            process.spawn(["/bin/true"], prepare).wait()
        except NvctError as error:
            raise ContainerNotPossibleError(
                f"this machine does not allow private mounts: {error.message}", hint=error.hint
            ) from error


def _try_container(runtime: Path, programs: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="nvct-sim-") as folder:
        root = Path(folder, "rootfs")
        for name in ("bin", "proc", "dev"):
            (root / name).mkdir(parents=True)
        busybox = rootfs.static_busybox(programs)
        (root / "bin/busybox").write_bytes(busybox.read_bytes())
        (root / "bin/busybox").chmod(0o755)
        Path(folder, "config.json").write_text(json.dumps(probe_config()))
        name = f"nvct-sim-probe-{os.getpid()}"
        argv = [str(runtime), "--root", f"{folder}/state", "run", "--bundle", folder, name]
        try:
            done = subprocess.run(
                argv, check=False, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C must not leave half a container
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ContainerNotPossibleError(f"{runtime} does not end") from error
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise ContainerNotPossibleError(f"{runtime} cannot run a container: {lines[-1]}")


def probe_config() -> dict[str, object]:
    """Return the config.json of a container that does nothing."""
    return {
        "ociVersion": "1.0.2",
        "process": {"user": {"uid": 0, "gid": 0}, "args": ["/bin/busybox", "true"], "cwd": "/"},
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        ],
        "linux": {"namespaces": [{"type": name} for name in NAMESPACES]},
    }
