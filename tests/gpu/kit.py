# SPDX-License-Identifier: Apache-2.0
"""Build the GPU kit: what nvct, its agents and `make gpu` need on a machine without a network.

The folder holds two archives: `wheels.tar.xz`, the files of all wheels (folder `any`, and one for
each Python), and `programs.tar.xz`, the programs that `machine.fill` copies.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from nvct.config import toml
from nvct.errors import HostError
from nvct_sim.native import build
from tests.gpu import machine, nvml_calls

PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
LIMIT = 40 << 20


def make(kit: Path, hot: Path, pythons: Sequence[str] = PYTHONS, *, fast: bool = False) -> int:
    """Build the kit in a folder, and return its size in bytes.

    Args:
        kit: the folder; its archives are replaced.
        hot: nvct-hot, as `make static` builds it.
        pythons: releases of Python that the kit is for.
        fast: archives that are larger, and made in a fifth of the time.

    Raises:
        HostError: a wheel cannot be had, or two releases of one; the kit is larger than LIMIT.
        ContainerNotPossibleError: this machine lacks a program.
    """
    kit.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nvct-kit-") as name:
        work = Path(name)
        programs = work / "programs"
        for path in machine.fill(programs):
            path.chmod(0o755)
        shutil.copy2(hot, programs)
        build.ship(programs / machine.NATIVE)
        unpack(download(work / "downloads", pythons), work / "wheels")
        nvml_calls.install(work / "wheels/any/site-packages/pynvml.py")
        for folder in ("wheels", "programs"):
            with tarfile.open(
                kit / f"{folder}.tar.xz", "w:xz", preset=0 if fast else 6
            ) as archive:
                archive.add(work / folder, arcname=".")
    size = sum(path.stat().st_size for path in kit.glob("*.tar.xz"))
    if size > LIMIT:
        raise HostError(f"the kit in {kit} has {size >> 20} MiB, more than {LIMIT >> 20}")
    return size


def download(folder: Path, pythons: Sequence[str]) -> list[Path]:
    """Download the wheels of nvct's dependencies, those of the agents too, for each Python.

    Raises:
        HostError: pip fails.
    """
    project = toml.loads((machine.REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["agent"]]
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    for version in pythons:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
             "--only-binary=:all:", "--implementation=cp", f"--python-version={version}",
             *platforms, "--dest", str(folder), *wanted],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise HostError(f"pip download failed: {done.stderr.strip().splitlines()[-1]}")
    return sorted(folder.glob("*.whl"))


def unpack(wheels: list[Path], target: Path) -> None:
    """Unpack wheels into a folder for each Python tag, and `any` for those that fit every Python.

    Raises:
        HostError: two releases of one package would be mixed.
    """
    releases: dict[tuple[str, str], str] = {}
    for wheel in wheels:
        package, release, python, abi, _ = wheel.stem.rsplit("-", 4)
        folder = "any" if abi in ("none", "abi3") else python
        if releases.setdefault((folder, package), release) != release:
            raise HostError(f"two releases of {package} for {folder}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target / folder / "site-packages")  # noqa: S202 - pip checked it
