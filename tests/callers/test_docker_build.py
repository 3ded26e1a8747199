# SPDX-License-Identifier: Apache-2.0
"""Docker's own build, by its daemon's BuildKit: `RUN --device`."""

from collections.abc import Callable

import pytest

from tests.callers.checks import SCRIPT, has_gpus, publish
from tests.engines import configured, docker_program
from tests.engines.box import Box
from tests.engines.daemons import Docker, Done

pytestmark = pytest.mark.slow
DOCKERFILE = f"FROM plain:test\nRUN --device=nvidia.com/gpu=0 {SCRIPT}\n"


class DockerToday(Docker):
    """dockerd and docker as built; containerd, runc and buildx are Debian's."""

    def __init__(self, box: Box) -> None:
        self._dockerd, self._client, _ = map(str, docker_program.built())
        super().__init__(box)

    def _command(self) -> list[str]:
        return [self._dockerd]

    def docker(self, *arguments: str) -> Done:
        return self.box.call(self._client, *arguments)

    def build(self, *flags: str) -> Done:
        """Build an image; a step of it needs a GPU."""
        self.box.write("/run/build/Dockerfile", DOCKERFILE)
        words = ("--network=none", "--no-cache", "--progress=plain", *flags)
        return self.docker("build", *words, "/run/build")


@pytest.fixture(scope="module")
def docker(machine_of: Callable[[str], Box]) -> DockerToday:
    def make() -> DockerToday:
        return DockerToday(machine_of("buildx"))

    return configured.started(make)


def test_a_build_needs_to_be_allowed_by_its_caller_or_by_the_host(docker: DockerToday) -> None:
    publish(docker.box, "--allow-builds=false")
    refused = docker.build()
    assert refused.returncode, refused
    assert "device nvidia.com/gpu=0 is requested by the build but not allowed" in refused.stderr
    has_gpus(docker.build("--allow=device"))
    publish(docker.box, "--allow-builds")
    has_gpus(docker.build())
