# SPDX-License-Identifier: Apache-2.0
"""The CDI specifications of the device plugin's own kinds, for the strategies cdi-*.

Each class has a file. They are made of the same inventory as those of `nvidia-ctk cdi generate`;
a class without a device is left out with a warning.
"""

from __future__ import annotations

from dataclasses import replace

from nvct.agent.device_plugin.allocate import VENDOR
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
    from nvct.host.gpu.nodes import StatNode
    from nvct.host.nvml.model import Nvml
    from nvct.host.roots import Roots

FOLDER = "/var/run/cdi"


def write(
    settings: Settings,
    roots: Roots,
    nvml: Nvml,
    imex_channels: Sequence[int],
    *,
    stat_node: StatNode = device_nodes.node,
    folder: str = FOLDER,
) -> tuple[tuple[str, ...], list[str]]:
    """Write the specifications of GPUs, IMEX channels and features.

    Args:
        settings: of the plugin.
        roots: of this container.
        nvml: what NVML reports.
        imex_channels: numbers of the channels that containers get.
        stat_node: as that of `DiscoveryOptions`.
        folder: for the files.

    Returns:
        The features for which there is a specification, and warnings.

    Raises:
        NvctError: there is no specification of the GPUs or channels.
    """
    known, warnings = flags.parse(settings.cdi_feature_flags)
    discovery = DiscoveryOptions(nvml=nvml, flags=known, stat_node=stat_node)
    options = _options(settings, roots, known)
    found = [*warnings, *_write("auto", roots, discovery, replace(options, cls="gpu"), folder)]
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
    return tuple(features), found


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


def _write(
    mode: str, roots: Roots, discovery: DiscoveryOptions, options: Options, folder: str
) -> tuple[str, ...]:
    """Write one specification; return the warnings of the discovery."""
    inventory = modes.discover(mode, roots, discovery)
    spec = generate(inventory, options)
    store.save(spec, f"{folder}/{VENDOR}-{options.cls}.json", "json")
    return inventory.warnings


def _host_roots(settings: Settings, roots: Roots) -> tuple[tuple[str, str], ...]:
    """Return which roots of this container stand for which of the host."""
    pairs = [(roots.driver_root, settings.driver_root)]
    if roots.dev_root not in (None, roots.driver_root):
        pairs.append((roots.dev, join(settings.dev_root, "dev")))
    return tuple((here, host) for here, host in pairs if here != host)
