# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct cluster, convert; and nvct explain for a pod, by the API server."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import click

from nvct.cli import screen
from nvct.cli.context import say
from nvct.cli.options import format_option, show
from nvct.errors import printable

TYPE_CHECKING = False
if TYPE_CHECKING:  # of the extra `agent`, which packages lack
    from nvct.agent.kubernetes import fleet
    from nvct.agent.kubernetes.cluster import Cluster

HEADER = ("NODE", "GPUS", "DRIVER", "PRODUCT", "AGENT", "READY", "REASON")
DOMAIN, VENDOR = "nvidia.com/", "NVIDIA-"
"""Prefixes that the table leaves out, to fit a terminal; --json has them."""
KUBECONFIG = click.option(
    "--kubeconfig", envvar="KUBECONFIG", default="", metavar="FILE",
    help="Access to the cluster.  [default: this pod's service account, or ~/.kube/config]",
)  # fmt: skip


@click.group()
def cluster() -> None:
    """Show the GPU nodes of a cluster, and wait for a DaemonSet."""


@cluster.command()
@click.argument("daemonset")
@click.option(
    "--namespace", "-n", default="default", show_default=True, help="Namespace of the DaemonSet."
)
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), default=300.0,
              show_default=True, help="How long to wait, in seconds.")  # fmt: skip
@KUBECONFIG
def wait(*, daemonset: str, namespace: str, timeout_s: float, kubeconfig: str) -> None:
    """Wait until a DaemonSet is ready on all nodes; print messages of its init containers.

    Example: nvct cluster wait nvct-uninstall --namespace nvct
    """
    from nvct.agent.kubernetes import fleet

    async def run() -> None:
        connected = connect(kubeconfig)
        try:
            await fleet.wait(connected, daemonset, namespace, timeout_s, say)
        finally:
            await connected.close()

    asyncio.run(run())


@cluster.command()
@click.option(
    "--namespace", "-n", default="nvct", show_default=True, help="Namespace of the agent's pods."
)
@format_option("table", aliases=("--output", "-o"))
@KUBECONFIG
def status(*, namespace: str, form: str, kubeconfig: str) -> None:
    """Show the GPU nodes: the GPUs they offer, their driver, and why one is not ready.

    Example: nvct cluster status --kubeconfig ~/.kube/config
    """
    from nvct.agent.kubernetes import fleet

    async def run() -> list[fleet.GpuNode]:
        async with as_admin(kubeconfig) as connected:
            return await fleet.nodes(connected, namespace)

    nodes = asyncio.run(run())
    show(form, [node._asdict() for node in nodes], table(nodes, screen.columns()) if nodes else ())
    if not nodes and form != "json":
        say("no node has a GPU, and no pod of the agent runs: is --namespace the agent's?")


def table(nodes: Sequence[fleet.GpuNode], width: int) -> Iterator[str]:
    """Yield the lines about nodes; a resource of nvidia.com is named without its domain."""
    rows: list[tuple[str, ...]] = [HEADER]
    for node in nodes:
        counts = node.gpus.items()
        gpus = ",".join(f"{name.removeprefix(DOMAIN)}={count}" for name, count in counts)
        product = node.product.removeprefix(VENDOR)
        row = (node.name, gpus, node.driver, product, node.agent, node.ready, node.reason)
        rows.append(tuple(cell or "-" for cell in row[:-1]) + row[-1:])
    yield from screen.table(rows, width)


@contextlib.asynccontextmanager
async def as_admin(kubeconfig: str) -> AsyncIterator[Cluster]:
    """Connect as `connect` does, for requests that an admin may make, but not the agent.

    ClusterError if the API server refuses, or does not answer.
    """
    from nvct.agent.kubernetes.cluster import FORBIDDEN, ClusterError

    connected = connect(kubeconfig)
    try:
        yield connected
    except ClusterError as error:
        if error.status != FORBIDDEN:
            raise
        hint = "run it where kubectl runs, with an admin's kubeconfig (--kubeconfig)"
        raise ClusterError(error.message, hint=hint, status=error.status) from error
    finally:
        await connected.close()


def connect(kubeconfig: str) -> Cluster:
    """Return the cluster of a kubeconfig, by default kubectl's; ClusterError without one."""
    from nvct.agent.kubernetes import cluster as clusters

    usual = os.path.expanduser("~/.kube/config")
    if not kubeconfig and "KUBERNETES_SERVICE_HOST" not in os.environ and os.path.exists(usual):
        kubeconfig = usual
    return clusters.connect(kubeconfig, os.environ)


SHOWN = 8  # Devices and nodes of a list; --json has all
OWN_COMMAND = "`nvct explain NAMESPACE/POD`"
"""Remedies that name this command are left out: its output is being printed."""
ENDED = ("Succeeded", "Failed")
RULED_OUT = "a free one can be ruled out by its node, its GPU's MIG devices or another request"


def explain_pod(namespace: str, name: str, kubeconfig: str, form: str) -> None:
    """Print what is known about a pod.

    UsageError if there is no such pod; NvctError if the API server refuses or does not answer, or
    the extra `agent` is missing.
    """
    report = asyncio.run(_ask(namespace, name, kubeconfig))
    show(form, report, _wrapped(text(report), screen.columns()))


def _wrapped(lines: list[str], width: int) -> Iterator[str]:
    for line in lines:
        words = line.lstrip()
        margin = line[: len(line) - len(words)]
        yield from screen.wrapped(margin, words, width, len(margin) + 4)


async def _ask(namespace: str, name: str, kubeconfig: str) -> dict[str, Any]:
    from nvct.agent.kubernetes import pod_devices

    async with as_admin(kubeconfig) as cluster:
        return pod_devices.explanation(await pod_devices.read(cluster, namespace, name))


def text(report: dict[str, Any]) -> list[str]:
    """Return the lines about a pod."""
    from nvct.doctor import messages

    where = f" on node {report['node']}" if report["node"] else ", on no node yet"
    lines = [f"{report['pod']}: {report['phase']}{where}"]
    lines += [f"  Kubernetes says: {why}" for why in report["why"]]
    for found in messages.explained("\n".join(report["why"])):
        lines.append(f"  cause: {found.message.cause}")
        if OWN_COMMAND not in found.message.remedy:
            lines.append(f"  do: {found.message.remedy}")
    for resource in report["resources"]:
        lines += _resource(resource, is_placed=bool(report["node"]))
    for claim in report["claims"]:
        lines += _claim(claim, report["phase"])
    if not report["resources"] and not report["claims"]:
        lines.append("  it asks for no GPU: neither a resource of nvidia.com nor a claim")
    lines += [f"  note: {note}" for note in report["notes"]]
    return [printable(line) for line in lines]


def _resource(report: dict[str, Any], *, is_placed: bool) -> Iterator[str]:
    yield f"  asks for {report['count']} of {report['resource']}"
    if is_placed:
        return
    for request in report["requests"]:
        of_class = f"devices of class {request['class']} satisfy it, too (DRA)"
        yield f"    {of_class}: {_counts(request)}"
    if not report["nodes"] and not report["classes"]:
        yield f"    no node offers {report['resource']}: its device plugin does not run"
    for node in report["nodes"][:SHOWN]:
        takers = ", ".join(f"{pod} ({count})" for pod, count in node["taken"].items())
        taken = sum(node["taken"].values())
        by = f" by {takers}" if takers else ""
        lost = node["capacity"] - node["offered"]
        unhealthy = f"; {lost} more are unhealthy" if lost > 0 else ""
        few = (
            "" if node["free"] < report["count"] else "; enough are free: other rules keep it out"
        )
        yield f"    node {node['node']} has {node['offered']}, {taken} taken{by}{unhealthy}{few}"
    yield from _more(report["nodes"], "nodes")


def _claim(report: dict[str, Any], phase: str) -> Iterator[str]:
    if report["state"] == "missing":
        if not report["claim"]:
            why = "Kubernetes has not made it; does the template exist?"
        elif phase in ENDED:
            why = "it was deleted when the pod ended, as claims of a template are"
        else:
            why = "it does not exist, or you may not read it"
        yield f"  claim {report['missing']}: {why}"
        return
    yield f"  claim {report['claim']}: {report['state']}"
    for device in report["devices"]:
        about = f" ({device['about']})" if device["about"] else ""
        yield f"    has {device['device']} of {device['node']}{about} for {device['request']}"
        for expression in device["because"]:
            yield f"      because {' '.join(expression.split())}"
    if report["state"] != "pending":
        return
    for request in report["requests"]:
        if "fitting" in request:
            yield from _request(request)
    for attribute in report["constraints"]:
        yield f"    constraint {attribute}: no device has this attribute, so none can be allocated"


def _request(report: dict[str, Any]) -> Iterator[str]:
    if not report["class exists"]:
        yield f"    request {report['name']}: there is no DeviceClass {report['class']}"
        return
    yield (
        f"    request {report['name']} ({report['count']} of class {report['class']}): "
        f"{_counts(report)}"
    )
    for term in report["terms"] if report["devices"] else ():
        if term.get("lacking"):
            lack = f"no device has the attribute {term['lacking']}: {term['advice']}"
            yield f"      ?     {term['term']}  ({lack})"
        elif term["unknown"]:
            yield f"      ?     {term['term']}  (nvct cannot evaluate it on each device)"
        else:
            yield f"      {term['fits']:<5} {term['term']}"
    fitting = report["fitting"]
    for one in fitting[:SHOWN]:
        about = f" ({one['about']})" if one["about"] else ""
        state = f"taken by {one['taken']}" if one["taken"] else (
            "tainted: unhealthy or withheld" if one["tainted"] else "free"
        )  # fmt: skip
        yield f"      {one['device']} of {one['node']}{about}: {state}"
    yield from _more(fitting, "devices")
    if _free(report):
        yield f"      {RULED_OUT}"


def _counts(report: dict[str, Any]) -> str:
    """Return how many devices satisfy a request, and how many of these are free."""
    if not report["devices"]:
        return "no node offers one"
    fitting, free = report["fitting"], _free(report)
    unknown = "" if all(one["certain"] for one in fitting) else " or may fit"
    count, most = report["count"], report["most free on a node"]
    are_scattered = isinstance(count, int) and most < count <= len(free)
    return (
        f"{len(fitting)} of {report['devices']} devices fit{unknown}, {len(free)} of them free"
        f"{f', at most {most} on one node' if are_scattered else ''}"
    )


def _free(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in report["fitting"] if not one["taken"] and not one["tainted"]]


def _more(found: list[Any], what: str) -> Iterator[str]:
    if len(found) > SHOWN:
        yield f"      and {len(found) - SHOWN} more {what}; --json has all"


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[values] FILE")
@click.option("--claims", is_flag=True,
              help="Request GPUs by ResourceClaims (DRA) instead of limits.")  # fmt: skip
def convert(*, words: Sequence[str], claims: bool) -> None:
    """Convert manifests for NVIDIA's Kubernetes 1.9 into current ones; explain each change.

    FILE has pods, or objects that create pods; - is stdin. The manifests go to stdout, without
    their comments; the changes are listed on stderr. With --claims, limits of nvidia.com/gpu and
    nvidia.com/mig-* become ResourceClaims, and conditions on GPU labels become their selectors.

    With values, FILE has Helm values for NVIDIA's GPU operator, device plugin, dcgm-exporter or
    DRA driver. The values for nvct's chart go to stdout; those with another name or without effect
    are listed on stderr.

    Example: nvct convert gpu-pod.yml | kubectl create -f -
    """
    from nvct.agent.manifests import convert as manifests
    from nvct.agent.manifests import convert_claims, convert_values, manifest_file

    file = words[-1]
    if words[:-1] not in ((), ("values",)) or (claims and len(words) > 1):
        raise click.UsageError("give FILE, or values FILE without --claims")
    documents = manifest_file.load_all("/dev/stdin" if file == "-" else file)
    if len(words) > 1:
        values = documents or [{}]  # helm prints null for a release without values
        merged, sentences = convert_values.convert(values[0] if len(values) == 1 else None, file)
        for sentence in sentences:
            say(sentence)
        click.echo(manifest_file.dump_all([merged]), nl=False)
        return
    templates = convert_claims.Templates(documents)
    converted = []
    for document in documents:
        result, changes = manifests.convert(document)
        results = [result]
        if claims:
            results, more = convert_claims.convert(result, templates)
            changes += more
        converted += results
        for change in changes:
            say(change)
    click.echo(manifest_file.dump_all(converted), nl=False)
