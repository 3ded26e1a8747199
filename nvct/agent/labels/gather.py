# SPDX-License-Identifier: Apache-2.0
"""The facts of this node, from the agent's inventory, NVML's worker and sysfs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nvct.agent.core.config_file import is_excluded
from nvct.agent.labels import passthrough, tegra
from nvct.agent.labels.facts import Facts, GpuFacts, MigFacts
from nvct.agent.machine.discovery import Discovery
from nvct.agent.nvml.host_verbs import HostDrivers, PciNames
from nvct.errors import NvctError
from nvct.host import procfs
from nvct.host.gpu import pci
from nvct.host.gpu.pci import HostDriver
from nvct.host.model import Gpu
from nvct.host.nvml.model import GpuAttributes
from nvct.host.roots import Roots


async def with_gpus(
    discovery: Discovery, machine_type_file: str, excluded: Sequence[str] = ()
) -> tuple[Facts, list[str]]:
    """Return the facts of a node with a driver, and warnings.

    Args:
        machine_type_file: has the name of the machine's product.
        excluded: GPUs that Kubernetes does not get; see `config_file.Document`.

    Raises:
        DriverNotFoundError, NvmlError: there is no driver, or it does not answer.
    """
    roots = discovery.roots
    inventory = await discovery.inventory()
    if inventory.mode == "csv":
        return await _with_tegra(discovery, machine_type_file)
    gpus = [gpu for gpu in inventory.gpus if not is_excluded(gpu, excluded)]
    by_uuid = await discovery.nvml.attributes() if gpus else {}
    drivers, warnings = await _host_drivers(discovery)
    facts = Facts(
        driver_version=inventory.driver_version,
        cuda_version=inventory.cuda_version,
        gpus=tuple(_gpu(roots, gpu, by_uuid.get(gpu.uuid)) for gpu in gpus),
        machine=procfs.read_text(machine_type_file) or "",
        host_drivers=drivers,
        has_nvidia_device=bool(pci.nvidia_devices(roots)),
    )
    return facts, [*inventory.warnings, *warnings]


async def _with_tegra(discovery: Discovery, machine_type_file: str) -> tuple[Facts, list[str]]:
    drivers, warnings = await _host_drivers(discovery)
    found = replace(
        await tegra.facts(),
        machine=procfs.read_text(machine_type_file) or "",
        host_drivers=drivers,
        has_nvidia_device=bool(pci.nvidia_devices(discovery.roots)),
    )
    return found, warnings


async def without_gpus(discovery: Discovery) -> tuple[Facts, list[str]]:
    """Return the facts of a node whose driver is not there, or not to be asked, and warnings."""
    drivers, warnings = await _host_drivers(discovery)
    present = bool(pci.nvidia_devices(discovery.roots))
    return Facts(host_drivers=drivers, has_nvidia_device=present), warnings


async def with_passthrough(
    discovery: Discovery, machine_type_file: str
) -> tuple[Facts, list[str]]:
    """Return the facts of a node whose GPUs are for virtual machines, and warnings."""
    drivers, warnings = await _host_drivers(discovery)
    names = await discovery.host.ask(PciNames(), dict[str, str])
    facts = passthrough.facts(discovery.roots, names, machine_type_file)
    return replace(facts, host_drivers=drivers), warnings


async def _host_drivers(
    discovery: Discovery,
) -> tuple[tuple[HostDriver, ...] | None, list[str]]:
    """Return the drivers of vGPUs' hosts, and warnings."""
    try:
        return await discovery.host.ask(HostDrivers(), tuple[HostDriver, ...]), []
    except NvctError as error:
        return None, [f"no labels of vGPUs: {error.message}"]


def _gpu(roots: Roots, gpu: Gpu, attributes: GpuAttributes | None) -> GpuFacts:
    sizes = attributes.mig if attributes else {}
    facts = GpuFacts(
        model=gpu.model,
        mig_capable=gpu.mig_enabled,
        mig_enabled=gpu.mig_enabled,
        mig=tuple(MigFacts(profile=mig.profile, size=sizes.get(mig.uuid)) for mig in gpu.mig),
        pci_class=pci.device_class(roots, gpu.bus_id),
    )
    if attributes is None:
        return facts
    return replace(
        facts,
        memory_mib=attributes.memory_mib,
        compute=attributes.compute,
        ecc=attributes.ecc,
        mig_capable=attributes.mig_capable,
        clique=attributes.clique,
    )
