# SPDX-License-Identifier: Apache-2.0
"""Command: nvct install, run by the toolkit's container. Options and calls, no logic."""

from __future__ import annotations

import os
import sys

import click

from nvct.cli import install_options
from nvct.cli.options import GoStyle, flat, say
from nvct.engine.usage import SUITS_ENGINE
from nvct.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

    from nvct.installer.request import Request

    Given: TypeAlias = Mapping[str, Any]  # the options of the command line, by name

NO_NODES = ("", "none")
EMPTY = {
    "cdi_output_dir": ("CDI_OUTPUT_DIR", ""),
    "drop_in": ("RUNTIME_DROP_IN_CONFIG", ""),
    "device_nodes": ("CREATE_DEVICE_NODES", (("none",),)),
}
DRIVER_READY = {
    "driver_root": "NVIDIA_DRIVER_ROOT",
    "driver_root_mount": "DRIVER_ROOT_CTR_PATH",
    "dev_root": "NVIDIA_DEV_ROOT",
    "dev_root_mount": "DEV_ROOT_CTR_PATH",
}


@click.command(cls=GoStyle)
@install_options.options
def install(**given: Any) -> None:  # noqa: ANN401  options, each with its own type
    """Install nvct on the host that this container runs on, and configure its engine.

    Copies the programs, writes their config.toml, registers the runtimes nvidia, nvidia-cdi and
    nvidia-legacy, and waits for a signal; then the engine gets its former configuration back.
    Options and variables are those of nvidia-ctk-installer.

    Example: nvct install --runtime=containerd --restart-mode=systemd
    """
    from nvct.installer import steps

    if given["debug"]:
        os.environ["NVCT_DEBUG"] = "1"
    request = requested(given)
    request.check()
    steps.run(request, say, _show, daemon=not given["no_daemon"])


def requested(given: Given) -> Request:
    """Return the request that the options describe; warn about options without effect.

    Raises:
        UsageError: an option or combination is not valid.
    """
    from nvct import cli
    from nvct.installer import programs
    from nvct.installer.request import Request

    _warn(given)
    given = _with_driver(_with_empty(given))
    toolkit = f"{given['install_dir'].rstrip('/')}/toolkit"
    engine = "" if given["no_runtime_config"] else given["engine"]
    cdi = given["cdi_enabled"]
    if cdi and not given["cdi_output_dir"]:
        say("warning: no CDI specification: --cdi-output-dir is empty")
        cdi = False
    return Request(
        toolkit=toolkit,
        source=programs.source_root(given["source"] or "", cli.__file__),
        pid_file=given["pid_file"],
        state_dir=given["state_dir"] or f"{toolkit}/.state",
        driver_root=given["driver_root"],
        driver_root_mount=given["driver_root_mount"],
        dev_root=given["dev_root"] or "",
        dev_root_mount=given["dev_root_mount"] or "",
        settings=_settings(given),
        runtimes=flat(given["runtimes"]),
        cdi_spec=_spec_path(given) if cdi else "",
        cdi_kind=given["cdi_kind"],
        control_nodes=cdi and _wants_nodes(given),
        ignore_errors=given["ignore_errors"],
        **(_engine(engine, given, cdi=cdi) if engine else {}),
    )


def _engine(engine: str, given: Given, *, cdi: bool) -> dict[str, Any]:
    """Return the fields of the request that configure the engine."""
    from nvct.engine import modules
    from nvct.installer.request import ENGINES, RESTART, SOCKETS

    if engine not in ENGINES:
        raise UsageError(
            f"unknown runtime {engine!r}", hint=f"--runtime: one of {', '.join(ENGINES)}"
        )
    given = _of_docker(given) if engine == "docker" else given

    def value(name: str, default: str) -> str:
        return default if given[name] == SUITS_ENGINE else given[name]

    return {
        "engine": engine,
        "config": value("config", modules.CONFIG[engine]),
        "drop_in": None if given["drop_in"] == SUITS_ENGINE else given["drop_in"],
        "drop_in_host": given["drop_in_host"],
        "executable": given["executable"],
        "socket": value("socket", SOCKETS[engine]).removeprefix("unix://"),
        "restart": value("restart", RESTART[engine]),
        "cdi": cdi if given["cdi"] is None else given["cdi"],
        "host_root": given["host_root"] or "/",
        "name": given["name"],
        "default": given["default"],
        "sources": _sources(engine, flat(given["sources"])),
        "runtime_type": given["runtime_type"],
        "annotations": tuple(f"{prefix}*" for prefix in flat(given["prefixes"])),
        "hook_file": _hook_file(engine, given),
    }


def _of_docker(given: Given) -> dict[str, Any]:
    """Return the options without those that Docker does not use; warn about each."""
    if given["executable"]:
        say(f"warning: ignoring --executable-path={given['executable']} for docker")
    if given["drop_in"] not in ("", SUITS_ENGINE):
        say(f"warning: ignoring --drop-in-config={given['drop_in']} for docker")
    return {**given, "executable": "", "drop_in": "", "drop_in_host": ""}


def _sources(engine: str, sources: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sources of the engine's configuration; the first available one is used.

    Empty for Docker, which has only its file.
    """
    found = []
    for source in sources:
        name, equals, path = (part.strip() for part in source.partition("="))
        if name not in ("file", "command") or (
            name == "file" and equals and not os.path.isabs(path)
        ):
            raise UsageError(
                f"unrecognized config source: {source!r}", hint="file, command or file=/PATH"
            )
        if name == "command" and equals:
            say(f"warning: {path!r} of --config-source={source} has no effect")
        found.append(path if name == "file" and equals else name)
    return () if engine == "docker" else tuple(found)


def _hook_file(engine: str, given: Given) -> str:
    mode = given["config_mode"]
    if mode not in ("config", "hook"):
        raise UsageError(f"invalid --config-mode {mode!r}", hint="config or hook")
    if engine != "crio" or mode == "config":
        return ""
    say("warning: --config-mode=hook is deprecated")
    return f"{given['hooks_dir'].rstrip('/')}/{given['hook_filename']}"


def _settings(given: Given) -> tuple[tuple[str, bool | str | tuple[str, ...]], ...]:
    from nvct.installer import settings

    runtime = "nvidia-container-runtime"
    made: list[tuple[str, bool | str | tuple[str, ...]]] = [
        ("accept-nvidia-visible-devices-envvar-when-unprivileged", given["accept_env"]),
        ("accept-nvidia-visible-devices-as-volume-mounts", given["accept_mounts"]),
        (f"{runtime}-hook.skip-mode-detection", given["skip_mode_detection"]),
    ]
    asked: dict[str, str | tuple[str, ...] | None] = {
        f"{runtime}.debug": given["runtime_debug"],
        f"{runtime}.log-level": given["log_level"],
        f"{runtime}.mode": given["mode"],
        f"{runtime}.modes.cdi.default-kind": given["default_kind"],
        f"{runtime}.modes.cdi.annotation-prefixes": flat(given["prefixes"]),
        "nvidia-container-cli.debug": given["cli_debug"],
    }
    made += [(key, value) for key, value in asked.items() if value]
    features, warnings = settings.features(flat(given["features"]))
    for warning in warnings:
        say(f"warning: {warning}")
    return (*made, *features)


def _spec_path(given: Given) -> str:
    return f"{given['cdi_output_dir'].rstrip('/')}/{given['cdi_kind'].replace('/', '-')}.yaml"


def _wants_nodes(given: Given) -> bool:
    kinds = flat(given["device_nodes"]) if given["device_nodes"] else ("control",)
    for kind in kinds:
        if kind not in (*NO_NODES, "control"):
            raise UsageError(
                f"invalid --create-device-nodes value {kind!r}", hint="control or none"
            )
    return bool(kinds) and not any(kind in NO_NODES for kind in kinds)


def _with_empty(given: Given) -> dict[str, Any]:
    """Return the options, with the effect of environment variables that are set but empty.

    In the incumbent, an empty variable of a switch means false.
    """
    context = click.get_current_context()
    line = click.core.ParameterSource.COMMANDLINE
    empty: dict[str, object] = {
        name: value
        for name, (variable, value) in EMPTY.items()
        if os.environ.get(variable) == "" and context.get_parameter_source(name) != line
    }
    for option in context.command.params:
        name = option.name or ""
        variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar or ()
        value = next((os.environ[each] for each in variables if each in os.environ), None)
        is_switch = isinstance(option, click.Option) and option.is_flag
        if is_switch and value == "" and context.get_parameter_source(name) != line:
            empty[name] = False
    return {**given, **empty}


def _with_driver(given: Given) -> dict[str, Any]:
    """Return the options; roots that are not given come from nvct validate driver."""
    from nvct.installer import ready

    if not given["driver_ready"]:
        return dict(given)
    context = click.get_current_context()
    found = ready.read(given["driver_ready"])
    default = click.core.ParameterSource.DEFAULT
    taken = {
        name: found[key]
        for name, key in DRIVER_READY.items()
        if key in found and context.get_parameter_source(name) == default
    }
    return {**given, **taken}


def _warn(given: Given) -> None:
    """Warn about options without effect.

    Raises:
        UsageError: an option asks for a missing feature, and cannot be ignored.
    """
    if given["nri"] and not given["no_daemon"]:
        raise UsageError(
            "there is no NRI plugin in nvct yet", hint="leave --enable-nri-plugin out"
        )
    if given["nri"]:
        say("warning: --enable-nri-plugin has no effect with --no-daemon")
    if given["legacy_config"]:
        say("warning: --use-legacy-config has no effect: a file of version 1 is edited as such")
    if given["override"].strip() not in ("", "{}"):
        say("warning: --runtime-config-override has no effect: options are the default runtime's")
    if given["package_type"] not in ("", "auto", "deb", "rpm"):
        raise UsageError(
            f"invalid --toolkit-package-type {given['package_type']!r}",
            hint="leave it out: one tree serves every host",
        )


def _show(text: str) -> None:
    """Print the configuration in use, as the incumbent does."""
    sys.stdout.write(f"Using config:\n{text}")
    sys.stdout.flush()
