# SPDX-License-Identifier: Apache-2.0
"""What the API server refuses, as sentences; requests themselves are in tests/kubernetes."""

import asyncio
from pathlib import Path

import pytest

from nvct.agent.core.context import Context
from nvct.agent.core.logs import Log
from nvct.agent.kubernetes import cluster
from nvct.agent.kubernetes.cluster import NODE, Cluster, ClusterError, Kind
from nvct.agent.nvml.client import NvmlClient

FEATURE = Kind("nfd.k8s-sigs.io", "v1alpha1", "NodeFeature", "nodefeatures", is_namespaced=True)
ACCOUNT = "system:serviceaccount:gpu:agent"


@pytest.mark.parametrize(
    ("kind", "user", "message", "hint"),
    [
        (
            NODE, ACCOUNT, "service account agent of namespace gpu may not patch nodes",
            "by a ClusterRole: verb patch, resource nodes, apiGroup ''",
        ),
        (
            FEATURE, "jo", "jo may not patch nodefeatures of group nfd.k8s-sigs.io",
            "by a Role: verb patch, resource nodefeatures, apiGroup 'nfd.k8s-sigs.io'",
        ),
    ],
)  # fmt: skip
def test_a_403_names_who_lacks_which_right(kind: Kind, user: str, message: str, hint: str) -> None:
    said = f'{kind.plural} "x" is forbidden: User "{user}" cannot patch resource "{kind.plural}"'

    error = cluster.refusal(403, said, "patch", kind, "x")

    assert error.message == message
    assert hint in error.hint
    assert error.status == 403


def test_a_right_to_create_is_named_where_a_patch_would_create() -> None:
    said = f'forbidden: User "{ACCOUNT}" cannot create resource "nodefeatures" in API group'

    error = cluster.refusal(403, said, "patch", FEATURE, "x")

    assert error.message.endswith("may not create nodefeatures of group nfd.k8s-sigs.io")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "the API server refuses to patch Node x: denied by policy"),
        (401, "the API server does not accept the token"),
        (404, "the cluster has no x among its nodes"),
        (422, "the API server refuses to patch Node x: denied by policy"),
    ],
)
def test_other_refusals(status: int, message: str) -> None:
    assert cluster.refusal(status, "denied by policy", "patch", NODE, "x").message == message


def test_outside_of_a_cluster_a_kubeconfig_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="not a pod of a cluster, and no kubeconfig"):
        cluster.connect("", {})
    with pytest.raises(ClusterError, match=r"no access .*: .*nowhere not found") as caught:
        cluster.connect("/nowhere", {})
    assert "service account" not in caught.value.hint
    (tmp_path / "kubeconfig").write_text("clusters: 5")
    with pytest.raises(ClusterError, match=r"kubeconfig .* is malformed"):
        cluster.connect(f"{tmp_path}/kubeconfig", {})
    (tmp_path / "kubeconfig").write_text("clusters: [")
    with pytest.raises(ClusterError, match=r"kubeconfig .* is not YAML: .*line 1") as caught:
        cluster.connect(f"{tmp_path}/kubeconfig", {})
    assert "\n" not in caught.value.message


def write_config(address: str, folder: Path) -> str:
    path = folder / "kubeconfig"
    path.write_text(
        "{apiVersion: v1, kind: Config, current-context: c,"
        " contexts: [{name: c, context: {cluster: c, user: u}}],"
        f" clusters: [{{name: c, cluster: {{server: '{address}'}}}}],"
        " users: [{name: u, user: {token: t}}]}"
    )
    return str(path)


def cluster_at(address: str, folder: Path) -> Cluster:
    return cluster.connect(write_config(address, folder), {})


async def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    api = cluster_at("http://127.0.0.1:1", tmp_path)
    with pytest.raises(ClusterError, match=r"http://127\.0\.0\.1:1 does not answer: ") as caught:
        await api.find(NODE, "x")
    assert caught.value.status == 0
    await api.close()


@pytest.mark.parametrize("body", ["<html>", "null", "[1]"])
async def test_an_answer_of_something_else_is_malformed(body: str, tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(f"{head}{body}".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    api = cluster_at(f"http://127.0.0.1:{port}", tmp_path)
    for request in (api.find(NODE, "x"), api.list(NODE)):
        with pytest.raises(ClusterError, match="gives a malformed answer"):
            await request
    await api.close()
    server.close()


async def test_tasks_share_a_connection_until_the_last_of_them_closes_it(tmp_path: Path) -> None:
    config = write_config("http://127.0.0.1:1", tmp_path)
    context = Context(env={"KUBECONFIG": config}, client=NvmlClient(None), journal=Log())
    first, second = context.connect(), context.connect(config)
    assert first is second
    await first.close()
    with pytest.raises(ClusterError, match="does not answer"):
        await second.find(NODE, "node-1")
    await second.close()
    third = context.connect()
    assert third is not first
    await third.close()
