# SPDX-License-Identifier: Apache-2.0
"""`nvct explain CONTAINER` beside real engines: who asked for what, what went in and was left out."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines import configured
from tests.engines.box import PROGRAMS, Box
from tests.engines.cri import Pod
from tests.engines.daemons import IMAGE, Containerd, Daemon, Docker, Podman
from tests.engines.releases import of_release
from tests.engines.waiting_container import of_cri, of_docker, of_podman

pytestmark = pytest.mark.slow
TRIXIE = pytest.mark.parametrize("release", [of_release("trixie")])
UTILITY = "NVIDIA_DRIVER_CAPABILITIES=utility"
ASKS = ("--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=2", f"--env={UTILITY}")


def explained(daemon: Daemon, word: str) -> dict[str, Any]:
    """Return what `nvct explain` says about a container; also as a text, which must not fail."""
    text = daemon.box.call(f"{PROGRAMS}/nvct", "explain", word)
    assert text.returncode == 0, text
    done = daemon.box.call(f"{PROGRAMS}/nvct", "explain", word, "--format=json")
    (container,) = json.loads(done.stdout)
    assert isinstance(container, dict)
    print(text.stdout, text.stderr)
    return container


def is_explained(container: dict[str, Any], by: str) -> None:
    creation = container["creation"]
    assert {"text": "NVIDIA_VISIBLE_DEVICES asks for 2", "by": by} in creation["asked"]
    assert {"text": UTILITY, "by": by} in creation["asked"]
    assert "driver capabilities utility" in creation["resolved"]
    assert "/dev/nvidia2" in creation["went in"][1].split()
    assert "compute" in [part["capability"] for part in creation["left out"]]
    assert creation["policy"] == ["no rules"]
    assert creation["took"].endswith(" ms")
    assert creation["unknown"] == []
    assert [use["gpu"] for use in container["uses"]] == [2]


def forget(daemon: Daemon) -> None:
    """Remove the records, as a ring does that is full."""
    daemon.box.call("sh", "-c", "rm -f /run/nvct/decisions*")


@TRIXIE
def test_docker(machine_of: Callable[[str], Box], release: str) -> None:
    docker = configured.started(lambda: Docker(machine_of(release)))
    docker.configure()
    with of_docker(docker, *ASKS):
        container = explained(docker, "mine")
        forget(docker)
        creation = explained(docker, "mine")["creation"]
    is_explained(container, "the user")
    assert (container["creation"]["engine"], container["creation"]["image"]) == ("Docker", IMAGE)
    assert {"text": "NVIDIA_VISIBLE_DEVICES=2", "by": "the user"} in creation["asked"]
    assert creation["left out"] == []
    assert len(creation["unknown"]) == 1
    docker.stop()


@TRIXIE
def test_podman(machine_of: Callable[[str], Box], release: str) -> None:
    podman = configured.started(lambda: Podman(machine_of(release)))
    podman.configure()
    with of_podman(podman, *ASKS):
        container = explained(podman, "mine")
        forget(podman)
        creation = explained(podman, "mine")["creation"]
    is_explained(container, "the user")
    assert (container["creation"]["engine"], container["creation"]["image"]) == ("Podman", IMAGE)
    assert {"text": "NVIDIA_VISIBLE_DEVICES=2", "by": "the user"} in creation["asked"]


@TRIXIE
def test_containerd(machine_of: Callable[[str], Box], release: str) -> None:
    containerd = configured.started(lambda: Containerd(machine_of(release), 2))
    containerd.configure()
    containerd.restart()
    env = {"NVIDIA_VISIBLE_DEVICES": "2", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    pod = Pod(handler="nvidia", env=env)

    def rows() -> list[dict[str, Any]]:
        done = containerd.box.call(f"{PROGRAMS}/nvct", "ps", "--format=json")
        return list(json.loads(done.stdout))

    with of_cri(containerd, pod):
        containerd.box.until(lambda: len(rows()) == 1, "containerd.log")
        name = str(rows()[0]["container"])
        container = explained(containerd, name)
        forget(containerd)
        creation = explained(containerd, name)["creation"]
    is_explained(container, "")
    assert container["creation"]["engine"] == "containerd"
    assert creation["went in"][0].startswith("its config.json has /dev/nvidia")
    assert len(creation["unknown"]) == 2
    containerd.stop()


@TRIXIE
def test_docker_s_own_flags(machine_of: Callable[[str], Box], release: str) -> None:
    docker = configured.started(lambda: Docker(machine_of(release)))
    docker.configure("--enable-cdi")
    docker.restart()
    for flag in ("--gpus=device=2", "--device=nvidia.com/gpu=2"):
        with of_docker(docker, flag):
            container = explained(docker, "mine")
        asked = container["creation"]["asked"]
        assert {"text": flag.replace("=", " ", 1), "by": "the user"} in asked
        assert [use["gpu"] for use in container["uses"]] == [2]
    docker.stop()
