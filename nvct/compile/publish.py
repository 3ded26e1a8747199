# SPDX-License-Identifier: Apache-2.0
"""Makes the CDI specification of this host and writes it, as a `Request` asks.

The command lines only parse options: a `Request` has their values. Contract: imports no YAML
parser and no command line library; `say` gets each line for stderr at once, so that a warning
appears even if a later step fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from nvct import paths
from nvct.cdi.make import downgrade, generate, store
from nvct.cdi.make.hooks import enabled_names
from nvct.cdi.make.output import Output, write
from nvct.cdi.versions import has_hooks
from nvct.compile import live_host
from nvct.config.model import LAYOUTS, Config
from nvct.errors import HostError, UsageError
from nvct.host import capabilities as capability_sets
from nvct.host import discovery_options
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.driver.config_files import NIXOS_DATA
from nvct.host.model import Capability

WITH_HOOKS = "off"
"""The value of --no-hooks that keeps hooks, whatever a variable or the former spec says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Output):
    """The options of `nvidia-ctk cdi generate`, by their names."""

    mode: str = "auto"
    capabilities: Sequence[str] = ()
    layout: str | None = None
    # driver_root, dev_root: None unless the command line has them; the settings have them, too
    driver_root: str | None = None
    dev_root: str | None = None
    library_search_path: Sequence[str] = ()
    config_search_path: Sequence[str] = ()
    vendor: str | None = None
    cls: str | None = None
    device_name_strategy: Sequence[str] = ()
    no_all_device: bool = False
    node_numbers: bool = False
    hook: str | None = None
    disable_hook: Sequence[str] = ()
    enable_hook: Sequence[str] = ()
    allow_builds: bool = False
    ldconfig_path: str | None = None
    csv_files: Sequence[str] = ()
    csv_ignore: Sequence[str] = ()
    csv_compat: str | None = None
    feature_flag: Sequence[str] = ()
    xdg_data_dirs: str = ""

    @property
    def is_of_this_host(self) -> bool:
        """Whether the driver is where config.toml says: no option names another place."""
        return not (
            self.driver_root
            or self.dev_root
            or self.library_search_path
            or self.config_search_path
            or self.csv_files
        )

    @property
    def must_be_farm(self) -> bool:
        """Whether the user wants a mounted view and no other layout."""
        return self.layout == "farm"

    @property
    def may_build(self) -> bool:
        """Whether `publish` is allowed to build a view."""
        return self.staged != "plan"


def publish(request: Request, settings: Config, say: Callable[[str], None]) -> list[str]:
    """Discover this host and write its specifications; return the lines for stdout.

    Raises NvctError.
    """
    limit = request.cdi_version_max
    request = replace(
        request,
        form=store.check_format(request.form) if request.form else None,
        cdi_version_max=downgrade.check_version(limit) if limit else None,
        no_hooks=None if request.no_hooks == WITH_HOOKS else request.no_hooks,
    )
    _check_no_hooks(request)
    needs = capability_sets.parse(request.capabilities)
    is_for_engines = is_in_folder_of_engines(request.output, settings.spec_dirs)
    may_be_farm = _may_be_farm(request, settings, is_for_engines=is_for_engines)
    discovery, warnings = _discovery_options(request, needs, may_be_farm=may_be_farm)
    options, more_warnings = _options(request, settings, discovery.flags)
    for warning in (*warnings, *more_warnings):
        say(f"warning: {warning}")
    whole = live_host.discover_or_view(
        settings,
        discovery,
        request.mode.lower(),
        elsewhere=not request.is_of_this_host,
        may_build=request.may_build,
    )
    inventory = capability_sets.restrict(whole, needs)
    for warning in inventory.warnings:
        say(f"warning: {warning}")
    capability_sets.check_libcuda(inventory, needs)
    if request.no_hooks:
        from nvct.farm import in_folders

        inventory = in_folders.without_links(inventory, request.no_hooks)
    if may_be_farm:
        from nvct.farm import of_host  # not loaded for the classic layout

        view = of_host.view_of_spec(
            settings, whole, inventory, needs,
            hooks=enabled_names(request.disable_hook, request.enable_hook),
            must_be_farm=request.must_be_farm,
            is_of_this_host=request.is_of_this_host, may_build=request.may_build, say=say,
        )  # fmt: skip
        options = replace(options, view=view)
    spec = generate.generate(inventory, options)
    if has_hooks(spec):
        is_named = bool(request.hook) or settings.hook_path != paths.HOOK_PATH
        _check_hook(options.hook_path, say, is_named=is_named)
    specs = generate.split(spec) if discovery_options.COHERENT in discovery.flags else {"": spec}
    # Programs of other users than root can possibly write to a CDI folder: no link is followed.
    return write(specs, inventory, request, say, follow=not is_for_engines)


def is_in_folder_of_engines(output: str, spec_dirs: Iterable[str]) -> bool:
    """Return whether a file is in a CDI folder; a spec there keeps its view from being removed."""
    if output in store.STDOUT:
        return False
    folder = os.path.realpath(os.path.dirname(output) or ".")
    return folder in {os.path.realpath(path) for path in spec_dirs}


def _may_be_farm(request: Request, settings: Config, *, is_for_engines: bool) -> bool:
    layout = request.layout or settings.layout
    if layout not in LAYOUTS:
        raise UsageError(f"layout {layout!r} is unknown", hint=f"use {', '.join(LAYOUTS)}")
    if request.no_hooks:
        return False
    # A view is kept only for the files that engines read.
    return request.must_be_farm or (layout != "classic" and is_for_engines)


def _check_no_hooks(request: Request) -> None:
    if not request.no_hooks:
        return
    from nvct.farm import in_folders

    if request.no_hooks not in in_folders.CHOICES:
        choices = ", ".join([*in_folders.CHOICES, WITH_HOOKS])
        raise UsageError(f"--no-hooks={request.no_hooks} is unknown", hint=f"use {choices}")
    if request.must_be_farm:
        raise UsageError("layout farm needs a hook", hint="leave out --layout, or --no-hooks")
    if request.enable_hook:
        names = ", ".join(request.enable_hook)
        raise UsageError(f"--enable-hook={names} contradicts --no-hooks={request.no_hooks}")


def _discovery_options(
    request: Request, needs: frozenset[Capability], *, may_be_farm: bool
) -> tuple[DiscoveryOptions, list[str]]:
    feature_flags, warnings = discovery_options.parse(request.feature_flag)
    options = DiscoveryOptions(
        search_paths=request.library_search_path,
        config_search_paths=request.config_search_path,
        csv_files=request.csv_files or None,
        csv_ignore=request.csv_ignore,
        compat_container_root=request.csv_compat or "",
        flags=feature_flags,
        compat32="compat32" in needs or may_be_farm,  # a view has the whole driver
        data_dirs=_data_dirs(request.xdg_data_dirs),
    )
    return options, list(warnings)


def _data_dirs(variable: str) -> tuple[str, ...]:
    """Return the directories of $XDG_DATA_DIRS, without relative ones (XDG's rule)."""
    directories = [path for path in variable.split(":") if path.startswith("/")]
    return tuple(dict.fromkeys([*directories, NIXOS_DATA])) if directories else ()


def _options(
    request: Request, settings: Config, feature_flags: frozenset[str]
) -> tuple[generate.Options, list[str]]:
    warnings = []
    if request.ldconfig_path:
        warnings.append("--ldconfig-path has no effect: the hook writes ld.so.cache itself")
    ids = request.device_id or ("all",)
    if "none" in ids and not request.no_all_device:
        warnings.append("none: the specification has no GPU, and no device all")
    hook_path, warning = _hook_path(request.hook, settings)
    options = generate.Options(
        vendor=request.vendor or "",
        cls=request.cls or "",
        device_name_strategies=request.device_name_strategy or ("index", "uuid"),
        device_ids=ids,
        all_device=not request.no_all_device,
        hook_path=hook_path,
        disabled_hooks=("all",) if request.no_hooks else request.disable_hook,
        enabled_hooks=request.enable_hook,
        node_numbers=request.node_numbers or settings.plain_nodes,
        gid_groups=discovery_options.NO_GIDS not in feature_flags,
        allow_builds=request.allow_builds,
    )
    return options, [*warnings, *([warning] if warning else [])]


def _hook_path(word: str | None, settings: Config) -> tuple[str, str]:
    """Return the path of the hook program, and a warning if a named one is not on PATH."""
    if not word:
        return live_host.hook_path(settings), ""
    if os.path.isabs(word):
        return word, ""
    import shutil  # 3 ms with its own imports

    is_ctk = os.path.basename(word) == paths.CTK_PROGRAM
    usual = f"/usr/bin/{paths.CTK_PROGRAM}" if is_ctk else paths.HOOK_PATH
    program = shutil.which(word)
    if program:
        return os.path.abspath(program), ""
    return usual, f"{word} is not on PATH: the spec names {usual}"


def _check_hook(path: str, say: Callable[[str], None], *, is_named: bool) -> None:
    if os.access(path, os.X_OK):
        if not is_named and live_host.is_in_checkout(path):
            advice = "install a package, or name another by --nvidia-cdi-hook-path"
            say(f"warning: {path} is in a checkout, which must stay for the spec: {advice}")
    elif is_named:
        say(f"warning: {path} is not a program here: containers fail on a host without it")
    else:
        raise HostError(
            f"the hook {path} is not installed",
            hint="run nvct launchers install --bin-dir=/usr/local/bin, or name another by"
            " --nvidia-cdi-hook-path",
        )
