# SPDX-License-Identifier: Apache-2.0
"""The CDI specifications of the device plugin's own kinds, for the strategies cdi-*.

Each class has a file. They are made of the same inventory as those of `nvidia-ctk cdi generate`;
a class without a device is left out with a warning. The specification of GPUs gives the driver's
files as the node's published one does, if that mounts a view of the same driver.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, cast

from nvct.agent.device_plugin import published
from nvct.agent.device_plugin.published import Published
from nvct.agent.device_plugin.settings import SPEC_FOLDER, VENDOR
from nvct.agent.discovery import Reported
from nvct.cdi import store
from nvct.errors import HostError
from nvct.host import flags, modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.roots import join
from nvct.linux import device_nodes
from nvct.spec.generate import Options, generate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.agent.device_plugin.settings import Settings
    from nvct.cdi.types import ContainerEdits, Spec
    from nvct.host.gpu.nodes import StatNode
    from nvct.host.nvml.model import NvmlReport
    from nvct.host.roots import Roots


class Written(NamedTuple):
    """The specifications that were written.

    Attributes:
        features: those that have a specification.
        published: the node's specification that gives the driver's files, or why none does.
        warnings: sentences about what is missing.
    """

    features: tuple[str, ...]
    published: Published
    warnings: list[str]


def write(
    settings: Settings,
    roots: Roots,
    report: NvmlReport,
    imex_channels: Sequence[int],
    *,
    stat_node: StatNode = device_nodes.node,
    folder: str = SPEC_FOLDER,
) -> Written:
    """Write the specifications of GPUs, IMEX channels and features.

    Args:
        settings: of the plugin.
        roots: of this container.
        report: what NVML reports.
        imex_channels: numbers of the channels that containers get.
        stat_node: as that of `DiscoveryOptions`.
        folder: for the files.

    Raises:
        NvctError: there is no specification of the GPUs or channels.
    """
    known, _ = flags.parse(settings.cdi_feature_flags)
    discovery = DiscoveryOptions(nvml=Reported(report), flags=known, stat_node=stat_node)
    options = _options(settings, roots, known)
    made = gpus(settings, roots, report, stat_node=stat_node, folder=folder)
    driver, found = made.published, made.warnings
    _save(made.spec, folder, "gpu")
    if imex_channels:
        ids = tuple(str(channel) for channel in imex_channels)
        channels = replace(options, cls="imex-channel", device_ids=ids)
        found += _write("imex", roots, discovery, channels, folder)
    features = []
    for feature, is_on in settings.features.items():
        if not is_on:
            continue
        try:
            _write(feature, roots, discovery, replace(options, cls=feature), folder)
        except HostError as error:
            found.append(f"no CDI specification for {feature}: {error.message}")
        else:
            features.append(feature)
    return Written(tuple(features), driver, found)


class Made(NamedTuple):
    """The specification of GPUs, not written; see `Written`."""

    spec: Spec
    published: Published
    warnings: list[str]


def gpus(
    settings: Settings,
    roots: Roots,
    report: NvmlReport,
    *,
    stat_node: StatNode = device_nodes.node,
    folder: str = SPEC_FOLDER,
) -> Made:
    """Return the specification of all GPUs and MIG devices; the arguments are those of `write`.

    Raises:
        NvctError: there is none.
    """
    known, warnings = flags.parse(settings.cdi_feature_flags)
    discovery = DiscoveryOptions(nvml=Reported(report), flags=known, stat_node=stat_node)
    driver = _published(settings, report.driver_version, folder)
    inventory = modes.discover("auto", roots, discovery)
    spec = generate(inventory, replace(_options(settings, roots, known), cls="gpu"))
    if driver.path:
        spec["containerEdits"] = _with_files_of(driver.edits, spec)
    return Made(spec, driver, [*warnings, *inventory.warnings])


def _options(settings: Settings, roots: Roots, known: frozenset[str]) -> Options:
    return Options(
        vendor=VENDOR,
        all_device=False,
        device_name_strategies=(settings.device_id_strategy,),
        hook_path=settings.hook_path,
        disabled_hooks=settings.cdi_disable_hooks,
        gid_groups=flags.NO_GIDS not in known,
        host_roots=_host_roots(settings, roots),
    )


def _published(settings: Settings, driver_version: str, folder: str) -> Published:
    if settings.cdi_disable_hooks:
        return Published("", {}, "hooks are disabled in the settings")
    return published.find(folder, driver_version)


def _write(
    mode: str,
    roots: Roots,
    discovery: DiscoveryOptions,
    options: Options,
    folder: str,
) -> tuple[str, ...]:
    """Write one specification; return the warnings of the discovery."""
    inventory = modes.discover(mode, roots, discovery)
    _save(generate(inventory, options), folder, options.cls)
    return inventory.warnings


def _save(spec: Spec, folder: str, cls: str) -> None:
    store.save(spec, f"{folder}/{VENDOR}-{cls}.json", "json")


def _with_files_of(edits: ContainerEdits, spec: Spec) -> ContainerEdits:
    """Return the common edits of a specification with mounts, hooks and variables of others."""
    common: dict[str, object] = {**spec.get("containerEdits", {})}
    kept = {key: common[key] for key in common if key not in ("mounts", "hooks", "env")}
    return cast("ContainerEdits", {**kept, **edits})


def _host_roots(settings: Settings, roots: Roots) -> tuple[tuple[str, str], ...]:
    """Return which roots of this container stand for which of the host."""
    pairs = [(roots.driver_root, settings.driver_root)]
    if roots.dev_root not in (None, roots.driver_root):
        pairs.append((roots.dev, join(settings.dev_root, "dev")))
    return tuple((here, host) for here, host in pairs if here != host)
