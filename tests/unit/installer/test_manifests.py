# SPDX-License-Identifier: Apache-2.0
"""The manifests name only existing options, programs and images."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from nvct.cli.install import install
from nvct.cli.validate import validate
from nvct.doctor.driver import DEV_CHAR
from nvct.installer import engine
from nvct.installer.request import Request
from tests.unit.image.conftest import load

build = load("build")
PACKAGING = Path(__file__).parents[3] / "packaging"


MANIFESTS = sorted((PACKAGING / "kubernetes").glob("*.yaml"))


TOOLKIT = Path(__file__).parents[2] / "kubernetes/toolkit.yaml"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


@pytest.fixture
def pod() -> dict[str, Any]:
    daemon_sets = [one for one in documents(TOOLKIT) if one["kind"] == "DaemonSet"]
    spec: dict[str, Any] = daemon_sets[0]["spec"]["template"]["spec"]
    return spec


def variables(command: click.Command) -> set[str]:
    variable_names: set[str] = set()
    for option in command.params:
        names = option.envvar or ()
        variable_names |= {names} if isinstance(names, str) else set(names)
    return variable_names


def test_there_is_a_class_for_each_runtime(ask: Callable[..., Request]) -> None:
    runtimes, _ = engine.handlers(ask(engine="containerd"))
    classes = documents(PACKAGING / "kubernetes/runtimeclasses.yaml")
    assert [one["kind"] for one in classes] == ["RuntimeClass"] * 3
    assert [one["handler"] for one in classes] == [handler.name for handler in runtimes]
    assert [one["metadata"]["name"] for one in classes] == [handler.name for handler in runtimes]


@pytest.mark.parametrize("path", [*MANIFESTS, TOOLKIT], ids=lambda path: path.name)
def test_every_image_is_one_that_is_built(path: Path) -> None:
    names = {f"{build.NAME}:{tag}" for tag in build.PROGRAMS}
    for document in documents(path):
        spec = document.get("spec", {}).get("template", {}).get("spec", {})
        containers = [*spec.get("initContainers", ()), *spec.get("containers", ())]
        assert {container["image"] for container in containers} <= names


SERVING = ("agent", "device-plugin")
"""Programs that serve the kubelet, by the tags of their images."""


def pods_of(name: str) -> dict[str, dict[str, Any]]:
    """Return the pods of a manifest's DaemonSets, by their names."""
    return {
        document["metadata"]["name"]: document["spec"]["template"]["spec"]
        for document in documents(PACKAGING / "kubernetes" / name)
        if document["kind"] == "DaemonSet"
    }


@pytest.mark.parametrize(
    "name", ["device-plugin.yaml", "agent.yaml", "agent-worker.yaml", "nvct.yaml"]
)
def test_what_serves_the_kubelet_can_write_what_it_keeps(name: str) -> None:
    pods = pods_of(name)
    serving = pods["nvct" if name == "nvct.yaml" else min(pods)]["containers"][0]
    assert serving["image"].removeprefix(f"{build.NAME}:") in SERVING
    mounts = {
        mount["mountPath"]: mount.get("readOnly", False) for mount in serving["volumeMounts"]
    }
    assert {
        "/var/lib/kubelet/device-plugins": False,
        "/var/lib/kubelet/pod-resources": True,
        "/run/nvct-agent": False,
    }.items() <= mounts.items()


@pytest.mark.parametrize("name", ["nvct.yaml", "uninstall.yaml"])
def test_the_installers_lock_is_where_no_agent_can_hold_it(name: str) -> None:
    (agent,) = pods_of("nvct.yaml")["nvct"]["containers"]
    writable = [m["mountPath"] for m in agent["volumeMounts"] if not m.get("readOnly")]
    (lock,) = {
        variable["value"]
        for pod in pods_of(name).values()
        for one in pod.get("initContainers", ())
        for variable in one.get("env", ())
        if variable["name"] == "TOOLKIT_PID_FILE"
    }
    assert lock.startswith("/host/")
    on_host = lock.removeprefix("/host")
    assert not [path for path in writable if on_host.startswith(f"{path.rstrip('/')}/")]


def test_where_the_driver_is_nobody_but_installer_and_worker_write() -> None:
    """The agent, which connects there to the worker's socket, sees the folder read-only."""
    readers = {}
    for pod in pods_of("nvct.yaml").values():
        paths = {one["name"]: one.get("hostPath", {}).get("path") for one in pod["volumes"]}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            variables_ = {one["name"]: one.get("value", "") for one in container["env"]}
            ready = variables_["NVCT_DRIVER_READY_FILE"]
            (mount,) = (
                one
                for one in container["volumeMounts"]
                if ready.startswith(f"{one['mountPath'].rstrip('/')}/")
            )
            assert paths[mount["name"]] == "/run/nvct-driver" == os.path.dirname(ready)
            readers[container["name"]] = mount.get("readOnly", False)
            if container["name"] != "toolkit":
                assert variables_["DRIVER_ROOT_CTR_PATH"] == "/host"
                assert variables_["NVCT_DRIVER_FOLDER"] == "/host/run/nvidia/driver"
            mounts = [one["mountPath"] for one in container["volumeMounts"]]
            assert ("/run/nvct-agent" in mounts) is (container["name"] == "agent")
    assert readers == {"toolkit": False, "nvml-worker": False, "agent": True}


def test_every_variable_is_one_that_the_installer_reads(pod: dict[str, Any]) -> None:
    named = {entry["name"] for entry in pod["containers"][0]["env"]}
    assert named <= variables(install)
    assert len(named) >= 6


def test_every_mount_is_a_volume_in_use(pod: dict[str, Any]) -> None:
    volumes = {volume["name"] for volume in pod["volumes"]}
    containers = [*pod["initContainers"], *pod["containers"]]
    mounted = {mount["name"] for one in containers for mount in one["volumeMounts"]}
    assert mounted == volumes
    for one in containers:
        mount_points = [mount["mountPath"] for mount in one["volumeMounts"]]
        assert len(set(mount_points)) == len(mount_points)
    assert DEV_CHAR in [mount["mountPath"] for mount in containers[0]["volumeMounts"]]


def test_a_path_in_a_variable_is_below_a_mount(pod: dict[str, Any]) -> None:
    container = pod["containers"][0]
    mount_points = [mount["mountPath"] for mount in container["volumeMounts"]]
    paths = {e["name"]: e["value"] for e in container["env"] if e["value"].startswith("/")}
    del paths["RUNTIME_DROP_IN_CONFIG_HOST_PATH"]
    for path in paths.values():
        assert any(path.startswith(f"{mount_point}/") for mount_point in mount_points), path


def test_the_commands_are_there(pod: dict[str, Any]) -> None:
    program, *arguments = pod["initContainers"][0]["command"]
    assert arguments[:2] == ["validate", "driver"]
    assert isinstance(validate, click.Group)
    assert set(arguments[2:]) <= {
        name for o in validate.commands["driver"].params for name in o.opts
    }
    assert program.startswith(f"/{build.BUNDLE}/bin/")
    assert "toolkit" in build.PROGRAMS
