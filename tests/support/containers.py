# SPDX-License-Identifier: Apache-2.0
"""A container as a hook sees it: a bundle, a root file system, and the state on stdin."""

import json
import os
import subprocess
import sys
from pathlib import Path

from nvct.container.cdi_hook.main import main
from nvct_sim.elf_writer import shared_object
from tests.support.hot import HOT_ENV

MOUNTS = "/proc/self/ns/mnt"
MOUNTS_OF_HOST = os.readlink(MOUNTS)
WITHOUT_RUN = 'mount -t tmpfs run /run && { "$@"; status=$?; umount -l /run; exit $status; }'


class Container:
    """A bundle with a root of real directories."""

    def __init__(self, folder: Path) -> None:
        self.bundle = folder / "bundle"
        self.root = self.bundle / "rootfs"
        self.root.mkdir(parents=True)
        self.proc = folder / "proc"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self/root").symlink_to("/")
        self.write_config({"root": {"path": "rootfs"}})

    def write_config(self, config: object) -> None:
        (self.bundle / "config.json").write_text(json.dumps(config))

    def file(self, path: str, data: bytes | str = b"") -> Path:
        """Put a file into the container."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data.encode() if isinstance(data, str) else data)
        return place

    def link(self, path: str, target: str) -> None:
        """Put a symbolic link into the container."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def library(self, path: str, soname: str | None, machine: str = "x86_64", **kw: str) -> Path:
        """Put a shared object into the container; kw are exported strings."""
        symbols = {name: value.encode() for name, value in kw.items()}
        return self.file(path, shared_object(machine, soname=soname, symbols=symbols))

    def params(self, text: str) -> None:
        """Give the host a /proc/driver/nvidia/params."""
        place = self.proc / "driver/nvidia/params"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def hook(self, *arguments: str, state: object = None) -> int:
        """Run a hook as the OCI runtime does; return its exit status."""
        if state is None:
            state = {"ociVersion": "1.0.2", "id": "c", "pid": 1, "bundle": str(self.bundle)}
        return run_hook(*arguments, state=json.dumps(state).encode())

    def tree(self) -> dict[str, str]:
        """Return everything in the container, links as `-> target`."""
        found = {}
        for folder, folders, files in os.walk(self.root):
            for name in folders + files:
                place = Path(folder, name)
                key = str(place.relative_to(self.root))
                if place.is_symlink():
                    found[key] = f"-> {place.readlink()}"
                elif place.is_file():
                    found[key] = place.read_bytes().decode("latin-1")
                else:
                    found[key] = "/"
        return found


def run_hook(*arguments: str, state: bytes = b"") -> int:
    """Run a hook with these bytes on its stdin; in nvct-hot if that is under test."""
    if hot := os.environ.get(HOT_ENV):
        words = _without_run() if os.geteuid() == 0 else []
        words += [hot, "--cold", sys.executable, "nvidia-cdi-hook", *arguments]
        done = subprocess.run(words, input=state, capture_output=True, check=False)
        sys.stdout.write(done.stdout.decode())
        sys.stderr.write(done.stderr.decode())
        return done.returncode
    reading, writing = os.pipe()
    os.write(writing, state)
    os.close(writing)
    try:
        return main(list(arguments), reading)
    finally:
        os.close(reading)


def _without_run() -> list[str]:
    """Return the start of a command that hides the host's /run, where failures are recorded.

    A namespace that the test has made stays the hook's: the test looks at what the hook mounts.
    """
    is_hosts = os.readlink(MOUNTS) == MOUNTS_OF_HOST
    return [*(["unshare", "-m"] if is_hosts else []), "sh", "-c", WITHOUT_RUN, "sh"]
