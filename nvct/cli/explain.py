# SPDX-License-Identifier: Apache-2.0
"""Command: nvct explain. Options, call and print; `explanation` has the logic."""

from __future__ import annotations

import json
import os
import sys

import click

from nvct import paths
from nvct.cli.formats import format_option
from nvct.cli.options import settings_in_force
from nvct.errors import UsageError, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvct.oci.bundle import Bundle

HEADLINES = {
    "GPU": "The container would start with what it asks for.",
    "untouched": "The container would start as it is, without a GPU.",
    "refused": "The create would fail.",
}
LIMIT = 64 << 20


@click.command()
@click.argument("config_json", required=False, metavar="[CONFIG_JSON | CONTAINER | MESSAGE]")
@click.option("--bundle", help="Folder of an OCI bundle, instead of its CONFIG_JSON.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE",
              help="Explain this request, without a container.")  # fmt: skip
@click.option("--annotation", "annotations", multiple=True, metavar="KEY=VALUE",
              help="Same, as an annotation.")  # fmt: skip
@click.option("--mount", "mounts", multiple=True, metavar="DEST",
              help=f"Same, as a mount of /dev/null below {paths.VOLUME_MOUNT_ROOT}.")  # fmt: skip
@click.option("--privileged", is_flag=True, help="Same, of a container with CAP_SYS_ADMIN.")
@click.option("--program", type=click.Choice(paths.SHIM_PROGRAMS), default=paths.SHIM_PROGRAM,
              show_default=True, help="The runtime that the engine calls.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="List all that would be injected.")
@format_option("text")
def explain(
    *,
    config_json: str | None,
    bundle: str | None,
    env: tuple[str, ...],
    annotations: tuple[str, ...],
    mounts: tuple[str, ...],
    privileged: bool,
    program: str,
    everything: bool,
    form: str,
) -> None:
    """Print what a container would get, and why; change nothing.

    CONFIG_JSON is an OCI bundle's config.json, or - for stdin. The exit status is 1 if the
    container could not be created. Run it as the user of the engine: it reads the config.toml and
    the plans of the user who runs it, and policy rules test the uid.

    CONTAINER is the name, id or process of a running container, or a pod's name: which GPUs it
    has, and what was decided when it was created.

    MESSAGE is what a program printed, in quotes: its cause, and what to do. Known are messages of
    nvct, Docker, containerd, CRI-O, runc, crun, the kubelet, NVIDIA's programs, NVML and CUDA.

    Example: nvct explain --env NVIDIA_VISIBLE_DEVICES=0
    """
    from nvct.doctor import explanation

    if config_json and config_json != "-" and not os.path.lexists(config_json):
        if " " in config_json:
            _explain_message(config_json, form)
            return
        if "/" not in config_json and not config_json.endswith(".json"):
            _explain_container(config_json, form)
            return
    words = bool(env or annotations or mounts)
    _refuse_mixture(config_json, bundle, words=words, privileged=privileged)
    if words:
        found = explanation.of_words(
            list(env), _pairs(annotations), list(mounts), privileged=privileged
        )
    else:
        found = _read(config_json, bundle)
    surroundings = dict(os.environ)
    named = click.get_current_context().meta.get("nvct.config")
    if named:
        surroundings[paths.CONFIG_ENV] = os.path.abspath(named)
    told = explanation.explain(found, program, surroundings)
    click.echo(
        json.dumps(told, indent=2) if form == "json" else _text(told, everything=everything)
    )
    if told["error"]:
        sys.exit(1)


def _explain_container(word: str, form: str) -> None:
    """Print which GPUs a running container has, and what was decided about it.

    Raises:
        UsageError: there is none.
        NvctError: NVML does not answer.
    """
    from nvct.cli.log import text as decided
    from nvct.cli.ps import uses_of_host
    from nvct.compile import live_host
    from nvct.container.plan.store import run_dir
    from nvct.doctor import one_container
    from nvct.errors import NvctError

    roots = live_host.roots_of(settings_in_force())
    found = one_container.find(roots, word)
    try:
        uses = uses_of_host(roots)
    except NvctError:
        uses = []
    told = [one_container.told(one, uses, run_dir(os.environ)) for one in found]
    if form == "json":
        click.echo(json.dumps(told, indent=2))
        return
    for one in told:
        name = printable(str(one["name"]))
        click.echo(f"{name}  (id {str(one['id'])[:12] or '-'}, process {one['pid']})")
        for use in one["uses"]:
            mig = f", MIG device {use['instance']}" if use["instance"] else ""
            opened = f", open in {use['command']} ({use['pid']})" if use["pid"] else ""
            click.echo(printable(f"  has      GPU {use['gpu']}{mig}{opened}"))
        if not one["uses"]:
            click.echo("  has      no GPU")
        for record in one["decisions"]:
            click.echo(f"  decided  {decided(record)}")
        if not one["decisions"]:
            click.echo(
                "  decided  nothing is recorded: it asked for no GPU, its engine served it by CDI,"
                " or the record is gone"
            )


def _explain_message(text: str, form: str) -> None:
    """Print the cause of a message, and what to do.

    Raises:
        UsageError: the message is not known.
    """
    from nvct.doctor import messages, refusals

    found = messages.explained(text) or refusals.message_of(text)
    if found is None:
        raise UsageError(
            "this is no known message about GPUs", hint="`sudo nvct doctor` looks at the host"
        )
    reason = found.reason.name if found.reason else ""
    if form == "json":
        told = {"message": found.name, "source": found.source, "cause": found.cause}
        click.echo(json.dumps({**told, "remedy": found.remedy, "reason": reason}, indent=2))
        return
    click.echo(f"{found.source}: {found.cause}\n  do: {found.remedy}")
    if reason:
        click.echo(f"  reason: {reason}")


def _refuse_mixture(
    config_json: str | None, bundle: str | None, *, words: bool, privileged: bool
) -> None:
    """Refuse a command line that names more than one thing to explain, or none.

    Raises:
        UsageError: the command line names more than one thing, or none.
    """
    given = sum((config_json is not None, bundle is not None, words))
    if given != 1 or (privileged and not words):
        raise UsageError(
            "explain takes either CONFIG_JSON, or --bundle, or a request",
            hint="for example nvct explain --env NVIDIA_VISIBLE_DEVICES=0",
        )


def _pairs(annotations: tuple[str, ...]) -> dict[str, str]:
    for one in annotations:
        if "=" not in one:
            raise UsageError(f"--annotation {one!r} is no KEY=VALUE")
    return {one.partition("=")[0]: one.partition("=")[2] for one in annotations}


def _read(config_json: str | None, bundle: str | None) -> Bundle:
    """Read a bundle's config.json.

    Raises:
        BundleError: the file is not a valid config.json.
    """
    from nvct.oci import bundle as bundles

    if config_json == "-":
        text = sys.stdin.buffer.read(LIMIT).decode("utf-8", "surrogateescape")
        return bundles.Bundle("standard input", text)
    return bundles.load(config_json or bundles.config_path(bundle or ""))


def _text(told: dict[str, Any], *, everything: bool) -> str:
    rows = [("", HEADLINES[told["outcome"]])]
    if told["error"]:
        rows.append(("error", told["error"]["line"]))
    rows += _config_rows(told["config"])
    rows += [("asked", one) for one in told["asked"]] or [("asked", "nothing")]
    if told["privileged"]:
        rows.append(("asked", "it has CAP_SYS_ADMIN"))
    for step in told["policy"]:
        verdict = "decides" if step["holds"] else "does not hold"
        rows.append(("policy", f"{step['rule']!r} ({step['then']}) {verdict}: {step['why']}"))
    if told["request"]:
        rows += _request_rows(told)
    rows += [("note", one) for one in told["notes"]]
    rows += _injected_rows(told.get("inject", {}), everything=everything)
    lines = []
    before = ""
    for name, text in rows:
        lines.append(f"{'' if name == before else name:13}{printable(text)}" if name else text)
        before = name
    return "\n".join(lines)


def _config_rows(config: dict[str, Any]) -> list[tuple[str, str]]:
    where = config["path"] if config["read"] else f"defaults: {config['path']} is not in force"
    rules = f"; {config['rules']} policy rules" if config["rules"] else ""
    text = f"{where}; mode {config['mode']}; layout {config['layout']}{rules}"
    return [("config", text), *(("config", one) for one in config["warnings"])]


def _request_rows(told: dict[str, Any]) -> list[tuple[str, str]]:
    request = told["request"]
    ids = ", ".join(request["ids"]) or "the driver without a GPU"
    rows = [("request", f"{request['source']} asks for {ids}; mode {request['mode']}")]
    if request["besides"]:
        rows.append(("request", f"besides: {', '.join(request['besides'])}"))
    rows += [
        ("device", f"{one['name']}" + (f" of {one['spec']}" if one["spec"] else ""))
        for one in told["devices"]
    ]
    capabilities = request["capabilities"]
    words = "all but compat32" if capabilities is None else ", ".join(capabilities) or "none"
    rows.append(("capabilities", words))
    for one in told["requirements"]:
        host = "; ".join(
            ", ".join(f"{name} {value}" for name, value in facts.items() if value)
            for facts in one["host"]
        )
        verdict = {True: "holds", False: "does not hold", None: "is malformed"}[one["holds"]]
        rows.append(
            ("requirement", f"{one['variable']}={one['expression']} {verdict}; host: {host}")
        )
    return rows


def _injected_rows(inject: dict[str, Any], *, everything: bool) -> list[tuple[str, str]]:
    counts = [
        f"{len(inject[key])} {name}{'s' if len(inject[key]) > 1 else ''}"
        for key, name in (
            ("nodes", "device node"), ("mounts", "mount"), ("env", "variable"),
            ("hooks", "hook"), ("gids", "group"),
        )
        if inject.get(key)
    ]  # fmt: skip
    if inject.get("removed hooks"):
        counts.append(f"without {len(inject['removed hooks'])} prestart hooks of the incumbent")
    rows = [("injected", ", ".join(counts) or "nothing")] if inject else []
    if everything:
        rows += [("env", one) for one in inject.get("env", ())]
        rows += [("node", str(one.get("path"))) for one in inject.get("nodes", ())]
        rows += [
            ("mount", f"{one.get('source')} -> {one.get('destination')}")
            for one in inject.get("mounts", ())
        ]
        rows += [
            ("hook", f"{one['point']}: {' '.join(map(str, one.get('args', ())))}")
            for one in inject.get("hooks", ())
        ]
        rows += [("group", str(one)) for one in inject.get("gids", ())]
    return rows
