# SPDX-License-Identifier: Apache-2.0
"""Pods and containers on a simulated node read its /proc and /sys where engines have its runc."""

from collections.abc import Callable, Iterator

import pytest

from nvct.paths import DEFAULT_PATH_DIRS
from nvct_sim import run_folder
from tests.engines import configured
from tests.engines.box import Box
from tests.engines.cri import Pod
from tests.engines.daemons import Containerd, Docker, Podman
from tests.engines.releases import in_full, of_release

pytestmark = pytest.mark.slow
RUNC = f"{run_folder.PROGRAMS}/runc"
OPTION = "SystemdCgroup = false"
CASES = [
    of_release("trixie", ("trixie", 2), name="trixie-version2"),
    *in_full("bookworm", ("bookworm", 2), name="bookworm-version2"),
    *in_full("forky", ("forky", 3), name="forky-version3"),
]
LOOK = """
grep -o -E '(nvidia|nvidiactl|nvidia-uvm|nvidia-caps)$' /proc/devices
grep -o 580.159.04 /proc/driver/nvidia/version /sys/module/nvidia/version
ls /proc/driver/nvidia/gpus /sys/bus/pci/devices | grep -c 0000:18:00.0
"""
SEEN = [
    "nvidia", "nvidiactl", "nvidia-caps", "nvidia-uvm", "/proc/driver/nvidia/version:580.159.04",
    "/sys/module/nvidia/version:580.159.04", "2",
]  # fmt: skip


@pytest.fixture(params=CASES)  # for each test: a dockerd would use one that runs
def containerd(
    request: pytest.FixtureRequest, machine_of: Callable[[str], Box]
) -> Iterator[Containerd]:
    """containerd whose default runtime is the simulated node's runc."""
    release, version = request.param
    daemon = configured.started(lambda: Containerd(machine_of(release), version))
    path = "/etc/containerd/config.toml"
    text = daemon.box.read(path)
    assert OPTION in text
    daemon.box.write(path, text.replace(OPTION, f'{OPTION}\nBinaryName = "{RUNC}"'))
    daemon.restart()
    yield daemon
    daemon.stop()


@pytest.mark.parametrize("privileged", [False, True])
def test_a_pod_reads_the_node_s_driver(containerd: Containerd, *, privileged: bool) -> None:
    completed = containerd.pod(LOOK, Pod(privileged=privileged))

    assert completed.returncode == 0, completed
    assert completed.stdout.splitlines() == SEEN


def test_a_pod_with_a_gpu_reads_it_as_well(containerd: Containerd) -> None:
    shim = "/etc/nvidia-container-runtime/config.toml"
    text = containerd.box.read(shim)
    containerd.configure()
    containerd.box.write(shim, f'{text}[nvidia-container-runtime]\nruntimes = ["{RUNC}"]\n')
    containerd.restart()

    completed = containerd.pod(
        f"nvidia-smi -L; {LOOK}", Pod(handler="nvidia", env={"NVIDIA_VISIBLE_DEVICES": "0"})
    )

    assert completed.returncode == 0, completed
    first, *remaining = completed.stdout.splitlines()
    assert first.startswith("GPU 0: NVIDIA H100")
    assert remaining == SEEN


class DockerOfPath(Docker):
    """dockerd as `nvct sim exec` starts it: the node's runc comes first in PATH."""

    def _command(self) -> list[str]:
        path = f"{run_folder.PROGRAMS}:{':'.join(DEFAULT_PATH_DIRS)}"
        return ["/usr/bin/env", f"PATH={path}", *super()._command()]


@pytest.mark.parametrize("release", [of_release("trixie", "trixie", name="trixie")])
def test_docker_finds_the_node_s_runc(release: str, machine_of: Callable[[str], Box]) -> None:
    docker = configured.started(lambda: DockerOfPath(machine_of(release)))
    try:
        for flags in ([], ["--privileged"]):
            completed = docker.run(LOOK, *flags)
            assert completed.returncode == 0, completed
            assert completed.stdout.splitlines() == SEEN
    finally:
        docker.stop()


@pytest.mark.parametrize("release", [of_release("trixie", "trixie", name="trixie")])
def test_podman_is_told_of_the_node_s_runc(release: str, machine_of: Callable[[str], Box]) -> None:
    podman = configured.started(lambda: Podman(machine_of(release)))

    completed = podman.podman("--runtime", RUNC, *podman.words(LOOK))

    assert completed.returncode == 0, completed
    assert completed.stdout.splitlines() == SEEN
