# SPDX-License-Identifier: Apache-2.0
"""Command nvidia-container-cli info: driver and GPUs, in libnvidia-container's two formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from nvct.cli.container.arguments import Option, bus_id
from nvct.errors import HostError, NvmlError
from nvct.host.driver import libraries, names
from nvct.host.model import Inventory
from nvct.host.nvml.model import GpuProperties, NvmlReport
from nvct.host.nvml.session import NvmlSession, shared_session

OPTIONS = (Option("csv", "", "", "Print comma-separated values"),)
TEXT = "Print the driver's version and the GPUs of this host."
UNKNOWN = "Unknown"
WITH_NVML = ("nvml", "wsl")
DRIVER_TITLES = ("NVRM version", "CUDA version")
GPU_TITLES = (
    "Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location", "Architecture",
)  # fmt: skip


Row: TypeAlias = tuple[object, ...]  # the values of a GPU, in the order of GPU_TITLES


def initialized(inventory: Inventory) -> NvmlSession | None:
    """Return an initialized NVML; None if that fails on a host that needs none, e.g. Tegra.

    Scripts take the exit status of info and list for the driver's health, because in
    libnvidia-container both first initialize the driver (src/cli/info.c, list.c). HostError if the
    driver needs NVML, and NVML cannot be initialized.
    """
    library = libraries.host_path_of(inventory.files, "libnvidia-ml.so")
    needed = inventory.mode in WITH_NVML
    if not library:
        if needed:
            raise HostError("the driver cannot be initialized: it has no libnvidia-ml.so")
        return None
    nvml = shared_session(library)
    try:
        nvml.check()
    except NvmlError as error:
        if not needed:
            return None
        text = f"the driver cannot be initialized: {error.message}"
        raise NvmlError(text, hint=error.hint) from error
    return nvml


def ask(
    inventory: Inventory, nvml: NvmlSession | None, warn: Callable[[str], None]
) -> tuple[tuple[str, str], list[Row]]:
    """Return the driver's versions and the GPUs, with "Unknown" for values that NVML lacks."""
    properties: dict[str, GpuProperties] = {}
    report: NvmlReport | None = None
    cuda = inventory.cuda_version or names.cuda_version_of(inventory.driver_version)
    try:
        if nvml is not None:
            properties = nvml.properties()
        if nvml is not None and not (inventory.gpus and cuda):
            report = nvml.report()
    except NvmlError as error:
        warn(f"{error.message}: brand and architecture are unknown")
    if nvml is None:
        warn("the driver has no working libnvidia-ml.so: brand and architecture are unknown")
    if report is not None:
        cuda = cuda or report.cuda_version
    gpus = inventory.gpus or (report.gpus if report else ())
    rows: list[Row] = [
        (
            gpu.index,
            max(gpu.minor, 0),  # WSL and Tegra have none
            getattr(gpu, "model", "") or getattr(gpu, "name", ""),
            properties.get(gpu.uuid, GpuProperties()).brand or UNKNOWN,
            gpu.uuid,
            bus_id(gpu.bus_id) or gpu.bus_id,
            properties.get(gpu.uuid, GpuProperties()).arch or UNKNOWN,
        )
        for gpu in gpus
    ]
    driver = inventory.driver_version or (report.driver_version if report else "")
    return (driver or UNKNOWN, cuda or UNKNOWN), rows


def as_text(versions: Sequence[str], rows: Sequence[Row]) -> str:
    """Return the text format: a block for the driver, and one for each GPU."""
    blocks = [_block(DRIVER_TITLES, versions)]
    blocks += [_block(GPU_TITLES, row) for row in rows]
    return "\n".join(blocks)


def _block(titles: Sequence[str], values: Sequence[object]) -> str:
    pairs = zip(titles, values, strict=True)
    return "".join(f"{title + ':':<15} {value}\n" for title, value in pairs)


def as_csv(versions: Sequence[str], rows: Sequence[Row]) -> str:
    """Return the CSV format: two tables; values are not quoted."""
    head = f"{','.join(DRIVER_TITLES)}\n{','.join(versions)}\n\n{','.join(GPU_TITLES)}\n"
    return head + "".join(",".join(map(str, row)) + "\n" for row in rows)
