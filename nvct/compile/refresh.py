# SPDX-License-Identifier: Apache-2.0
"""Make what the hot side reads: the configuration and the plans of registry and own spec.

Cold. Called by the shim through its door, and by `nvct refresh` ahead of time. What is made is
kept in the run directory; where that cannot be, it is answered all the same.
"""

from __future__ import annotations

import os
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
from nvct.host import flags
from nvct.host.driver import cuda_version
from nvct.spec import capabilities, generate
from nvct.spec import fingerprints as spec_facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvct.config.model import Config
    from nvct.container.plan.model import Plan
    from nvct.host.discovery_options import DiscoveryOptions
    from nvct.host.model import Inventory

OWN, OWN_CSV_ALL, OWN_NONE = "own", "own-csv-all", "own-none"


def config(path: str) -> dict[str, object]:
    """Return config.toml as the flat values that `Config.from_dict` takes.

    Raises:
        ConfigError: it cannot be used.
    """
    settings = load.load(path)
    warnings = [*settings.warnings, *flags.parse(settings.jit_feature_flags)[1]]
    return {**settings.to_dict(), "warnings": warnings}


def registry_plan(config_path: str, run_dir: str) -> Plan:
    """Compile the CDI spec folders that config.toml names, and keep the plan.

    Raises:
        ConfigError: config.toml cannot be used.
    """
    # Facts before reading, and those of folders before listing: what changes meanwhile breaks one.
    facts = compiler.input_facts([config_path])
    settings = load.load(config_path)
    facts += compiler.input_facts(settings.spec_dirs)
    facts += compiler.input_facts(_spec_files(settings.spec_dirs))
    version_fact = take("text", f"{settings.proc_root}/{compiler.VERSION_FILE}")
    loaded = compiler.loaded_version(settings.proc_root)
    plan = compiler.compile_registry(
        registry.scan(settings.spec_dirs), config_path, settings.proc_root
    )
    plan["facts"] = [*facts, version_fact]
    plan["host"] = {"driver": loaded, "cuda": cuda_version.of_driver(loaded)}
    keep(plan, paths.REGISTRY_PLAN, run_dir)
    return plan


@live_host.hints_name_keys()
def own_plan(config_path: str, run_dir: str, which: str = OWN) -> Plan:
    """Make nvct's own spec of this host as it is now, compile it, and keep both.

    The spec lies in the run directory: in a CDI folder it would outrank an admin's.

    Args:
        config_path: of config.toml.
        run_dir: where it is kept.
        which: the usual plan, or one whose spec is not kept: OWN_CSV_ALL, on a Tegra, of all
            that JetPack's files list, for images that ask for it; OWN_NONE, without a GPU, for
            who asks for none, and on hosts that have none to give. NVML is not asked for it.

    Raises:
        DriverNotFoundError: no driver is installed or loaded.
        ConfigError: config.toml cannot be used.
    """
    facts = compiler.input_facts([config_path])
    settings = load.load(config_path)
    roots = live_host.roots_of(settings)
    wanted, mode = (
        live_host.own_wanted(settings, csv_all=which == OWN_CSV_ALL),
        live_host.own_mode(settings),
    )
    if which == OWN_NONE:
        wanted = replace(wanted, nvml=None)
    facts += live_host.own_facts(settings, wanted, mode)
    inventory, driver = spec_facts.discover_with_facts(roots, _finder(settings, wanted, mode))
    options = _options(settings, wanted, which)
    own = parts.in_parts(inventory, options)
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
        from nvct.compile import farm_plan as farm  # who wants no view does not load what makes it

        plan["farm"] = farm.table_of(settings, inventory)
    if which == OWN:
        _keep_spec(inventory, options, run_dir)
    keep(plan, which + paths.PLAN_SUFFIX, run_dir)
    return plan


def _keep_spec(inventory: Inventory, options: generate.Options, run_dir: str) -> None:
    """Keep the spec for people: it lies in the run directory, where no engine looks."""
    usual = generate.generate(capabilities.filter(inventory, capabilities.DEFAULT), options)
    kept = Store(run_dir, create=True)
    kept.write(paths.OWN_SPEC, store.dumps(usual, "json"))
    kept.close()


def _options(settings: Config, options: DiscoveryOptions, which: str) -> generate.Options:
    return generate.Options(
        device_ids=("none",) if which == OWN_NONE else ("all",),
        hook_path=live_host.hook_path(settings),
        disabled_hooks=settings.jit_disable_hooks,
        gid_groups=not settings.no_additional_gids and flags.NO_GIDS not in options.flags,
        node_numbers=settings.plain_nodes,
    )


def name_the_only_gpu(plan: Plan, inventory: Inventory) -> None:
    """Give the one device of WSL the name of a GPU, where NVML shows just one.

    With several, a container that asks for one of them would get all, as it does from the
    incumbent.
    """
    if inventory.mode == "wsl" and inventory.devices[0].uuid:
        (kind,) = plan["kinds"]
        device = plan["devices"].get(f"{kind}=all")
        if device is not None:
            plan["devices"][f"{kind}=0"] = device


def name_by_bus_id(plan: Plan, inventory: Inventory) -> None:
    """Give each GPU that is not in MIG mode the name by which libnvidia-container knows it too.

    The spec itself has no such names: those of the incumbent have none.
    """
    known = [gpu.bus_id for gpu in inventory.gpus]
    for kind in plan["kinds"]:
        for gpu in inventory.gpus:
            device = plan["devices"].get(f"{kind}={gpu.index}")
            if device is not None and gpu.bus_id and known.count(gpu.bus_id) == 1:
                plan["devices"][f"{kind}={gpu.bus_id}"] = device


def _finder(settings: Config, options: DiscoveryOptions, mode: str) -> Callable[[], Inventory]:
    """Return how the host is looked at: a view may stand for the disk."""

    def find() -> Inventory:
        try:
            return live_host.look(settings, options, mode)
        except HostError as error:
            if mode != "csv":
                raise
            return live_host.without_csv(settings, error)

    if not settings.wants_view:
        return find
    from nvct.compile import farm_plan as own

    return lambda: own.look(settings, live_host.roots_of(settings), options, find)


def _spec_files(dirs: Sequence[str]) -> list[str]:
    """Return the files in the spec folders that the registry reads."""
    found = []
    for folder in dirs:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        found += [f"{folder}/{n}" for n in names if n.endswith((".json", ".yaml", ".yml"))]
    return found


def keep(plan: Plan, name: str, run_dir: str) -> None:
    """Keep a plan in the run directory, if that can be."""
    plan["made"] = time.time_ns()
    kept = Store(run_dir, create=True)
    kept.write_json(name, plan)
    kept.close()
