# SPDX-License-Identifier: Apache-2.0
"""The device plugin's start on a real kubelet and API server: a taint, and another's socket."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.agent.device_plugin.resources import GPU
from nvct.agent.device_plugin.settings import FOLDER
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.releases import of_release
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.device_plugin import GPUS, TIMEOUT_S
from tests.kubernetes.listed import kubelet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
KEY = "nvct.dev/gpu-not-ready"
SOCKET = f"{FOLDER}/nvidia-gpu.sock"
LISTEN = f"""
import signal, socket
server = socket.socket(socket.AF_UNIX)
server.bind({SOCKET!r})
server.listen()
signal.pause()
"""


@contextlib.contextmanager
def running(cluster: Cluster, log: str, *words: str) -> Iterator[None]:
    """Run a Python program; the end of the process that enters the box does not end it."""
    pid = f"/run/{log}.pid"
    script = ["sh", "-c", f'echo $$ > {pid}; exec "$@"', "sh"]
    process = cluster.box.start([*script, f"{PROGRAMS}/python", "-I", *words], log)
    try:
        yield
    finally:
        cluster.box.call("sh", "-c", f"kill $(cat {pid})")
        process.wait(TIMEOUT_S)


def plugin(*flags: str) -> list[str]:
    return [
        "-m",
        "nvct.agent.core.program",
        "nvidia-device-plugin",
        f"--driver-root-ctr-path={DRIVER_ROOT}",
        *flags,
    ]


def taints(cluster: Cluster) -> list[str]:
    node = cluster.api.find(f"/api/v1/nodes/{NODE}")
    assert node
    return [taint["key"] for taint in node["spec"].get("taints", ())]


def test_a_startup_taint_goes_when_the_node_has_its_gpus(cluster: Cluster) -> None:
    account = kubeconfig_of(cluster, "taint", may="get,patch")
    flags = (f"--startup-taint={KEY}", f"--kubeconfig={account}", f"--node-name={NODE}")
    cluster.kubectl("taint", "node", NODE, f"{KEY}=:NoSchedule", "example.com/mine=:NoSchedule")
    try:
        with running(cluster, "plugin.log", *plugin(*flags)):
            gone = wait(lambda: KEY not in taints(cluster), TIMEOUT_S)
            assert gone, log(cluster)
            assert taints(cluster) == ["example.com/mine"]
            node = cluster.api.find(f"/api/v1/nodes/{NODE}")
            assert node
            assert node["status"]["allocatable"][GPU] == str(GPUS)
    finally:
        cluster.kubectl("taint", "node", NODE, "example.com/mine-")


def test_another_programs_living_plugin_is_not_displaced(cluster: Cluster) -> None:
    assert wait(lambda: kubelet(cluster) == 0, TIMEOUT_S)
    with (
        running(cluster, "other.log", "-c", LISTEN),
        running(cluster, "plugin.log", *plugin()),
    ):
        refused = wait(lambda: "is not displaced" in log(cluster), TIMEOUT_S)
        assert refused, log(cluster)
        assert f"serves {SOCKET}" in log(cluster)
        assert kubelet(cluster) == 0


def log(cluster: Cluster) -> str:
    return (Path(cluster.box.work) / "plugin.log").read_text(errors="replace")
