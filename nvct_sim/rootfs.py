# SPDX-License-Identifier: Apache-2.0
"""Builds a small root file system from this host's files, and checks if containers can run here.

It has the usual parts of a GPU image: glibc with its loader and ldconfig, a shell (busybox,
statically linked), /etc with users and an ld.so.cache, and empty mount points. Files are copied,
never linked, because programs in a container may write to them. ContainerNotPossibleError if this
host lacks something.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from nvct.errors import ContainerNotPossibleError, ElfError, HostError, LdCacheError, NvctError
from nvct.linux import elf, ldcache
from nvct.linux.constants import MS_BIND
from nvct.linux.kernel import KERNEL
from nvct.paths import DEFAULT_PATH_DIRS
from nvct_sim import attach, kernelfs, process
from nvct_sim.elf_writer import MACHINES
from nvct_sim.package import MERGED

LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
USERS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
GROUPS = "root:x:0:\nvideo:x:44:\nnogroup:x:65534:\n"
FOLDERS = ("proc", "sys", "dev", "tmp", "run", "root", "var", "etc/ld.so.conf.d", "usr/local")


def find_program(name: str, folders: Sequence[str] = DEFAULT_PATH_DIRS) -> Path | None:
    """Return the first program with a name in the folders, None if there is none."""
    return next((Path(d, name) for d in folders if os.access(f"{d}/{name}", os.X_OK)), None)


def static_busybox(folders: Sequence[str] = DEFAULT_PATH_DIRS) -> Path:
    """Return a busybox that needs no library."""
    hint = "install the package busybox-static"
    path = find_program("busybox", folders)
    if path is None:
        raise ContainerNotPossibleError("this host has no busybox", hint=hint)
    if _needs_libraries(path):
        raise ContainerNotPossibleError(f"{path} is not statically linked", hint=hint)
    return path


def build_rootfs(folder: Path, *, programs: Sequence[str] = DEFAULT_PATH_DIRS) -> None:
    """Build the root file system in a folder, which must be empty or missing."""
    busybox = static_busybox(programs)
    for name in (*FOLDERS, *(f"usr/{merged}" for merged in MERGED)):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in MERGED:
        (folder / name).symlink_to(f"usr/{name}")
    (folder / "var/run").symlink_to("../run")
    (folder / "tmp").chmod(0o1777)
    libraries = list(_libraries())
    for path in libraries:
        target = folder / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path.resolve(), target)
    shutil.copy(busybox, folder / "usr/bin/busybox")
    for applet in _applets(busybox):
        link = folder / "usr" / applet.removeprefix("usr/")
        if link.parent.is_dir() and not link.exists():
            link.symlink_to("/usr/bin/busybox")
    _write_etc(folder)
    _copy_ldconfig(folder, programs)
    _write_cache(folder, libraries)


def _libraries() -> Iterator[Path]:
    """Yield the paths at which programs find the host's loader and C library."""
    machine = platform.machine()
    loader = Path(LOADERS.get(machine, "/nonexistent"))
    if not loader.exists():
        raise ContainerNotPossibleError(
            f"this host has no glibc loader for {machine}", hint="use a distribution with glibc"
        )
    yield loader
    arch = MACHINES[machine]
    folders = [f"/usr/lib/{arch.triplet}", f"/lib/{arch.triplet}", "/usr/lib64", "/lib64"]
    for name in LIBRARIES:
        path = next((Path(d, name) for d in folders if Path(d, name).exists()), None)
        if path is not None:
            yield path
        elif name == "libc.so.6":
            raise ContainerNotPossibleError(f"{name} is in none of {', '.join(folders)}")


def _applets(busybox: Path) -> list[str]:
    listed = subprocess.run([busybox, "--list-full"], check=True, capture_output=True, text=True)
    # The ldconfig of busybox does not know this file system's loader.
    return [line for line in listed.stdout.split() if not line.endswith("/ldconfig")]


def _write_etc(folder: Path) -> None:
    etc = folder / "etc"
    (etc / "passwd").write_text(USERS)
    (etc / "group").write_text(GROUPS)
    (etc / "hosts").write_text("127.0.0.1 localhost\n")
    (etc / "ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (etc / "ld.so.conf.d/libc.conf").write_text(
        "".join(f"/usr/lib/{machine.triplet}\n" for machine in MACHINES.values())
    )
    for name in ("debian_version", "os-release"):
        if Path("/etc", name).is_file():
            shutil.copy(f"/etc/{name}", etc / name)


def _copy_ldconfig(folder: Path, programs: Sequence[str]) -> None:
    """Copy ldconfig if it is a static program; on Ubuntu that is ldconfig.real, not ldconfig."""
    for name in ("ldconfig.real", "ldconfig"):
        path = find_program(name, programs)
        if path is not None and not _needs_libraries(path):
            shutil.copy(path.resolve(), folder / "usr/sbin/ldconfig")
            return


def _needs_libraries(path: Path) -> bool:
    try:
        return bool(elf.Elf(path.read_bytes()).needed)
    except ElfError:
        return True


def _write_cache(folder: Path, libraries: Sequence[Path]) -> None:
    """Write ld.so.cache by ldconfig, as in real images, if this is root; else without it."""
    ldconfig = folder / "usr/sbin/ldconfig"
    cache = folder / "etc/ld.so.cache"
    if os.geteuid() == 0 and ldconfig.exists():
        subprocess.run([ldconfig, "-r", folder, "-X"], check=True, capture_output=True)
        return
    entries = [(path.name, f"/{path.relative_to('/')}") for path in libraries]
    try:
        cache.write_bytes(ldcache.merge(None, entries, machine=platform.machine()))
    except LdCacheError as error:
        raise ContainerNotPossibleError(error.message) from error


CAP_SYS_ADMIN, CAP_MKNOD = 21, 27  # capabilities(7)
PROBE_TIMEOUT_S = 20.0
NAMESPACES = ("pid", "ipc", "uts", "mount")


def can_run_containers(
    *, runtime: str = "runc", programs: Sequence[str] = DEFAULT_PATH_DIRS
) -> str | None:
    """Return the reason why containers on a simulated node cannot run here, None if they can."""
    try:
        check(runtime=runtime, programs=programs)
    except ContainerNotPossibleError as error:
        return error.message
    return None


def check(*, runtime: str = "runc", programs: Sequence[str] = DEFAULT_PATH_DIRS) -> None:
    """Raise ContainerNotPossibleError if simulated nodes or their containers cannot run here."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    held = int(line.split()[1], 16)
    for name, bit in (("CAP_SYS_ADMIN", CAP_SYS_ADMIN), ("CAP_MKNOD", CAP_MKNOD)):
        if not held >> bit & 1:
            raise ContainerNotPossibleError(f"this process lacks {name}", hint="run as root")
    path = find_program(runtime, programs)
    if path is None:
        raise ContainerNotPossibleError(f"no {runtime} on this host", hint=f"install {runtime}")
    static_busybox(programs)
    _try_mounts()
    _try_container(path, programs)


def _try_mounts() -> None:
    with tempfile.TemporaryDirectory(prefix="nvct-sim-") as folder:

        def prepare() -> None:
            attach.make_private()
            KERNEL.mount("nvct-sim", folder, "tmpfs")
            for name in ("upper", "work"):
                Path(folder, name).mkdir()
            options = f"lowerdir=/etc,upperdir={folder}/upper,workdir={folder}/work"
            KERNEL.mount("nvct-sim", "/etc", "overlay", 0, options)
            KERNEL.mount("/etc", "/proc/driver", None, MS_BIND)
            refusal = kernelfs.node_refusal(Path(folder))
            if refusal is not None:
                raise HostError(
                    f"device nodes of the driver cannot be made: {refusal.strerror}",
                    hint="allow them in the container or unit of this process (DeviceAllow=)",
                )

        try:
            process.spawn(["/bin/true"], prepare).wait()
        except NvctError as error:
            raise ContainerNotPossibleError(
                f"no simulated node is possible here: {error.message}", hint=error.hint
            ) from error


def _try_container(runtime: Path, programs: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="nvct-sim-") as folder:
        root = Path(folder, "rootfs")
        for name in ("bin", "proc", "dev"):
            (root / name).mkdir(parents=True)
        busybox = static_busybox(programs)
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
