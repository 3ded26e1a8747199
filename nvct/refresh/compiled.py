# SPDX-License-Identifier: Apache-2.0
"""Make what the hot side reads: the configuration and the plans of registry and own spec.

Cold. Called by the shim through its door, and by `nvct refresh` ahead of time. What is made is
kept in the run directory; where that cannot be, it is answered all the same.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from nvct import paths
from nvct.cdi import registry, store
from nvct.config import load
from nvct.host import modes, nodes
from nvct.host.roots import Roots
from nvct.host.wanted import Wanted
from nvct.oci import jsontext
from nvct.plan import compile as compiler
from nvct.plan.store import Store
from nvct.specgen import facts as spec_facts
from nvct.specgen import generate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.config.model import Config
    from nvct.host.model import Inventory
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
    plan = compiler.compile_registry(
        registry.scan(settings.spec_dirs), config_path, settings.proc_root
    )
    plan["facts"] = facts
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
    roots = roots_of(settings)
    inventory, driver = spec_facts.discover_with_facts(roots, lambda: look(settings))
    options = generate.Options(
        hook_path=hook_path(settings),
        disabled_hooks=settings.jit_disable_hooks,
        gid_groups=not settings.no_additional_gids,
        node_numbers=settings.plain_nodes,
    )
    spec = generate.generate(inventory, options)
    spec_path = f"{run_dir}/{paths.OWN_SPEC}"
    plan = compiler.compile_spec(spec, spec_path, config_path, settings.proc_root)
    plan["facts"] = facts + driver
    kept = Store(run_dir, create=True)
    kept.write(paths.OWN_SPEC, store.dumps(spec, "json"))
    kept.close()
    _keep(plan, paths.OWN_PLAN, run_dir)
    return plan


def roots_of(settings: Config) -> Roots:
    """Return where config.toml says that the parts of the host are."""
    return Roots(
        driver_root=settings.driver_root,
        dev_root=settings.dev_root or None,
        proc=settings.proc_root,
        sys=settings.sys_root,
    )


def look(settings: Config, wanted: Wanted | None = None, mode: str = "auto") -> Inventory:
    """Return the inventory of the host that config.toml describes.

    Raises:
        DriverNotFoundError: no driver is installed or loaded.
        UsageError: there is no such mode.
    """
    roots = roots_of(settings)
    wanted = wanted or Wanted()
    if settings.plain_nodes:
        wanted = replace(wanted, stat_node=nodes.named_nodes(roots))
    return modes.find(mode, roots, wanted)


def hook_path(settings: Config) -> str:
    """Return the hook program of generated specs: configured, beside this interpreter, on PATH."""
    if settings.hook_path != paths.HOOK_PATH:
        return settings.hook_path
    beside = Path(sys.executable).parent / paths.HOOK_PROGRAM
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which(paths.HOOK_PROGRAM) or paths.HOOK_PATH


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
