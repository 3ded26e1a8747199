# SPDX-License-Identifier: Apache-2.0
"""Hosts that NVIDIA's own programs set up move to nvct and back, with containers that run on.

NVCT_PEER names the folder of NVIDIA's programs, built from public sources; without it, all is
skipped. Recorded files of theirs are in tests/unit/cli/incumbent.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines import configured, crio_program, releases
from tests.engines.box import PROGRAMS, Box
from tests.engines.checks import UUID
from tests.engines.cri import Pod
from tests.engines.daemons import SPEC, Containerd, Crio, Daemon, Docker, Done

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("NVCT_PEER" not in os.environ, reason="NVCT_PEER names no folder"),
]
PEER = Path(os.environ.get("NVCT_PEER", "/nonexistent"))
RECORDED = Path(__file__).parents[1] / "unit/cli/incumbent"
FOLDER = "/usr/local/bin"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNIT = "/etc/systemd/system/nvidia-cdi-refresh.service"
LINK = "/etc/systemd/system/multi-user.target.wants/nvidia-cdi-refresh.service"
HOOK = "/etc/containers/oci/hooks.d/oci-nvidia-hook.json"
SHIM = f"{FOLDER}/nvidia-container-runtime"
CRIO = "crio"
SLEEP = "trap exit TERM; while :; do sleep 0.1; done"
FOLDERS = (
    "etc/docker", "etc/containerd", "etc/crio", "etc/cdi", "etc/systemd/system", "etc/containers",
    "var/run/cdi", "etc/nvidia-container-runtime", "usr/local/bin",
)  # fmt: skip


class Host:
    """A machine with NVIDIA's programs in /usr/local/bin, and one engine that knows them."""

    def __init__(self, daemon: Daemon, *flags: str) -> None:
        self.daemon = daemon
        self.box = daemon.box
        if self.box.call("mountpoint", "-q", FOLDER).returncode:
            assert self.box.call("mount", "-t", "tmpfs", "peer", FOLDER).returncode == 0
        self.install_peer()
        self.peer("runtime", "configure", f"--runtime={daemon.engine}", "--cdi.enabled", *flags)
        hook = f"--nvidia-cdi-hook-path={FOLDER}/nvidia-cdi-hook"
        self.peer("cdi", "generate", f"--output={SPEC}", hook)
        self.box.write(UNIT, "[Service]\nExecStart=/usr/bin/nvidia-ctk cdi generate\n")
        self.box.call("mkdir", "-p", os.path.dirname(LINK))
        self.box.call("ln", "-sfn", UNIT, LINK)
        self.box.write(HOOK, f'{{"hook": {{"path": "{SHIM}-hook"}}, "version": "1.0.0"}}\n')

    def install_peer(self) -> None:
        assert self.box.call("sh", "-c", f"cp {PEER}/nvidia-c* {FOLDER}").returncode == 0

    def remove_peer(self) -> None:
        assert self.box.call("sh", "-c", f"rm {FOLDER}/nvidia-c*").returncode == 0

    def peer(self, *words: str) -> None:
        completed = self.box.call(f"{FOLDER}/nvidia-ctk", *words, env={"PATH": PATH})
        assert completed.returncode == 0, completed

    def migrate(self, word: str) -> Done:
        completed = self.box.call("nvct", "migrate", word)
        assert completed.returncode == 0, completed
        return completed

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


class PeersDocker(Docker):
    """dockerd that finds NVIDIA's runtime on its PATH, where nvct's is not."""

    def _command(self) -> list[str]:
        return ["env", f"PATH={PATH}", "/usr/sbin/dockerd"]

    def begin(self, name: str) -> None:
        """Start a container with a GPU that lasts."""
        completed = self.docker(
            "run", "--detach", f"--name={name}", "--network=none", "--runtime=nvidia",
            f"--env={configured.ONE}", "plain:test", "/bin/sh", "-c", SLEEP,
        )  # fmt: skip
        assert completed.returncode == 0, completed

    def ends(self, name: str) -> None:
        """Assert that a container has its GPU, can be entered, stopped, started and removed."""
        entered = self.docker("exec", name, "nvidia-smi", "-L")
        assert len(UUID.findall(entered.stdout)) == 1, entered
        stop = ["stop", "--time=5", name]
        for words in (stop, ["start", name], stop, ["rm", name]):
            completed = self.docker(*words)
            assert completed.returncode == 0, completed


class PeersContainerd(Containerd):
    """containerd, whose runtime of NVIDIA's finds runc."""

    def _command(self) -> list[str]:
        return ["env", f"PATH={PATH}", "/usr/bin/containerd"]


class PeersCrio(Crio):
    """CRI-O, whose runtime of NVIDIA's finds runc."""

    def _command(self) -> list[str]:
        return ["env", f"PATH={PATH}:{crio_program.folder()}", "crio"]


def _ready(daemon: Daemon, *flags: str) -> Host:
    configured.cleaned(daemon)
    host = Host(daemon, *flags)
    daemon.restart()
    return host


@pytest.fixture(scope="module", params=["trixie", *(["forky"] if releases.FULL else [])])
def docker(request: pytest.FixtureRequest, machine_of: Callable[[str], Box]) -> Iterator[Daemon]:
    daemon = configured.started(lambda: PeersDocker(machine_of(request.param)))
    yield daemon
    daemon.stop()


@pytest.fixture(
    scope="module",
    params=[("trixie", "2"), *([("forky", "3"), ("trixie", CRIO)] if releases.FULL else [])],
    ids="-".join,
)
def engine_of_pods(
    request: pytest.FixtureRequest, machine_of: Callable[[str], Box]
) -> Iterator[Containerd | Crio]:
    release, version = request.param

    def make() -> Containerd | Crio:
        box = machine_of(release)
        return PeersCrio(box) if version == CRIO else PeersContainerd(box, int(version))

    daemon = configured.started(make)
    yield daemon
    daemon.stop()


def test_docker_moves_and_back_and_containers_of_either_can_be_stopped(
    docker: PeersDocker,
) -> None:
    host = _ready(docker, "--set-as-default")
    docker.begin("old")
    before = host.files()

    plan = host.migrate("plan").stdout

    assert host.files() == before, "plan changed files"
    for path in ("/etc/docker/daemon.json", SPEC, UNIT, LINK, HOOK):
        assert f"\n{path} " in f"\n{plan}"
    said = host.migrate("apply").stderr
    assert "is needed to stop 1 container: apply again once NVIDIA's packages" in said
    docker.begin("new")
    host.remove_peer()
    host.migrate("apply")
    docker.ends("old")

    said = host.migrate("back").stderr

    assert "is needed to stop 1 container: keep nvct until they have ended" in said
    assert "until it is restarted" not in said, "dockerd has the former runtime"
    host.install_peer()
    assert host.files() == before
    docker.begin("again")
    docker.ends("again")
    docker.ends("new")


def test_containers_outlive_the_change_of_packages_in_both_directions(docker: PeersDocker) -> None:
    """nvct's packages have the programs of NVIDIA's packages, at the same paths."""
    host = _ready(docker)
    docker.begin("old")
    host.remove_peer()
    ours = f"cp -P {PROGRAMS}/nvidia-c* {FOLDER}"
    assert docker.box.call("sh", "-c", ours).returncode == 0

    docker.ends("old")

    docker.begin("new")
    host.remove_peer()
    host.install_peer()
    docker.ends("new")


def test_an_engine_of_pods_moves_and_back(engine_of_pods: Containerd | Crio) -> None:
    daemon = engine_of_pods
    host = _ready(daemon, "--set-as-default", f"--nvidia-runtime-path={SHIM}")
    pod = Pod(env={"NVIDIA_VISIBLE_DEVICES": "0"})
    configured.has_one_gpu(daemon.pod("nvidia-smi -L", pod))
    before = host.files()

    host.migrate("apply")

    daemon.restart()
    host.remove_peer()
    configured.has_one_gpu(daemon.pod("nvidia-smi -L", pod))
    host.migrate("back")
    host.install_peer()
    assert host.files() == before
    daemon.restart()
    configured.has_one_gpu(daemon.pod("nvidia-smi -L", pod))


def test_the_recorded_files_are_what_the_programs_write(tmp_path: Path) -> None:
    ctk = str(PEER / "nvidia-ctk")
    config = tmp_path / "containerd.toml"
    recorded = (RECORDED / "containerd.toml").read_text(encoding="utf-8")
    config.write_text("\n".join(recorded.splitlines()[1:]), encoding="utf-8")
    drop_in = tmp_path / "conf.d/99-nvidia.toml"
    calls = {
        "daemon.json": ["--runtime=docker", f"--config={tmp_path}/daemon.json"],
        "containerd-99-nvidia.toml": ["--runtime=containerd", f"--config={config}",
                                      f"--drop-in-config={drop_in}"],
    }  # fmt: skip
    for name, flags in calls.items():
        words = ["runtime", "configure", "--set-as-default", "--cdi.enabled", *flags]
        subprocess.run([ctk, *words], check=True, capture_output=True)
        path = drop_in if name.startswith("containerd") else tmp_path / name
        assert path.read_bytes() == (RECORDED / name).read_bytes()
    default = subprocess.run([ctk, "config", "default"], check=True, capture_output=True).stdout
    assert default == (RECORDED / "config.toml").read_bytes()
