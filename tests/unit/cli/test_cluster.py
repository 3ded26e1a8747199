# SPDX-License-Identifier: Apache-2.0
"""Where an admin's commands and those about a node say that they should be run."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from nvct.agent.kubernetes.cluster import ClusterError
from nvct.cli.cluster import explain_pod
from nvct.doctor import inside
from nvct.errors import HostError
from tests.support.commands import invoke

REFUSAL = 'User "system:serviceaccount:nvct:nvct" cannot list resource "pods" in API group ""'
IN_POD = {"NVCT_DRIVER_READY_FILE": "/run/nvct-driver/driver-ready"}
HOOK = {"NVIDIA_CDI_HOOK_PATH": "/opt/nvidia/nvidia-cdi-hook"}


class Refusing(BaseHTTPRequestHandler):
    """An API server of whose user nothing is allowed."""

    def do_GET(self) -> None:
        """Answer every request."""
        body = json.dumps({"kind": "Status", "code": 403, "message": REFUSAL}).encode()
        self.send_response(403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[str]:
    """Return the kubeconfig of a cluster that refuses everything."""
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        path = tmp_path / "kubeconfig"
        path.write_text(
            "{apiVersion: v1, kind: Config, current-context: c,"
            " contexts: [{name: c, context: {cluster: c, user: u}}],"
            f" clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{server.server_port}'}}}}],"
            " users: [{name: u, user: {token: t}}]}"
        )
        yield str(path)
        server.shutdown()


def test_who_lacks_rights_learns_whose_are_needed(kubeconfig: str) -> None:
    """The agent's account gets no right for it."""
    found = invoke("nvct", ["cluster", "status", f"--kubeconfig={kubeconfig}"])
    assert isinstance(found.exception, ClusterError)
    assert found.exception.message == "service account nvct of namespace nvct may not list pods"
    assert "with an admin's kubeconfig (--kubeconfig)" in found.exception.hint
    with pytest.raises(ClusterError) as caught:
        explain_pod("default", "p", kubeconfig, "text")
    assert "with an admin's kubeconfig" in caught.value.hint


@pytest.mark.parametrize("command", ["ps", "doctor", "status", "log", "explain my-container"])
def test_a_command_about_the_node_is_not_answered_from_a_pod_of_nvct(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "is_container", lambda *_: True)
    found = invoke("nvct", command.split(), env=IN_POD | HOOK)
    assert isinstance(found.exception, HostError), found.output
    name = command.split(maxsplit=1)[0]
    assert found.exception.message.startswith(f"nvct {name} does not see the node")
    assert f"`sudo /opt/nvidia/nvct {name}` on the node" in found.exception.hint


@pytest.mark.parametrize(
    ("env", "mark"),
    [
        ({}, ".dockerenv"),  # a container of somebody else
        (IN_POD, "etc"),  # the host's root, entered from the pod
        (IN_POD | {"NVCT_CONFIG_FILE_PATH": "/opt/nvidia/config"}, ".dockerenv"),  # its program
    ],
)
def test_elsewhere_it_is(env: dict[str, str], mark: str, tmp_path: Path) -> None:
    (tmp_path / mark).touch()
    inside.need_host(env, "ps", str(tmp_path))
