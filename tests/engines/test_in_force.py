# SPDX-License-Identifier: Apache-2.0
"""`nvct runtime status` and `explain` beside running engines whose files changed."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engines import configured, releases
from tests.engines.box import Box
from tests.engines.daemons import Containerd, Daemon, Docker

pytestmark = pytest.mark.slow
RELEASES = [*releases.in_full("trixie"), releases.of_release("forky")]


@pytest.fixture(scope="module", params=RELEASES)
def docker(request: pytest.FixtureRequest, machine_of: Callable[[str], Box]) -> Iterator[Docker]:
    daemon = configured.started(lambda: Docker(machine_of(request.param)))
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module", params=RELEASES)
def containerd(
    request: pytest.FixtureRequest, machine_of: Callable[[str], Box]
) -> Iterator[Containerd]:
    daemon = configured.started(lambda: Containerd(machine_of(request.param), 2))
    yield daemon
    daemon.stop()


def _status(daemon: Daemon) -> dict[str, Any]:
    completed = daemon.nvct("status", "--format=json")
    document: list[dict[str, Any]] = json.loads(completed.stdout)
    # dockerd may have a containerd of its own, with other files.
    return next(
        one
        for one in document
        if one["engine"] == daemon.engine and one["pid"] and daemon.folder in one["config"]
    )


def _cause(daemon: Daemon) -> str:
    completed = daemon.nvct("explain", "--format=json")
    findings = {one["cause"]: one["holds"] for one in json.loads(completed.stdout)["findings"]}
    return "not-reloaded" if findings["not-reloaded"] else ""


def test_a_dockerd_that_was_not_reloaded_is_recognized(docker: Docker) -> None:
    docker.configure("--reload=none", "--set-as-default", "--cdi.enabled")

    engine_status = _status(docker)

    assert engine_status["running"]["by"] == "GET /info"
    assert "does not know nvidia" in engine_status["differences"][0]
    assert not engine_status["nvidiaIsDefault"]
    assert _cause(docker) == "not-reloaded"
    text = docker.nvct("status").stdout
    assert "problem:   the running docker does not know nvidia" in text
    docker.restart()
    assert _status(docker)["differences"] == []
    assert _cause(docker) == ""
    docker.undo()
    docker.restart()


def test_runtimes_are_in_force_at_once_and_cdi_after_a_restart(docker: Docker) -> None:
    completed = docker.configure("--cdi.enabled")

    assert "reads its file again" in completed.stderr
    assert docker.run("echo runs", "--runtime=nvidia").stdout == "runs\n"
    if docker.version() < (28, 2):
        assert "--reload=restart" in completed.stderr
        assert "CDI is off in the running docker" in _status(docker)["differences"][0]
        docker.restart()
    assert _status(docker)["differences"] == []
    docker.undo()
    docker.restart()


def test_a_containerd_that_was_not_restarted_is_recognized(containerd: Containerd) -> None:
    assert _status(containerd)["differences"] == []
    containerd.configure()

    (message,) = _status(containerd)["differences"]

    assert "changed after containerd started: it has not read that" in message
    containerd.restart()
    engine_status = _status(containerd)
    assert engine_status["differences"] == []
    assert engine_status["running"]["by"] == "its files"


def _told(docker: Docker) -> dict[str, str]:
    """Return what the doctor says of dockerd's runtimes: evidence, severity and remedy."""
    completed = docker.box.call("nvct", "doctor", "--only", "engines", "--json")
    (check,) = json.loads(completed.stdout)
    of_docker = [one for one in check["findings"] if one["evidence"].startswith("docker ")]
    found: dict[str, str] = next(iter(of_docker), {"reason": "", "severity": "ok"})
    return found


def test_what_is_said_of_an_engine_without_a_runtime_is_so(docker: Docker) -> None:
    found = _told(docker)

    assert found["reason"] == "EngineNotConfigured"
    assert "no NVIDIA runtime" in found["evidence"]
    by_cdi = "`--device nvidia.com/gpu=all` by CDI" in found["evidence"]
    assert (found["severity"] == "warning") is not (by_cdi or "`--gpus` by" in found["evidence"])
    assert docker.run("echo runs", "--runtime=nvidia").returncode != 0
    with_device = docker.run("echo runs", "--device=nvidia.com/gpu=all")
    assert (with_device.stdout == "runs\n") is by_cdi, with_device
    docker.configure()
    assert _told(docker)["severity"] == "ok"
    assert docker.run("echo runs", "--runtime=nvidia").stdout == "runs\n"
    docker.undo()
    docker.restart()
