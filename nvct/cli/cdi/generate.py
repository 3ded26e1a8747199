# SPDX-License-Identifier: Apache-2.0
"""Command: nvidia-ctk cdi generate. Options and calls, no logic."""

from __future__ import annotations

import os
import sys

import click

from nvct import paths
from nvct.cli.options import GoStyle, flat, say, settings_in_force, words
from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

    from nvct.cdi.types import Spec
    from nvct.config.model import Config
    from nvct.host.discovery_options import Wanted
    from nvct.host.model import Capability, Inventory
    from nvct.spec.generate import Options

    Given: TypeAlias = Mapping[str, Any]  # the options of the command line, by name

ENV = "NVIDIA_CTK_CDI_GENERATE_"
STDOUT = ("", "-")
ELSEWHERE = ("driver_root", "dev_root", "library_search_path", "config_search_path", "csv_files")
MODES = "auto, nvml, csv, wsl, management, gdrcopy, gds, imex, mofed or nvswitch"


@click.command(cls=GoStyle)
@click.option("--output", envvar="NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", default="-",
              help="File to write.  [default: stdout]")  # fmt: skip
@click.option("--format", "form", envvar=f"{ENV}OUTPUT_FORMAT", metavar="[yaml|json]",
              help="[default: by the ending of --output, else yaml]")  # fmt: skip
@click.option("--cdi-version-max", metavar="VERSION",
              help="Leave out what engines that know CDI up to this cannot read.")  # fmt: skip
@click.option("--mode", "--discovery-mode", envvar=f"{ENV}MODE", default="auto",
              show_default=True, metavar="MODE", help=f"How to look: {MODES}.")  # fmt: skip
@words("--capabilities", env=f"{ENV}CAPABILITIES",
       text="Only what these need: compute, utility, graphics, video, display, ngx, compat32, or "
       "all, which is all but compat32.  [default: all]")  # fmt: skip
@click.option("--driver-root", envvar="NVIDIA_CTK_DRIVER_ROOT",
              help="Where the driver's files are.  [default: config.toml's, else /]")  # fmt: skip
@click.option("--dev-root", envvar="NVIDIA_CTK_DEV_ROOT",
              help="Where dev/ is.  [default: in the driver root, else in /]")  # fmt: skip
@words("--library-search-path", env=f"{ENV}LIBRARY_SEARCH_PATHS",
       text="Search libraries only here.")  # fmt: skip
@words("--config-search-path", env=f"{ENV}CONFIG_SEARCH_PATHS",
       text="Search configuration files only here.")  # fmt: skip
@click.option("--vendor", "--cdi-vendor", envvar=f"{ENV}VENDOR",
              help="Vendor of the devices' names.  [default: the mode's; nvidia.com]")  # fmt: skip
@click.option("--class", "--cdi-class", "cls", envvar=f"{ENV}CLASS",
              help="Class of the devices' names.  [default: the mode's; gpu]")  # fmt: skip
@words("--device-name-strategy", env=f"{ENV}DEVICE_NAME_STRATEGIES",
       text="index, uuid, type-index.  [default: index,uuid]")  # fmt: skip
@words("--device-id", "--device-ids", "--device", "--devices", env=f"{ENV}DEVICE_IDS",
       text="Only these: indices, UUIDs, all, none.  [default: all]")  # fmt: skip
@click.option("--no-all-device", is_flag=True, envvar=f"{ENV}NO_ALL_DEVICE",
              help="Leave out the device that stands for all.")  # fmt: skip
@click.option("--node-numbers", is_flag=True, envvar=f"{ENV}NODE_NUMBERS",
              help="Write the numbers of device nodes; a boot may change them.")  # fmt: skip
@click.option("--nvidia-cdi-hook-path", "--nvidia-ctk-path", "hook",
              envvar="NVIDIA_CTK_CDI_HOOK_PATH",
              help="The hook program that the spec names.")  # fmt: skip
@words("--disable-hook", "--disable-hooks", env=f"{ENV}DISABLED_HOOKS",
       text="Hooks to leave out, or all.")  # fmt: skip
@words("--enable-hook", "--enable-hooks", env=f"{ENV}ENABLED_HOOKS",
       text="Hooks to put in, whatever --disable-hook says.")  # fmt: skip
@click.option("--ldconfig-path", envvar=f"{ENV}LDCONFIG_PATH",
              help="Without effect: the hook writes ld.so.cache itself.")  # fmt: skip
@words("--csv.file", "csv_files", env=f"{ENV}CSV_FILES", text="Tegra: the CSV files to read.")
@words("--csv.ignore-pattern", "csv_ignore", env=f"{ENV}CSV_IGNORE_PATTERNS",
       text="Tegra: symbolic links to leave out.")  # fmt: skip
@click.option("--csv.compat-container-root", "csv_compat",
              envvar=f"{ENV}CSV_CONTAINER_COMPAT_ROOT",
              help="Orin: where containers have CUDA's compat libraries.")  # fmt: skip
@words("--feature-flag", "--feature-flags", env=f"{ENV}FEATURE_FLAGS",
       text="Flags of nvidia-container-toolkit, e.g. enable-coherent-annotations.")  # fmt: skip
@click.option("--config", help="config.toml to take the roots from.")
def generate(**given: Any) -> None:  # noqa: ANN401  the options above, each with its own type
    """Write a CDI specification of this host's GPUs.

    Example: nvidia-ctk cdi generate --output /var/run/cdi/nvidia.yaml
    """
    from nvct.cdi import downgrade, store
    from nvct.spec import capabilities, complete
    from nvct.spec import generate as specgen

    form = store.check_format(given["form"]) if given["form"] else None
    limit = given["cdi_version_max"] and downgrade.check_version(given["cdi_version_max"])
    needs = capabilities.parse(flat(given["capabilities"]))
    settings = settings_in_force(given["config"], given["driver_root"], given["dev_root"])
    wanted = _wanted(given, needs)
    options = _options(given, settings, wanted.flags)
    inventory = _look(given, settings, wanted)
    inventory = capabilities.filter(inventory, needs)
    for warning in inventory.warnings:
        say(f"warning: {warning}")
    complete.check(inventory, needs)
    spec = specgen.generate(inventory, options)
    named = bool(given["hook"]) or settings.hook_path != paths.HOOK_PATH
    _check_hook(spec, options.hook_path, named=named)
    write_specs(_split(spec, wanted.flags), inventory, given["output"], form, limit)


def _look(given: Given, settings: Config, wanted: Wanted) -> Inventory:
    from nvct.compile import live_host

    said = any(given[name] for name in ELSEWHERE)
    return live_host.seen(settings, wanted, given["mode"].lower(), elsewhere=said)


def _wanted(given: Given, needs: frozenset[Capability]) -> Wanted:
    """Return how to look; say which feature flags have no effect."""
    from nvct.host import flags
    from nvct.host.discovery_options import Wanted

    known, warnings = flags.parse(flat(given["feature_flag"]))
    for warning in warnings:
        say(f"warning: {warning}")
    return Wanted(
        search_paths=flat(given["library_search_path"]),
        config_search_paths=flat(given["config_search_path"]),
        csv_files=flat(given["csv_files"]) or None,
        csv_ignore=flat(given["csv_ignore"]),
        compat_container_root=given["csv_compat"] or "",
        flags=known,
        compat32="compat32" in needs,
        data_dirs=_data_dirs(os.environ),
    )


def _data_dirs(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories of $XDG_DATA_DIRS; relative ones are void, as XDG's rules want it."""
    from nvct.host.driver.config_files import NIXOS_DATA

    given = [path for path in env.get("XDG_DATA_DIRS", "").split(":") if path.startswith("/")]
    return tuple(dict.fromkeys([*given, NIXOS_DATA])) if given else ()


def _options(given: Given, settings: Config, known: frozenset[str]) -> Options:
    """Return how the spec is to look; say which options have no effect."""
    from nvct.host import flags
    from nvct.spec.generate import Options

    if given["ldconfig_path"]:
        say("warning: --ldconfig-path has no effect: the hook writes ld.so.cache itself")
    ids = flat(given["device_id"]) or ("all",)
    if "none" in ids and not given["no_all_device"]:
        say("warning: --device-id none leaves out the device all")
    return Options(
        device_name_strategies=flat(given["device_name_strategy"]) or ("index", "uuid"),
        device_ids=ids,
        all_device=not given["no_all_device"],
        hook_path=_hook_path(given["hook"], settings),
        disabled_hooks=flat(given["disable_hook"]),
        enabled_hooks=flat(given["enable_hook"]),
        node_numbers=given["node_numbers"] or settings.plain_nodes,
        gid_groups=flags.NO_GIDS not in known,
        **{key: given[key] for key in ("vendor", "cls") if given[key]},
    )


def _hook_path(word: str | None, settings: Config) -> str:
    """Return the hook program: as it is named, from PATH, or where packages put it."""
    import shutil

    from nvct.compile import live_host

    if not word:
        return live_host.hook_path(settings)
    if os.path.isabs(word):
        return word
    usual = "/usr/bin/nvidia-ctk" if os.path.basename(word) == "nvidia-ctk" else paths.HOOK_PATH
    found = shutil.which(word)
    if not found:
        say(f"warning: {word} is not on PATH: the spec names {usual}")
    return os.path.abspath(found) if found else usual


def _check_hook(spec: Spec, path: str, *, named: bool) -> None:
    """Refuse a spec whose hook program does not exist; warn where somebody has named it so.

    Raises:
        HostError: it does not exist, and nobody has named it.
    """
    from nvct.compile import live_host

    edits = [spec.get("containerEdits", {}), *(d["containerEdits"] for d in spec["devices"])]
    if not any(edit.get("hooks") for edit in edits):
        return
    if os.access(path, os.X_OK):
        if not named and live_host.is_in_checkout(path):
            advice = "install a package, or name another by --nvidia-cdi-hook-path"
            say(f"warning: {path} is in a checkout, which the spec then needs: {advice}")
    elif named:
        say(f"warning: {path} is no program here: containers fail where it does not exist")
    else:
        raise HostError(
            f"the hook {path} is not installed",
            hint="run nvct launchers install --bin-dir=/usr/local/bin, or name another by"
            " --nvidia-cdi-hook-path",
        )


def _split(spec: Spec, known: frozenset[str]) -> Mapping[str, Spec]:
    """Return what is to be written, by what comes before a file's ending."""
    from nvct.host import flags
    from nvct.spec import coherent

    return coherent.split(spec) if flags.COHERENT in known else {"": spec}


def write_specs(
    specs: Mapping[str, Spec],
    inventory: Inventory,
    output: str,
    form: str | None,
    limit: str | None,
) -> None:
    """Write specs to files beside each other, or to stdout for "-"; say on stderr what was done.

    Raises:
        HostError: a file cannot be written.
        CdiSpecError: a spec cannot be written for so low a version.
    """
    from nvct.cdi import downgrade, store
    from nvct.spec import provenance

    written = []
    for suffix, whole in specs.items():
        spec, lost = downgrade.lower(whole, limit) if limit else (whole, [])
        for sentence in lost:
            say(f"warning: CDI {limit}: {sentence}")
        say(f"Generated CDI spec with version {spec['cdiVersion']}")  # the incumbent's words
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
        path = store.save(spec, path, form, comment)
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
