# SPDX-License-Identifier: Apache-2.0
"""Builds the simulated NVML library and programs with the C compiler of this machine.

Built files are kept in a folder, whose name is a hash of sources, flags and compiler: a change of
these causes a new build. Packages and the bundle contain built files (`ship`), so that a host
needs no compiler.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from nvct.errors import ContainerNotPossibleError, HostError, OSErrorsAs

FOLDER = Path(__file__).parent
WARNINGS = ("-Wall", "-Wextra")
# -O1, because a user waits for the build at the first node; -O2 takes half as long again.
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-fvisibility=hidden", "-s")
# No build id and no timestamp: the same sources give the same bytes.
NVML_FLAGS = (
    "-fPIC", "-shared", "-pthread", "-Wl,-soname,libnvidia-ml.so.1", "-Wl,--hash-style=both",
    "-Wl,--build-id=none", "-Wl,-z,defs",
)  # fmt: skip
SANDBOX_FLAGS = (
    "-fPIC", "-shared", "-nostdlib", "-Wl,-soname,libnvidia-sandboxutils.so.1",
    "-Wl,--build-id=none",
)  # fmt: skip
# The programs have their own entry point; with glibc before 2.34, dlopen is in libdl.
SMI_FLAGS = ("-fPIE", "-pie", "-nostartfiles", "-Wl,--build-id=none")
SMI_LIBRARIES = ("-Wl,--no-as-needed", "-l:libdl.so.2")
COMPILERS = ("cc", "gcc", "clang")
MACHINES = ("x86_64", "aarch64")
PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "libnvidia-ml.so": (NVML_FLAGS, ("nvml/*.c",), ()),
    "nvidia-smi": (SMI_FLAGS, ("smi/*.c",), SMI_LIBRARIES),
    "libnvidia-sandboxutils.so": (SANDBOX_FLAGS, ("sandbox_utils.c",), ()),
    "nvidia-cuda-mps-control": (SMI_FLAGS, ("mps/*.c", "smi/start.c"), ()),
}
"""The built files by name, without a driver version: flags, sources below FOLDER, libraries."""
SHIPPED = FOLDER / "built.zip"
"""An archive, so that packaging tools do not list NVIDIA's libraries as provided by a package."""
MODE = 0o755  # of programs and libraries in packages
TIMEOUT_S = 900  # on an emulated machine, as for packages of arm64, a build takes minutes


def find_compiler(search_path: str | None = None) -> str:
    """Return the path of a C compiler; ContainerNotPossibleError if there is none."""
    for name in COMPILERS:
        compiler = shutil.which(name, path=search_path)
        if compiler:
            return compiler
    raise ContainerNotPossibleError(
        "there is no C compiler (cc) to build the simulated NVML library",
        hint="install gcc and the C library's headers (gcc libc6-dev), or use --plain",
    )


def build(
    out_dir: Path, *, strict: bool = False, search_path: str | None = None
) -> dict[str, Path]:
    """Build the files that are missing below out_dir, and return their paths by name in PARTS.

    `strict`, for our tests, treats compiler warnings as errors. Raises ContainerNotPossibleError
    without a compiler for this machine, and HostError if the build fails.
    """
    if platform.machine() not in MACHINES:
        raise ContainerNotPossibleError(
            f"the simulated NVML is for {' and '.join(MACHINES)}, not {platform.machine()}",
            hint="create the node with --plain",
        )
    digest = _digest()
    if _is_shipped(digest):
        return _extracted(out_dir / f"shipped-{digest[:16]}")
    compiler = find_compiler(search_path)
    common = (*FLAGS, *WARNINGS, *(("-Werror",) if strict else ()))
    folder = out_dir / _key(compiler, common)
    built = _in(folder)
    if all(path.exists() for path in built.values()):
        return built
    with OSErrorsAs(
        HostError,
        f"cannot build the simulated NVML library in {out_dir}",
        hint="choose a writable folder",
    ):
        folder.mkdir(parents=True, exist_ok=True)
        for name, (flags, sources, libraries) in PARTS.items():
            _compile([compiler, *common, *flags], sources, libraries, built[name])
    return built


def _in(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in PARTS}


def ship(target: Path) -> None:
    """Build all files and write them to an archive that packages install as SHIPPED.

    The same sources and compiler give the same bytes.
    """
    with tempfile.TemporaryDirectory(prefix="nvct-native-") as folder:
        build(Path(folder))
        (build_folder,) = Path(folder).iterdir()
        with zipfile.ZipFile(target, "w") as archive:
            archive.comment = _digest().encode()
            for name in PARTS:
                data = (build_folder / name).read_bytes()
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def _is_shipped(digest: str) -> bool:
    """Report whether SHIPPED was built from these sources for this machine."""
    try:
        with zipfile.ZipFile(SHIPPED) as archive:
            return archive.comment == digest.encode()
    except (OSError, zipfile.BadZipFile):
        return False


def _extracted(folder: Path) -> dict[str, Path]:
    """Extract SHIPPED into a folder and return the paths of its files."""
    with OSErrorsAs(HostError, f"cannot write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(SHIPPED) as archive:
            for name in PARTS:
                with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                    file.write(archive.read(name))
                os.chmod(file.name, MODE)
                os.rename(file.name, folder / name)
    return _in(folder)


def _digest() -> str:
    """Return a hash of these sources, these flags and this machine."""
    digest = hashlib.sha256()
    words = (platform.machine(), *FLAGS, *NVML_FLAGS, *SMI_FLAGS, *SMI_LIBRARIES, *SANDBOX_FLAGS)
    for text in words:
        digest.update(text.encode() + b"\0")
    for path in sorted(FOLDER.rglob("*.[ch]")):
        digest.update(f"{path.relative_to(FOLDER)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _key(compiler: str, flags: tuple[str, ...]) -> str:
    """Return the folder name of a build: a hash of sources, compiler and flags."""
    status = os.stat(compiler)
    digest = hashlib.sha256(_digest().encode())
    for text in (compiler, str(status.st_size), str(status.st_mtime_ns), *flags):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


def _compile(
    command: list[str], sources: tuple[str, ...], libraries: tuple[str, ...], target: Path
) -> None:
    """Compile sources to a temporary file and rename it, because two builds can run at once."""
    handle, output = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    files = sorted(str(path) for pattern in sources for path in FOLDER.glob(pattern))
    try:
        compiler = subprocess.run(
            [*command, "-o", output, *files, *libraries],
            capture_output=True, check=False, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        if compiler.returncode:
            lines = compiler.stderr.splitlines()
            reason = next((line for line in lines if "error" in line), [*lines, "no message"][0])
            raise HostError(
                f"building {target.name} with {command[0]} failed: {reason}",
                hint="install the C library's headers (libc6-dev, glibc-devel)",
            )
        os.chmod(output, MODE)
        os.rename(output, target)
    except subprocess.TimeoutExpired as error:
        raise HostError(
            f"building {target.name} with {command[0]} took more than {TIMEOUT_S} s"
        ) from error
    finally:
        if os.path.exists(output):
            os.unlink(output)
