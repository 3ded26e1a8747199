# SPDX-License-Identifier: Apache-2.0
"""The CDI specifications of the device plugin's own kinds, for the strategies cdi-*.

Each class has a file. They are made from the same inventory as those of `nvidia-ctk cdi generate`;
a class without a device is left out with a warning. The specification of GPUs gives the driver's
files as the node's published one does, if that mounts a view of the same driver.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, cast

from nvct.agent.device_plugin.settings import VENDOR
from nvct.agent.machine.place import Place, Reported
from nvct.agent.nvml.host_verbs import PluginSpecs, Written
from nvct.cdi.check import mounted
from nvct.cdi.make import provenance, store
from nvct.cdi.make.generate import Options, generate
from nvct.cdi.read import registry
from nvct.cdi.types import ContainerEdits, Spec
from nvct.errors import HostError
from nvct.host import discovery_options, modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.nvml.model import NvmlReport
from nvct.host.roots import join
from nvct.paths import GPU_KIND

OF_FILES = ("mounts", "hooks", "env")  # The edits that give the driver's files


def write(place: Place, request: PluginSpecs, report: NvmlReport) -> Written:
    """Write specifications of GPUs, channels and features; NvctError if GPUs or channels lack."""
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
    return Written(
        devices=tuple(device["name"] for device in made.spec["devices"]),
        features=tuple(features),
        view=made.published.path,
        reason=made.published.reason,
        warnings=tuple(found),
    )


class Made(NamedTuple):
    """The specification of GPUs, not written yet, and the published one of the driver's files."""

    spec: Spec
    published: Published
    warnings: list[str]


def gpus(place: Place, request: PluginSpecs, report: NvmlReport) -> Made:
    """Return the specification of all GPUs and MIG devices; the arguments are those of `write`."""
    driver = Published("", {}, "hooks are disabled in the settings")
    if not request.disabled_hooks:
        driver = published(place.folder, report.driver_version)
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


def _write(
    mode: str, place: Place, discovery: DiscoveryOptions, options: Options
) -> tuple[str, ...]:
    inventory = modes.discover(mode, place.roots, discovery)
    _save(generate(inventory, options), place, options.cls)
    return inventory.warnings


def _save(spec: Spec, place: Place, cls: str) -> None:
    store.save(spec, f"{place.folder}/{VENDOR}-{cls}.json", "json")


def _with_files_of(edits: ContainerEdits, spec: Spec) -> ContainerEdits:
    """Return the common edits of `spec` with mounts, hooks and variables replaced by `edits`."""
    common = spec.get("containerEdits", {})
    kept = {key: value for key, value in common.items() if key not in OF_FILES}
    return cast("ContainerEdits", {**kept, **edits})


def _host_roots(place: Place) -> tuple[tuple[str, str], ...]:
    """Return pairs of a root in this container and the host's root that is mounted there."""
    roots, settings = place.roots, place.settings
    pairs = [(roots.driver_root, settings.driver_root)]
    if roots.dev_root not in (None, roots.driver_root):
        pairs.append((roots.dev, join(settings.dev_root, "dev")))
    return tuple((here, host) for here, host in pairs if here != host)


class Published(NamedTuple):
    """The edits that give the driver's files."""

    path: str  # of the published specification, "" if none gives a view of the driver
    edits: ContainerEdits  # its mounts, hooks and variables, {} without a path
    reason: str = ""


def published(folder: str, driver_version: str) -> Published:
    """Return the edits of the node's specification that mounts a view of a driver.

    `nvct publish` writes a specification of the host. In layout farm, it gives the driver's files
    by one mount of a view, and one hook. The device plugin cannot make a view from its container.
    `driver_version`: the loaded driver's; a view of another driver is not used.
    """
    content = registry.scan((folder,))
    reasons = [error.message for error in content.errors.values()]
    for file in content.specs:
        if file.spec["kind"] != GPU_KIND:
            continue
        reason = _why_not(file.spec, file.path, driver_version)
        if not reason:
            common = file.spec.get("containerEdits", {})
            edits = {key: value for key, value in common.items() if key in OF_FILES}
            return Published(file.path, cast("ContainerEdits", edits))
        reasons.append(f"{file.path} {reason}")
    return Published("", {}, reasons[-1] if reasons else f"{folder} has no file of nvct publish")


def _why_not(spec: Spec, path: str, driver_version: str) -> str:
    """Return why the edits of a specification are not used, "" if they are."""
    mounts = spec.get("containerEdits", {}).get("mounts", ())
    if not any(map(mounted.is_view, mounts)):
        return "gives a mount for each file"
    origin = provenance.read(spec, path)
    if origin is None:
        return "does not say which driver it was made for"
    if origin.driver != driver_version:
        return f"was made for driver {origin.driver}, but {driver_version} is loaded"
    return ""
