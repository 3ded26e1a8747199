# SPDX-License-Identifier: Apache-2.0
"""`nvct runtime explain` beside a real dockerd that cannot do --gpus, and then can."""

import json
from collections.abc import Callable, Iterator

import pytest

from nvct.paths import DEFAULT_PATH_DIRS
from tests.engines import configured, releases
from tests.engines.box import PROGRAMS, Box
from tests.engines.daemons import Docker

pytestmark = pytest.mark.slow
HOOK = "nvidia-container-runtime-hook"
MESSAGE = 'could not select device driver "" with capabilities: [[gpu]]'
FOLDER = "/run/hooks"
USUAL = ":".join(DEFAULT_PATH_DIRS)


class Lean(Docker):
    """dockerd as a service manager starts it, with none of our programs on its PATH."""

    explained = ""

    def _command(self) -> list[str]:
        return ["/usr/bin/env", f"PATH={FOLDER}:{USUAL}", "/usr/sbin/dockerd"]

    def cause(self, path: str = USUAL) -> str:
        """Return what explain says to a user with this PATH, by its exit status too."""
        arguments = ("runtime", "explain", "--format=json")
        completed = self.box.call(f"{PROGRAMS}/nvct", *arguments, env={"PATH": path})
        self.explained = completed.stdout
        cause = json.loads(completed.stdout)["cause"]
        assert isinstance(cause, str)
        assert completed.returncode == (1 if cause else 0), completed
        return cause

    def status(self) -> str:
        """Return what `nvct status` says of Docker."""
        said = self.box.call(f"{PROGRAMS}/nvct", "status", "--format=json").stdout
        return next(str(part["health"]) for part in json.loads(said) if part["name"] == "docker")


@pytest.fixture(scope="module", params=releases.ALL)
def docker(request: pytest.FixtureRequest, machine_of: Callable[[str], Box]) -> Iterator[Lean]:
    daemon = configured.started(lambda: Lean(machine_of(request.param)))
    yield daemon
    daemon.stop()


def test_the_cause_is_named_until_there_is_none(docker: Lean) -> None:
    failed = docker.run("nvidia-smi -L", "--gpus=device=0")
    assert MESSAGE in failed.stderr, failed
    assert docker.cause() == "not-installed"
    assert docker.cause(f"{PROGRAMS}:{USUAL}") == "not-on-path"
    docker.box.call("mkdir", "-p", FOLDER)
    # No link: tests beside this one may touch the program, which would then be newer than dockerd.
    docker.box.call("cp", f"{PROGRAMS}/{HOOK}", f"{FOLDER}/{HOOK}")
    failed = docker.run("nvidia-smi -L", "--gpus=device=0")
    assert MESSAGE in failed.stderr, failed
    assert docker.cause() == "not-restarted"
    assert docker.status() == "attention"
    said = docker.box.call(f"{PROGRAMS}/nvct", "runtime", "configure", "--runtime=docker").stderr
    assert "dockerd looks for it only when it starts" in said, said
    docker.restart()
    configured.has_one_gpu(docker.run("nvidia-smi -L", "--gpus=device=0"))
    assert docker.cause() == "", docker.explained
    assert docker.status() == "ok"
