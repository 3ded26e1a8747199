# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk cdi generate, check, diff, list, transform, validate. Options and calls."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any, cast

import click

from nvct import paths
from nvct.cdi.check import compare, engines
from nvct.cdi.check.drift import Report
from nvct.cdi.make import edits, provenance, store
from nvct.cdi.make.generate import generate as make_spec
from nvct.cdi.read import load
from nvct.cdi.types import Spec
from nvct.cli.cdi.generate import write
from nvct.cli.context import say, settings_in_force, tell, warn
from nvct.cli.gostyle import GoStyle
from nvct.cli.options import driver_roots, format_option, show, words
from nvct.compile import live_host
from nvct.compile.publish import is_in_folder_of_engines
from nvct.doctor.model import count
from nvct.errors import NvctError, UsageError, line, printable
from nvct.farm import in_folders

LIVE = "live"
STDIN = "-"


@click.command(cls=GoStyle)
@words("--spec-dir", env="NVIDIA_CTK_CDI_SPEC_DIRS",
       text="Folders of specifications.  [default: config.toml's]")  # fmt: skip
@format_option("text")
@driver_roots
@click.option("--config", help="The config.toml with folders and roots.")
def check(
    *,
    spec_dir: tuple[str, ...],
    form: str,
    driver_root: str | None,
    dev_root: str | None,
    config: str | None,
) -> None:
    """Compare the CDI specifications in force with this host; exit with 1 if they differ.

    Prints one line per cause: another driver; missing, new or changed files, device nodes, hooks
    or GPUs; a file that engines do not use, because a folder of higher priority defines the same
    devices. --format json has each difference. Specifications of any vendor are checked.

    Example: nvidia-ctk cdi check --format json
    """
    from nvct.doctor import specifications

    settings = settings_in_force(config, driver_root, dev_root)
    found, problem = specifications.look(settings, required=bool(driver_root or dev_root))
    report = specifications.compare(settings, found, spec_dir)
    if problem and report.gives_driver:
        say(f"warning: {problem}")
    warn(found.warnings if found else ())
    _show(report, form)
    sys.exit(1 if report.drift else 0)


def _show(report: Report, form: str) -> None:
    from nvct.doctor import specifications

    if form == "json":
        found = [
            {**asdict(drift), "text": drift.text, "reason": finding.reason.name}
            for drift, finding in zip(report.drift, specifications.findings(report), strict=True)
        ]
        shown = {"specs": report.specs, "devices": report.devices, "drift": found}
        click.echo(json.dumps(shown, indent=2))
        return
    for cause in specifications.lines(report.drift):
        tell(cause)
    things = f"{count(report.specs, 'spec')}, {count(report.devices, 'device')}"
    if report.drift:
        differences = count(len(report.drift), "difference")
        advice = specifications.advice(report.drift, "nvidia-ctk cdi generate")
        say(f"{things}: {differences} from the host; {advice}")
    else:
        tell(f"{things}: no difference from the host")


@click.command(cls=GoStyle)
@click.argument("old")
@click.argument("new")
@click.option("--mode", envvar="NVIDIA_CTK_CDI_GENERATE_MODE", default="auto",
              help="For live: discovery mode, as of cdi generate.  [default: auto]")  # fmt: skip
@click.option("--driver-root", envvar="NVIDIA_CTK_DRIVER_ROOT",
              help="For live: where the driver's files are.")  # fmt: skip
@click.option("--dev-root", envvar="NVIDIA_CTK_DEV_ROOT", help="For live: where dev/ is.")
@format_option("text")
def diff(
    *, old: str, new: str, mode: str, driver_root: str | None, dev_root: str | None, form: str
) -> None:
    """Show by device how two CDI specifications differ; exit with 1 if they do.

    The word live stands for the specification that this host would get now, with the names, hook
    program and hooks of the other one. A - reads a specification from stdin.

    Example: nvidia-ctk cdi diff /var/run/cdi/nvidia.yaml live
    """
    if old == new and old in (LIVE, STDIN):
        raise UsageError(f"{old} is compared with itself", hint="name a file")
    specs = {word: _spec_of(word) for word in (old, new) if word != LIVE}
    if LIVE in (old, new):
        path = new if old == LIVE else old
        specs[LIVE] = _live(specs[path], path, mode, driver_root, dev_root)
    differences = compare.differences(specs[old], specs[new])
    rows = [{"where": where, "differences": lines} for where, lines in differences]
    texts = (text for where, lines in differences for text in (where, *(f"  {x}" for x in lines)))
    show(form, rows, map(printable, texts))
    if not differences and form != "json":
        say(f"no difference between {old} and {new}")
    sys.exit(1 if differences else 0)


def _live(
    template: Spec, path: str, mode: str, driver_root: str | None, dev_root: str | None
) -> Spec:
    """Return the spec of this host, with the names, hook program and hooks of another spec."""
    settings = settings_in_force(None, driver_root, dev_root)
    inventory = live_host.discover(settings, mode=mode.lower())
    warn(inventory.warnings)
    origin = provenance.read(template, path)
    is_same_kind = inventory.mode in in_folders.MODES  # else all its files differ
    if origin and origin.no_hooks in in_folders.CHOICES and is_same_kind:
        inventory = in_folders.without_links(inventory, origin.no_hooks)
    return make_spec(
        inventory, compare.options_like(template, hook_path=live_host.hook_path(settings))
    )


@click.command("list", cls=GoStyle)
@words("--spec-dir", env="NVIDIA_CTK_CDI_SPEC_DIRS",
       text="Folders of specifications.  [default: /etc/cdi,/var/run/cdi]")  # fmt: skip
@format_option("text")
def list_devices(*, spec_dir: tuple[str, ...], form: str) -> None:
    """Print the name of every CDI device, one a line.

    Example: nvidia-ctk cdi list
    """
    from nvct.cli.cdi import devices

    names, messages = devices.read(spec_dir or paths.CDI_SPEC_DIRS)
    show(form, names, map(printable, names))
    for text in messages:
        say(text)


@click.command(cls=GoStyle)
@click.argument("files", nargs=-1, required=True)
@words("--engine", env="NVIDIA_CTK_CDI_VALIDATE_ENGINES",
       text="Only these, e.g. docker=26.0.  [default: all, as a note]")  # fmt: skip
def validate(files: tuple[str, ...], engine: tuple[str, ...]) -> None:
    """Check CDI specification files, and print which engines cannot read them.

    A - is stdin. Exits with 1 if a file is not valid, or an engine named by --engine refuses it.

    Example: nvidia-ctk cdi validate --engine docker=26.0 /etc/cdi/*.yaml
    """
    from nvct.cdi.read import schema  # jsonschema is slower than --help may be

    required = [engines.parse(word) for word in engine]
    bad = 0
    for path in files:
        source = "stdin" if path == STDIN else path
        try:
            spec = _spec_of(path)
            schema.check(spec, source=source)
        except NvctError as error:
            tell(line("invalid", error))
            bad += 1
            continue
        tell(f"valid: {source} ({spec['kind']}, {count(len(spec['devices']), 'device')})")
        refusals = [text for version in required if (text := engines.refusal(spec, *version))]
        bad += len(refusals)
        for text in refusals if required else engines.refusals(spec):
            tell(f"  {text}")
        if engines.is_ignored(source):
            tell("  no engine reads it: its name does not end in .json or .yaml")
    sys.exit(1 if bad else 0)


@click.command("root", cls=GoStyle)
@click.option("--from", "source", default="/", show_default=True, help="Root to replace.")
@click.option("--to", "target", default="/", show_default=True, help="Root to put in its place.")
@click.option("--input", "input_path", default="-", help="File to read.  [default: stdin]")
@click.option("--output", default="", help="File to write.  [default: stdout]")
@click.option("--relative-to", type=click.Choice(["host", "container"], case_sensitive=False),
              default="host", show_default=True,
              help="Whose paths: of the host, or in the container.")  # fmt: skip
def root(*, source: str, target: str, input_path: str, output: str, relative_to: str) -> None:
    """Move the paths of a CDI specification from one root to another.

    The result is written for the lowest CDI version that it needs.

    Example: nvidia-ctk cdi transform root --from /host --to / --input spec.yaml
    """
    spec = _spec_of(input_path or STDIN)
    is_inside = relative_to == "container"
    document = edits.move_root(cast("edits.Json", spec), source, target, in_container=is_inside)
    moved = cast("Spec", document)
    if output in store.STDOUT:
        sys.stdout.write(store.dumps(moved).decode())
        return
    follow = not is_in_folder_of_engines(output, paths.CDI_SPEC_DIRS)
    path = store.save(moved, output, follow=follow)
    say(f"wrote {count(len(moved['devices']), 'device')} to {path}")


def _spec_of(path: str) -> Spec:
    if path == STDIN:
        return load.loads(sys.stdin.buffer.read(), source="stdin")
    return load.load_file(path)


ENV = "NVIDIA_CTK_CDI_GENERATE_"
MODES = "auto, nvml, csv, wsl, management, gdrcopy, gds, imex, mofed or nvswitch"


@click.command(cls=GoStyle)
@click.option("--output", envvar="NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", default="-",
              help="File to write.  [default: stdout]")  # fmt: skip
@click.option("--format", "form", envvar=f"{ENV}OUTPUT_FORMAT", metavar="[yaml|json]",
              help="[default: by the ending of --output, else yaml]")  # fmt: skip
@click.option("--cdi-version-max", envvar=f"{ENV}CDI_VERSION_MAX", metavar="VERSION",
              help="Leave out what newer versions of CDI added.")  # fmt: skip
@click.option("--mode", "--discovery-mode", envvar=f"{ENV}MODE", default="auto",
              show_default=True, metavar="MODE", help=f"Discovery mode: {MODES}.")  # fmt: skip
@words("--capabilities", env=f"{ENV}CAPABILITIES",
       text="Only what these need: compute, utility, graphics, video, display, ngx, compat32, or "
       "all, which is all but compat32.  [default: all]")  # fmt: skip
@click.option("--layout", envvar=f"{ENV}LAYOUT", metavar="[auto|farm|classic]",
              help="One mount of a view of the driver, or one per file.  [default: config.toml's]",
              )  # fmt: skip
@driver_roots
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
              help="Leave out the device all.")  # fmt: skip
@click.option("--node-numbers", is_flag=True, envvar=f"{ENV}NODE_NUMBERS",
              help="Write the numbers of device nodes; a boot can change them.")  # fmt: skip
@click.option("--nvidia-cdi-hook-path", "--nvidia-ctk-path", "hook",
              envvar="NVIDIA_CTK_CDI_HOOK_PATH",
              help="The hook program that the spec names.")  # fmt: skip
@words("--disable-hook", "--disable-hooks", env=f"{ENV}DISABLED_HOOKS",
       text="Hooks to leave out, or all.")  # fmt: skip
@words("--enable-hook", "--enable-hooks", env=f"{ENV}ENABLED_HOOKS",
       text="Hooks to include even if --disable-hook names them.")  # fmt: skip
@click.option("--no-hooks", envvar=f"{ENV}NO_HOOKS", metavar="[debian|redhat|both|off]",
              help="For callers that run no hooks: mount libraries where the loaders of these "
              "images search.")  # fmt: skip
@click.option("--allow-builds", is_flag=True, envvar=f"{ENV}ALLOW_BUILDS",
              help="Let BuildKit's RUN --device use the devices without --allow device.",
              )  # fmt: skip
@click.option("--ldconfig-path", envvar=f"{ENV}LDCONFIG_PATH",
              help="No effect: the hook writes ld.so.cache itself.")  # fmt: skip
@words("--csv.file", "csv_files", env=f"{ENV}CSV_FILES", text="Tegra: the CSV files to read.")
@words("--csv.ignore-pattern", "csv_ignore", env=f"{ENV}CSV_IGNORE_PATTERNS",
       text="Tegra: symbolic links to leave out.")  # fmt: skip
@click.option("--csv.compat-container-root", "csv_compat",
              envvar=f"{ENV}CSV_CONTAINER_COMPAT_ROOT",
              help="Orin: folder of CUDA's compat libraries in containers.")  # fmt: skip
@words("--feature-flag", "--feature-flags", env=f"{ENV}FEATURE_FLAGS",
       text="Flags of nvidia-container-toolkit, e.g. enable-coherent-annotations.")  # fmt: skip
@click.option("--staged", hidden=True, type=click.Choice(["make", "plan"]),
              help="Print the files for --output as JSON; with plan, make no view.")  # fmt: skip
@click.option("--config", help="The config.toml with the roots.")
def generate(**values: Any) -> None:  # noqa: ANN401  the options above, each with its own type
    """Write a CDI specification of this host's GPUs.

    Example: nvidia-ctk cdi generate --output /var/run/cdi/nvidia.yaml
    """
    write(**values)
