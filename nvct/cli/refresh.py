# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct refresh, nvct publish."""

from __future__ import annotations

import os
import time

import click

from nvct.cli.cdi.commands import generate
from nvct.cli.cdi.generate import write
from nvct.cli.context import say, settings_in_force, tell, warn
from nvct.cli.gostyle import GoStyle
from nvct.cli.options import driver_release, words
from nvct.compile import live_host, published_spec
from nvct.compile import mode_plans as extras
from nvct.compile import refresh as compiled
from nvct.compile.published_spec import CHOICES
from nvct.config.load import load, path_from
from nvct.container.plan import fingerprints, model
from nvct.container.plan.store import run_dir
from nvct.doctor import messages
from nvct.doctor.model import count
from nvct.errors import DriverNotFoundError, HostError
from nvct.farm import of_host

OUTPUT = "/var/run/cdi/nvidia.yaml"
OUTPUT_ENV = "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"
AS_BEFORE = {
    "device-id": "devices {}, as before; --devices all publishes all",
    "no-hooks": "no hooks ({}), as before; --no-hooks=off publishes with hooks",
    "allow-builds": "builds are allowed, as before; --allow-builds=false ends it",
}
"""Messages about options that are taken over from the former specification."""
NOT_KEPT = "--{} applies until {} is removed; to keep it, set {} in {}"
TRIES, PAUSE_S = 20, 1.0  # discovery is repeated if the driver changes during it


@click.command()
@click.argument("kind", type=click.Choice(["all", "registry", "own"]), default="all")
def refresh(kind: str) -> None:
    """Compile plans now, so that the next create finds them ready.

    Example: nvct refresh own
    """
    config = path_from(os.environ)
    folder = run_dir(os.environ)
    if kind in ("all", "registry"):
        plan = compiled.registry_plan(config, folder)
        click.echo(
            f"registry: {count(len(plan['devices']), 'device')} in "
            f"{count(len(plan['specs']), 'spec')}"
        )
        warn(plan["problems"])
        conflicts = plan["conflicts"].items()
        warn(f"{name} is defined by {' and '.join(files)}" for name, files in conflicts)
    if kind in ("all", "own"):
        _maintain_farm(config, folder)
        plan = compiled.own_plan(config, folder)
        click.echo(f"own: {len(plan['devices'])} device names")
        _print_layout(config, plan)
    if kind == "all":
        _rebuild_extras(config, folder)


def _rebuild_extras(config: str, folder: str) -> None:
    for feature, plan, error in extras.rebuild(config, folder):
        if plan is not None:
            click.echo(f"{feature}: {len(plan['devices'])} device names")
        else:
            say(f"warning: {feature}: {error} (it is compiled when a container asks for it)")


def _print_layout(config: str, plan: model.Plan) -> None:
    """Print the layout that containers get, so that hosts of a fleet do not differ silently."""
    settings = load(config)
    if settings.wants_view:
        tell(f"own: {of_host.describe_layout(settings, plan.get('farm'))}")


def _maintain_farm(config: str, folder: str) -> None:
    """Verify the driver's views and collect unused ones, before the plan in force is replaced."""
    settings = load(config)
    if not settings.wants_view:
        return
    needed = of_host.needs_in_force(settings, live_host.roots_of(settings), folder)
    warn(of_host.verify_and_collect(settings, needed))


@click.command(cls=GoStyle)
@click.option("--output", envvar=OUTPUT_ENV, default=OUTPUT,
              show_default=True, help="The specification's file.")  # fmt: skip
@words("--devices", "--device-id", env=CHOICES["device-id"][0],
       text="Only these: indices, UUIDs, all, none.  [default: as before, else all]",
       )  # fmt: skip
@click.option("--no-hooks", envvar=CHOICES["no-hooks"][0], metavar="[debian|redhat|both|off]",
              help="For callers that run no hooks: mount libraries where the loaders of these "
              "images search.  [default: as before, else off]")  # fmt: skip
@click.option("--allow-builds", is_flag=True, default=None, envvar=CHOICES["allow-builds"][0],
              help="Let BuildKit's RUN --device use the devices without --allow device.  "
              "[default: as before, else false]")  # fmt: skip
@click.option("--withdraw", is_flag=True, help="Remove the file, as when nvct is uninstalled.")
@click.option("--staged", hidden=True, help="Print the files, see generate.")
@click.pass_context
def publish(
    ctx: click.Context,
    *,
    output: str,
    devices: tuple[str, ...],
    no_hooks: str | None,
    allow_builds: bool | None,
    withdraw: bool,
    staged: str | None,
) -> None:
    """Write the CDI specification of this host where engines read it, or remove it.

    nvidia-cdi-refresh.service runs this command after an installation and when the driver or a
    GPU appears or disappears. Without a driver, an older specification is removed. The variables
    of nvidia-ctk cdi generate apply. A file with the same content is not written again; a file
    that describes no NVIDIA devices of this host is never changed.

    Example: nvct publish --devices 1,2 --output /etc/cdi/nvidia.yaml
    """
    output = published_spec.output_path(output)
    if withdraw and published_spec.is_of_another_generator(output):
        say(f"{output} stays: nvct did not write it")
        return
    if withdraw:
        removed = published_spec.withdraw(output)
        say(f"removed {output}" if removed else f"{output} does not exist")
        return
    given = {"device-id": ",".join(devices), "no-hooks": no_hooks or ""}
    if allow_builds is not None:
        given["allow-builds"] = str(allow_builds).lower()
    options = _chosen(output, given)
    argv = ["--output", output, *(["--staged", staged] if staged else [])]
    argv += [f"--{name}={value}" for name, value in options.items() if value]
    for _ in range(TRIES):
        watched = published_spec.watched_fingerprints(settings_in_force())
        try:
            _publish(ctx, output, argv, is_staged=bool(staged))
        except HostError as error:  # an installation in progress may still add the file
            if fingerprints.broken(watched) is None:
                error.hint = messages.waiting(error.hint, driver_release)
                raise
        if fingerprints.broken(watched) is None:
            return
        time.sleep(PAUSE_S)


def _chosen(output: str, given: dict[str, str]) -> dict[str, str]:
    """Return the options in force: the given ones, else the service's, else the file's."""
    service = published_spec.choices_of_service(published_spec.REFRESH_ENV)
    if "allow-builds" in service:
        service["allow-builds"] = str(click.BOOL(service["allow-builds"])).lower()
    before = published_spec.options_of_file(output)
    options = {}
    for name, (variable, default) in CHOICES.items():
        chosen = given.get(name) or service.get(name)
        options[name] = value = chosen or before.get(name, "")
        if value and not chosen:
            say(AS_BEFORE[name].format(value))
        elif value and value != service.get(name, default):
            kept = f"{variable}={value}"
            say(NOT_KEPT.format(f"{name}={value}", output, kept, published_spec.REFRESH_ENV))
    return options


def _publish(ctx: click.Context, output: str, argv: list[str], *, is_staged: bool) -> None:
    published_spec.check_replaceable(output)
    context = generate.make_context("generate", argv, parent=ctx)
    try:
        write(lambda text: say(messages.waiting(text, driver_release)), **context.params)
    except DriverNotFoundError as error:
        if is_staged:
            say(f"{error}: no specification")
            return
        removed = published_spec.withdraw(output)
        say(f"{error}: {f'removed {output}' if removed else 'nothing to publish'}")
