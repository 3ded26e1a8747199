# SPDX-License-Identifier: Apache-2.0
"""Reads the facts of this node: the agent's inventory, NVML's worker and sysfs.

GPUs that are passed through to virtual machines are read from sysfs alone. As in NVIDIA's program,
their memory is that of the 64-bit windows of the PCI device, in bytes. A Tegra has no NVML: there,
CUDA names the GPUs, and their class is unknown. Both lack the driver's version.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nvct.agent.core.config_file import is_excluded
from nvct.agent.core.waiting import within
from nvct.agent.labels.facts import Facts, GpuFacts, MigFacts
from nvct.agent.machine.discovery import Discovery
from nvct.agent.nvml.host_verbs import HostDrivers, PciNames
from nvct.errors import DriverNotFoundError, NvctError
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

    DriverNotFoundError or NvmlError if there is no driver, or it does not answer.
    """
    inventory = await discovery.inventory()
    if inventory.mode == "csv":
        return await _completed(discovery, machine_type_file, await facts_of_tegra())
    gpus = [gpu for gpu in inventory.gpus if not is_excluded(gpu, excluded)]
    by_uuid = await discovery.nvml.attributes() if gpus else {}
    facts = Facts(
        driver_version=inventory.driver_version,
        cuda_version=inventory.cuda_version,
        gpus=tuple(_gpu(discovery.roots, gpu, by_uuid.get(gpu.uuid)) for gpu in gpus),
    )
    return await _completed(discovery, machine_type_file, facts, inventory.warnings)


async def without_gpus(discovery: Discovery) -> tuple[Facts, list[str]]:
    """Return the facts of a node without a driver that answers, and warnings."""
    return await _completed(discovery, "", Facts())


async def with_passthrough(
    discovery: Discovery, machine_type_file: str
) -> tuple[Facts, list[str]]:
    """Return the facts of a node whose GPUs are for virtual machines, and warnings."""
    names = await discovery.host.ask(PciNames(), dict[str, str])
    facts = passed_through(discovery.roots, names)
    return await _completed(discovery, machine_type_file, facts)


async def _completed(
    discovery: Discovery, machine_type_file: str, facts: Facts, warnings: Sequence[str] = ()
) -> tuple[Facts, list[str]]:
    """Return facts with those added that need no driver, and warnings."""
    drivers = None
    try:
        drivers = await discovery.host.ask(HostDrivers(), tuple[HostDriver, ...])
    except NvctError as error:
        warnings = (*warnings, f"no labels of vGPUs: {error.message}")
    completed = replace(
        facts,
        machine=procfs.read_text(machine_type_file) or "",
        host_drivers=drivers,
        has_nvidia_device=bool(pci.nvidia_devices(discovery.roots)),
    )
    return completed, [*warnings]


def _gpu(roots: Roots, gpu: Gpu, attributes: GpuAttributes | None) -> GpuFacts:
    known = attributes or GpuAttributes(
        memory_mib=None, compute=(0, 0), ecc=None, mig_capable=gpu.mig_enabled
    )
    return GpuFacts(
        model=gpu.model,
        memory_mib=known.memory_mib,
        compute=known.compute,
        ecc=known.ecc,
        mig_capable=known.mig_capable,
        mig_enabled=gpu.mig_enabled,
        mig=tuple(MigFacts(profile=mig.profile, size=known.mig.get(mig.uuid)) for mig in gpu.mig),
        pci_class=pci.device_class(roots, gpu.bus_id),
        clique=known.clique,
    )


VFIO_DRIVER = "vfio-pci"
CLASSES = ("0x030000", "0x030200")
UNKNOWN_NAME = "UNKNOWN_DEVICE"
UNKNOWN_VERSION, NO_CUDA = "unknown.unknown.unknown", "0.0"
NO_COMPUTE = (-1, -1)
BARS = 6
WINDOW_TYPE, WINDOW_64 = 0x06, 0x04
"""Bits 1 and 2 of PCI's base address register, in the flags of a window."""


def passed_through(roots: Roots, names: Mapping[str, str]) -> Facts:
    """Return the facts of the GPUs that are bound to vfio-pci; none has a driver's version."""
    gpus = [path for path in pci.nvidia_devices(roots) if _is_passed_through(path)]
    if not gpus:
        return Facts()
    return Facts(
        driver_version=UNKNOWN_VERSION,
        cuda_version=NO_CUDA,
        gpus=tuple(_passed_gpu(path, names) for path in gpus),
    )


def memory_windows(resource: str) -> int:
    """Return the sum of 64-bit windows in sysfs' file `resource`, rounded up to a power of two."""
    total = 0
    for line in resource.splitlines()[:BARS]:
        words = line.split()
        try:
            start, end, flags = (int(word, 16) for word in words)
        except ValueError:
            continue
        if end > start and flags & WINDOW_TYPE == WINDOW_64:
            total += end - start + 1
    return 1 << (total - 1).bit_length() if total else 0


def _is_passed_through(path: str) -> bool:
    driver = os.path.basename(os.path.realpath(f"{path}/driver"))
    is_function = os.path.lexists(f"{path}/physfn")  # of SR-IOV
    return pci.text_of(f"{path}/class") in CLASSES and driver == VFIO_DRIVER and not is_function


def _passed_gpu(path: str, names: Mapping[str, str]) -> GpuFacts:
    number = pci.text_of(f"{path}/device").removeprefix("0x")
    return GpuFacts(
        model=names.get(number, UNKNOWN_NAME),
        memory_mib=memory_windows(procfs.read_text(f"{path}/resource") or "") or None,
        compute=NO_COMPUTE,
        pci_class=pci.text_of(f"{path}/class"),
    )


CUDA_PROBE = ("-I", "-m", "nvct.agent.labels.cuda_probe")
PROBE_S = 30.0
KILL_S = 2.0  # How long to wait after SIGKILL: a process that waits in the kernel does not end


async def facts_of_tegra() -> Facts:
    """Return the facts of the GPUs that CUDA sees here; DriverNotFoundError if CUDA fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *CUDA_PROBE, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        output, _ = await within(PROBE_S, process.communicate())
    except asyncio.TimeoutError as error:
        process.kill()
        with contextlib.suppress(asyncio.TimeoutError):
            await within(KILL_S, process.wait())
        raise _tegra_failure(f"it does not answer within {PROBE_S:g} s") from error
    return of_probe(output)


def of_probe(output: bytes) -> Facts:
    """Return facts from the output of `cuda_probe`; DriverNotFoundError if it has failed."""
    try:
        answer = json.loads(output)
        if "error" in answer:
            raise _tegra_failure(str(answer["error"]))
        version = int(answer["version"])
        gpus = tuple(
            GpuFacts(
                model=str(gpu["name"]),
                memory_mib=int(gpu["memory_mib"]) or None,
                compute=(int(gpu["compute"][0]), int(gpu["compute"][1])),
            )
            for gpu in answer["gpus"]
        )
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise _tegra_failure("its answer is malformed") from error
    cuda = f"{version // 1000}.{version % 100 // 10}"
    return Facts(driver_version=UNKNOWN_VERSION, cuda_version=cuda, gpus=gpus)


def _tegra_failure(reason: str) -> DriverNotFoundError:
    return DriverNotFoundError(
        f"the GPUs of this Tegra machine are unknown: CUDA: {reason}",
        hint="run this container by the runtime nvidia, with NVIDIA_VISIBLE_DEVICES=all",
    )
