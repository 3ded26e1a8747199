# SPDX-License-Identifier: Apache-2.0
"""The work of `nvidia-ctk cdi generate`. Contract: imports no command line library."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from nvct import paths
from nvct.cli.context import flat, say, settings_in_force
from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, TypeAlias

    from nvct.cdi.types import Spec
    from nvct.config.model import Config
    from nvct.host.discovery_options import DiscoveryOptions
    from nvct.host.model import Capability, Inventory
    from nvct.spec.generate import MountedView, Options
    from nvct.spec.layout import LayoutRequest

    OptionValues: TypeAlias = Mapping[str, Any]  # the options of the command line, by name

STDOUT = ("", "-")
DEFAULTS: Mapping[str, Any] = {
    "output": "-", "form": None, "cdi_version_max": None, "mode": "auto", "capabilities": (),
    "layout": None,
    "driver_root": None, "dev_root": None, "library_search_path": (), "config_search_path": (),
    "vendor": None, "cls": None, "device_name_strategy": (), "device_id": (),
    "no_all_device": False, "node_numbers": False, "hook": None, "disable_hook": (),
    "enable_hook": (), "ldconfig_path": None, "csv_files": (), "csv_ignore": (),
    "csv_compat": None, "feature_flag": (), "staged": None, "config": None,
}  # fmt: skip
"""Values of the options that are not given."""
OTHER_ROOTS = ("driver_root", "dev_root", "library_search_path", "config_search_path", "csv_files")


def write(values: OptionValues) -> None:
    """Discover this host and write its CDI specification.

    Args:
        values: the options of the command line, by name.

    Raises:
        NvctError: an option is wrong, the host has no driver, or a file cannot be written.
    """
    from nvct.cdi import downgrade, store
    from nvct.spec import capabilities, complete
    from nvct.spec import generate as specgen

    form = store.check_format(values["form"]) if values["form"] else None
    limit = values["cdi_version_max"] and downgrade.check_version(values["cdi_version_max"])
    needs = capabilities.parse(flat(values["capabilities"]))
    settings = settings_in_force(values["config"], values["driver_root"], values["dev_root"])
    layout = _layout(values, settings)
    discovery = _discovery_options(values, needs, layout)
    options = _options(values, settings, discovery.flags)
    whole = _discover(values, settings, discovery)
    inventory = capabilities.restrict(whole, needs)
    for warning in inventory.warnings:
        say(f"warning: {warning}")
    complete.check(inventory, needs)
    options = replace(options, view=_view(settings, whole, needs, layout))
    spec = specgen.generate(inventory, options)
    hook_is_named = bool(values["hook"]) or settings.hook_path != paths.HOOK_PATH
    _check_hook(spec, options.hook_path, is_named=hook_is_named)
    output = values["output"]
    if values["staged"]:
        output = os.path.join(values["staged"], os.path.basename(output))
    # Others than root's programs may write to a CDI folder: no link is followed there.
    specs, follow = _split(spec, discovery.flags), not layout.is_for_engines
    write_specs(specs, inventory, output, form, limit, follow=follow)


def _discover(values: OptionValues, settings: Config, options: DiscoveryOptions) -> Inventory:
    from nvct.compile import live_host

    has_other_roots = any(values[name] for name in OTHER_ROOTS)
    return live_host.discover_or_view(
        settings, options, values["mode"].lower(), elsewhere=has_other_roots
    )


def _layout(values: OptionValues, settings: Config) -> LayoutRequest:
    """Return the requested layout.

    Raises:
        UsageError: it is unknown.
    """
    from nvct.spec.layout import LayoutRequest, check_layout

    return LayoutRequest(
        layout=check_layout(values["layout"] or settings.layout),
        is_forced=bool(values["layout"]),
        is_for_engines=is_read_by_engines(values["output"], settings.spec_dirs),
        is_of_this_host=not any(values[name] for name in OTHER_ROOTS),
        disabled_hooks=flat(values["disable_hook"]),
        enabled_hooks=flat(values["enable_hook"]),
    )


def _view(
    settings: Config, inventory: Inventory, needs: frozenset[Capability], layout: LayoutRequest
) -> MountedView | None:
    """Return the view that the spec mounts, None for layout classic.

    Raises:
        HostError: layout farm is impossible here.
    """
    if not layout.may_be_farm:
        return None
    from nvct.compile import farm_spec

    view, why = farm_spec.view(settings, inventory, needs, layout)
    if view is None and layout.must_be_farm:
        raise HostError(f"layout farm: {why}", hint="--layout classic has a mount per file")
    return view


def is_read_by_engines(output: str, spec_dirs: Iterable[str]) -> bool:
    """Return whether a file is in a CDI folder, where it keeps the view that it names."""
    if output in STDOUT:
        return False
    folder = os.path.realpath(os.path.dirname(output) or ".")
    return folder in {os.path.realpath(path) for path in spec_dirs}


def _settings(values: OptionValues) -> Config:
    """Return the settings of config.toml, with the roots of the command line."""
    return settings_in_force(values["config"], values["driver_root"], values["dev_root"])


def _discovery_options(
    values: OptionValues, needs: frozenset[Capability], layout: LayoutRequest
) -> DiscoveryOptions:
    """Return the options of discovery; warn about feature flags without effect."""
    from nvct.host import discovery_options
    from nvct.host.discovery_options import DiscoveryOptions

    feature_flags, warnings = discovery_options.parse(flat(values["feature_flag"]))
    for warning in warnings:
        say(f"warning: {warning}")
    return DiscoveryOptions(
        search_paths=flat(values["library_search_path"]),
        config_search_paths=flat(values["config_search_path"]),
        csv_files=flat(values["csv_files"]) or None,
        csv_ignore=flat(values["csv_ignore"]),
        compat_container_root=values["csv_compat"] or "",
        flags=feature_flags,
        compat32="compat32" in needs or layout.may_be_farm,  # a view has the whole driver
        data_dirs=_data_dirs(os.environ),
    )


def _data_dirs(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories of $XDG_DATA_DIRS, without relative ones (XDG's rule)."""
    from nvct.host.driver.config_files import NIXOS_DATA

    directories = [
        path for path in env.get("XDG_DATA_DIRS", "").split(":") if path.startswith("/")
    ]
    return tuple(dict.fromkeys([*directories, NIXOS_DATA])) if directories else ()


def _options(values: OptionValues, settings: Config, feature_flags: frozenset[str]) -> Options:
    """Return the options of the spec; warn about command line options without effect."""
    from nvct.host import discovery_options
    from nvct.spec.generate import Options

    if values["ldconfig_path"]:
        say("warning: --ldconfig-path has no effect: the hook writes ld.so.cache itself")
    ids = flat(values["device_id"]) or ("all",)
    if "none" in ids and not values["no_all_device"]:
        say("warning: --device-id none leaves out the device all")
    return Options(
        device_name_strategies=flat(values["device_name_strategy"]) or ("index", "uuid"),
        device_ids=ids,
        all_device=not values["no_all_device"],
        hook_path=_hook_path(values["hook"], settings),
        disabled_hooks=flat(values["disable_hook"]),
        enabled_hooks=flat(values["enable_hook"]),
        node_numbers=values["node_numbers"] or settings.plain_nodes,
        gid_groups=discovery_options.NO_GIDS not in feature_flags,
        **{key: values[key] for key in ("vendor", "cls") if values[key]},
    )


def _hook_path(word: str | None, settings: Config) -> str:
    """Return the path of the hook program: as values, from PATH, or where packages put it."""
    from nvct.compile import live_host

    if not word:
        return live_host.hook_path(settings)
    import shutil  # 3 ms with its own imports

    if os.path.isabs(word):
        return word
    is_ctk = os.path.basename(word) == paths.CTK_PROGRAM
    usual = f"/usr/bin/{paths.CTK_PROGRAM}" if is_ctk else paths.HOOK_PATH
    program = shutil.which(word)
    if not program:
        say(f"warning: {word} is not on PATH: the spec names {usual}")
    return os.path.abspath(program) if program else usual


def _check_hook(spec: Spec, path: str, *, is_named: bool) -> None:
    """Check that the hook program of a spec exists; only warn if the user named its path.

    Raises:
        HostError: the hook program does not exist, and the user did not name it.
    """
    from nvct.compile import live_host

    edits = [spec.get("containerEdits", {}), *(d["containerEdits"] for d in spec["devices"])]
    if not any(edit.get("hooks") for edit in edits):
        return
    if os.access(path, os.X_OK):
        if not is_named and live_host.is_in_checkout(path):
            advice = "install a package, or name another by --nvidia-cdi-hook-path"
            say(f"warning: {path} is in a checkout, which the spec then needs: {advice}")
    elif is_named:
        say(f"warning: {path} is no program here: containers fail where it does not exist")
    else:
        raise HostError(
            f"the hook {path} is not installed",
            hint="run nvct launchers install --bin-dir=/usr/local/bin, or name another by"
            " --nvidia-cdi-hook-path",
        )


def _split(spec: Spec, feature_flags: frozenset[str]) -> Mapping[str, Spec]:
    """Return the specs to write, by the suffix of the file name before its extension."""
    from nvct.host import discovery_options
    from nvct.spec import coherent

    return coherent.split(spec) if discovery_options.COHERENT in feature_flags else {"": spec}


def write_specs(
    specs: Mapping[str, Spec],
    inventory: Inventory,
    output: str,
    form: str | None,
    limit: str | None,
    *,
    follow: bool = False,
) -> None:
    """Write specs to files in one folder, or to stdout for "-"; report on stderr.

    `follow` is that of `store.save`.

    Raises:
        HostError: a file cannot be written.
        CdiSpecError: a spec cannot be expressed in CDI version `limit`.
    """
    from nvct.cdi import downgrade, store
    from nvct.spec import provenance

    written = []
    for suffix, full in specs.items():
        spec, dropped = downgrade.lower(full, limit) if limit else (full, [])
        for sentence in dropped:
            say(f"warning: CDI {limit}: {sentence}")
        say(f"Generated CDI spec with version {spec['cdiVersion']}")  # the incumbent's text
        spec = provenance.add(spec, inventory)
        written.append((suffix, spec, provenance.head_comment(spec, inventory)))
    if output not in STDOUT:
        _warn_of_ending(output, form)
    for suffix, spec, comment in written:
        if output in STDOUT:
            _print(store.dumps(spec, form or "yaml", comment).decode())
            continue
        stem, ending = os.path.splitext(output)
        path = f"{stem}.{suffix}{ending}" if suffix else output
        path = store.save(spec, path, form, comment, follow=follow)
        say(f"wrote {len(spec['devices'])} devices to {path}")


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise HostError(f"the spec cannot be written to stdout: {error.strerror}") from error


def _warn_of_ending(output: str, form: str | None) -> None:
    ending = os.path.splitext(output)[1]
    if ending == ".yml":
        say(f"warning: {output}: engines read .yaml and .json only")
    expected = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}.get(ending)
    if form and expected and form != expected:
        say(f"warning: {output} gets {form}, as --format says")
