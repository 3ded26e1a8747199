# SPDX-License-Identifier: Apache-2.0
"""Reads the facts that devices are computed from: the agent's discovery, NVML and sysfs."""

from __future__ import annotations

from nvct.agent.dra.devices import Machine
from nvct.agent.machine.discovery import Discovery
from nvct.host.gpu import pci


async def machine(discovery: Discovery) -> Machine:
    """Return this machine's facts; DriverNotFoundError or NvmlError if no driver answers."""
    inventory = await discovery.inventory()
    if not inventory.gpus:
        return Machine(inventory=inventory)
    roots = {gpu.uuid: pci.pcie_root(discovery.roots, gpu.bus_id) for gpu in inventory.gpus}
    has_mig = any(gpu.mig_enabled for gpu in inventory.gpus)
    return Machine(
        inventory=inventory,
        attributes=await discovery.nvml.attributes(),
        properties=await discovery.nvml.properties(),
        pcie_roots={uuid: root for uuid, root in roots.items() if root},
        mig={gpu.uuid: gpu for gpu in (await discovery.nvml.mig()).gpus} if has_mig else {},
    )
