# SPDX-License-Identifier: Apache-2.0
"""Pods of a test: their requests and results. The pods of a table run in parallel."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.kubernetes.api import PODS, Api, wait

Object: TypeAlias = dict[str, Any]

IMAGE = "docker.io/library/plain:test"
CONTAINER = "main"
ENDED = ("Succeeded", "Failed")
TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod of one container that runs a script.

    Attributes:
        script: for the shell.
        runtime_class: "" is the node's default.
        env: of the container.
        container: additional fields of the container.
        spec: additional fields of the pod.
        annotations: of the pod.
    """

    script: str
    runtime_class: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def manifest(self, name: str) -> Object:
        """Return the pod's manifest for the API."""
        spec: Object = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [container(self.script, self.env, **self.container)],
            **self.spec,
        }
        if self.runtime_class:
            spec["runtimeClassName"] = self.runtime_class
        metadata = {"name": name, "annotations": dict(self.annotations)}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@dataclass(frozen=True)
class Result:
    """The result of a pod.

    Attributes:
        phase: of the pod, e.g. `Succeeded`; `Pending` if its container cannot be created.
        log: of its container; the kubelet's message if it does not admit the pod.
        events: messages of its events.
    """

    phase: str
    log: str
    events: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """Return the lines of the log."""
        return self.log.splitlines()


def container(script: str, env: Mapping[str, str], name: str = CONTAINER, **more: Any) -> Object:
    """Return a container that runs a script in the tests' image."""
    variables = [{"name": key, "value": value} for key, value in env.items()]
    command = ["/bin/sh", "-c", script]
    return {
        "name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": command,
        "env": variables, **more,
    }  # fmt: skip


def run_all(api: Api, pods: Mapping[str, Pod]) -> dict[str, Result]:
    """Run pods in parallel, delete them, and return their results."""
    for name, pod in pods.items():
        api.create(PODS, pod.manifest(name))
    try:
        return {name: _result(api, name) for name in pods}
    finally:
        for name in pods:
            api.delete(f"{PODS}/{name}")
        assert wait(lambda: not any(api.find(f"{PODS}/{name}") for name in pods), TIMEOUT_S)


def run(api: Api, name: str, pod: Pod) -> Result:
    """Run one pod, delete it, and return its result."""
    return run_all(api, {name: pod})[name]


def _result(api: Api, name: str) -> Result:
    assert wait(lambda: _has_ended(api, name), TIMEOUT_S), api.find(f"{PODS}/{name}")
    found = api.get(f"{PODS}/{name}")
    phase = found["status"]["phase"]
    log = ""
    if phase in ENDED:  # one that the kubelet does not admit ends without a container
        is_refused = not found["status"].get("containerStatuses")
        log = found["status"].get("message", "") if is_refused else api.logs(name, CONTAINER)
    return Result(phase, log, tuple(api.events(name)))


def _has_ended(api: Api, name: str) -> bool:
    """Report whether a pod has ended, or waits because a container cannot be created."""
    found = api.get(f"{PODS}/{name}")
    status = found["status"]
    reasons = [
        state.get("state", {}).get("waiting", {}).get("reason", "")
        for kind in ("initContainerStatuses", "containerStatuses")
        for state in status.get(kind, ())
    ]
    # The kubelet reports an error of containerd's create as CreateContainerError, and an error of
    # the runtime as RunContainerError, or StartError in a pod that is not restarted.
    if status["phase"] in ENDED or any(reason.endswith("Error") for reason in reasons):
        return True
    if status["phase"] != "Pending":
        return False
    refused = [event for event in api.events(name) if "Failed to create pod sandbox" in event]
    return any("transport: " not in event for event in refused)  # containerd is starting again
