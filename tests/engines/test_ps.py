# SPDX-License-Identifier: Apache-2.0
"""`nvct ps` beside real engines: which container has which GPU, and by which name."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines import configured
from tests.engines.box import PROGRAMS, Box
from tests.engines.cri import Pod
from tests.engines.daemons import Containerd, Daemon, Docker, Podman
from tests.engines.releases import of_release
from tests.engines.waiting_container import of_cri, of_docker, of_podman

pytestmark = pytest.mark.slow
TRIXIE = pytest.mark.parametrize("release", [of_release("trixie")])
ASKS = ("--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=2")
HANDLER = Pod(handler="nvidia", env={"NVIDIA_VISIBLE_DEVICES": "1,2"})


def uses(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the rows of `nvct ps`."""
    done = daemon.box.call(f"{PROGRAMS}/nvct", "ps", "--format=json")
    assert done.returncode == 0, done
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


@TRIXIE
def test_docker(machine_of: Callable[[str], Box], release: str) -> None:
    docker = configured.started(lambda: Docker(machine_of(release)))
    docker.configure()
    with of_docker(docker, *ASKS):
        assert [(row["gpu"], row["container"]) for row in uses(docker)] == [(2, "mine")]
    assert uses(docker) == []
    docker.stop()


@TRIXIE
def test_podman(machine_of: Callable[[str], Box], release: str) -> None:
    podman = configured.started(lambda: Podman(machine_of(release)))
    podman.configure()
    with of_podman(podman, *ASKS):
        assert [(row["gpu"], row["container"]) for row in uses(podman)] == [(2, "mine")]
    assert uses(podman) == []


@TRIXIE
def test_containers_of_the_cri_have_an_id_where_no_kubelet_names_them(
    machine_of: Callable[[str], Box], release: str
) -> None:
    containerd = configured.started(lambda: Containerd(machine_of(release), 2))
    containerd.configure()
    containerd.restart()
    with of_cri(containerd, HANDLER):
        containerd.box.until(lambda: len(uses(containerd)) == 2, "containerd.log")
        rows = uses(containerd)
    assert [row["gpu"] for row in rows] == [1, 2]
    (name,) = {row["container"] for row in rows}
    assert re.fullmatch("[0-9a-f]{12}", name)
    containerd.stop()
