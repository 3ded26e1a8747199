# SPDX-License-Identifier: Apache-2.0
"""Engines with a user's configuration, for `nvct runtime` to change.

The engine's files determine the settings in force, independent of how they were changed.
"""

import os
import stat
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, TypeAlias

from nvct_sim import attach
from tests.engines import configs, cri, crio_program, docker_run
from tests.engines.box import DRIVER_ROOT, PROGRAMS, Box, BoxedProcess
from tests.engines.engines import CONFIG, DOCKER_SOCKET

Done: TypeAlias = subprocess.CompletedProcess[str]
Snapshot: TypeAlias = dict[str, tuple[str, int, int, bytes]]

SPEC = "/etc/cdi/nvidia.yaml"
STOP_TIMEOUT_S = 30.0
IMAGE = "docker.io/library/plain:test"


class Daemon(ABC):
    """Base class of the engines.

    Attributes:
        engine: its name for `nvct runtime`.
        folder: of its configuration.
        own: files in that folder that the engine itself writes.
        is_as_started: whether no command of nvct has run since its last start.
    """

    engine: ClassVar[str]
    folder: ClassVar[str]
    own: ClassVar[tuple[str, ...]] = ()

    def __init__(self, box: Box) -> None:
        """Write the configuration; the engine is not started.

        Raises:
            ContainerNotPossibleError: the box has no such engine.
        """
        self.box = box
        self.box.write(
            CONFIG,
            f'[nvidia-container-cli]\nroot = "{DRIVER_ROOT}"\n'
            f'[nvct]\nfarm-dir = "{attach.farm_dir(DRIVER_ROOT)}"\n',
        )
        hook = f"--nvidia-cdi-hook-path={PROGRAMS}/nvidia-cdi-hook"
        arguments = [
            "--cdi-version-max=0.5.0",
            f"--output={SPEC}",
            hook,
        ]  # the newest for Podman 4.3
        completed = box.call("nvidia-ctk", "cdi", "generate", *arguments)
        assert completed.returncode == 0, completed
        assert "/.nvct/driver" in self.box.read(SPEC), "engines are to be tested with the farm"
        self._process: BoxedProcess | None = None
        box.call("rm", "-rf", self.folder)  # this host's own configuration
        self._write_config()
        self.original = self.snapshot()
        self.is_as_started = True

    def snapshot(self) -> Snapshot:
        """Return path → kind, mode, owner and content of all in its folder except folders."""
        top = self.box.root / self.folder.lstrip("/")
        return {
            os.path.relpath(os.path.join(folder, name), top): _describe(top, folder, name)
            for folder, _, names in os.walk(top)
            for name in names
            if name not in self.own
        }

    def reset(self) -> None:
        """Restore the initial configuration, without nvct."""
        self.box.call("rm", "-rf", self.folder, "/var/lib/nvct/engines")
        self._write_config()
        assert self.snapshot() == self.original

    def nvct(self, *arguments: str) -> Done:
        """Run a command of `nvct runtime`, which may reload the engine."""
        self.is_as_started = False
        return self.box.call("nvct", "runtime", *arguments)

    def configure(self, *flags: str) -> Done:
        """Configure it as a user does."""
        completed = self.nvct("configure", f"--runtime={self.engine}", *flags)
        assert completed.returncode == 0, completed
        return completed

    def undo(self) -> Done:
        """Undo the changes of configure."""
        completed = self.nvct("undo", f"--runtime={self.engine}")
        assert completed.returncode == 0, completed
        return completed

    def restart(self) -> None:
        """Stop it if it runs, and start it."""
        self.stop()
        self.start()
        self.is_as_started = True

    def stop(self) -> None:
        """Stop it if it runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def start(self) -> None:
        """Start it, and load the image if it has none.

        Raises:
            ContainerNotPossibleError: it does not start; the error has the end of its log.
        """
        log = f"{self.engine}.log"
        self._process = self.box.start(self._command(), log)
        self.box.until(self._answers, log)
        self._load()

    @abstractmethod
    def _write_config(self) -> None: ...

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _answers(self) -> bool: ...

    @abstractmethod
    def _load(self) -> None: ...

    @abstractmethod
    def run(self, script: str, *flags: str) -> Done:
        """Run a script in a new container, with flags of the engine's command line."""


def _describe(top: Path, folder: str, name: str) -> tuple[str, int, int, bytes]:
    path = os.path.join(folder, name)
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return "link", 0, status.st_uid, os.fsencode(os.readlink(path))
    with open(path, "rb") as file:
        return "file", stat.S_IMODE(status.st_mode), status.st_uid, file.read()


class Docker(Daemon):
    """dockerd with a user's daemon.json, with tabs and without a final newline."""

    engine = "docker"
    folder = "/etc/docker"
    own = ("key.json",)  # of Docker 20.10

    def _write_config(self) -> None:
        self.box.write("/etc/docker/daemon.json", configs.DOCKER % self.box.cgroup)

    def _command(self) -> list[str]:
        return ["/usr/sbin/dockerd"]

    def docker(self, *arguments: str) -> Done:
        """Run the command line of Docker."""
        return self.box.call("/usr/bin/docker", *arguments)

    def version(self) -> tuple[int, ...]:
        """Return the daemon's version."""
        output = self.docker("version", "--format={{.Server.Version}}").stdout
        return tuple(int(part) for part in output.split("+")[0].split(".")[:2])

    def _answers(self) -> bool:
        return self.box.accepts(DOCKER_SOCKET) and self.docker("version").returncode == 0

    def _load(self) -> None:
        if not self.docker("images", "--quiet", "plain:test").stdout:
            completed = self.docker("load", "--input", f"{self.box.work}/plain.tar")
            assert completed.returncode == 0, completed

    def run(self, script: str, *flags: str) -> Done:
        arguments = ["--network=none", *flags, "plain:test", "/bin/sh", "-c", script]
        return docker_run.run(self.box, *arguments)


class Containerd(Daemon):
    """containerd as Kubernetes uses it, with a config.toml of a given version."""

    engine = "containerd"
    folder = "/etc/containerd"

    def __init__(self, box: Box, version: int) -> None:
        self.format = version
        super().__init__(box)

    def _write_config(self) -> None:
        self.box.write(
            "/etc/containerd/config.toml", configs.CONTAINERD[self.format] % configs.PAUSE
        )

    def _command(self) -> list[str]:
        return ["/usr/bin/containerd"]

    def ctr(self, *arguments: str) -> Done:
        """Run containerd's command line."""
        return self.box.call("ctr", "--namespace=k8s.io", *arguments)

    def version(self) -> tuple[int, ...]:
        """Return the daemon's version."""
        output = self.box.call("containerd", "--version").stdout.split()[2]
        return tuple(int(part) for part in output.split("~")[0].split("+")[0].split(".")[:2])

    def _answers(self) -> bool:
        if not self.box.accepts(cri.SOCKET):
            return False
        # Its CRI plugin starts later, or never if its settings are refused.
        return " ok" in self.ctr("plugins", "ls", "id==cri").stdout

    def _load(self) -> None:
        if not self.ctr("image", "ls", "--quiet").stdout:
            for name in ("plain", "pause"):
                completed = self.ctr("image", "import", f"{self.box.work}/{name}.tar")
                assert completed.returncode == 0, completed

    def pod(self, script: str, pod: cri.Pod) -> Done:
        """Run a script in a pod."""
        return cri.run(self.box, script, pod)

    def run(self, script: str, *flags: str) -> Done:
        assert not flags
        return self.pod(script, cri.Pod())


class Podman(Daemon):
    """Podman, without a daemon: every call reads its files."""

    engine = "podman"
    folder = "/etc/containers"
    own = ("netavark.lock",)

    def _write_config(self) -> None:
        self.box.write("/etc/containers/containers.conf", configs.PODMAN)
        self.box.write("/etc/containers/policy.json", configs.POLICY)

    def _command(self) -> list[str]:
        raise AssertionError("Podman has no daemon to start")

    def podman(self, *arguments: str, env: Mapping[str, str] | None = None) -> Done:
        """Run Podman."""
        env = {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1", **(env or {})}
        return self.box.call("/usr/bin/podman", "--storage-driver=overlay", *arguments, env=env)

    def _answers(self) -> bool:
        return self.podman("info").returncode == 0

    def _load(self) -> None:
        if self.podman("image", "exists", IMAGE).returncode:
            completed = self.podman("load", "--input", f"{self.box.work}/plain.tar")
            assert completed.returncode == 0, completed

    def start(self) -> None:
        self._load()

    def stop(self) -> None:
        """Do nothing: there is no daemon."""

    def words(self, script: str, *flags: str) -> list[str]:
        """Return Podman's arguments to run a script with flags."""
        arguments = [
            "run",
            "--rm",
            "--network=none",
            f"--cgroup-parent=/{self.box.cgroup}",
            *flags,
        ]
        return [*arguments, IMAGE, "/bin/sh", "-c", script]

    def run(self, script: str, *flags: str) -> Done:
        return self.podman(*self.words(script, *flags))


class Crio(Daemon):
    """CRI-O, which no Debian release has: this host's, or the one that `make crio` builds."""

    engine = "crio"
    folder = "/etc/crio"

    def __init__(self, box: Box) -> None:
        box.see(str(crio_program.folder()))  # also has pinns
        super().__init__(box)

    def _write_config(self) -> None:
        self.box.write("/etc/crio/crio.conf", configs.CRIO % configs.PAUSE)
        self.box.write("/etc/crio/policy.json", configs.POLICY)

    def _command(self) -> list[str]:
        return ["crio"]

    def _answers(self) -> bool:
        return self.box.call("test", "-S", cri.CRIO_SOCKET).returncode == 0

    def _load(self) -> None:
        for name in ("plain", "pause"):  # the store is also Podman's
            archive = f"{self.box.work}/{name}.tar"
            completed = self.box.call(
                "podman", "--storage-driver=overlay", "load", "--input", archive
            )
            assert completed.returncode == 0, completed

    def in_force(self) -> str:
        """Return the settings that it reports as in force."""
        completed = self.box.call("crio", "config")
        assert completed.returncode == 0, completed
        return completed.stdout

    def pod(self, script: str, pod: cri.Pod) -> Done:
        """Run a script in a pod."""
        return cri.run(self.box, script, pod, cri.CRIO_SOCKET)

    def run(self, script: str, *flags: str) -> Done:
        assert not flags
        return self.pod(script, cri.Pod())
