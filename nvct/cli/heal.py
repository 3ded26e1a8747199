# SPDX-License-Identifier: Apache-2.0
"""Command: nvct heal plan. Options, call and print, no logic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import click

from nvct.agent.core import instance
from nvct.agent.heal.machine import TASK, Rules, plan, reset_together
from nvct.agent.health.machine import Health
from nvct.agent.kubelet.pod_resources import SOCKET, PodResources, claimed, journal_beside
from nvct.cli.gostyle import GoStyle, LazyGroup
from nvct.cli.mig.machine import machine_of
from nvct.errors import HostError, UsageError
from nvct.host.faults import SEVERE, Action
from nvct.host.nvml.model import GpuAttributes, NvmlReport, NvmlTopology
from nvct.host.nvml.session import NvmlSession

heal = LazyGroup(
    "heal",
    {"plan": ("nvct.cli.heal", "plan_", "Print what is done if a GPU fails, and to which pods.")},
    "Show how failed GPUs are healed.",
)


@click.command("plan", cls=GoStyle)
@click.argument("gpu", metavar="GPU")
@click.option("--action", type=click.Choice(SEVERE), default="reset", show_default=True,
              help="The action that the error asks for.")  # fmt: skip
@click.pass_obj
def plan_(given: object, *, gpu: str, action: Action) -> None:
    """Print what this node's agent does if GPU, an index or UUID, has an error.

    Nothing is changed. Pods with the label nvct.dev/evict=never stay: the agent waits for their
    end.

    Example: nvct heal plan 3
    """
    session = cast("NvmlSession", machine_of(given).session)
    report = session.report()
    found = next((each for each in report.gpus if gpu in (each.uuid, str(each.index))), None)
    if found is None:
        raise UsageError(f"there is no GPU {gpu!r}", hint="nvidia-smi -L lists indices and UUIDs")
    task = _task(instance.status())
    click.echo(f"GPU {found.index}, {found.uuid}; remediation: {task.get('remediation', 'none')}")
    if not task:
        return
    attributes = session.ask("attributes", dict[str, GpuAttributes])
    compute = attributes[found.uuid].compute if found.uuid in attributes else (0, 0)
    links = session.ask("topology", NvmlTopology).links
    gpus, refusal = reset_together(found, compute, links, groups=bool(task.get("group")))
    rules = Rules(level=task["remediation"], evict_s=float(task["evict_s"]))
    failed = Health(state="unhealthy", action=action, reason="its error")
    if not rules.allows("releasing") or action != "reset":
        gpus, refusal = (found.uuid,), ""
    for line in plan(failed, gpus, refusal, rules):
        click.echo(line)
        if line.startswith("evicting"):
            for pod in asyncio.run(_pods(report, gpus)) or ["no pod uses it"]:
                click.echo(f"  {pod}")


def _task(status: Any) -> dict[str, Any]:  # noqa: ANN401  JSON data
    """Return the detail of the task `heal` in an agent's status, {} without such a task."""
    try:
        known = [task for task in status["tasks"] if task["name"] == TASK]
        if known and not known[0]["detail"]:
            raise HostError(f"the task {TASK} does not run: {known[0]['reason']}")
        return {**known[0]["detail"][0]} if known else {}
    except (LookupError, TypeError, AttributeError) as error:
        raise HostError(f"the agent's status is malformed: {error}") from error


async def _pods(report: NvmlReport, gpus: Sequence[str]) -> list[str]:
    """Return the pods with these GPUs, by the kubelet; a hint if it cannot be asked."""
    try:
        from nvct.agent.kubernetes.node_pods import devices
    except ModuleNotFoundError as error:  # a dependency of the agent alone
        return [f"its pods: see nvct ps (asking the kubelet needs Python's {error.name})"]
    kubelet = PodResources(SOCKET)
    if not kubelet.is_there():
        return []
    try:
        holdings = await kubelet.holdings()
    finally:
        await kubelet.close()
    found = devices(holdings, report, claimed(journal_beside(SOCKET), or_gpu=True))
    return sorted({str(each) for each in found if each.gpu in gpus})
