# SPDX-License-Identifier: Apache-2.0
"""Third-party programs for the tests, built from pinned Go modules and kept outside the checkout.

A folder with go.mod and go.sum pins a program and all its modules: Go verifies each module against
go.sum. A change of one of these files causes a new build.
"""

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nvct.errors import ContainerNotPossibleError
from tests.support.processes import captured

CACHE_ENV = "NVCT_TEST_KUBERNETES"
"""Variable that names the folder of the built programs, instead of one in the user's cache."""
REQUIRED_GO = (1, 26)
"""The version in the go.mod of k8s.io/kubernetes 1.36. A later minor version builds a different
program: 1.27 builds an API server with broken OpenAPI."""
BUILD_TIMEOUT_S = 3600.0
PINNED = ("-mod=readonly", "-trimpath", "-buildvcs=false")
C_FLAGS = ("-std=c99", "-Os", "-static")


@dataclass(frozen=True, kw_only=True)
class Program:
    """One static file, built in the folder of a go.mod.

    Attributes:
        name: of the file.
        source: the folder with go.mod and go.sum.
        module: the module that has the program's version in go.mod.
        package: the Go package to build.
        stamps: variables of the linker's -X; {version}, {major} and {minor} are filled in.
        tags: Go's build tags.
        compiler_flags: values of -gcflags, PATTERN=FLAGS.
        links: other names of the file.
        c_programs: name of a C program → folder of its sources in the module.
        prefix: of the name of its folder in the cache.
    """

    name: str
    source: Path
    module: str
    package: str
    stamps: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    compiler_flags: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    c_programs: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""

    def version(self) -> str:
        """Return the version in go.mod, e.g. `v1.36.3`."""
        named = re.search(
            rf"{re.escape(self.module)} (v\S+)", (self.source / "go.mod").read_text()
        )
        assert named is not None
        return named[1]

    def digest(self) -> str:
        """Return a digest of the sources of the program."""
        sources = [
            path.read_bytes()
            for path in (self.source / name for name in ("go.mod", "go.sum", "main.go"))
            if path.exists()
        ]
        sources += [tag.encode() for tag in self.tags]
        return hashlib.sha256(b"\0".join(sources)).hexdigest()[:8]

    def folder(self) -> Path:
        """Return the program's folder in the cache, which may not exist yet."""
        cache = Path(os.environ.get(CACHE_ENV) or Path.home() / ".cache/nvct-tests/kubernetes")
        return cache / f"{self.prefix}{self.version()}-{self.digest()}"


def build(program: Program) -> Path:
    """Build a program if it is missing, and return its folder.

    Raises:
        ContainerNotPossibleError: Go is missing, too old or too new, a module is missing, or
            a program in C has no C compiler.
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
            go = _go(program)
            _build(program, go, aside)
            for name, sources in program.c_programs.items():
                _compile(program, go, sources, aside / name)
            for old in cache.glob(f"{program.prefix}v*"):
                shutil.rmtree(old)
            aside.rename(folder)
    return folder


def _build(program: Program, go: str, target: Path) -> None:
    version = program.version()
    major, minor = version.lstrip("v").split(".")[:2]
    flags = ["-s", "-w"]
    for name, value in program.stamps.items():
        flags += ["-X", f"{name}={value.format(version=version, major=major, minor=minor)}"]
    command = [
        go, "build", *PINNED, f"-ldflags={' '.join(flags)}", f"-tags={','.join(program.tags)}",
        *(f"-gcflags={flags}" for flags in program.compiler_flags), f"-o={target}/{program.name}",
        program.package,
    ]  # fmt: skip
    _run(program, command)
    for name in program.links:
        (target / name).symlink_to(program.name)


def _compile(program: Program, go: str, sources: str, target: Path) -> None:
    """Compile a C program from the module's files, which Go has verified."""
    command = [go, "list", "-m", "-mod=readonly", "-f={{.Dir}}", program.module]
    folder = Path(_run(program, command).strip(), sources)
    files = sorted(map(str, folder.glob("*.c")))
    compiler = shutil.which("cc")
    if compiler is None:
        raise ContainerNotPossibleError(
            f"{program.name} is not built: there is no C compiler (cc) for its {target.name}"
        )
    _run(program, [compiler, *C_FLAGS, f"-o{target}", *files])


def _run(program: Program, command: list[str]) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    done = captured(command, cwd=program.source, env=environment, timeout=BUILD_TIMEOUT_S)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        tool = Path(command[0]).name
        raise ContainerNotPossibleError(f"{tool} cannot build {program.name} here: {last}")
    return done.stdout


def _go(program: Program) -> str:
    go = shutil.which("go")
    if go is None:
        raise ContainerNotPossibleError(f"{program.name} is not built: there is no go on PATH")
    said = captured([go, "env", "GOVERSION"], check=True)
    number = re.match(r"go(\d+)\.(\d+)", said.stdout)
    if number is None or (int(number[1]), int(number[2])) != REQUIRED_GO:
        needed = ".".join(map(str, REQUIRED_GO))
        raise ContainerNotPossibleError(
            f"{program.name} is not built: it needs Go {needed}, this is {said.stdout.strip()}"
        )
    return go
