# SPDX-License-Identifier: Apache-2.0
"""Make what the hot side reads: the configuration and the plans of registry and own spec.

Cold. Called by the shim through its door, and by `nvct refresh` ahead of time. What is made is
kept in the run directory; where that cannot be, it is answered all the same.
"""

from __future__ import annotations

import os

from nvct import paths
from nvct.cdi import registry, store
from nvct.config import load
from nvct.host import cuda_version
from nvct.host.wanted import Wanted
from nvct.oci import jsontext
from nvct.plan import compile as compiler
from nvct.plan.facts import take
from nvct.plan.store import Store
from nvct.refresh import live
from nvct.specgen import capabilities, generate, parts
from nvct.specgen import facts as spec_facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.plan.model import Plan


def config(path: str) -> dict[str, object]:
    """Return config.toml as the flat values that `Config.from_dict` takes.

    Raises:
        ConfigError: it cannot be used.
    """
    return dict(load.load(path).to_dict())


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
    _keep(plan, paths.REGISTRY_PLAN, run_dir)
    return plan


def own_plan(config_path: str, run_dir: str) -> Plan:
    """Make nvct's own spec of this host as it is now, compile it, and keep both.

    The spec lies in the run directory: in a CDI folder it would outrank an admin's.

    Raises:
        DriverNotFoundError: no driver is installed or loaded.
        ConfigError: config.toml cannot be used.
    """
    facts = compiler.input_facts([config_path])
    settings = load.load(config_path)
    roots = live.roots_of(settings)
    wanted = Wanted(compat32=True)  # plans have them, for those who ask
    inventory, driver = spec_facts.discover_with_facts(roots, lambda: live.look(settings, wanted))
    options = generate.Options(
        hook_path=live.hook_path(settings),
        disabled_hooks=settings.jit_disable_hooks,
        gid_groups=not settings.no_additional_gids,
        node_numbers=settings.plain_nodes,
    )
    spec, more = parts.in_parts(inventory, options)
    spec_path = f"{run_dir}/{paths.OWN_SPEC}"
    plan = compiler.compile_spec(spec, spec_path, config_path, settings.proc_root, parts=more)
    plan["facts"] = facts + driver
    plan["host"] = {"driver": inventory.driver_version, "cuda": inventory.cuda_version}
    kept = Store(run_dir, create=True)
    usual = generate.generate(capabilities.filter(inventory, capabilities.DEFAULT), options)
    kept.write(paths.OWN_SPEC, store.dumps(usual, "json"))
    kept.close()
    _keep(plan, paths.OWN_PLAN, run_dir)
    return plan


def _spec_files(dirs: list[str]) -> list[str]:
    """Return the files in the spec folders that the registry reads."""
    found = []
    for folder in dirs:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        found += [f"{folder}/{n}" for n in names if n.endswith((".json", ".yaml", ".yml"))]
    return found


def _keep(plan: Plan, name: str, run_dir: str) -> None:
    kept = Store(run_dir, create=True)
    kept.write(name, jsontext.dumps(plan).encode())
    kept.close()
