# SPDX-License-Identifier: Apache-2.0
"""Makes the agent's inventory from procfs, sysfs and NVML; tells when it is out of date."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import replace
from typing import TypeAlias

from nvct.agent.host_side import Host
from nvct.agent.machine.inventory import Inventory
from nvct.agent.machine.place import Place, Reported
from nvct.agent.nvml.client import NvmlClient
from nvct.agent.nvml.host_verbs import Look, Machine, NodeNames
from nvct.errors import NvctError, NvmlError
from nvct.host import procfs
from nvct.host.gpu import gpus, nodes, pci
from nvct.host.gpu.nodes import NodeStat, StatNode
from nvct.host.model import Findings, Mode
from nvct.host.nvml.library import nvml_library
from nvct.host.nvml.model import GpuLink, NvmlReport
from nvct.host.roots import Roots
from nvct.linux import device_nodes

Signature: TypeAlias = tuple[object, ...]


MODES: dict[str, Mode] = {"nvml": "nvml", "tegra": "csv"}
"""The mode by --device-discovery-strategy; auto takes the machine's own mode."""
HIDDEN: NodeStat = (0, 0, 0o666, 0, 0)
"""Stands for a device node that cannot be seen here; the agent does not use these numbers."""
SAME_S = 0.1  # How long tasks share a signature: they wake together (`waiting.tick`)
_signatures: dict[Roots, tuple[float, asyncio.Future[Signature]]] = {}
"""When the last look at a machine began, and its signature."""


class Discovery:
    """The machine below some roots; each call of `inventory` looks again."""

    def __init__(
        self,
        roots: Roots,
        nvml: NvmlClient,
        stat_node: StatNode = device_nodes.node,  # for trees that have plain files as device nodes
        mode: Mode | None = None,  # None for the machine's own
    ) -> None:
        self.roots = roots
        self.nvml = nvml
        self.stat_node = stat_node
        self.host = Host(nvml, lambda: Place(roots=roots, stat_node=stat_node))
        self._mode = mode
        self._names: tuple[str, ...] = ()
        self._known_links: tuple[tuple[str, ...], tuple[GpuLink, ...]] = ((), ())

    async def signature(self) -> Signature:
        """Return a value that changes when the driver or its GPUs and MIG instances change.

        This wakes no GPU and loads no library. Tasks that look at the same moment share the value.
        """
        at, looking = _signatures.get(self.roots, (0.0, None))
        if looking is None or looking.cancelled() or time.monotonic() - at > SAME_S:
            looking = asyncio.ensure_future(self._signature())
            _signatures[self.roots] = time.monotonic(), looking
        return await asyncio.shield(looking)

    async def _signature(self) -> Signature:
        with contextlib.suppress(NvctError):  # without an answer, the last names stay
            self._names = await self.host.ask(NodeNames(), tuple[str, ...])
        roots = self.roots
        capabilities = f"{roots.proc}/driver/nvidia/capabilities"
        gpus = [f"{capabilities}/{name}/mig" for name in procfs.list_directory(capabilities)]
        instances = [f"{gpu}/{name}" for gpu in gpus for name in procfs.list_directory(gpu)]
        return (
            procfs.driver_version(roots),
            *procfs.list_directory(f"{roots.proc}/driver/nvidia/gpus"),
            *((instance, *procfs.list_directory(instance)) for instance in instances),
            *self._names,
        )

    async def machine(self) -> Machine:
        """Return what is seen of the machine in /dev and its root; NvctError without an answer."""
        seen = await self.host.ask(Look(), Machine)
        return replace(seen, mode=self._mode or seen.mode)

    def has_driver(self) -> bool:
        """Return whether the driver's kernel module is loaded."""
        return bool(procfs.driver_version(self.roots))

    async def inventory(self) -> Inventory:
        """Return the machine's present inventory.

        DriverNotFoundError if no driver is loaded or installed; NvmlError if NVML does not work.
        """
        self.nvml.check()
        roots, findings = self.roots, Findings()
        machine = await self.machine()
        if machine.mode != "nvml":
            return Inventory(mode=machine.mode, imex_channels=machine.imex_channels)
        if self.nvml.chooses_library:
            self.nvml.library = nvml_library(roots)
        report = await self.nvml.report()
        search = nodes.NodeSearch(roots, visible_nodes(roots, machine), findings)
        # `coherent` makes it read the report, the only source of MIG mode without an instance.
        listed, _ = gpus.find_gpus(search, Reported(report), coherent=True)
        usable = tuple(gpu for gpu in listed if gpu.node and not gpu.is_display_only)
        numa = {gpu.uuid: pci.numa_node(roots, gpu.bus_id) for gpu in usable}
        seen = nodes.NodeSearch(roots, seen_nodes(roots, machine), Findings())
        return Inventory(
            driver_version=report.driver_version,
            cuda_version=report.cuda_version,
            gpus=usable,
            numa={uuid: node for uuid, node in numa.items() if node is not None},
            links=await self._links(report, findings) if len(usable) > 1 else (),
            control_nodes=tuple(node.path for node in nodes.control_nodes(seen)),
            imex_channels=machine.imex_channels,
            warnings=tuple(findings.warnings),
            unanswered=report.unanswered,
        )

    async def _links(self, report: NvmlReport, findings: Findings) -> tuple[GpuLink, ...]:
        """Return how GPUs are connected; NVML is asked once for each set of GPUs."""
        machine = (report.driver_version, *(gpu.uuid for gpu in report.gpus))
        if self._known_links[0] == machine:
            return self._known_links[1]
        try:
            links = (await self.nvml.topology()).links
            if not report.unanswered:
                self._known_links = (machine, links)
            return links
        except NvmlError as error:
            findings.warn(f"the links between GPUs are unknown: {error.message}")
            return ()


def seen_nodes(roots: Roots, machine: Machine) -> StatNode:
    """Return a function that looks up device nodes in what was seen of a machine."""
    return lambda path: machine.nodes.get(path.removeprefix(f"{roots.dev}/"))


def visible_nodes(roots: Roots, machine: Machine) -> StatNode:
    """Return a function as `seen_nodes`, which returns HIDDEN for nodes that may be invisible.

    A container without the host's /dev may see no device nodes at all, or none of MIG devices. So
    a node in /dev counts as missing only if nvidiactl is there, and a node in a folder of /dev
    only if the folder is there.
    """
    seen = seen_nodes(roots, machine)

    def stat_visible(path: str) -> NodeStat | None:
        folder = os.path.dirname(path.removeprefix(f"{roots.dev}/"))
        is_visible = folder in machine.folders if folder else "nvidiactl" in machine.nodes
        return seen(path) or (None if is_visible else HIDDEN)

    return stat_visible
