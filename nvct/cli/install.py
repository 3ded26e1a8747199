# SPDX-License-Identifier: Apache-2.0
"""Command: nvct install, run by the toolkit's container. Options and calls, no logic."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, TypeAlias

import click

from nvct import cli
from nvct.agent.core.program import UPGRADES_ENV
from nvct.cli import install_options, validate
from nvct.cli.context import say, warn
from nvct.cli.gostyle import GoStyle
from nvct.engine import modules
from nvct.engine.modules import SUITS_ENGINE
from nvct.errors import EXTRA, HostError, UsageError
from nvct.host import modes
from nvct.installer import host, programs, ready, settings, steps
from nvct.installer.request import ENGINES, RESTART, SOCKETS, Request

OptionValues: TypeAlias = Mapping[str, Any]  # the options of the command line, by name

NRI = {
    name: f"--{name.replace('_', '-')}"
    for name in ("nri_plugin_index", "nri_socket", "nri_namespace",
                 "nri_management_cdi_device_namespaces")
}  # fmt: skip
"""Options that are passed on to the plugin."""
NO_NODES = ("", "none")
FOUND = "auto"  # As --runtime: the engine that runs this container
EMPTY = {
    "cdi_output_dir": ("CDI_OUTPUT_DIR", ""),
    "drop_in": ("RUNTIME_DROP_IN_CONFIG", ""),
    "device_nodes": ("CREATE_DEVICE_NODES", ("none",)),
}
SAME = (
    "pid_file", "driver_root", "driver_root_mount", "cdi_kind", "ignore_errors", "publish",
)  # fmt: skip
SAME_OF_ENGINE = ("drop_in_host", "executable", "name", "default", "runtime_type")
"""Options that are fields of the request, under the same names."""
DRIVER_READY = {
    "driver_root": "NVIDIA_DRIVER_ROOT",
    "driver_root_mount": "DRIVER_ROOT_CTR_PATH",
    "dev_root": "NVIDIA_DEV_ROOT",
    "dev_root_mount": "DEV_ROOT_CTR_PATH",
}


@click.command(cls=GoStyle)
@install_options.options
def install(**values: Any) -> None:  # noqa: ANN401  options, each with its own type
    """Install nvct on the host that this container runs on, and configure its engine.

    Copies the programs, writes their config.toml, registers the runtimes nvidia, nvidia-cdi and
    nvidia-legacy, waits for a signal, and then restores the engine's former configuration. Options
    and variables are those of nvidia-ctk-installer.

    Example: nvct install --runtime=containerd --restart-mode=systemd
    """
    if values["debug"]:
        os.environ["NVCT_DEBUG"] = "1"
    if values["uninstall"]:
        request = requested({**values, "find_driver": False, "driver_ready": None})
        request.check()
        steps.uninstall(request, say)
        return
    if values["gpu_nodes_only"] and not modes.has_gpu():
        say("this machine has no NVIDIA GPU: nothing is installed")
        return
    request = requested(values)
    request.check()
    steps.run(request, say, _show, daemon=not values["no_daemon"])


def requested(values: OptionValues) -> Request:
    """Return the request that the options describe; warn about options without effect.

    UsageError if an option or combination is not valid.
    """
    _warn(values)
    values = _with_empty(values)
    nri = _nri(values)
    values = _with_driver(values)
    toolkit = f"{values['install_dir'].rstrip('/')}/toolkit"
    engine = values["engine"]
    if values["no_runtime_config"] or (nri is not None and engine == FOUND):
        engine = ""
    cdi = values["cdi_enabled"]
    spec = f"{values['cdi_output_dir'].rstrip('/')}/{values['cdi_kind'].replace('/', '-')}.yaml"
    if cdi and not values["cdi_output_dir"]:
        say("warning: no CDI specification: --cdi-output-dir is empty")
        cdi = False
    fields = _engine(engine, values, cdi=cdi) if engine else {}
    undoes = engine or not values["no_runtime_config"]
    if undoes and (nri is not None or values["undo_engine"]):
        fields |= {"leave_engine": True, "undo_engine": True}
        fields["paths_are_of_host"] = values["engine"] == FOUND
    return Request(
        toolkit=toolkit,
        source=programs.source_root(values["source"] or "", cli.__file__),
        state_dir=values["state_dir"] or f"{toolkit}/.state",
        dev_root=values["dev_root"] or "",
        dev_root_mount=values["dev_root_mount"] or "",
        settings=_settings(values),
        policy=settings.read_policy(values["policy_file"]) if values["policy_file"] else "",
        host_root=values["host_root"] or "/",
        runtimes=values["runtimes"],
        cdi_spec=spec if cdi else "",
        control_nodes=cdi and _wants_nodes(values),
        nri=nri,
        **{name: values[name] for name in SAME},
        **fields,
    )


def _nri(values: OptionValues) -> tuple[str, ...] | None:
    """Return the NRI plugin's options, None if it does not run; NvctError if it cannot start."""
    if not values["nri"] or values["no_daemon"]:
        return None
    options = tuple(f"{option}={values[name]}" for name, option in NRI.items() if values[name])
    if not values["uninstall"]:
        try:
            from nvct.nri import main  # protobuf is an extra
        except ImportError as error:
            raise HostError(f"the NRI plugin cannot start: {error}", hint=EXTRA) from error
        main.check(options)
    return options


def _engine(engine: str, values: OptionValues, *, cdi: bool) -> dict[str, Any]:
    if engine == FOUND:
        return _found_engine(values, cdi=cdi)
    if engine not in ENGINES:
        names = ", ".join((*ENGINES, FOUND))
        raise UsageError(f"unknown runtime {engine!r}", hint=f"--runtime: one of {names}")
    values = _of_docker(values) if engine == "docker" else values

    def value(name: str, default: str) -> str:
        return default if values[name] == SUITS_ENGINE else values[name]

    return {
        **{name: values[name] for name in SAME_OF_ENGINE},
        "engine": engine,
        "config": value("config", modules.CONFIG[engine]),
        "drop_in": None if values["drop_in"] == SUITS_ENGINE else values["drop_in"],
        "socket": value("socket", SOCKETS[engine]).removeprefix("unix://"),
        "restart": value("restart", RESTART[engine]),
        "cdi": cdi if values["cdi"] is None else values["cdi"],
        "sources": _sources(engine, values["sources"]),
        "annotations": tuple(f"{prefix}*" for prefix in values["prefixes"]),
        "hook_file": _hook_file(engine, values),
    }


def _found_engine(values: OptionValues, *, cdi: bool) -> dict[str, Any]:
    """Return the fields of the engine that runs this container."""
    detected = host.find(values["host_root"] or "/")
    name, config = detected.engine, detected.edit or detected.config
    on = f" on {detected.platform}" if detected.platform else ""
    say(f"the engine is {name} {detected.version}{on}, with {config}")
    for sentence in detected.advice:
        say(sentence)
    for option in ("config", "drop_in", "socket"):
        if values[option] not in ("", None, SUITS_ENGINE):
            say(f"warning: {values[option]} has no effect: nvct finds the engine's files itself")
    fields = _engine(name, {**values, "executable": "", "drop_in": SUITS_ENGINE}, cdi=cdi)
    return {
        **fields,
        "config": config,
        "drop_in": detected.drop_in,
        "drop_in_host": "",
        "executable": "" if name == "docker" else detected.binary,
        "socket": detected.socket,
        "restart": RESTART[name] if values["restart"] == SUITS_ENGINE else values["restart"],
        "restart_command": detected.restart,
        "leave_engine": detected.leave,
        "paths_are_of_host": True,
    }


def _of_docker(values: OptionValues) -> dict[str, Any]:
    """Return the options without those that Docker does not use; warn about each."""
    if values["executable"]:
        say(f"warning: ignoring --executable-path={values['executable']} for docker")
    if values["drop_in"] not in ("", SUITS_ENGINE):
        say(f"warning: ignoring --drop-in-config={values['drop_in']} for docker")
    return {**values, "executable": "", "drop_in": "", "drop_in_host": ""}


def _sources(engine: str, sources: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sources of the engine's configuration; the first available one is used.

    Empty for Docker, which has only its file.
    """
    available = []
    for source in sources:
        name, equals, path = (part.strip() for part in source.partition("="))
        if name not in ("file", "command") or (
            name == "file" and equals and not os.path.isabs(path)
        ):
            raise UsageError(
                f"unrecognized config source: {source!r}", hint="use file, command or file=/PATH"
            )
        if name == "command" and equals:
            say(f"warning: {path!r} of --config-source={source} has no effect")
        available.append(path if name == "file" and equals else name)
    return () if engine == "docker" else tuple(available)


def _hook_file(engine: str, values: OptionValues) -> str:
    mode = values["config_mode"]
    if mode not in ("config", "hook"):
        raise UsageError(f"invalid --config-mode {mode!r}", hint="use config or hook")
    if engine != "crio" or mode == "config":
        return ""
    say("warning: --config-mode=hook is deprecated")
    return f"{values['hooks_dir'].rstrip('/')}/{values['hook_filename']}"


def _settings(values: OptionValues) -> tuple[tuple[str, bool | str | tuple[str, ...]], ...]:
    runtime = "nvidia-container-runtime"
    entries: list[tuple[str, bool | str | tuple[str, ...]]] = [
        ("accept-nvidia-visible-devices-envvar-when-unprivileged", values["accept_env"]),
        ("accept-nvidia-visible-devices-as-volume-mounts", values["accept_mounts"]),
        (f"{runtime}-hook.skip-mode-detection", values["skip_mode_detection"]),
    ]
    optional: dict[str, str | tuple[str, ...] | None] = {
        f"{runtime}.debug": values["runtime_debug"],
        f"{runtime}.log-level": values["log_level"],
        f"{runtime}.mode": values["mode"],
        f"{runtime}.modes.cdi.default-kind": values["default_kind"],
        f"{runtime}.modes.cdi.annotation-prefixes": values["prefixes"],
        "nvidia-container-cli.debug": values["cli_debug"],
        "nvct.farm-dir": values["farm_dir"],
    }
    entries += [(key, value) for key, value in optional.items() if value]
    features, warnings = settings.features(values["features"])
    warn(warnings)
    return (*entries, *features)


def _wants_nodes(values: OptionValues) -> bool:
    kinds = values["device_nodes"]
    for kind in kinds:
        if kind not in (*NO_NODES, "control"):
            raise UsageError(
                f"invalid --create-device-nodes value {kind!r}", hint="use control or none"
            )
    return bool(kinds) and not any(kind in NO_NODES for kind in kinds)


def _with_empty(values: OptionValues) -> dict[str, Any]:
    """Return the options, changed by environment variables that are set but empty.

    An empty variable of a switch means false, as in the incumbent.
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
    return {**values, **empty}


def _with_driver(values: OptionValues) -> dict[str, Any]:
    """Return the options; roots that are not given come from driver-ready or a search."""
    if values["find_driver"]:
        ready_values = validate.find_driver(
            values["host_root"] or "/", values["driver_root"],
            expects_container=os.environ.get(UPGRADES_ENV) == "true",
        )  # fmt: skip
        if values["driver_ready"]:
            ready.write(*os.path.split(values["driver_ready"]), ready_values)
        roots = {name: ready_values[key] for name, key in DRIVER_READY.items()}
        return {**values, **roots}
    if not values["driver_ready"]:
        return dict(values)
    context = click.get_current_context()
    ready_values = ready.read(values["driver_ready"])
    default = click.core.ParameterSource.DEFAULT
    roots = {
        name: ready_values[key]
        for name, key in DRIVER_READY.items()
        if key in ready_values and context.get_parameter_source(name) == default
    }
    return {**values, **roots}


def _warn(values: OptionValues) -> None:
    """Warn about options without effect; UsageError for an unknown package type."""
    if values["nri"] and values["no_daemon"]:
        say("warning: --enable-nri-plugin has no effect with --no-daemon")
    if values["legacy_config"]:
        say("warning: --use-legacy-config has no effect: a file of version 1 is edited as such")
    if values["override"].strip() not in ("", "{}"):
        say("warning: --runtime-config-override has no effect: the default runtime's options hold")
    if values["package_type"] not in ("", "auto", "deb", "rpm"):
        raise UsageError(
            f"invalid --toolkit-package-type {values['package_type']!r}",
            hint="leave it out: one tree serves every host",
        )


def _show(text: str) -> None:
    sys.stdout.write(f"Using config:\n{text}")
    sys.stdout.flush()
