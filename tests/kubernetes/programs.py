# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' own programs and helm, built from their Go modules and kept outside of the checkout.

`python -m tests.kubernetes.programs` builds them and prints their folders (`make kubernetes`). The
first build takes about ten minutes of CPU for Kubernetes, two and a half for helm, and 2.5 GB of
Go's build cache; later calls find the programs. Each is built again when its go.mod, go.sum or
main.go changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from nvct.errors import ContainerNotPossibleError

CACHE_ENV = "NVCT_TEST_KUBERNETES"
"""Names the folder of the built programs, instead of one in the user's cache."""
HERE = Path(__file__).parent
REQUIRED_GO = (1, 26)
"""What k8s.io/kubernetes 1.36 names in its go.mod. A later minor version builds another program:
of 1.27, an API server with broken OpenAPI."""
BUILD_TIMEOUT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Program:
    """One static file, built in the folder of a go.mod.

    Attributes:
        name: of the file.
        source: the folder with go.mod and go.sum.
        module: whose version in go.mod is the program's.
        package: what is built.
        stamps: variables of the linker's -X; {version}, {major} and {minor} are filled in.
        links: names under which the file can be started as well.
        prefix: begins the name of its folder in the cache.
    """

    name: str
    source: Path
    module: str
    package: str
    stamps: dict[str, str]
    links: tuple[str, ...] = ()
    prefix: str = ""

    def version(self) -> str:
        """Return the version that go.mod names, as `v1.36.3`."""
        named = re.search(
            rf"{re.escape(self.module)} (v\S+)", (self.source / "go.mod").read_text()
        )
        assert named is not None
        return named[1]

    def digest(self) -> str:
        """Return a digest of what it is built from."""
        sources = [
            path.read_bytes()
            for path in (self.source / name for name in ("go.mod", "go.sum", "main.go"))
            if path.exists()
        ]
        return hashlib.sha256(b"\0".join(sources)).hexdigest()[:8]

    def folder(self) -> Path:
        """Return its folder in the cache, built or not."""
        cache = Path(os.environ.get(CACHE_ENV) or Path.home() / ".cache/nvct-tests/kubernetes")
        return cache / f"{self.prefix}{self.version()}-{self.digest()}"


# helm and kubectl read the version of Kubernetes from these.
_COMPONENT = "k8s.io/component-base/version"
KUBERNETES = Program(
    name="kubernetes",
    source=HERE / "program",
    module="k8s.io/kubernetes",
    package=".",
    stamps={
        f"{_COMPONENT}.gitVersion": "{version}",
        f"{_COMPONENT}.gitMajor": "{major}",
        f"{_COMPONENT}.gitMinor": "{minor}",
    },
    links=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"),
)
HELM = Program(
    name="helm",
    source=HERE / "helm",
    module="helm.sh/helm/v4",
    package="helm.sh/helm/v4/cmd/helm",
    stamps={"helm.sh/helm/v4/internal/version.version": "{version}"},
    prefix="helm-",
)
PROGRAMS = (KUBERNETES, HELM)


def folders() -> list[Path]:
    """Return the folders with the programs.

    Raises:
        ContainerNotPossibleError: they are not built.
    """
    for program in PROGRAMS:
        if not program.folder().is_dir():
            raise ContainerNotPossibleError(f"{program.name} is not built", hint="make kubernetes")
    return [program.folder() for program in PROGRAMS]


def build(program: Program) -> Path:
    """Build a program if it is not there, and return its folder.

    Raises:
        ContainerNotPossibleError: Go is missing or too old or too new, or a module is missing.
    """
    folder = program.folder()
    cache = folder.parent
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            aside = cache / ".building"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            _build(program, aside)
            for old in cache.glob(f"{program.prefix}v*"):
                shutil.rmtree(old)
            aside.rename(folder)
    return folder


def _build(program: Program, target: Path) -> None:
    go = _go(program)
    version = program.version()
    major, minor, _ = version.lstrip("v").split(".")
    flags = ["-s", "-w"]
    for name, value in program.stamps.items():
        flags += ["-X", f"{name}={value.format(version=version, major=major, minor=minor)}"]
    command = [
        go, "build", "-mod=readonly", "-trimpath", "-buildvcs=false",
        f"-ldflags={' '.join(flags)}", f"-o={target}/{program.name}", program.package,
    ]  # fmt: skip
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    done = subprocess.run(
        command, cwd=program.source, env=environment, capture_output=True, text=True, check=False,
        timeout=BUILD_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ContainerNotPossibleError(f"go cannot build {program.name} here: {last}")
    for name in program.links:
        (target / name).symlink_to(program.name)


def _go(program: Program) -> str:
    go = shutil.which("go")
    if go is None:
        raise ContainerNotPossibleError(f"{program.name} is not built: there is no go on PATH")
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True)
    number = re.match(r"go(\d+)\.(\d+)", said.stdout)
    if number is None or (int(number[1]), int(number[2])) != REQUIRED_GO:
        needed = ".".join(map(str, REQUIRED_GO))
        raise ContainerNotPossibleError(
            f"{program.name} is not built: it needs Go {needed}, this is {said.stdout.strip()}"
        )
    return go


if __name__ == "__main__":
    try:
        for each in PROGRAMS:
            print(build(each))
    except ContainerNotPossibleError as error:
        sys.exit(error.message)
