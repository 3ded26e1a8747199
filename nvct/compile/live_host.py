# SPDX-License-Identifier: Apache-2.0
"""Discovery on the host that config.toml describes.

Cold. Separate from `refresh`, which needs a YAML parser: writing a spec does not.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from nvct import paths
from nvct.config.model import Config
from nvct.container.plan import fingerprints
from nvct.errors import HostError, NvctError
from nvct.host import discovery_options, modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.gpu import nodes
from nvct.host.model import Inventory
from nvct.host.roots import WSL_LIBRARIES, Roots, join
from nvct.linux import device_nodes

_ROOT = "nvidia-container-cli.root in config.toml"
KEYS = {
    "--driver-root, or root in config.toml": _ROOT,
    "--driver-root or --library-search-path": _ROOT,
    "--driver-root": _ROOT,
    "--dev-root": "nvct.dev-root in config.toml",
    "--csv.file": "nvidia-container-runtime.modes.csv.mount-spec-path in config.toml",
}
"""Options of nvidia-ctk in hints, and the keys that the runtime reads instead."""


@contextmanager
def hints_name_keys() -> Iterator[None]:
    """Make hints name keys of config.toml, because the runtime and the hook have no options."""
    try:
        yield
    except NvctError as error:
        for option, key in KEYS.items():
            error.hint = error.hint.replace(option, key)
        raise


def roots_of(settings: Config) -> Roots:
    """Return the roots that config.toml sets."""
    return Roots(
        driver_root=settings.driver_root,
        dev_root=settings.dev_root or None,
        proc=settings.proc_root,
        sys=settings.sys_root,
    )


def stat_node(settings: Config) -> nodes.StatNode:
    """Return the function that reads a device node, in some trees from a plain file."""
    return nodes.named_nodes(roots_of(settings)) if settings.plain_nodes else device_nodes.node


def discover(
    settings: Config, options: DiscoveryOptions | None = None, mode: str = "auto"
) -> Inventory:
    """Return the inventory of config.toml's host; DriverNotFoundError if it has no driver."""
    roots = roots_of(settings)
    return modes.discover(mode, roots, _named(settings, roots, options or DiscoveryOptions()))


def loaded_view(settings: Config) -> Inventory | None:
    """Return the inventory of the loaded driver's view, None if there is no view."""
    from nvct.farm import after_upgrade, of_host

    if not settings.wants_view:
        return None
    roots = roots_of(settings)
    options = _named(settings, roots, DiscoveryOptions())
    return after_upgrade.loaded_view(of_host.farm_of(settings), roots, options)


def _named(settings: Config, roots: Roots, options: DiscoveryOptions) -> DiscoveryOptions:
    return (
        replace(options, stat_node=nodes.named_nodes(roots)) if settings.plain_nodes else options
    )


def discover_or_view(
    settings: Config,
    options: DiscoveryOptions,
    mode: str = "auto",
    *,
    elsewhere: bool = False,
    may_build: bool = True,
) -> Inventory:
    """Return the inventory as `discover`, or after an upgrade that of the loaded driver's view.

    No view is used if the options name another place for the driver (`elsewhere`).
    """
    roots = roots_of(settings)
    options = _named(settings, roots, options)

    def find() -> Inventory:
        return modes.discover(mode, roots, options)

    if elsewhere or mode not in ("auto", "nvml"):
        return find()
    if not settings.wants_view or not os.path.isdir(settings.farm_dir):
        return find()
    from nvct.farm import after_upgrade, of_host  # not loaded on hosts without a view

    farm = of_host.farm_of(settings, may_build=may_build)
    return after_upgrade.discover_or_view(farm, roots, options, find)


def own_mode(settings: Config) -> str:
    """Return the discovery mode of the shim: csv if config.toml sets it, else auto."""
    return "csv" if settings.mode == "csv" else "auto"


def without_csv(settings: Config, error: HostError) -> Inventory:
    """Return the inventory of mode csv without JetPack's CSV files: one GPU, which has no nodes.

    As with nvidia-container-toolkit v1.20, containers start on a machine that is not a Tegra; here
    a warning says why they have no GPU. Raises `error` if this is a Tegra.
    """
    from nvct.host import procfs
    from nvct.host.model import Inventory, NamedDevice
    from nvct.host.tegra import board as tegra

    roots = roots_of(settings)
    if tegra.is_tegra(roots):
        raise error
    return Inventory(
        driver_version=procfs.driver_version(roots),
        mode="csv",
        devices=(NamedDevice(name="0", nodes=()),),
        warnings=(f"no GPU in mode csv, because this is not a Tegra: {error.message}",),
    )


def own_options(settings: Config, *, csv_all: bool = False) -> DiscoveryOptions:
    """Return the discovery options that config.toml sets for the shim.

    Unknown feature flags have no effect; the shim's log warns of them.
    """
    known_flags, _ = discovery_options.parse(settings.jit_feature_flags)
    return DiscoveryOptions(
        flags=known_flags,
        compat32=True,  # for containers that request compat32
        csv_all=csv_all,
        csv_folder=settings.csv_mount_spec_path,
        compat_container_root=settings.csv_compat_container_root,
    )


def own_fingerprints(
    settings: Config, options: DiscoveryOptions, mode: str
) -> list[fingerprints.Fingerprint]:
    """Return fingerprints of files that procfs does not show: JetPack's CSV files, WSL's driver.

    Take them before the discovery whose inventory they belong to.
    """
    roots = roots_of(settings)
    if mode == "auto":
        mode = modes.detect(roots)
    now = time.time_ns()
    if mode == "csv":
        from nvct.host.tegra import csv

        folder = options.csv_folder or f"{roots.etc}/{csv.FOLDER}"
        lists = csv.list_paths(roots, options)
        return [fingerprints.take_file(path, now) for path in (folder, *lists)]
    if mode == "wsl":
        from nvct.host import wsl

        return [
            fingerprints.take("node", f"{roots.dev}/dxg"),
            fingerprints.take("list", join(roots.driver_root, wsl.STORES)),
            fingerprints.take("list", join(roots.driver_root, WSL_LIBRARIES)),
        ]
    return []


def hook_path(settings: Config) -> str:
    """Return the path of the hook program: as configured, else beside Python, else on PATH."""
    if settings.hook_path != paths.HOOK_PATH:
        return settings.hook_path
    beside = os.path.join(os.path.dirname(sys.executable), paths.HOOK_PROGRAM)
    if os.access(beside, os.X_OK):
        return beside
    import shutil  # with its own imports, a tenth of the time to write a spec

    return shutil.which(paths.HOOK_PROGRAM) or paths.HOOK_PATH


def is_in_checkout(path: str) -> bool:
    """Return whether a path is below the checkout that this nvct runs from."""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    is_checkout = os.path.exists(os.path.join(folder, "pyproject.toml"))
    return is_checkout and os.path.realpath(path).startswith(f"{folder}/")
