# SPDX-License-Identifier: Apache-2.0
"""Docker 20.10, 26, 29 and, in full, 28 as `nvct runtime configure` and as undo leave them."""

from collections.abc import Callable, Iterator

import pytest

from tests.engines import configured, crash, releases
from tests.engines.box import Box
from tests.engines.checks import UUID
from tests.engines.daemons import Docker
from tests.engines.engines import CONFIG

pytestmark = pytest.mark.slow
FIRST_WITH_CDI = (25, 0)
DAEMON_JSON = "/etc/docker/daemon.json"


@pytest.fixture(scope="module", params=releases.ALL)
def docker(request: pytest.FixtureRequest, machine_of: Callable[[str], Box]) -> Iterator[Docker]:
    """dockerd that runs, with nothing of ours."""
    daemon = configured.started(lambda: Docker(machine_of(request.param)))
    yield daemon
    daemon.stop()


@pytest.fixture
def bare(docker: Docker) -> Docker:
    """The same, whatever another test left."""
    return configured.cleaned(docker)


def test_a_running_docker_gives_gpus_without_a_restart(bare: Docker) -> None:
    before = bare.run("nvidia-smi -L", "--runtime=nvidia")
    assert before.returncode == 125, before
    assert "unknown" in before.stderr.lower(), before
    bare.configure()
    for name, asks in configured.HANDLERS.items():
        completed = bare.run("nvidia-smi -L", f"--runtime={name}", f"--env={asks}")
        configured.has_one_gpu(completed)
    configured.has_no_gpu(bare.run(configured.NODES, "--runtime=nvidia"))
    own_runtime = bare.run("echo runs", "--runtime=mine")
    assert own_runtime.stdout == "runs\n", own_runtime


def test_a_restarted_docker_gives_gpus_in_every_way(bare: Docker) -> None:
    bare.configure("--set-as-default", "--cdi.enabled")
    bare.restart()
    configured.has_one_gpu(bare.run("nvidia-smi -L", f"--env={configured.ONE}"))
    configured.has_one_gpu(bare.run("nvidia-smi -L", "--gpus=device=0", "--runtime=runc"))
    configured.has_one_gpu(bare.run("nvidia-smi -L", "--gpus=device=0"))
    configured.has_no_gpu(bare.run(configured.NODES))
    completed = bare.run("nvidia-smi -L", f"--device={configured.DEVICE}", "--runtime=runc")
    if bare.version() >= FIRST_WITH_CDI:
        configured.has_one_gpu(completed)
    else:
        assert "not an absolute path" in completed.stderr, completed


def test_configuring_twice_changes_nothing(bare: Docker) -> None:
    configured.is_idempotent(bare, "--set-as-default", "--cdi.enabled")


def test_configure_does_what_plan_prints(bare: Docker) -> None:
    configured.does_as_planned(bare, "--cdi.enabled")


def test_undo_restores_the_bytes_and_docker_works(bare: Docker) -> None:
    configured.is_undone(bare, "--set-as-default", "--cdi.enabled")
    after_undo = bare.run("true", "--runtime=nvidia")
    assert after_undo.returncode == 125, after_undo


def test_the_incumbents_command_line_does_as_well(bare: Docker) -> None:
    configured.takes_the_incumbents_words(bare)
    bare.restart()
    completed = bare.run("nvidia-smi -L", "--runtime=nvidia", f"--env={configured.ONE}")
    configured.has_one_gpu(completed)


def test_status_reports_the_running_docker(bare: Docker) -> None:
    bare.configure()
    configured.is_told_of(bare, DAEMON_JSON)


@pytest.mark.parametrize("docker", [releases.of_release("trixie")], indirect=True)
def test_a_file_that_is_broken_already_is_refused_at_once(bare: Docker) -> None:
    broken = '{"nosuch": true}'
    bare.box.write(DAEMON_JSON, broken)
    completed = bare.nvct("configure", "--runtime=docker")
    assert completed.returncode == 1, completed
    assert "refuses even its present files" in completed.stderr, completed
    assert "nosuch" in completed.stderr, completed
    assert bare.box.read(DAEMON_JSON) == broken
    own_runtime = bare.run("echo runs", "--runtime=mine")
    assert own_runtime.stdout == "runs\n", own_runtime


@pytest.mark.parametrize("docker", [releases.of_release("trixie")], indirect=True)
def test_a_kill_at_any_point_leaves_a_docker_that_starts(bare: Docker) -> None:
    crash.leaves_an_engine_that_starts(bare, "--set-as-default", "--cdi.enabled")


NO_IMAGES = """
[[nvct.policy.rules]]
name = "images do not ask for GPUs in pods"
kubernetes = true
by = ["image-env"]
then = "ignore"
"""


def test_pods_of_cri_dockerd_get_what_the_device_plugin_answers(bare: Docker) -> None:
    """cri-dockerd hands on the answer's variables, and the kubelet's cgroup, but no CDI device."""
    config = bare.box.read(CONFIG)
    in_a_pod = f"--cgroup-parent=/{bare.box.cgroup}/kubepods/besteffort/pod1"
    bare.configure("--set-as-default")
    bare.box.write(CONFIG, config + NO_IMAGES)
    try:
        bare.restart()
        _, second = UUID.findall(
            bare.run("nvidia-smi -L", "--env=NVIDIA_VISIBLE_DEVICES=0,1").stdout
        )
        answer = f"--env=NVIDIA_VISIBLE_DEVICES={second}"
        completed = bare.run("nvidia-smi -L", in_a_pod, answer)
        assert UUID.findall(completed.stdout) == [second], completed
        of_image = "--env=NVIDIA_VISIBLE_DEVICES=all"
        configured.has_no_gpu(bare.run(configured.NODES, in_a_pod, of_image))
        assert bare.run("nvidia-smi -L", of_image).stdout.count("UUID") > 1, "no pod"
    finally:
        bare.box.write(CONFIG, config)
