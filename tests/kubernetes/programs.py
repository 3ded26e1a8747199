# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' own programs, built from the Go module `k8s.io/kubernetes` and kept outside of the checkout.

`python -m tests.kubernetes.programs` builds them and prints their folder (`make kubernetes`).
The first build takes about ten minutes of CPU and 2 GB of Go's build cache; later ones are found.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from nvct.errors import ContainerNotPossibleError

CACHE_ENV = "NVCT_TEST_KUBERNETES"
"""Names the folder of the built programs, instead of one in the user's cache."""
SOURCE = Path(__file__).parent / "program"
NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
REQUIRED_GO = (1, 26)
"""What k8s.io/kubernetes 1.36 names in its go.mod. A later minor version builds another program:
of 1.27, an API server with broken OpenAPI."""
BUILD_TIMEOUT_S = 3600.0


def folder() -> Path:
    """Return the folder with the programs.

    Raises:
        ContainerNotPossibleError: they are not built.
    """
    built = _place()
    if not built.is_dir():
        raise ContainerNotPossibleError("Kubernetes is not built", hint="make kubernetes")
    return built


def build() -> Path:
    """Build the programs if they are not there, and return their folder.

    Raises:
        ContainerNotPossibleError: there is no fitting Go, or the modules cannot be had.
    """
    built = _place()
    cache = built.parent
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.is_dir():
            aside = cache / ".building"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            _build(aside)
            for old in cache.glob("v*"):
                shutil.rmtree(old)
            aside.rename(built)
    return built


def _place() -> Path:
    cache = Path(os.environ.get(CACHE_ENV) or Path.home() / ".cache/nvct-tests/kubernetes")
    return cache / f"{version()}-{_digest()}"


def version() -> str:
    """Return the version of Kubernetes that go.mod names, as `v1.36.3`."""
    named = re.search(r"k8s\.io/kubernetes (v\S+)", (SOURCE / "go.mod").read_text())
    assert named is not None
    return named[1]


def _digest() -> str:
    sources = [(SOURCE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go")]
    return hashlib.sha256(b"\0".join(sources)).hexdigest()[:8]


def _build(target: Path) -> None:
    go = _go()
    major, minor, _ = version().lstrip("v").split(".")
    stamps = {"gitVersion": version(), "gitMajor": major, "gitMinor": minor}
    flags = ["-s", "-w"]
    for name, value in stamps.items():  # helm and kubectl read them
        flags += ["-X", f"k8s.io/component-base/version.{name}={value}"]
    command = [
        go, "build", "-mod=readonly", "-trimpath", "-buildvcs=false",
        f"-ldflags={' '.join(flags)}", f"-o={target}/kubernetes", ".",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=SOURCE, env={**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"},
        capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ContainerNotPossibleError(f"go cannot build Kubernetes here: {last}")
    for name in NAMES:
        (target / name).symlink_to("kubernetes")


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        raise ContainerNotPossibleError("Kubernetes is not built: there is no go on PATH")
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True)
    number = re.match(r"go(\d+)\.(\d+)", said.stdout)
    if number is None or (int(number[1]), int(number[2])) != REQUIRED_GO:
        needed = ".".join(map(str, REQUIRED_GO))
        raise ContainerNotPossibleError(
            f"Kubernetes is not built: it needs Go {needed}, and this is {said.stdout.strip()}"
        )
    return go


if __name__ == "__main__":
    try:
        print(build())
    except ContainerNotPossibleError as error:
        sys.exit(error.message)
