# SPDX-License-Identifier: Apache-2.0
"""A host as files: processes with their start, environment and file system, a docker, GPUs."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from nvct.doctor import docker as doctor
from nvct.doctor.model import Finding
from nvct.engine import docker, docker_host
from nvct.engine.docker_host import DockerHost
from nvct.engine.model import Files
from tests.support.host_tree import HostTree

BOOT = int(time.time()) - 100_000
HOUR = 3600.0
RUNTIME_HOOK = "nvidia-container-runtime-hook"
CDI_HOOK = "nvidia-cdi-hook"
SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
}


@dataclass
class DockerLab:
    """Builds the host; `version` is what dockerd says it is, `info` what it has in force."""

    base: Path
    version: str = "26.1.5"
    info: dict[str, object] | None = None
    environ: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/bin", "HOME": "/root"})

    def __post_init__(self) -> None:
        self.tree = HostTree(self.base / "host")
        self.proc = self.base / "proc"
        self.tree.write("etc/os-release", "ID=debian\n")
        self.write_proc("stat", f"cpu  1 2 3\nbtime {BOOT}\n")

    def write_proc(self, path: str, data: str) -> None:
        file = self.proc / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(data)

    def program(self, path: str, text: str = "\x7fELF") -> DockerLab:
        self.tree.write(path.lstrip("/"), text, mode=0o755)
        return self

    def gpu(self) -> DockerLab:
        self.tree.module().gpu(0)
        return self

    def dockerd(
        self,
        *args: str,
        age: float = -HOUR,
        pid: int = 812,
        exe: str = "/usr/bin/dockerd",
        uid: int = 0,
        env: dict[str, str] | None = None,
        root: Path | None = None,
    ) -> DockerLab:
        """Start a daemon so many seconds before now; below zero it comes after every file."""
        ticks = int((time.time() - age - BOOT) * os.sysconf("SC_CLK_TCK"))
        numbers = " ".join(["1"] * 18)
        self.write_proc(f"{pid}/stat", f"{pid} (a (b) c) S {numbers} {ticks} 0 0\n")
        self.write_proc(f"{pid}/cmdline", "\0".join((exe, *args)) + "\0")
        variables = {"PATH": "/usr/local/bin:/usr/bin"} if env is None else env
        self.write_proc(f"{pid}/environ", "".join(f"{k}={v}\0" for k, v in variables.items()))
        self.write_proc(f"{pid}/cgroup", "0::/system.slice/docker.service\n")
        self.write_proc(f"{pid}/status", f"Name:\tdockerd\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (self.proc / f"{pid}/exe").symlink_to(exe)
        (self.proc / f"{pid}/root").symlink_to(root or self.tree.base)
        return self

    def context(self, name: str, endpoint: str) -> DockerLab:
        """Choose a context of the user's docker."""
        self.tree.write("root/.docker/config.json", json.dumps({"currentContext": name}))
        folder = hashlib.sha256(name.encode()).hexdigest()
        meta = {"Name": name, "Endpoints": {"docker": {"Host": endpoint}}}
        self.tree.write(f"root/.docker/contexts/meta/{folder}/meta.json", json.dumps(meta))
        return self

    def spec(self, folder: str = "var/run/cdi") -> DockerLab:
        self.tree.write(f"{folder}/nvidia.json", json.dumps(SPEC))
        return self

    def ask(self, program: str, argv: list[str]) -> str:
        assert argv == ["dockerd", "--version"]
        assert program.startswith(str(self.proc))
        return f"Docker version {self.version}, build 411e817\n" if self.version else ""

    def look(self) -> DockerHost:
        files = Files(str(self.tree.base))
        return docker_host.look(
            files, self.tree.roots, self.environ, self.ask, str(self.proc), get=self.get
        )

    def get(self, socket: str, target: str) -> tuple[int, bytes]:
        """Answer as a dockerd that has read its file, unless `info` says otherwise."""
        assert target == "/info"
        assert socket.endswith(".sock")
        if self.info is not None:
            return 200, json.dumps(self.info).encode()
        config = self.tree.base / "etc/docker/daemon.json"
        try:
            document = json.loads(config.read_text())
        except (OSError, ValueError):
            document = {}
        numbers = tuple(map(int, self.version.split("."))) if self.version else ()
        on = docker.cdi_is_on(numbers, said=document.get("features", {}).get("cdi"))
        answer = {
            "Runtimes": document.get("runtimes", {}),
            "DefaultRuntime": document.get("default-runtime", "runc"),
            "CDISpecDirs": document.get("cdi-spec-dirs", ["/etc/cdi", "/var/run/cdi"])
            if on
            else [],
        }
        return 200, json.dumps(answer).encode()

    def findings(self) -> dict[str, Finding]:
        found = doctor.why_docker_cannot(self.look())
        return {doctor.CAUSES[finding.reason]: finding for finding in found}

    def cause(self) -> str:
        found = doctor.the_cause(list(self.findings().values()))
        return doctor.CAUSES[found.reason] if found else ""


def working(base: Path) -> DockerLab:
    """Return a host on which docker run --gpus works."""
    lab = DockerLab(base).gpu().program("/usr/bin/docker")
    return lab.program(f"/usr/bin/{RUNTIME_HOOK}").dockerd()
