# SPDX-License-Identifier: Apache-2.0
"""The options of runtime configure and plan, and their meaning."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from nvct import paths
from nvct.cli.context import say, settings_in_force
from nvct.cli.options import all_of, drop_in_option, words
from nvct.cli.runtime import engine as runtime_engine
from nvct.engine import command, modules
from nvct.engine.model import Engine, EngineOptions, Handler
from nvct.engine.modules import (
    NAME,
    SHIM_PATH,
    SUITS_ENGINE,
    check_absolute,
    check_name,
    handlers,
)
from nvct.errors import ConfigError, UsageError

SHIM = paths.SHIM_PROGRAM
HOOK_PATH = f"/usr/bin/{paths.RUNTIME_HOOK_PROGRAM}"
CDI_PREFIX = "cdi.k8s.io/"
MODES = {"": "file", "config-file": "file", "config": "file", "oci-hook": "hook", "hook": "hook"}
VARIANTS_PACKAGE = "nvct-operator-extensions"
MISSING = "{} does not exist: containers with this runtime will not start"
STATE_DIR = paths.STATE_DIR
STATE_DIR_OPTION = click.option(
    "--state-dir", envvar="NVCT_STATE_DIR",
    help=f"Where the engines' former files are kept.  [default: {STATE_DIR}; of users: below ~]",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The meaning of a command line."""

    options: EngineOptions | None = None
    engine: Engine | None = None
    hook: str = ""
    hook_file: str = ""


nvct_options = all_of(
    words("--cdi-spec-dir", "spec_dirs", text="Folder for the engine to read CDI specs from."),
    words("--container-annotation", "container_annotations",
          text="Pattern of annotations that containerd passes to the runtime."),
    words("--pod-annotation", "pod_annotations", text="The same, for annotations of pods."),
    click.option("--hooks-dir", default="",
                 help="A further folder of hook files for the engine (crio, podman)."),
)  # fmt: skip
"""Options that nvidia-ctk does not have."""
configure_options = all_of(
    click.option("--runtime", "engine", default="docker", show_default=True, metavar="ENGINE",
                 help="docker, containerd, crio or podman."),
    click.option("--config", help="The engine's main file.  [default: the one it reads]"),
    drop_in_option(),
    click.option("--executable-path", "executable", default="",
                 help="The engine's program, for --config-source=command."),
    click.option("--config-mode", "mode", default="", metavar="MODE",
                 help="config-file; oci-hook is deprecated.  [default: config-file]"),
    click.option("--config-source", "source", default="file", show_default=True,
                 metavar="[file|command]", help="Read the file, or ask the engine."),
    click.option("--oci-hook-path", "hook_file", default="",
                 help="With --config-mode=oci-hook: the hook file.  [default: stdout]"),
    click.option("--nvidia-runtime-name", "name", default=None,
                 help="Register one runtime, with this name.  [default: nvidia]"),
    click.option("--nvidia-runtime-path", "--runtime-path", "path", default=SHIM,
                 show_default=True, help="The runtime's program."),
    click.option("--nvidia-runtime-hook-path", "hook", default=HOOK_PATH, show_default=True,
                 help="With --config-mode=oci-hook: the hook program."),
    click.option("--nvidia-set-as-default", "--set-as-default", "default", is_flag=True,
                 help="Make this the default runtime."),
    click.option("--cdi.enabled", "--cdi.enable", "--enable-cdi", "cdi", is_flag=True,
                 help="Switch the engine's own CDI on."),
)  # fmt: skip
"""Options of nvidia-ctk runtime configure."""


def invocation_of(values: Mapping[str, Any], *, all_variants: bool) -> Invocation:
    """Return the meaning of the command line's options, by the rules of nvidia-ctk.

    Warnings and notes are printed. UsageError if an option or combination is not valid.
    """
    warnings: list[str] = []
    name, mode = values["engine"], values["mode"]
    if MODES.get(mode) == "hook":
        say(f'warning: the "{mode}" config-mode is deprecated')
        return Invocation(hook=values["hook"], hook_file=values["hook_file"])
    if mode not in MODES:
        warnings.append(f'ignoring unsupported config-mode for {name}: "{mode}"')
    options = _engine_options(values, warnings, all_variants=all_variants)
    notes: list[str] = []
    if all_variants:
        options = _with_nvct_options(options, values)
        handlers = _runnable(options.handlers, warnings, notes)
        options = replace(options, handlers=handlers)
        detected = runtime_engine.choose(runtime_engine.engines(), name, values["config"])
        has_drop_in = values["drop_in"] != SUITS_ENGINE
        if detected:
            options = runtime_engine.fitted(options, detected, drop_in=has_drop_in)
    else:
        detected = runtime_engine.of_file(runtime_engine.engines(), options)
        options = runtime_engine.of_version(options, detected) if detected else options
    warnings.extend(detected.advice if detected else ())
    program = options.executable or modules.PROGRAM[name]
    if all_variants and not (detected or values["config"] or shutil.which(program)):
        notes.append(f"{name} was not found here: {program} is not on PATH, and does not run")
    for text in warnings:
        say(f"warning: {text}")
    for text in notes:
        say(f"note: {text}")
    return Invocation(options=options, engine=detected)


def _engine_options(
    values: Mapping[str, Any], warnings: list[str], *, all_variants: bool
) -> EngineOptions:
    engine = values["engine"]
    modules.of(engine)  # refuses an unknown engine
    source, executable = _source(engine, values, warnings)
    handlers = _handlers(values, absolute=engine != "docker" or all_variants, every=all_variants)
    drop_in = modules.drop_in(engine, values["drop_in"])
    cdi = values["cdi"]
    if cdi and engine in ("crio", "podman"):
        warnings.append(f"ignoring --cdi.enabled: CDI is always on in {engine}")
        cdi = False
    is_unchecked = not all_variants and engine != "docker" and values["path"] == SHIM
    if is_unchecked and not os.path.exists(handlers[0].path):
        warnings.append(MISSING.format(handlers[0].path))
    program = executable or shutil.which(modules.PROGRAM[engine]) or modules.PROGRAM[engine]
    return EngineOptions(
        engine=engine,
        handlers=handlers,
        default=handlers[0].name if values["default"] else "",
        cdi=cdi,
        config=os.path.abspath(values["config"] or modules.CONFIG[engine]),
        drop_in=drop_in,
        executable=executable,
        dump=command.dump(engine, program) if source == "command" else "",
        engine_version=command.version(program),
        container_annotations=_annotation_patterns(warnings) if engine == "containerd" else (),
    )


def _annotation_patterns(warnings: list[str]) -> tuple[str, ...]:
    """Return patterns of the annotations that containerd must pass to the runtime.

    As in NVIDIA's installer (v1.20), except CDI's own, which containerd reads itself. CRI-O passes
    all annotations, and does not start with an unknown one in allowed_annotations.
    """
    try:
        prefixes = settings_in_force().annotation_prefixes
    except ConfigError as error:
        warnings.append(f"the annotation-prefixes are unknown: {error.message}")
        return ()
    return tuple(f"{prefix}*" for prefix in prefixes if prefix != CDI_PREFIX)


def _with_nvct_options(options: EngineOptions, values: Mapping[str, Any]) -> EngineOptions:
    extended = replace(
        options,
        hooks_dir=values["hooks_dir"],
        spec_dirs=values["spec_dirs"],
        container_annotations=tuple(
            dict.fromkeys([*options.container_annotations, *values["container_annotations"]])
        ),
        pod_annotations=values["pod_annotations"],
    )
    for folder in extended.spec_dirs:
        check_absolute("the CDI folder's path", folder)
    if extended.hooks_dir:
        check_absolute("the hooks folder's path", extended.hooks_dir)
    if extended.hooks_dir and extended.engine not in ("crio", "podman"):
        raise UsageError(f"{extended.engine} reads no hook files", hint="leave --hooks-dir out")
    has_annotations = bool(extended.container_annotations or extended.pod_annotations)
    if has_annotations and extended.engine != "containerd":
        raise UsageError(
            f"{extended.engine} has no setting that passes annotations on",
            hint="leave --container-annotation and --pod-annotation out",
        )
    return extended


def _handlers(values: Mapping[str, Any], *, absolute: bool, every: bool) -> tuple[Handler, ...]:
    """Return the runtimes to register: if `every`, all three unless the user names one."""
    path = values["path"]
    if absolute and path == SHIM:
        is_default_file = values["config"] in (None, modules.CONFIG[values["engine"]])
        path = _shim_path(every=every, is_default_file=is_default_file)
    if absolute:
        check_absolute("the runtime's path", path)
    check_name(values["name"], "--nvidia-runtime-name")
    if values["name"] or not every:
        return (Handler(name=values["name"] or NAME, path=path),)
    return handlers(path)


def own_folder() -> str:
    """Return the folder of nvct's programs, "" if it is not known.

    It is the folder of the running program, else that of its Python or of nvct on PATH if nvct is
    in it: the other programs have NVIDIA's names.
    """
    programs = (sys.argv[0], sys.executable, shutil.which("nvct") or "")
    running, *folders = (os.path.dirname(os.path.abspath(program)) for program in programs)
    folders = [folder for folder in folders if os.access(f"{folder}/nvct", os.X_OK)]
    found = (each for each in (running, *folders) if os.access(f"{each}/{SHIM}", os.X_OK))
    return next(found, "")


def _shim_path(*, every: bool, is_default_file: bool) -> str:
    """Return the path of the runtime to register: beside nvct, or on PATH.

    The one beside nvct comes first with `every` (nvct). Without (nvidia-ctk), it is the one in
    /usr/bin; only in an engine's default file, another one if that is missing.
    """
    own = f"{own_folder()}/{SHIM}" if own_folder() else SHIM_PATH
    nearby = [own, os.path.abspath(shutil.which(SHIM) or SHIM_PATH)]
    candidates = [SHIM_PATH, *(nearby if is_default_file else [])]
    if every:
        candidates = [*nearby, SHIM_PATH]
    return next((path for path in candidates if os.access(path, os.X_OK)), SHIM_PATH)


def _runnable(
    handlers: tuple[Handler, ...], warnings: list[str], notes: list[str]
) -> tuple[Handler, ...]:
    """Return the handlers with an installed program; variants are in another package.

    All handlers if the first one is not installed.
    """
    installed = tuple(handler for handler in handlers if os.access(handler.path, os.X_OK))
    if handlers[0] not in installed:
        warnings.append(MISSING.format(handlers[0].path))
        return handlers
    if installed != handlers:
        names = " and ".join(handler.name for handler in handlers if handler not in installed)
        notes.append(
            f"not registered: {names}; their programs are in the package {VARIANTS_PACKAGE}"
        )
    return installed


def _source(engine: str, values: Mapping[str, Any], warnings: list[str]) -> tuple[str, str]:
    source, executable = values["source"], values["executable"]
    if source not in ("file", "command"):
        raise UsageError(f"unrecognized config source: {source!r}", hint="use file or command")
    if engine in ("docker", "podman"):
        if executable:
            warnings.append(f'ignoring executable-path="{executable}" flag for {engine}')
        if source == "command":
            warnings.append(f"a command config source is not supported for {engine}; using file")
        return "file", ""
    return source, executable


def state_dir(option: str | None, name: str = "engines") -> str:
    """Return the folder of a journal: root's, or below the home of another user."""
    if option:
        return os.path.abspath(option)
    if os.geteuid() == 0:
        return f"{os.path.dirname(STATE_DIR)}/{name}"
    home = os.environ.get("XDG_STATE_HOME", "")
    return f"{home or os.path.expanduser('~/.local/state')}/nvct/{name}"
