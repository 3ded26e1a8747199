# SPDX-License-Identifier: Apache-2.0
"""Makes the files that the hot side reads: the configuration, the registry's and the own plan.

Cold. The shim calls it through `cold_process`, `nvct refresh` calls it in advance. The results are
stored in the run directory, and returned even if that is not possible.
"""

from __future__ import annotations

import time
from dataclasses import replace

from nvct import paths
from nvct.cdi import registry, store
from nvct.compile import live_host, parts
from nvct.compile import plans as compiler
from nvct.config import load
from nvct.container.plan.fingerprints import take
from nvct.container.plan.store import Store
from nvct.errors import HostError
from nvct.host import discovery_options
from nvct.host.driver import names
from nvct.spec import capabilities, generate
from nvct.spec import fingerprints as spec_fingerprints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.config.model import Config
    from nvct.container.plan.model import Plan
    from nvct.host.discovery_options import DiscoveryOptions
    from nvct.host.model import Inventory

OWN, OWN_CSV_ALL, OWN_NONE = "own", "own-csv-all", "own-none"


def config(path: str) -> dict[str, object]:
    """Return config.toml as the flat values that `Config.from_dict` parses.

    Raises:
        ConfigError: config.toml is invalid.
    """
    settings = load.load(path)
    warnings = [*settings.warnings, *discovery_options.parse(settings.jit_feature_flags)[1]]
    return {**settings.to_dict(), "warnings": warnings}


def registry_plan(config_path: str, run_dir: str) -> Plan:
    """Compile the CDI spec folders that config.toml names, and store the plan.

    Raises:
        ConfigError: config.toml is invalid.
    """
    # Fingerprints of files before reading, of folders before listing: a later change breaks one.
    facts = compiler.input_fingerprints([config_path])
    settings = load.load(config_path)
    facts += compiler.input_fingerprints(settings.spec_dirs)
    facts += compiler.input_fingerprints(registry.spec_paths(settings.spec_dirs))
    version_fact = take("text", f"{settings.proc_root}/{compiler.VERSION_FILE}")
    loaded = compiler.loaded_version(settings.proc_root)
    plan = compiler.compile_registry(
        registry.scan(settings.spec_dirs), config_path, settings.proc_root
    )
    plan["facts"] = [*facts, version_fact]
    plan["host"] = {"driver": loaded, "cuda": names.cuda_version_of(loaded)}
    store_plan(plan, paths.REGISTRY_PLAN, run_dir)
    return plan


@live_host.hints_name_keys()
def own_plan(config_path: str, run_dir: str, which: str = OWN) -> Plan:
    """Make nvct's own spec of this host, compile it, and store both.

    The spec is in the run directory: in a CDI folder it would override an admin's.

    Args:
        config_path: of config.toml.
        run_dir: the run directory.
        which: OWN, or a plan without a stored spec: OWN_CSV_ALL, on a Tegra, with all of JetPack's
            lists, for images that request it; OWN_NONE, without a GPU and without NVML, for
            containers that request none and for hosts that have none.

    Raises:
        DriverNotFoundError: no driver is installed or loaded.
        ConfigError: config.toml is invalid.
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
    inventory, driver = spec_fingerprints.discover(roots, _finder(settings, discovery, mode))
    spec_options = _options(settings, discovery, which)
    own = parts.in_parts(inventory, spec_options)
    spec_path = f"{run_dir}/{paths.OWN_SPEC}"
    plan = compiler.compile_own(own, spec_path, config_path, settings.proc_root)
    plan["facts"] = facts + driver
    plan["host"] = {"driver": inventory.driver_version, "cuda": inventory.cuda_version}
    if inventory.mode == "csv" and not any(device.nodes for device in inventory.devices):
        plan["problems"] = list(inventory.warnings)
    name_the_only_gpu(plan, inventory)
    name_by_bus_id(plan, inventory)
    plan["parents"] = {
        name: [gpu.node.major, gpu.node.minor]
        for gpu in inventory.gpus
        if gpu.mig_enabled and gpu.node is not None
        for name in (gpu.uuid, str(gpu.index), gpu.bus_id)
    }
    if settings.wants_view:
        from nvct.compile import farm_plan as farm  # not loaded with the classic layout

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


def name_the_only_gpu(plan: Plan, inventory: Inventory) -> None:
    """Give WSL's one device the name of a GPU as well, if NVML shows exactly one GPU.

    With several GPUs there is no such name: a container that requests one of them would get all,
    as with nvidia-container-toolkit.
    """
    if inventory.mode == "wsl" and inventory.devices[0].uuid:
        (kind,) = plan["kinds"]
        device = plan["devices"].get(f"{kind}=all")
        if device is not None:
            plan["devices"][f"{kind}=0"] = device


def name_by_bus_id(plan: Plan, inventory: Inventory) -> None:
    """Give each GPU that is not in MIG mode its bus id as a name, as libnvidia-container does.

    The spec itself has no such names, like those of nvidia-container-toolkit.
    """
    bus_ids = [gpu.bus_id for gpu in inventory.gpus]
    for kind in plan["kinds"]:
        for gpu in inventory.gpus:
            device = plan["devices"].get(f"{kind}={gpu.index}")
            if device is not None and gpu.bus_id and bus_ids.count(gpu.bus_id) == 1:
                plan["devices"][f"{kind}={gpu.bus_id}"] = device


def _finder(settings: Config, options: DiscoveryOptions, mode: str) -> Callable[[], Inventory]:
    """Return the discovery function; it returns a view if the disk has another driver."""

    def discover() -> Inventory:
        try:
            return live_host.discover(settings, options, mode)
        except HostError as error:
            if mode != "csv":
                raise
            return live_host.without_csv(settings, error)

    if not settings.wants_view:
        return discover
    from nvct.compile import farm_plan as own

    return lambda: own.discover_or_view(settings, live_host.roots_of(settings), options, discover)


def store_plan(plan: Plan, name: str, run_dir: str) -> None:
    """Store a plan in the run directory, if possible."""
    plan["made"] = time.time_ns()
    run_store = Store(run_dir, create=True)
    run_store.write_json(name, plan)
    run_store.close()
