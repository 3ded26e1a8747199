# SPDX-License-Identifier: Apache-2.0
"""packaging/helm/nvct as helm renders it with values, without a cluster: once for each command and values."""

import functools
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvct.errors import ContainerNotPossibleError
from tests.kubernetes import programs

CHART = Path(__file__).parents[2] / "packaging/helm/nvct"
WORKER = "nvct-worker"
"""The DaemonSet of installer and worker."""
TIMEOUT_S = 120


def find_helm() -> Path:
    """Return the path of helm; skip if it isn't built."""
    try:
        return programs.folders()[-1] / "helm"
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)


def helm(*words: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm without a cluster."""
    return _helm(words, json.dumps(values or {}))


@functools.cache
def _helm(words: tuple[str, ...], values: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(find_helm()), *words, "--values=-"], input=values, text=True, capture_output=True,
        check=False, timeout=TIMEOUT_S, env={**os.environ, "GOGC": "off"},
    )  # fmt: skip


def _release(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the release that `helm install` would make."""
    words = ("install", "nvct", str(CHART), "--namespace=gpus", "--dry-run=client")
    done = helm(*words, "--output=json", values=values)
    assert done.returncode == 0, done.stderr
    release: dict[str, Any] = json.loads(done.stdout)
    return release


def notes(values: Mapping[str, Any]) -> str:
    """Return what helm prints after an installation."""
    text: str = _release(values)["info"]["notes"]
    return text


def manifest(values: Mapping[str, Any]) -> str:
    """Return what helm renders, hooks included."""
    release = _release(values)
    parts = [release["manifest"], *(hook["manifest"] for hook in release["hooks"])]
    return "\n---\n".join(parts)


def rendered(values: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the objects by kind and name. Some are hooks, too: the uninstallation makes them again."""
    release = _release(values)
    by_name = _by_name(release["manifest"])
    hooks = _by_name("\n---\n".join(hook["manifest"] for hook in release["hooks"]))
    for key in by_name.keys() & hooks.keys():
        again = hooks[key]
        del again["metadata"]["annotations"]
        assert again == by_name[key]
    return by_name | {key: hook for key, hook in hooks.items() if key not in by_name}


def _by_name(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    objects = objects_of(text)
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    assert len(by_name) == len(objects)
    return by_name


def objects_of(text: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest, read by libyaml: eight times as fast."""
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def agent_with(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of the agent."""
    return env_of(agent_of(pod_of(rendered(values))))


def installer_with(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of the installer."""
    (installer,) = pod_of(rendered(values), WORKER)["initContainers"]
    return env_of(installer)


def volume_of(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a volume of a pod."""
    volume: dict[str, Any]
    (volume,) = (each for each in pod["volumes"] if each["name"] == name)
    return volume


def ignored_with(values: Mapping[str, Any]) -> list[str]:
    """Return the notes' sentences about values without effect, in their order."""
    lines = notes(values).partition("Values without effect:\n")[2].splitlines()
    return [line.removeprefix("- ") for line in lines if line.startswith("- ")]


def pod_of(objects: dict[tuple[str, str], dict[str, Any]], name: str = "nvct") -> dict[str, Any]:
    """Return the specification of a DaemonSet's pods."""
    spec: dict[str, Any] = objects["DaemonSet", name]["spec"]["template"]["spec"]
    return spec


def agent_of(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the agent's container."""
    agent: dict[str, Any]
    (agent,) = (each for each in pod["containers"] if each["name"] == "agent")
    return agent


def env_of(container: dict[str, Any]) -> dict[str, str]:
    """Return a container's variables, each of which stands once."""
    names = [entry["name"] for entry in container["env"]]
    assert len(set(names)) == len(names)
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}
