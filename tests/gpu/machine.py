# SPDX-License-Identifier: Apache-2.0
"""What the chain needs on a machine with a GPU and no network: programs, launchers, interpreter.

Everything is made in a folder that is removed afterwards; the machine's own files stay as they are.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from nvct.errors import ContainerNotPossibleError, HostError
from nvct.host import procfs
from nvct.host.roots import Roots
from nvct.launcher import install
from nvct.linux import elf, ldcache, mountinfo
from nvct.linux.constants import MNT_DETACH
from nvct.linux.kernel import KERNEL
from nvct.paths import DEFAULT_PATH_DIRS
from nvct_sim import rootfs

REPOSITORY = Path(__file__).parents[2]
CARRY = Path(__file__).with_name("carry")
RUNTIMES = ("runc", "crun")
NATIVE = "native.zip"
"""The simulated driver, for a machine without a compiler."""
GPU_NODE = re.compile(r"nvidia\d+")


def has_gpu(roots: Roots) -> bool:
    """Report whether there is a GPU: by procfs, or by its node if /proc is not the kernel's."""
    names = procfs.list_directory(roots.dev)
    return bool(procfs.gpus(roots)) or any(GPU_NODE.fullmatch(name) for name in names)


def remove(work: Path) -> None:
    """Unmount the views in a run's folder, then remove the folder."""
    mounted = mountinfo.targets(Path("/proc/self/mountinfo").read_text())
    for target in sorted(mounted, reverse=True):
        if target.startswith(f"{work}/"):
            KERNEL.umount2(target, MNT_DETACH)
    shutil.rmtree(work)


def fill(carry: Path) -> Iterator[Path]:
    """Copy runc, its libraries and busybox into the folder; yield the copied files.

    Raises:
        ContainerNotPossibleError: this machine lacks one of them.
    """
    (carry / "lib").mkdir(parents=True, exist_ok=True)
    # Git does not track the carried files.
    (carry / ".gitignore").write_text("*\n")
    runtimes = [path for path in map(rootfs.find_program, RUNTIMES) if path]
    for program in (*(runtimes or [_runtime(())]), rootfs.static_busybox()):
        yield Path(shutil.copy(program, carry))
    own = {Path(path).name for path in rootfs.LOADERS.values()} | set(rootfs.LIBRARIES)
    for library in needed(runtimes):
        if library.name not in own:
            yield Path(shutil.copy(library, carry / "lib" / library.name))


def needed(programs: Sequence[Path]) -> list[Path]:
    """Return the libraries of ELF files, with the libraries of these.

    Raises:
        HostError: one is not in this machine's ld.so.cache.
    """
    cache = ldcache.parse(Path("/etc/ld.so.cache").read_bytes())
    libraries: dict[str, Path] = {}
    todo = list(programs)
    while todo:
        for name in elf.Elf(todo.pop().read_bytes()).needed:
            if name in libraries or name.startswith("ld-linux"):
                continue
            # An interpreter that is not the distribution's finds its own library by its RUNPATH.
            beside = interpreter().parent.with_name("lib") / name
            paths = [path for path in (beside, *map(Path, cache.find(name))) if path.exists()]
            if not paths:
                raise HostError(f"{name} is not in /etc/ld.so.cache")
            libraries[name] = paths[0]
            todo.append(paths[0])
    return list(libraries.values())


def _runtime(folders: Sequence[str], names: Sequence[str] = RUNTIMES) -> Path:
    for name in names:
        path = rootfs.find_program(name, folders)
        if path is not None:
            return path
    raise ContainerNotPossibleError(
        f"no {' or '.join(names)} on this host", hint="carry one: python -m tests.gpu carry"
    )


class Tools:
    """The programs of one run, and their paths.

    Attributes:
        work: the run's folder.
        programs: where programs of the root file system are looked for.
        runtime: the low-level runtime.
        hot: the carried nvct-hot, "" if there is none.
    """

    def __init__(
        self, work: Path, carry: Path, folders: Sequence[str] = DEFAULT_PATH_DIRS
    ) -> None:
        """Find the runtime, in this machine's folders first.

        Raises:
            ContainerNotPossibleError: there is none.
        """
        self.work = work
        # A machine's own busybox may be linked dynamically; the carried one is not.
        self.programs = (str(carry), *folders)
        self.hot = str(carry / "nvct-hot") if (carry / "nvct-hot").exists() else ""
        self.carry, self._folders = carry, (*folders, str(carry))
        self.runtime = self.runtime_of()

    def runtime_of(self, *names: str) -> Path:
        """Return the first runtime that is here, of all or of some.

        Raises:
            ContainerNotPossibleError: there is none.
        """
        runtime = _runtime(self._folders, names or RUNTIMES)
        return self._wrap(runtime) if runtime.parent == self.carry else runtime

    def _wrap(self, runtime: Path) -> Path:
        """Start a carried runtime with its carried libraries."""
        script = self.work / "bin" / runtime.name
        if script.exists():  # and perhaps runs
            return script
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={self.carry}/lib exec {runtime} "$@"\n')
        script.chmod(0o755)
        return script

    def shim(self) -> Path:
        """Install the launchers beside an interpreter that can import nvct; return the shim.

        Raises:
            HostError: the interpreter cannot be made.
        """
        venv = self.work / "venv"
        done = subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(venv)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise HostError(f"python -m venv failed: {(done.stdout + done.stderr).strip()[-200:]}")
        python = venv / "bin/python"
        # That interpreter imports the same modules as this one: nothing is installed.
        folders = [str(REPOSITORY), *(path for path in sys.path if path.endswith("-packages"))]
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (venv / "lib" / version / "site-packages/nvct.pth").write_text("\n".join(folders) + "\n")
        built = install.Built(
            python=str(interpreter()),
            packages=str(REPOSITORY),
            cold=str(python),
            archive=str(self.work / "hot.bin"),
            hot=self.hot,
        )
        install.install(venv / "bin", "auto", built)
        return venv / "bin/nvidia-container-runtime"


def interpreter() -> Path:
    """Return this interpreter's program, behind virtual environments and links."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def interpreter_mounts() -> list[Path]:
    """Return the files that a container needs to run this interpreter with ctypes, at the same paths."""
    program = interpreter()
    stdlib = Path(sysconfig.get_path("stdlib"))
    prefix = Path(sys.base_prefix)
    # A distribution's interpreter shares its prefix with all other programs.
    tree = stdlib if prefix in (Path("/"), Path("/usr"), Path("/usr/local")) else prefix
    modules = sorted((stdlib / "lib-dynload").glob("_ctypes.*"))
    libraries = (p for p in needed([program, *modules]) if not p.is_relative_to(tree))
    own = [path for path in libraries if path.name not in rootfs.LIBRARIES]
    return [tree, *([] if program.is_relative_to(tree) else [program]), *own]
