# SPDX-License-Identifier: Apache-2.0
"""nerdctl: --device, --gpus and Compose; each goes by CDI names since 2.3."""

import subprocess
from collections.abc import Callable

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.callers import programs
from tests.callers.checks import SCRIPT, has_gpus, publish
from tests.engines import cri
from tests.engines.box import Box

pytestmark = pytest.mark.slow
IMAGE = "docker.io/library/plain:test"
COMPOSE = """\
services:
  asks:
    image: plain:test
    pull_policy: never
    network_mode: none
    command: ["/bin/sh", "/script"]
    volumes: ["/run/script:/script:ro"]
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: ["1"]
              capabilities: [gpu]
"""


class Nerdctl:
    """nerdctl, and containerd as a package configures it."""

    def __init__(self, box: Box) -> None:
        """Start containerd and load the image.

        Raises:
            ContainerNotPossibleError: nerdctl is not built, or containerd does not start here.
        """
        self.box = box
        self._program = programs.path_of(programs.NERDCTL)
        publish(box)
        box.call("rm", "-rf", "/etc/containerd")
        box.start(["containerd"], "containerd.log")
        box.until(lambda: box.accepts(cri.SOCKET), "containerd.log")
        loaded = self("load", "--input", f"{box.work}/plain.tar")
        assert loaded.returncode == 0, loaded

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of nerdctl."""
        return self.box.call(self._program, *words)

    def run(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run SCRIPT in a container with flags."""
        words = ("run", "--rm", "--network=none", "--pull=never", *flags)
        return self(*words, IMAGE, "/bin/sh", "-c", SCRIPT)


@pytest.fixture(scope="module")
def nerdctl(machine_of: Callable[[str], Box]) -> Nerdctl:
    try:
        return Nerdctl(machine_of("forky"))
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)


@pytest.mark.parametrize(
    ("flag", "count"),
    [
        ("--device=nvidia.com/gpu=0", 1),
        ("--gpus=all", 8),
        ('--gpus="device=0,3"', 2),
        ("--gpus=1", 1),
    ],
)
def test_a_container(flag: str, count: int, nerdctl: Nerdctl) -> None:
    has_gpus(nerdctl.run(flag), count)
    assert not nerdctl("ps", "--all", "--quiet").stdout


def test_a_container_that_asks_for_nothing(nerdctl: Nerdctl) -> None:
    assert nerdctl.run().stdout.splitlines()[0] == "0"


def test_compose(nerdctl: Nerdctl) -> None:
    nerdctl.box.write("/run/compose.yaml", COMPOSE)
    nerdctl.box.write("/run/script", SCRIPT)
    done = nerdctl("compose", "--file=/run/compose.yaml", "up")
    nerdctl("compose", "--file=/run/compose.yaml", "down")
    has_gpus(done)
    assert not nerdctl("ps", "--all", "--quiet").stdout
