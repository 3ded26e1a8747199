# SPDX-License-Identifier: Apache-2.0
"""Makes the plans for devices other than GPUs, and for GPU properties that only NVML has.

Cold; the shim calls it at the first request for them. A mode without devices is an error that is
not cached: the next create tries again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import cast

from nvct import paths
from nvct.cdi.make import edits as cdi_edits
from nvct.cdi.make import generate
from nvct.cdi.types import Spec
from nvct.compile import live_host, refresh
from nvct.compile import plans as compiler
from nvct.config import load
from nvct.config.model import Config
from nvct.container.plan import fingerprints, model
from nvct.container.plan.fingerprints import take, take_file
from nvct.errors import HostError, NvctError, NvmlError, UsageError
from nvct.host import feature_modes, procfs
from nvct.host.driver import libraries
from nvct.host.gpu import nodes
from nvct.host.gpu.nodes import mig_minors
from nvct.host.model import DeviceNode, Findings, Inventory
from nvct.host.nvml.model import GpuProperties
from nvct.host.nvml.session import shared_session
from nvct.host.roots import Roots

MIG = "mig"
MIG_KIND = "nvidia.com/mig"
IMEX_KIND = "nvidia.com/imex-channel"
MIG_CAPABILITIES = ("config", "monitor")
# The entries of /dev that can change without a change in /proc/devices.
WATCHED: dict[str, tuple[str, str]] = {
    "gds": ("prefix", "nvidia-fs"),
    "gdrcopy": ("node", "gdrdrv"),
    "mofed": ("list", "infiniband"),
    "nvswitch": ("prefix", "nvidia-nvswitch"),
    "imex": ("list", "nvidia-caps-imex-channels"),
    MIG: ("list", "nvidia-caps"),
}
PROPERTIES = "properties"
PREFIX = "mode-"


@live_host.hints_name_keys()
def mode_plan(mode: str, config_path: str, run_dir: str) -> model.Plan:
    """Compile and store the plan of one mode.

    Raises UsageError if the mode is unknown; HostError if the host has no device of the mode;
    ConfigError if config.toml is invalid.
    """
    if mode not in WATCHED:
        raise UsageError(f"there is no plan of mode {mode!r}")
    facts = compiler.input_fingerprints([config_path])
    settings = load.load(config_path)
    roots = live_host.roots_of(settings)
    facts += _fingerprints(mode, roots)
    problems: list[str] = []
    host_values: dict[str, str] = {}
    if mode == MIG:
        inventory, driver = refresh.discover_with_fingerprints(
            roots, lambda: live_host.discover(settings)
        )
        facts += driver
        spec = _mig_spec(settings, roots, inventory, problems)
        # Without a usable GPU, the plan of GPUs cannot be made, which is another error.
        usable = [gpu for gpu in inventory.gpus if gpu.mig or not gpu.mig_enabled]
        host_values["others"] = str(len(usable) or "")
    else:
        options = generate.Options(
            all_device=mode != "imex",  # there can be thousands of channels; nobody asks for all
            gid_groups=not settings.no_additional_gids,
            node_numbers=settings.plain_nodes,
        )
        spec = _mode_spec(mode, settings, roots, options, host_values)
    name = f"{PREFIX}{mode}{paths.PLAN_SUFFIX}"
    plan = compiler.compile_spec(spec, f"{run_dir}/{name}", config_path, roots)
    plan["facts"] = facts
    plan["problems"] = problems
    plan["host"] = host_values
    refresh.store_plan(plan, name, run_dir)
    return plan


def _mode_spec(
    mode: str, settings: Config, roots: Roots, options: generate.Options, values: dict[str, str]
) -> Spec:
    """Return the spec of a mode; for IMEX, also put the major of all channels into `values`."""
    if mode == "imex" and feature_modes.FOLDER in procfs.majors(roots):
        values["major"] = str(procfs.majors(roots)[feature_modes.FOLDER])
    try:
        return generate.generate(live_host.discover(settings, mode=mode), options)
    except HostError:
        if "major" not in values:
            raise
    # A channel needs no node on the host: a permitted container gets a node with that major.
    spec = {"cdiVersion": "0.5.0", "kind": IMEX_KIND, "devices": [], "containerEdits": {}}
    return cast("Spec", spec)


def rebuild(
    config_path: str, run_dir: str
) -> Iterator[tuple[str, model.Plan | None, NvctError | None]]:
    """Compile the stored plans again, except the plan of CDI folders and the usual own plan.

    Yields each plan's word with the plan, or with the error if the host no longer has its devices:
    then the stored plan is removed.
    """
    words = [*(f"{PREFIX}{mode}" for mode in WATCHED), PROPERTIES]
    words += [refresh.OWN_CSV_ALL, refresh.OWN_NONE]
    for word in words:
        plan_path = f"{run_dir}/{word}{paths.PLAN_SUFFIX}"
        if not os.path.exists(plan_path):
            continue
        try:
            if word.startswith(PREFIX):
                yield word, mode_plan(word.removeprefix(PREFIX), config_path, run_dir), None
            elif word == PROPERTIES:
                yield word, properties_plan(config_path, run_dir), None
            else:
                yield word, refresh.own_plan(config_path, run_dir, word), None
        except NvctError as error:
            with suppress(OSError):  # e.g. a directory in its place
                os.unlink(plan_path)
            yield word, None, error


def _fingerprints(mode: str, roots: Roots) -> list[fingerprints.Fingerprint]:
    kind, name = WATCHED[mode]
    taken = [
        take("text", f"{roots.proc}/sys/kernel/random/boot_id"),
        take("text", f"{roots.proc}/devices"),
        take(kind, f"{roots.dev}/{name}"),
    ]
    mode_files = {str(gate): files.files for gate, files in feature_modes.FEATURE_MODES.items()}
    for file_kind, path, _ in mode_files.get(mode, ()):
        for file in feature_modes.candidate_paths(roots, path):
            # A directory's times change with its content; only its existence matters.
            is_folder = file_kind == "directory"
            taken.append(take("prefix", file) if is_folder else take_file(file, time.time_ns()))
    return taken


def _mig_spec(settings: Config, roots: Roots, inventory: Inventory, problems: list[str]) -> Spec:
    """Return a spec of the MIG capabilities, and of GPUs in MIG mode with all their MIG devices.

    It does what libnvidia-container's options --mig-config and --mig-monitor do.
    """
    search = nodes.NodeSearch(roots, live_host.stat_node(settings), Findings())
    devices: list[dict[str, object]] = []

    def add(names: Sequence[str], nodes_of_device: Sequence[DeviceNode]) -> None:
        edits = cdi_edits.make(
            nodes_of_device,
            node_numbers=settings.plain_nodes,
            gid_groups=not settings.no_additional_gids,
        )
        devices.extend({"name": name, "containerEdits": edits} for name in names)

    for name in MIG_CAPABILITIES:
        node = _capability_node(search, name)
        if node is not None:
            add([name], [node])
        else:
            problems.append(f"the host has no device node of the MIG capability {name}")
    all_nodes: list[DeviceNode] = []
    for gpu in inventory.gpus:
        if gpu.mig_enabled and gpu.node is not None:
            nodes_of_device = [gpu.node, *(node for device in gpu.mig for node in device.nodes)]
            add([str(gpu.index), gpu.uuid], nodes_of_device)
            all_nodes += nodes_of_device
    if all_nodes:
        add(["all"], all_nodes)
    spec = {
        "cdiVersion": "0.5.0",
        "kind": MIG_KIND,
        "devices": devices,
        "containerEdits": {"env": [generate.VOID_ENV]},
    }
    return cast("Spec", spec)


def _capability_node(search: nodes.NodeSearch, name: str) -> DeviceNode | None:
    minor = mig_minors(search.roots).get(name)
    if minor is None:
        return None
    name_in_dev = f"nvidia-caps/nvidia-cap{minor}"
    return nodes.make_node(search, name_in_dev, f"MIG capability {name}")


@live_host.hints_name_keys()
def properties_plan(config_path: str, run_dir: str) -> model.Plan:
    """Compile and store the plan of GPU properties, such as brand and architecture, by name.

    A property that NVML does not report is omitted. If NVML fails, the plan has its error as a
    problem. Raises DriverNotFoundError if no driver is installed or loaded, and ConfigError if
    config.toml is invalid.
    """
    facts = compiler.input_fingerprints([config_path])
    settings = load.load(config_path)
    inventory, driver = refresh.discover_with_fingerprints(
        live_host.roots_of(settings), lambda: live_host.discover(settings)
    )
    library = libraries.host_path_of(inventory.files, "libnvidia-ml.so")
    plan = compiler.empty(config_path)
    plan["facts"] = facts + driver
    properties: dict[str, GpuProperties] = {}
    try:
        properties = shared_session(library).properties() if library else {}
    except NvmlError as error:
        plan["problems"] = [error.message]
    gpus = {
        name: {key: value for key, value in asdict(gpu).items() if value}
        for name, gpu in by_name(inventory, properties).items()
    }
    plan = cast("model.Plan", {**plan, "gpus": gpus})
    refresh.store_plan(plan, PROPERTIES + paths.PLAN_SUFFIX, run_dir)
    return plan


def by_name(
    inventory: Inventory, properties: Mapping[str, GpuProperties]
) -> dict[str, GpuProperties]:
    """Return properties by each name of a device in a plan; a MIG device has those of its GPU."""
    named: dict[str, GpuProperties] = {}
    for gpu in inventory.gpus:
        if gpu.uuid in properties:
            names = [str(gpu.index), gpu.uuid, gpu.bus_id]
            names += [n for m in gpu.mig for n in (f"{gpu.index}:{m.index}", m.uuid)]
            named.update(dict.fromkeys(filter(None, names), properties[gpu.uuid]))
    only = list(properties.values())
    for device in inventory.devices:
        if device.uuid in properties or len(only) == 1:
            named[device.name] = properties.get(device.uuid, only[0])
            if device.uuid:
                named[device.uuid] = named[device.name]
    return named
