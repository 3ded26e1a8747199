# SPDX-License-Identifier: Apache-2.0
"""containerd and Docker as the toolkit's container leaves them: while it runs, and afterwards."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines import configured, toolkit_container
from tests.engines.box import Box
from tests.engines.cri import Pod
from tests.engines.daemons import Docker
from tests.engines.releases import in_full, of_release
from tests.engines.supervised import SupervisedContainerd
from tests.engines.toolkit_container import TOOLKIT, ToolkitContainer
from tests.support import bundled, program_image

pytestmark = pytest.mark.slow
ALL = {"NVIDIA_VISIBLE_DEVICES": "0"}
MANAGEMENT = "/run/cdi/management.nvidia.com-gpu.yaml"


@pytest.fixture(scope="module")
def bundle() -> Path:
    return bundled.tree()


@pytest.fixture(
    scope="module", params=[of_release("trixie"), *in_full("bookworm"), *in_full("resolute")]
)
def containerd(
    request: pytest.FixtureRequest, machine_of: Callable[[str], Box]
) -> SupervisedContainerd:
    """A containerd that its supervisor keeps running, with nothing of ours."""
    return configured.started(lambda: SupervisedContainerd(machine_of(request.param), 2))


def test_pods_get_gpus_while_it_runs_and_containerd_is_as_before_afterwards(
    containerd: SupervisedContainerd, bundle: Path
) -> None:
    box = containerd.box
    container = ToolkitContainer(box, bundle, toolkit_container.CONTAINERD)
    for handler in ("", "nvidia", "nvidia-cdi", "nvidia-legacy"):
        configured.has_one_gpu(containerd.pod("nvidia-smi -L", Pod(handler=handler, env=ALL)))
        configured.has_no_gpu(containerd.pod(configured.NODES, Pod(handler=handler)))
    spec = box.read(MANAGEMENT)
    assert f"path: {TOOLKIT}/nvidia-cdi-hook" in spec
    management = Pod(
        handler="nvidia-cdi", env={"NVIDIA_VISIBLE_DEVICES": "management.nvidia.com/gpu=all"}
    )
    completed = containerd.pod(f"nvidia-smi -L | wc -l; {configured.NODES}", management)
    assert completed.stdout.splitlines()[0] == "8", completed
    container.stop()
    assert containerd.snapshot() == containerd.original
    containerd.box.until(containerd._answers, "containerd.log")
    after_undo = containerd.pod("true", Pod(handler="nvidia"))
    assert "no runtime for" in after_undo.stderr, after_undo
    configured.has_no_gpu(containerd.pod(configured.NODES, Pod(env=ALL)))


def test_a_container_of_the_toolkit_that_is_killed_is_taken_over(
    containerd: SupervisedContainerd, bundle: Path
) -> None:
    first = ToolkitContainer(containerd.box, bundle, toolkit_container.CONTAINERD)
    first.kill()
    configured.has_one_gpu(containerd.pod("nvidia-smi -L", Pod(env=ALL)))
    second = ToolkitContainer(containerd.box, bundle, toolkit_container.CONTAINERD)
    assert any("is configured already" in line for line in second.said), second.said
    second.stop()
    assert containerd.snapshot() == containerd.original


def test_a_containerd_that_cannot_be_reloaded_gets_its_former_files(
    containerd: SupervisedContainerd, bundle: Path
) -> None:
    env = toolkit_container.CONTAINERD | {
        "RUNTIME_RESTART_MODE": "systemd"
    }  # it does not run here
    arguments = ("nvct", "install", "--no-daemon")
    status, output = toolkit_container.call(containerd.box, bundle, *arguments, env=env)
    assert status == 1, output
    assert "containerd does not start again" in output
    assert containerd.snapshot() == containerd.original


CHECK = """
from dataclasses import replace
from nvct.engine.model import FileEdit
from nvct.errors import EngineError
from nvct.installer import engine
from nvct.installer.request import Request
request = Request(
    toolkit="/opt/nvidia/toolkit", source="", pid_file="", state_dir="/tmp", driver_root="/",
    driver_root_mount="/", engine="containerd", config="/runtime/config-dir/config.toml",
    host_root="/host", socket="/runtime/sock-dir/containerd.sock",
)
made = engine.setup(request)
print(made.options.engine_version > (1, 5))
now = made.files.read(request.config)
control = replace(made.control, removing=True)  # these files have no runtime of ours
for after in (now + b"# a comment", now + b"[[no table"):
    edit = FileEdit(path=request.config, before=now, after=after)
    try:
        print(list(control.check([edit])))
    except EngineError as error:
        print(error.message)
"""


def test_the_hosts_containerd_reads_the_files_before_they_are_in_place(
    containerd: SupervisedContainerd, bundle: Path
) -> None:
    arguments = ("nvct-python", "-c", CHECK)
    env = toolkit_container.CONTAINERD
    status, output = toolkit_container.call(containerd.box, bundle, *arguments, env=env)
    assert status == 0, output
    knows, good, bad = output.splitlines()
    assert (knows, good) == ("True", "[]")
    assert bad.startswith("containerd refuses the new configuration: "), bad
    assert containerd.snapshot() == containerd.original


def test_docker_is_reloaded_by_a_signal_and_keeps_its_containers(
    machine_of: Callable[[str], Box], bundle: Path
) -> None:
    docker = configured.started(lambda: Docker(machine_of("trixie")))
    docker.docker("run", "--detach", "--name=runs", "--network=none", "plain:test", "sleep", "600")
    container = ToolkitContainer(docker.box, bundle, toolkit_container.DOCKER)
    for name, asks in configured.HANDLERS.items():
        completed = docker.run("nvidia-smi -L", f"--runtime={name}", f"--env={asks}")
        configured.has_one_gpu(completed)
    configured.has_one_gpu(docker.run("nvidia-smi -L", f"--env={configured.ONE}"))
    container.stop()
    assert docker.snapshot() == docker.original
    state = json.loads(docker.docker("inspect", "runs").stdout)[0]["State"]
    assert state["Running"], state
    configured.has_no_gpu(docker.run(configured.NODES, f"--env={configured.ONE}"))
    docker.docker("rm", "--force", "runs")
    docker.stop()


@pytest.mark.parametrize(
    ("engine", "places"),
    [
        (
            toolkit_container.DOCKER,
            ("/:/host:ro", "/etc/docker:/runtime/config-dir", "/run:/runtime/sock-dir"),
        ),
        ({"RUNTIME": "auto"}, ("/:/host",)),
    ],
    ids=["mounted", "found"],
)
def test_the_toolkits_image_installs(
    engine: dict[str, str], places: tuple[str, ...], machine_of: Callable[[str], Box]
) -> None:
    docker = configured.started(lambda: Docker(machine_of("trixie")))
    completed = docker.docker("load", "--input", str(program_image.archive()))
    assert completed.returncode == 0, completed
    shared = [f"{path}:{path}" for path in ("/opt/nvidia", "/run/nvidia")]
    mounts = [f"--volume={path}" for path in (*places, *shared)]
    env = [f"--env={k}={v}" for k, v in (toolkit_container.ENV | engine).items()]
    arguments = ["--detach", "--name=nvct", "--privileged", "--pid=host", "--network=none"]
    completed = docker.docker(
        "run", *arguments, *mounts, *env, "--env=CDI_ENABLED=false", "nvct:toolkit"
    )
    assert completed.returncode == 0, completed
    docker.box.until(
        lambda: "waiting for a signal" in docker.docker("logs", "nvct").stderr, "docker.log"
    )
    configured.has_one_gpu(docker.run("nvidia-smi -L", f"--env={configured.ONE}"))
    docker.docker("stop", "--time=60", "nvct")
    assert docker.snapshot() == docker.original
    output = docker.docker("inspect", "--format={{.State.ExitCode}}", "nvct").stdout
    assert output == "0\n", docker.docker("logs", "nvct").stderr
    docker.docker("rm", "--force", "nvct")
    docker.stop()


def test_the_validator_finds_the_driver_of_a_driver_container(
    containerd: SupervisedContainerd, bundle: Path
) -> None:
    box = containerd.box
    status, output = toolkit_container.call(
        box, bundle, "nvct", "validate", "driver", env=toolkit_container.CONTAINERD
    )
    assert status == 0, output
    assert box.read("/run/nvidia/validations/driver-ready").splitlines() == [
        "IS_HOST_DRIVER=false",
        "NVIDIA_DRIVER_ROOT=/run/nvidia/driver",
        "DRIVER_ROOT_CTR_PATH=/driver-root",
        "NVIDIA_DEV_ROOT=/run/nvidia/driver",
        "DEV_ROOT_CTR_PATH=/driver-root",
    ]
