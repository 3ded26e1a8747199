# SPDX-License-Identifier: Apache-2.0
"""Docker and containerd in a box, with one interface."""

import json
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TypeAlias

from nvct_sim.tree import Node
from tests.engines import cri, docker_run
from tests.engines.box import DRIVER_ROOT, PROGRAMS, Box

Done: TypeAlias = subprocess.CompletedProcess[str]

SHIM = str(PROGRAMS / "nvidia-container-runtime")
CONFIG = "/etc/nvidia-container-runtime/config.toml"
DOCKER_SOCKET = "/run/docker.sock"
SLEEP = "while :; do sleep 1; done"
ONE = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")


@dataclass(frozen=True, kw_only=True)
class Want:
    """A container to run."""

    env: tuple[str, ...] = ONE
    image: str = "plain:test"
    volumes: dict[str, str] = field(default_factory=dict)
    read_only: bool = False
    flags: tuple[str, ...] = ()


class Engine(ABC):
    """Base class of both engines."""

    def __init__(self, box: Box, node: Node) -> None:
        """Start the daemon and load the images.

        Raises:
            ContainerNotPossibleError: it does not start here.
        """
        self.box = box
        self.node = node
        self._made = 0
        self.configure("classic")
        self._start()

    def configure(self, layout: str, *, staged: bool = True) -> None:
        """Write config.toml, and begin a new log; views not `staged` are of hard links."""
        self.staged = staged
        work = self.box.work
        (work / "shim.log").unlink(missing_ok=True)
        root = DRIVER_ROOT if staged else str(self.node.driver_root)
        farm = "/var/lib/nvct/farm" if staged else f"{work}/farm"
        layout = "auto" if layout == "farm" and not staged else layout  # has the same result
        self.box.write(
            CONFIG,
            f'[nvidia-container-cli]\nroot = "{root}"\n'
            f'[nvidia-container-runtime]\ndebug = "{work}/shim.log"\n'
            f'[nvct]\nlayout = "{layout}"\nfarm-dir = "{farm}"\n',
        )

    def decided(self) -> str:
        """Return the last line about a request in the shim's log."""
        lines = (self.box.work / "shim.log").read_text(encoding="utf-8").splitlines()
        return next((line for line in reversed(lines) if "layout" in line), lines[-1])

    def name(self) -> str:
        """Return an unused name of a container."""
        self._made += 1
        return f"c{self._made}"

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def run(self, script: str, want: Want = Want()) -> Done:
        """Run a script in a new container, which is removed at its end."""

    @abstractmethod
    def keep(self, want: Want = Want()) -> str:
        """Start a container that waits, and return its name."""

    @abstractmethod
    def exec(self, name: str, script: str) -> Done:
        """Run a script in a running container."""

    @abstractmethod
    def restart(self, name: str) -> Done:
        """End a container's processes and start it again."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a running container."""


class Docker(Engine):
    """dockerd with the shim as the runtime nvidia, the default runtime."""

    dockerd: tuple[str, ...] = ("/usr/sbin/dockerd",)
    client = docker_run.DOCKER

    def _start(self) -> None:
        self.daemon = self._up({})
        for name in ("plain", "taken"):
            completed = self.docker("load", "--input", f"{self.box.work}/{name}.tar")
            assert completed.returncode == 0, completed

    def _up(self, more: dict[str, object]) -> subprocess.Popen[bytes]:
        settings = {
            "runtimes": {"nvidia": {"path": SHIM, "runtimeArgs": []}},
            "default-runtime": "nvidia",
            "cgroup-parent": f"/{self.box.cgroup}",
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "ip-forward": False,
            "ip-masq": False,
            **more,
        }
        self.box.write("/etc/docker/daemon.json", json.dumps(settings))
        daemon = self.box.start([*self.dockerd], "dockerd.log")
        self.box.until(self._answers, "dockerd.log")
        return daemon

    def _answers(self) -> bool:
        return self.box.accepts(DOCKER_SOCKET) and self.docker("version").returncode == 0

    def again(self, **more: object) -> None:
        """Restart the daemon, with additional keys in its daemon.json."""
        pid = self.box.read("/run/docker.pid").strip()
        self.box.call("kill", pid)
        self.daemon.wait(30)
        self.daemon = self._up({name.replace("_", "-"): value for name, value in more.items()})

    def docker(self, *arguments: str, **env: str) -> Done:
        """Run the command line of Docker."""
        return self.box.call(self.client, *arguments, env=env)

    def _words(self, want: Want) -> list[str]:
        arguments = ["--network=none", *(f"--env={entry}" for entry in want.env)]
        arguments += [f"--volume={source}:{target}" for source, target in want.volumes.items()]
        return [*arguments, *(["--read-only"] if want.read_only else []), *want.flags, want.image]

    def run(self, script: str, want: Want = Want()) -> Done:
        words = (*self._words(want), "/bin/sh", "-c", script)
        return docker_run.run(self.box, *words, client=self.client)

    def keep(self, want: Want = Want()) -> str:
        name = self.name()
        arguments = [
            "run",
            "--detach",
            f"--name={name}",
            *self._words(want),
            "/bin/sh",
            "-c",
            SLEEP,
        ]
        completed = self.docker(*arguments)
        assert completed.returncode == 0, completed
        return name

    def exec(self, name: str, script: str) -> Done:
        return self.docker("exec", name, "/bin/sh", "-c", script)

    def restart(self, name: str) -> Done:
        return self.docker("restart", "--time=0", name)

    def remove(self, name: str) -> None:
        completed = self.docker("rm", "--force", "--volumes", name)
        assert completed.returncode == 0, completed


class Containerd(Engine):
    """containerd with the shim in place of runc."""

    def _start(self) -> None:
        self.box.write(
            "/etc/containerd/config.toml",
            "version = 2\n"
            'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images",'
            ' "io.containerd.cri.v1.runtime"]\n'
            '[plugins."io.containerd.internal.v1.opt"]\npath = "/var/lib/containerd/opt"\n',
        )
        self.box.start(["containerd"], "containerd.log")
        self.box.until(self._answers, "containerd.log")
        for name in ("plain", "taken"):
            completed = self.ctr("image", "import", f"{self.box.work}/{name}.tar")
            assert completed.returncode == 0, completed

    def _answers(self) -> bool:
        return self.box.accepts(cri.SOCKET) and self.ctr("version").returncode == 0

    def ctr(self, *arguments: str) -> Done:
        """Run containerd's command line."""
        return self.box.call("ctr", "--namespace=test", *arguments)

    def _words(self, want: Want, name: str, script: str) -> list[str]:
        arguments = [f"--runc-binary={SHIM}", f"--cgroup=/{self.box.cgroup}/{name}"]
        arguments += [f"--env={entry}" for entry in want.env]
        arguments += [
            f"--mount=type=bind,src={source},dst={target},options=rbind:rw"
            for source, target in want.volumes.items()
        ]
        arguments += ["--read-only"] if want.read_only else []
        image = f"docker.io/library/{want.image}"
        return [*arguments, *want.flags, image, name, "/bin/sh", "-c", script]

    def run(self, script: str, want: Want = Want()) -> Done:
        """Run a container to its end; what it writes to stderr is in the output, too.

        The shim writes the output to a file: ctr gives up a pipe that it has not opened yet when
        the container ends, and would print nothing on a busy machine.
        """
        name = self.name()
        log = f"/run/{name}.log"
        words = self._words(want, name, script)
        done = self.ctr("run", "--rm", f"--log-uri=file://{log}", *words)
        if (self.box.root / log.lstrip("/")).exists():
            done.stdout += self.box.read(log)
        return done

    def keep(self, want: Want = Want()) -> str:
        name = self.name()
        completed = self.ctr("run", "--detach", *self._words(want, name, SLEEP))
        assert completed.returncode == 0, completed
        return name

    def exec(self, name: str, script: str) -> Done:
        return self.ctr("task", "exec", f"--exec-id={self.name()}", name, "/bin/sh", "-c", script)

    def restart(self, name: str) -> Done:
        self._end(name)
        return self.ctr("task", "start", "--detach", name)

    def remove(self, name: str) -> None:
        self._end(name)
        completed = self.ctr("container", "rm", name)
        assert completed.returncode == 0, completed

    def _end(self, name: str) -> None:
        self.ctr("task", "kill", "--signal=SIGKILL", name)
        self.box.until(lambda: self.ctr("task", "rm", name).returncode == 0, "containerd.log")
