# SPDX-License-Identifier: Apache-2.0
"""Makes what the hot side reads: the configuration, the plan of CDI folders, nvct's own plan.

Cold. The shim calls it through `cold_process`, `nvct refresh` calls it in advance. The results are
stored in the run directory if possible, and returned. Fingerprints of a driver are taken without
NVML, and files of procfs are compared by content: their times change without a reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from nvct import paths
from nvct.cdi.make import generate, naming, store
from nvct.cdi.read import registry
from nvct.compile import live_host
from nvct.compile import plans as compiler
from nvct.config import load
from nvct.config.model import Config
from nvct.container.plan import fingerprints, model
from nvct.container.plan.store import Store
from nvct.errors import HostError
from nvct.host import capabilities, discovery_options, procfs
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.driver import libraries, names
from nvct.host.gpu.nodes import CONTROL_NODES, capability_directory, mig_instances
from nvct.host.model import Inventory
from nvct.host.roots import Roots

OWN, OWN_CSV_ALL, OWN_NONE = "own", "own-csv-all", "own-none"


def config(path: str) -> dict[str, object]:
    """Return config.toml as the flat values that `Config.from_dict` parses. Raises ConfigError."""
    settings = load.load(path)
    warnings = [*settings.warnings, *discovery_options.parse(settings.jit_feature_flags)[1]]
    return {**settings.to_dict(), "warnings": warnings}


def registry_plan(config_path: str, run_dir: str) -> model.Plan:
    """Compile the CDI spec folders that config.toml names, and store the plan.

    Raises ConfigError.
    """
    # Fingerprints come before files are read and folders are listed: a later change breaks one.
    facts = compiler.input_fingerprints([config_path])
    settings = load.load(config_path)
    facts += compiler.input_fingerprints(settings.spec_dirs)
    facts += compiler.input_fingerprints(registry.spec_paths(settings.spec_dirs))
    roots = live_host.roots_of(settings)
    facts += compiler.version_fingerprints(roots)
    loaded = procfs.driver_version(roots)
    plan = compiler.compile_registry(registry.scan(settings.spec_dirs), config_path, roots)
    plan["facts"] = facts
    plan["host"] = {"driver": loaded, "cuda": names.cuda_version_of(loaded)}
    store_plan(plan, paths.REGISTRY_PLAN, run_dir)
    return plan


@live_host.hints_name_keys()
def own_plan(config_path: str, run_dir: str, which: str = OWN) -> model.Plan:
    """Make nvct's own spec of this host, compile it, and store both.

    The spec is in the run directory: in a CDI folder it would override an admin's. Only OWN stores
    the spec. OWN_CSV_ALL has all of JetPack's CSV files, for images on a Tegra that request them.
    OWN_NONE has no GPU and does not call NVML, for containers that request no GPU and hosts that
    have none. Raises DriverNotFoundError if there is no driver, and ConfigError.
    """
    facts = compiler.input_fingerprints([config_path])
    settings = load.load(config_path)
    roots = live_host.roots_of(settings)
    discovery, mode = (
        live_host.own_options(settings, csv_all=which == OWN_CSV_ALL),
        live_host.own_mode(settings),
    )
    if which == OWN_NONE:
        discovery = replace(discovery, nvml=None)
    facts += live_host.own_fingerprints(settings, discovery, mode)
    inventory, driver = discover_with_fingerprints(
        roots, partial(_discover, settings, discovery, mode)
    )
    spec_options = _options(settings, discovery, which)
    own = compiler.in_parts(inventory, spec_options)
    spec_path = f"{run_dir}/{paths.OWN_SPEC}"
    plan = compiler.compile_own(own, spec_path, config_path, roots)
    plan["facts"] = facts + driver
    plan["host"] = {"driver": inventory.driver_version, "cuda": inventory.cuda_version}
    if inventory.mode == "csv" and not any(device.nodes for device in inventory.devices):
        plan["problems"] = list(inventory.warnings)
    name_the_only_gpu(plan, inventory)
    name_otherwise(plan, inventory)
    plan["parents"] = {
        name: [gpu.node.major, gpu.node.minor]
        for gpu in inventory.gpus
        if gpu.mig_enabled and gpu.node is not None
        for name in (gpu.uuid, str(gpu.index), gpu.bus_id)
    }
    if settings.wants_view:
        from nvct.farm import of_host as farm  # not loaded with the classic layout

        plan["farm"] = farm.table_of(settings, inventory)
    if which == OWN:
        _store_spec(inventory, spec_options, run_dir)
    store_plan(plan, which + paths.PLAN_SUFFIX, run_dir)
    return plan


def _store_spec(inventory: Inventory, options: generate.Options, run_dir: str) -> None:
    """Store the spec for people to read, in the run directory, which no engine reads."""
    default_spec = generate.generate(
        capabilities.restrict(inventory, capabilities.DEFAULT), options
    )
    run_store = Store(run_dir, create=True)
    run_store.write(paths.OWN_SPEC, store.dumps(default_spec, "json"))
    run_store.close()


def _options(settings: Config, options: DiscoveryOptions, which: str) -> generate.Options:
    return generate.Options(
        device_ids=("none",) if which == OWN_NONE else ("all",),
        hook_path=live_host.hook_path(settings),
        disabled_hooks=settings.jit_disable_hooks,
        gid_groups=not settings.no_additional_gids
        and discovery_options.NO_GIDS not in options.flags,
        node_numbers=settings.plain_nodes,
    )


def name_the_only_gpu(plan: model.Plan, inventory: Inventory) -> None:
    """Give WSL's one device the name of a GPU as well, if NVML shows exactly one GPU.

    With several GPUs the device gets no such name: a container that requests one GPU would get
    all, as with nvidia-container-toolkit.
    """
    if inventory.mode == "wsl" and inventory.devices[0].uuid:
        (kind,) = plan["kinds"]
        device = plan["devices"].get(f"{kind}=all")
        if device is not None:
            plan["devices"][f"{kind}=0"] = device


def name_otherwise(plan: model.Plan, inventory: Inventory) -> None:
    """Add names that specs do not have: bus ids of GPUs, and UUIDs of MIG devices before R470.

    libnvidia-container knows bus ids; Incus writes the old UUIDs. A GPU in MIG mode is not a
    device of the plan, so it gets no name.
    """
    bus_ids = [gpu.bus_id for gpu in inventory.gpus]
    others = {
        str(gpu.index): gpu.bus_id
        for gpu in inventory.gpus
        if gpu.bus_id and bus_ids.count(gpu.bus_id) == 1
    }
    for gpu in inventory.gpus:
        others |= {f"{gpu.index}:{mig.index}": naming.old_uuid(gpu, mig) for mig in gpu.mig}
    for kind in plan["kinds"]:
        for name, other in others.items():
            device = plan["devices"].get(f"{kind}={name}")
            if device is not None:
                plan["devices"][f"{kind}={other}"] = device


def _discover(settings: Config, options: DiscoveryOptions, mode: str) -> Inventory:
    """Return the inventory as `discover_or_view`; also in mode csv on a host without a Tegra."""
    try:
        return live_host.discover_or_view(settings, options, mode)
    except HostError as error:
        if mode != "csv":
            raise
        return live_host.without_csv(settings, error)


def store_plan(plan: model.Plan, name: str, run_dir: str) -> None:
    """Store a plan in the run directory, if possible."""
    plan["made"] = time.time_ns()
    run_store = Store(run_dir, create=True)
    run_store.write_json(name, plan)
    run_store.close()


ATTEMPTS = 3


def driver_fingerprints(
    roots: Roots, inventory: Inventory, *, now_ns: int | None = None
) -> list[fingerprints.Fingerprint]:
    """Return the fingerprints that hold as long as a spec of this inventory fits the machine.

    They are taken now, possibly later than the inventory; see `discover_with_fingerprints`.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    taken = kernel_fingerprints(roots)
    for stem in ("libcuda.so", "libnvidia-ml.so"):
        library = libraries.host_path_of(inventory.files, stem)
        if library:
            taken.append(fingerprints.take_file(library, now_ns))
            break
    return taken


def kernel_fingerprints(roots: Roots) -> list[fingerprints.Fingerprint]:
    """Return fingerprints of the loaded driver, GPUs, control nodes and MIG instances."""
    taken = [
        fingerprints.take("text", f"{roots.proc}/driver/nvidia/version"),
        fingerprints.take("text", f"{roots.proc}/sys/kernel/random/boot_id"),
        fingerprints.take("text", f"{roots.proc}/devices"),
        fingerprints.take("list", f"{roots.proc}/driver/nvidia/gpus"),
    ]
    # A control node that is made later, such as nvidia-uvm at its first use, belongs in the spec.
    taken += [fingerprints.take("node", f"{roots.dev}/{node[0]}") for node in CONTROL_NODES]
    for gpu in procfs.gpus(roots):
        if gpu.minor is not None:
            taken += gpu_fingerprints(roots, gpu.minor)
    return taken


def gpu_fingerprints(roots: Roots, minor: int) -> list[fingerprints.Fingerprint]:
    """Return the fingerprints of one GPU: its node and its MIG instances."""
    directory = capability_directory(roots, minor)
    instances = mig_instances(roots, minor)
    return [
        fingerprints.take("node", f"{roots.dev}/nvidia{minor}"),
        fingerprints.take("list", directory),
        *(fingerprints.take("list", f"{directory}/gi{gi}") for gi in instances),
    ]


def discover_with_fingerprints(
    roots: Roots, inventory_of: Callable[[], Inventory]
) -> tuple[Inventory, list[fingerprints.Fingerprint]]:
    """Return an inventory, and fingerprints that held during the whole discovery.

    HostError if the machine changed during each of ATTEMPTS discoveries, or one of them failed.
    """
    for _ in range(ATTEMPTS):
        before = kernel_fingerprints(roots)
        inventory = inventory_of()
        after = driver_fingerprints(roots, inventory)
        if after[: len(before)] == before:
            return inventory, after
    raise HostError(
        f"GPUs or MIG devices changed {ATTEMPTS} times while they were listed",
        hint="try again when whatever changes them is done",
    )
