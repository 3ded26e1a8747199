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
from nvct.agent.device_plugin.settings import VENDOR
from nvct.agent.discovery import Reported
from nvct.agent.nvml.host_verbs import Written
from nvct.cdi import store
from nvct.errors import HostError
from nvct.host import discovery_options, modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.roots import join
from nvct.spec.generate import Options, generate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.device_plugin.published import Published
    from nvct.agent.host_side import Place
    from nvct.agent.nvml.host_verbs import PluginSpecs
    from nvct.cdi.types import ContainerEdits, Spec
    from nvct.host.nvml.model import NvmlReport


def write(place: Place, request: PluginSpecs, report: NvmlReport) -> Written:
    """Write the specifications of GPUs, IMEX channels and features.

    Raises:
        NvctError: there is no specification of the GPUs or channels.
    """
    discovery = _discovery(place, request, report)
    options = _options(place, request)
    made = gpus(place, request, report)
    found = made.warnings
    _save(made.spec, place, "gpu")
    if request.imex_channels:
        ids = tuple(str(channel) for channel in request.imex_channels)
        channels = replace(options, cls="imex-channel", device_ids=ids)
        found += _write("imex", place, discovery, channels)
    features = []
    for feature in request.features:
        try:
            _write(feature, place, discovery, replace(options, cls=feature))
        except HostError as error:
            found.append(f"no CDI specification for {feature}: {error.message}")
        else:
            features.append(feature)
    return Written(tuple(features), made.published.path, made.published.reason, tuple(found))


class Made(NamedTuple):
    """The specification of GPUs, not written; and that which gives the driver's files."""

    spec: Spec
    published: Published
    warnings: list[str]


def gpus(place: Place, request: PluginSpecs, report: NvmlReport) -> Made:
    """Return the specification of all GPUs and MIG devices; the arguments are those of `write`.

    Raises:
        NvctError: there is none.
    """
    driver = _published(place, request, report.driver_version)
    inventory = modes.discover("auto", place.roots, _discovery(place, request, report))
    spec = generate(inventory, replace(_options(place, request), cls="gpu"))
    if driver.path:
        spec["containerEdits"] = _with_files_of(driver.edits, spec)
    return Made(spec, driver, [*inventory.warnings])


def _discovery(place: Place, request: PluginSpecs, report: NvmlReport) -> DiscoveryOptions:
    return DiscoveryOptions(
        nvml=Reported(report), flags=frozenset(request.flags), stat_node=place.stat_node
    )


def _options(place: Place, request: PluginSpecs) -> Options:
    return Options(
        vendor=VENDOR,
        all_device=False,
        device_name_strategies=(request.ids,),
        hook_path=place.settings.hook_path,
        disabled_hooks=request.disabled_hooks,
        gid_groups=discovery_options.NO_GIDS not in request.flags,
        host_roots=_host_roots(place),
    )


def _published(place: Place, request: PluginSpecs, driver_version: str) -> Published:
    if request.disabled_hooks:
        return published.Published("", {}, "hooks are disabled in the settings")
    return published.find(place.folder, driver_version)


def _write(
    mode: str, place: Place, discovery: DiscoveryOptions, options: Options
) -> tuple[str, ...]:
    """Write one specification; return the warnings of the discovery."""
    inventory = modes.discover(mode, place.roots, discovery)
    _save(generate(inventory, options), place, options.cls)
    return inventory.warnings


def _save(spec: Spec, place: Place, cls: str) -> None:
    store.save(spec, f"{place.folder}/{VENDOR}-{cls}.json", "json")


def _with_files_of(edits: ContainerEdits, spec: Spec) -> ContainerEdits:
    """Return the common edits of a specification with mounts, hooks and variables of others."""
    common: dict[str, object] = {**spec.get("containerEdits", {})}
    kept = {key: common[key] for key in common if key not in ("mounts", "hooks", "env")}
    return cast("ContainerEdits", {**kept, **edits})


def _host_roots(place: Place) -> tuple[tuple[str, str], ...]:
    """Return which roots of this container stand for which of the host."""
    roots, settings = place.roots, place.settings
    pairs = [(roots.driver_root, settings.driver_root)]
    if roots.dev_root not in (None, roots.driver_root):
        pairs.append((roots.dev, join(settings.dev_root, "dev")))
    return tuple((here, host) for here, host in pairs if here != host)
