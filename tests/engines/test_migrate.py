# SPDX-License-Identifier: Apache-2.0
"""A Docker host that NVIDIA's own programs set up moves to nvct and back, with running containers.

NVCT_PEER names the folder of NVIDIA's programs, built from public sources; without it, skipped.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines import configured, docker_run, releases
from tests.engines.box import PROGRAMS, Box
from tests.engines.checks import UUID
from tests.engines.daemons import SPEC, Docker, Done

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("NVCT_PEER" not in os.environ, reason="NVCT_PEER names no folder"),
]
PEER = Path(os.environ.get("NVCT_PEER", "/nonexistent"))
FOLDER = "/usr/local/bin"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNIT = "/etc/systemd/system/nvidia-cdi-refresh.service"
LINK = "/etc/systemd/system/multi-user.target.wants/nvidia-cdi-refresh.service"
HOOK = "/etc/containers/oci/hooks.d/oci-nvidia-hook.json"
SHIM = "nvidia-container-runtime"
SLEEP = "trap exit TERM; while :; do sleep 0.1; done"
FOLDERS = ("etc/docker", "etc/cdi", "etc/systemd/system", "etc/containers", "var/run/cdi",
           "etc/nvidia-container-runtime", "usr/local/bin")  # fmt: skip


class Host(Docker):
    """dockerd as NVIDIA's toolkit set it up; its programs are in /usr/local/bin."""

    def _write_config(self) -> None:
        super()._write_config()
        if self.box.call("mountpoint", "-q", FOLDER).returncode:
            assert self.box.call("mount", "-t", "tmpfs", "peer", FOLDER).returncode == 0
        self.install_peer()
        self.peer("runtime", "configure", "--runtime=docker", "--set-as-default", "--cdi.enabled")
        self.peer("cdi", "generate", f"--output={SPEC}", f"--nvidia-cdi-hook-path={FOLDER}/nvidia-cdi-hook")
        self.box.write(UNIT, "[Service]\nExecStart=/usr/bin/nvidia-ctk cdi generate\n")
        self.box.call("mkdir", "-p", os.path.dirname(LINK))
        self.box.call("ln", "-sfn", UNIT, LINK)
        self.box.write(HOOK, f'{{"version": "1.0.0",\n "hook": {{"path": "{FOLDER}/{SHIM}-hook"}}}}\n')

    def _command(self) -> list[str]:
        return ["env", f"PATH={PATH}", "/usr/sbin/dockerd"]

    def install_peer(self) -> None:
        assert self.box.call("sh", "-c", f"cp {PEER}/nvidia-c* {FOLDER}").returncode == 0

    def peer(self, *words: str) -> None:
        completed = self.box.call(f"{FOLDER}/nvidia-ctk", *words, env={"PATH": PATH})
        assert completed.returncode == 0, completed

    def migrate(self, word: str, *words: str) -> Done:
        return self.box.call("nvct", "migrate", word, *words)

    def begin(self, name: str) -> None:
        """Start a container with a GPU that lasts."""
        completed = self.docker(
            "run", "--detach", f"--name={name}", "--network=none", "--runtime=nvidia",
            f"--env={configured.ONE}", "plain:test", "/bin/sh", "-c", SLEEP,
        )  # fmt: skip
        assert completed.returncode == 0, completed

    def ends(self, name: str) -> None:
        """Assert that a container can be entered, stopped and removed, and has its GPU."""
        entered = self.docker("exec", name, "nvidia-smi", "-L")
        assert len(UUID.findall(entered.stdout)) == 1, entered
        for words in (["stop", "--time=5", name], ["rm", name]):
            completed = self.docker(*words)
            assert completed.returncode == 0, completed

    def files(self) -> dict[str, bytes | str]:
        """Return all files that a move may change."""
        found: dict[str, bytes | str] = {}
        for folder in FOLDERS:
            for path in sorted((self.box.root / folder).rglob("*")):
                name = str(path.relative_to(self.box.root))
                if path.is_symlink():
                    found[name] = os.readlink(path)
                elif path.is_file():
                    found[name] = path.read_bytes()
        return found


@pytest.fixture(scope="module", params=releases.ALL)
def host(request: pytest.FixtureRequest, machine_of: Callable[[str], Box]) -> Iterator[Host]:
    daemon = configured.started(lambda: Host(machine_of(request.param)))
    yield daemon
    daemon.stop()


def test_x(host: Host) -> None:
    host.begin("old")
    before = host.files()
    pass
    print(host.box.call("sh", "-c", "for f in /run/containerd/io.containerd.runtime.v2.task/*/*/* /run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*/*; do echo $f; done; cat /run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*/runtime; cat /run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*/options.json").stdout)
    for word in ("plan", "apply"):
        done = host.migrate(word)
        print(done.returncode, done.stdout, done.stderr)
    assert done.returncode == 0
    print(host.box.read("/etc/docker/daemon.json"))
    host.begin("new")
    host.box.call("sh", "-c", f"rm {FOLDER}/nvidia-*")
    done = host.migrate("apply")
    print(done.returncode, done.stdout, done.stderr)
    host.ends("old")
    done = host.migrate("back")
    print(done.returncode, done.stdout, done.stderr)
    host.install_peer()
    assert host.files() == before
    host.ends("new")
