# SPDX-License-Identifier: Apache-2.0
"""Acts as a kubelet: creates a pod's sandbox and a container in it, over the CRI by gRPC.

It runs as a separate process in the box: gRPC has threads, and a test's process forks. Request and
result are JSON.
"""

import json
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import grpc

from tests.engines.box import Box
from tests.support.cpu import Limit

SOCKET = "/run/containerd/containerd.sock"
CRIO_SOCKET = "/run/crio/crio.sock"
END_TIMEOUT_S = 30.0
READ_ONLY = (
    "/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
)  # fmt: skip
"""As every kubelet asks: pkg/securitycontext/util.go of Kubernetes."""
CODE = "import sys; sys.path.insert(0, {!r}); from tests.engines.cri import main; main()"
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod of one container."""

    handler: str = ""
    env: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()
    image: str = "docker.io/library/plain:test"
    privileged: bool = False
    host_pid: bool = False
    host_paths: tuple[str, ...] = ()


def run(box: Box, script: str, pod: Pod, socket: str = SOCKET) -> CompletedProcess[str]:
    """Run a script in a new pod; an error of the engine has status 125, as with Docker."""
    asks = json.dumps({**asdict(pod), "script": script, "cgroup": f"/{box.cgroup}"})
    code = CODE.format(str(REPOSITORY))
    completed = box.call(sys.executable, "-c", code, socket, str(box.work), asks)
    assert completed.returncode == 0, completed
    return CompletedProcess([socket, asks], **json.loads(completed.stdout))


def main() -> None:
    """Run the pod that the command line describes, and print the result as JSON."""
    socket, work, asks = sys.argv[1:]
    expected = json.loads(asks)
    script, cgroup = expected.pop("script"), expected.pop("cgroup")
    logs = Path(work, "pods", uuid.uuid4().hex)
    logs.mkdir(parents=True)
    print(json.dumps(_run(socket, script, Pod(**expected), cgroup, logs)))


def _run(socket: str, script: str, pod: Pod, cgroup: str, logs: Path) -> dict[str, Any]:
    import grpc

    channel = grpc.insecure_channel(f"unix:{socket}")
    try:
        return _Session(channel, pod, cgroup, logs).run(["/bin/sh", "-c", script])
    except grpc.RpcError as error:
        return {"returncode": 125, "stdout": "", "stderr": error.details()}
    finally:
        channel.close()


class _Session:
    """The life cycle of one pod."""

    def __init__(self, channel: grpc.Channel, pod: Pod, cgroup: str, logs: Path) -> None:
        from cri_api.v1 import api_pb2, api_pb2_grpc

        self._api = api_pb2
        stub: Any = api_pb2_grpc.RuntimeServiceStub
        self._runtime = stub(channel)
        self._pod = pod
        self._logs = logs
        # The host's network: there is no CNI plugin.
        pid = api_pb2.NODE if pod.host_pid else api_pb2.CONTAINER
        self._namespaces = api_pb2.NamespaceOption(network=api_pb2.NODE, pid=pid)
        security = api_pb2.LinuxSandboxSecurityContext(
            namespace_options=self._namespaces, privileged=pod.privileged
        )
        self._config = api_pb2.PodSandboxConfig(
            metadata=api_pb2.PodSandboxMetadata(
                name=f"pod-{logs.name[:6]}", uid=logs.name, namespace="default"
            ),
            log_directory=str(logs),
            annotations=pod.annotations,
            linux=api_pb2.LinuxPodSandboxConfig(cgroup_parent=cgroup, security_context=security),
        )

    def run(self, command: Sequence[str]) -> dict[str, Any]:
        api, runtime = self._api, self._runtime
        request = api.RunPodSandboxRequest(config=self._config, runtime_handler=self._pod.handler)
        sandbox = runtime.RunPodSandbox(request).pod_sandbox_id
        try:
            return self._contain(sandbox, command)
        finally:
            runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox))
            runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))

    def _contain(self, sandbox: str, command: Sequence[str]) -> dict[str, Any]:
        api, runtime, pod = self._api, self._runtime, self._pod
        security = api.LinuxContainerSecurityContext(
            namespace_options=self._namespaces,
            privileged=pod.privileged,
            readonly_paths=() if pod.privileged else READ_ONLY,
        )
        config = api.ContainerConfig(
            metadata=api.ContainerMetadata(name="main"),
            image=api.ImageSpec(image=pod.image, user_specified_image=pod.image),
            command=command,
            log_path="main.log",
            annotations=pod.annotations,
            envs=[api.KeyValue(key=key, value=value) for key, value in pod.env.items()],
            mounts=[
                api.Mount(host_path=path, container_path=f"/host{number}")
                for number, path in enumerate(pod.host_paths)
            ],
            CDI_devices=[api.CDIDevice(name=name) for name in pod.cdi],
            linux=api.LinuxContainerConfig(
                resources=api.LinuxContainerResources(), security_context=security
            ),
        )
        container_request = api.CreateContainerRequest(
            pod_sandbox_id=sandbox, config=config, sandbox_config=self._config
        )
        container = runtime.CreateContainer(container_request).container_id
        runtime.StartContainer(api.StartContainerRequest(container_id=container))
        status = self._wait(container)
        return {"returncode": status, **self._said()}

    def _wait(self, container: str) -> int:
        api = self._api
        limit = Limit(END_TIMEOUT_S)
        while True:
            request = api.ContainerStatusRequest(container_id=container)
            status = self._runtime.ContainerStatus(request).status
            if status.state == api.CONTAINER_EXITED:
                return int(status.exit_code)
            if limit.is_over:
                return 124  # as in timeout(1)
            time.sleep(0.02)

    def _said(self) -> dict[str, str]:
        """Return the container's output from the engine's log: time, stream, P or F, text."""
        output = {"stdout": "", "stderr": ""}
        for line in (self._logs / "main.log").read_text(encoding="utf-8").splitlines():
            _, stream, part, text = line.split(" ", 3)
            output[stream] += text + ("\n" if part == "F" else "")
        return output
