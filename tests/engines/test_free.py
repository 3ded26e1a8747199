# SPDX-License-Identifier: Apache-2.0
"""Containers of Docker and Podman that ask for any free GPU."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.engines import configured
from tests.engines.box import Box
from tests.engines.daemons import IMAGE, Daemon, Docker, Done, Podman
from tests.engines.releases import of_release

pytestmark = pytest.mark.slow
TRIXIE = pytest.mark.parametrize("release", [of_release("trixie")])
FREE = ("--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=free:1")
SHOW = ("/bin/sh", "-c", "nvidia-smi -L; exec sleep 98765")


def users(daemon: Daemon) -> dict[str, list[str]]:
    """Return who uses each GPU, as `nvct ps --free` tells."""
    done = daemon.box.call("nvct", "ps", "--free", "--format=json")
    assert done.returncode == 0, done
    return {one["uuid"]: one["users"] for one in json.loads(done.stdout)}


def used(daemon: Daemon) -> dict[str, list[str]]:
    return {uuid: names for uuid, names in users(daemon).items() if names}


@pytest.fixture
def docker(machine_of: Callable[[str], Box], release: str) -> Iterator[Docker]:
    docker = configured.started(lambda: Docker(machine_of(release)))
    docker.configure()
    text = json.loads(docker.box.read("/etc/docker/daemon.json"))
    docker.box.write("/etc/docker/daemon.json", json.dumps({**text, "live-restore": True}))
    docker.restart()
    yield docker
    docker.docker("rm", "--force", *docker.docker("ps", "--all", "--quiet").stdout.split())
    docker.stop()


@TRIXIE
def test_docker(docker: Docker) -> None:
    def start(name: str, *options: str) -> Done:
        return docker.docker(
            "run", "--detach", "--network=none", f"--name={name}", *options, IMAGE, *SHOW
        )

    count = len(users(docker))
    assert start("named", "--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=0").returncode == 0
    with ThreadPoolExecutor(count) as pool:  # one that is being made has the host's root at first
        bare = pool.submit(docker.run, "true", "--runtime=nvidia")
        begun = [pool.submit(start, f"free-{number}", *FREE) for number in range(count - 1)]
    assert bare.result().returncode == 0, bare.result()
    assert [one.result() for one in begun if one.result().returncode] == []
    names = sorted(name for names in users(docker).values() for name in names)
    assert names == sorted(
        f"container {name}" for name in ("named", *(f"free-{n}" for n in range(count - 1)))
    )

    full = start("refused", *FREE)
    assert full.returncode != 0
    assert f"but none of {count} are free; " in full.stderr, full
    before = users(docker)

    assert docker.docker("pause", "free-0").returncode == 0
    docker.restart()  # live-restore: containers go on
    assert users(docker) == before
    assert docker.docker("unpause", "free-0").returncode == 0

    assert docker.docker("kill", "free-1").returncode == 0
    (gone,) = before.keys() - used(docker).keys()
    assert before[gone] == ["container free-1"]
    assert docker.docker("start", "free-1").returncode == 0
    assert users(docker) == before
    assert docker.docker("restart", "--time=0", "free-2").returncode == 0
    assert users(docker) == before
    assert docker.docker("rm", "--force", "free-3").returncode == 0
    hook = docker.run("nvidia-smi -L", "--runtime=runc", "--gpus", '"device=free:1"')
    assert hook.stdout.count("UUID: GPU-") == 1, hook
    assert docker.docker("exec", "free-2", "nvidia-smi", "-L").stdout.count("UUID: GPU-") == 1

    admin = ("--volume=/:/host", "--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=0", IMAGE)
    run = ("run", "--detach", "--network=none", "--name=admin", *admin)
    assert docker.docker(*run, "chroot", "/host", "sleep", "98765").returncode == 0
    assert all("container admin" in names for names in users(docker).values())


@TRIXIE
def test_podman(machine_of: Callable[[str], Box], release: str) -> None:
    podman = configured.started(lambda: Podman(machine_of(release)))
    podman.configure()
    group = f"--cgroup-parent=/{podman.box.cgroup}"
    run = ("run", "--detach", "--network=none", group)
    for name in ("one", "two"):
        done = podman.podman(*run, f"--name={name}", *FREE, IMAGE, *SHOW)
        assert done.returncode == 0, done
    assert sorted(used(podman).values()) == [["container one"], ["container two"]]
    assert podman.podman("rm", "--force", "--time=0", "one").returncode == 0
    assert list(used(podman).values()) == [["container two"]]
    assert podman.podman("rm", "--force", "--time=0", "two").returncode == 0
    assert used(podman) == {}
