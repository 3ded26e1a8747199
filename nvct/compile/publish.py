# SPDX-License-Identifier: Apache-2.0
"""Makes the CDI specification of this host and writes it, as a request says.

The command lines only parse options: a `Request` has their values. Contract: imports no YAML
parser and no command line library; `say` takes each line for stderr when it is known, so that a
warning is there even if a later step fails.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from nvct import paths
from nvct.cdi.make import downgrade, generate, provenance, store
from nvct.cdi.make.hooks import enabled_names
from nvct.cdi.types import Spec
from nvct.cdi.versions import has_hooks
from nvct.compile import live_host
from nvct.config.model import LAYOUTS, Config
from nvct.errors import HostError, UsageError
from nvct.host import capabilities as capability_sets
from nvct.host import discovery_options
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.driver.config_files import NIXOS_DATA
from nvct.host.model import Capability, Inventory

WITH_HOOKS = "off"
"""The value of --no-hooks for hooks, whatever a variable or the former specification says."""
FORMAT_OF_ENDING = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of `nvidia-ctk cdi generate`, under their names there."""

    output: str = "-"
    form: str | None = None  # None means by the ending of `output`
    cdi_version_max: str | None = None
    mode: str = "auto"
    capabilities: Sequence[str] = ()
    layout: str | None = None
    # driver_root, dev_root: as the command line names them; the settings have them, too
    driver_root: str | None = None
    dev_root: str | None = None
    library_search_path: Sequence[str] = ()
    config_search_path: Sequence[str] = ()
    vendor: str | None = None
    cls: str | None = None
    device_name_strategy: Sequence[str] = ()
    device_id: Sequence[str] = ()
    no_all_device: bool = False
    node_numbers: bool = False
    hook: str | None = None
    disable_hook: Sequence[str] = ()
    enable_hook: Sequence[str] = ()
    no_hooks: str | None = None
    allow_builds: bool = False
    ldconfig_path: str | None = None
    csv_files: Sequence[str] = ()
    csv_ignore: Sequence[str] = ()
    csv_compat: str | None = None
    feature_flag: Sequence[str] = ()
    # "make" or "plan": the document for stdout is a JSON object of the files by path, and none is
    # written; with "plan", no view is made either
    staged: str | None = None
    xdg_data_dirs: str = ""

    @property
    def is_of_this_host(self) -> bool:
        """Whether the driver is that of config.toml."""
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
        """Whether a view may be made."""
        return self.staged != "plan"


def publish(request: Request, settings: Config, say: Callable[[str], None]) -> list[str]:
    """Discover this host and write its specifications; return what is for stdout.

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
    _check_libcuda(inventory, needs)
    if request.no_hooks:
        inventory = _where_loaders_search(inventory, request.no_hooks)
    if may_be_farm:
        view = _view(request, settings, whole, inventory, needs, say=say)
        options = replace(options, view=view)
    spec = generate.generate(inventory, options)
    is_named = bool(request.hook) or settings.hook_path != paths.HOOK_PATH
    if warning := _check_hook(spec, options.hook_path, is_named=is_named):
        say(f"warning: {warning}")
    specs = generate.split(spec) if discovery_options.COHERENT in discovery.flags else {"": spec}
    # Others than root's programs may write to a CDI folder: no link is followed there.
    return write(specs, inventory, request, say, follow=not is_for_engines)


def is_in_folder_of_engines(output: str, spec_dirs: Iterable[str]) -> bool:
    """Return whether a file is in a CDI folder, where it keeps the view that it names."""
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


def _where_loaders_search(inventory: Inventory, no_hooks: str) -> Inventory:
    from nvct.farm import in_folders

    if inventory.mode not in ("nvml", "management"):
        raise UsageError(
            f"--no-hooks knows no folders for the files of mode {inventory.mode}",
            hint="--disable-hook=all leaves out hooks, and so links and ld.so.cache",
        )
    return in_folders.without_links(inventory, no_hooks)


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
        warnings.append("none: no GPU is in the specification, and no device all")
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


def _check_libcuda(inventory: Inventory, needs: frozenset[Capability]) -> None:
    """Refuse a driver without libcuda if containers are to have the capability compute.

    nvidia-ctk 1.17 fails as well: it searches the driver's libraries beside libcuda.
    """
    if inventory.mode != "nvml" or not inventory.gpus or "compute" not in needs:
        return
    names = (os.path.basename(file.container_path) for file in inventory.files)
    if not any(name.startswith("libcuda.so.") for name in names):
        raise HostError(
            f"the driver {inventory.driver_version} has no libcuda.so: no GPU can compute with it",
            hint="install it (libcuda1, nvidia-driver-cuda-libs), or name other --capabilities",
        )


def _view(
    request: Request,
    settings: Config,
    whole: Inventory,
    given: Inventory,
    needs: frozenset[Capability],
    *,
    say: Callable[[str], None],
) -> generate.MountedView | None:
    from nvct.farm import folder, of_host  # not loaded for the classic layout

    view, why = of_host.view_of_spec(
        settings, whole, given, needs,
        hooks=enabled_names(request.disable_hook, request.enable_hook),
        must_be_farm=request.must_be_farm,
        is_of_this_host=request.is_of_this_host, may_build=request.may_build,
    )  # fmt: skip
    if view is None and request.must_be_farm:
        raise HostError(f"layout farm: {why}", hint="--layout classic has a mount per file")
    if why == folder.NOT_YET:
        say(f"{why}: once it is in {settings.farm_dir}, the specification has it")
    return view


def _check_hook(spec: Spec, path: str, *, is_named: bool) -> str:
    if not has_hooks(spec):
        return ""
    if os.access(path, os.X_OK):
        if not is_named and live_host.is_in_checkout(path):
            advice = "install a package, or name another by --nvidia-cdi-hook-path"
            return f"{path} is in a checkout, which the spec then needs: {advice}"
        return ""
    if is_named:
        return f"{path} is no program here: containers fail where it does not exist"
    raise HostError(
        f"the hook {path} is not installed",
        hint="run nvct launchers install --bin-dir=/usr/local/bin, or name another by"
        " --nvidia-cdi-hook-path",
    )


def write(
    specs: dict[str, Spec],  # by the suffix of the file name before its extension
    inventory: Inventory,
    request: Request,
    say: Callable[[str], None],
    *,
    follow: bool = False,
) -> list[str]:
    """Write specs, by the suffix of the file's name, to one folder; return what is for stdout.

    Raises HostError if a file cannot be written, and CdiSpecError if the version is too low for a
    spec.
    """
    output, form, limit = request.output, request.form, request.cdi_version_max
    only = "" if "all" in request.device_id else ",".join(request.device_id)
    finished = {}
    for suffix, full in specs.items():
        spec, dropped = downgrade.lower(full, limit) if limit else (full, [])
        for sentence in dropped:
            say(f"warning: CDI {limit}: {sentence}")
        say(f"Generated CDI spec with version {spec['cdiVersion']}")  # the incumbent's text
        finished[suffix] = provenance.attach(spec, inventory, only, request.no_hooks or "")
    if output in store.STDOUT:
        return [
            store.dumps(spec, form or "yaml", comment).decode()
            for spec, comment in finished.values()
        ]
    stem, ending = os.path.splitext(output)
    if ending == ".yml":
        say(f"warning: {output}: engines read .yaml and .json only")
    if form and form != FORMAT_OF_ENDING.get(ending, form):
        say(f"warning: {output} gets {form}, as --format says")
    paths = {suffix: f"{stem}.{suffix}{ending}" if suffix else output for suffix in finished}
    if request.staged:
        usual = form or FORMAT_OF_ENDING.get(ending, "yaml")
        return [
            json.dumps({
                paths[suffix]: store.dumps(spec, usual, comment, source=output).decode()
                for suffix, (spec, comment) in finished.items()
            })
        ]  # fmt: skip
    for suffix, (spec, comment) in finished.items():
        path = store.save(spec, paths[suffix], form, comment, follow=follow)
        plural = "" if len(spec["devices"]) == 1 else "s"
        say(f"wrote {len(spec['devices'])} device{plural} to {path}")
    return []
