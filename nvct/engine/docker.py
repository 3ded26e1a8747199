# SPDX-License-Identifier: Apache-2.0
"""Docker: edits daemon.json: runtimes, the default runtime and CDI.

Facts about Docker (moby's source): a SIGHUP reloads runtimes and default-runtime, but not CDI,
which needs a restart. CDI exists since 25.0 (`features.cdi`) and is on by default since 28.2.
`docker run --gpus` uses CDI since 29.2, if nvidia-cdi-hook is on dockerd's PATH. Docker does not
start if a setting is both in daemon.json and on its command line.
"""

from __future__ import annotations

from nvct import paths
from nvct.config.tables import KeyEdit
from nvct.engine import json_file
from nvct.engine.json_file import Document
from nvct.engine.model import Change, EngineOptions, Files, Handler, State, change_of, without_var
from nvct.engine.modules import Syntax
from nvct.errors import EngineConfigError, UsageError

CONFIG = "/etc/docker/daemon.json"
RUNTIMES, DEFAULT, SPEC_DIRS = "runtimes", "default-runtime", "cdi-spec-dirs"
CDI = ("features", "cdi")
RESERVED = ("runc", "io.containerd.runc.v2")
SHIM_PREFIX = "io.containerd."
"""A default runtime with this prefix is a shim of containerd: it need not be registered."""

SYNTAX = Syntax(is_json=True, default=DEFAULT)

WITH_CDI = (25, 0)
CDI_BY_DEFAULT = (28, 2)
GPUS_BY_CDI = (29, 2)

FLAGS = {DEFAULT: "--default-runtime", SPEC_DIRS: "--cdi-spec-dir", CDI[0]: "--feature"}
"""Key of daemon.json → option of dockerd with the same meaning."""


def state(options: EngineOptions, files: Files) -> State:
    """Return what daemon.json says, and whether CDI is on; DocumentError, EngineConfigError."""
    path = options.config or CONFIG
    data = files.read(path)
    document = json_file.parse(data, path)
    runtimes = document.get((RUNTIMES,), dict) or {}
    return State(
        files=() if data is None else (path,),
        handlers={name: _registered(document, name)[1] for name in runtimes},
        default=document.get((DEFAULT,), str) or "",
        cdi=cdi_is_on(options.engine_version, said=document.get(CDI, bool)),
        spec_dirs=_spec_dirs(document),
    )


def plan(options: EngineOptions, files: Files) -> Change:
    """Return the smallest edit of daemon.json that configures the options.

    Raises UsageError for a setting that Docker does not have, DocumentError if daemon.json cannot
    be read, EngineConfigError if it is malformed or dockerd's command line has a setting, too.
    """
    path = options.config or CONFIG
    if options.drop_in:
        raise UsageError(f"docker does not read drop-in files such as {options.drop_in}")
    data = files.read(path)
    document = json_file.parse(data, path)
    edits = [edit for handler in options.handlers if (edit := _register(document, handler))]
    if options.default and options.default != document.get((DEFAULT,), str):
        _check_default(options, document)
        edits.append(((DEFAULT,), options.default))
    by_cdi = _cdi(options, document)
    for (name, *_rest), _value in edits + by_cdi:
        _check_flag(options, name, path)
    after = json_file.edit(data, edits + by_cdi, path)
    notes = _notes(options)
    return change_of(path, data, after, restart=bool(by_cdi), notes=notes)


def cdi_is_on(version: tuple[int, ...], *, said: bool | None) -> bool | None:
    """Return whether CDI is on: as daemon.json `said`, or as in the release; None if unknown."""
    if version and version < WITH_CDI:
        return False
    if said is not None or not version:
        return said
    return version >= CDI_BY_DEFAULT


def _registered(document: Document, name: str) -> tuple[str, str]:
    """Return the key of a runtime's path, as daemon.json spells it, and the path."""
    entry = document.get((RUNTIMES, name), dict) or {}
    # Go ignores the case of a key.
    member = next((key for key in entry if key.lower() == "path"), "path")
    return member, document.get((RUNTIMES, name, member), str) or ""


def _register(document: Document, handler: Handler) -> KeyEdit | None:
    """Return the edit that registers a runtime, None if it is registered; its arguments stay."""
    if handler.name in RESERVED:
        raise UsageError(f"docker reserves the runtime name {handler.name}: choose another one")
    member, path = _registered(document, handler.name)
    if path == handler.path:
        return None
    if path:
        return (RUNTIMES, handler.name, member), handler.path
    return (RUNTIMES, handler.name), {"path": handler.path, "args": []}


def _check_default(options: EngineOptions, document: Document) -> None:
    """Refuse a default that is not registered: Docker would not start."""
    names = {*(document.get((RUNTIMES,), dict) or {}), *RESERVED}
    names |= {handler.name for handler in options.handlers}
    if options.default not in names and not options.default.startswith(SHIM_PREFIX):
        raise UsageError(f"{options.default} cannot be the default: it is not registered")


def _cdi(options: EngineOptions, document: Document) -> list[KeyEdit]:
    """Return the edits that CDI needs: none if it is on and reads the right folders."""
    edits: list[KeyEdit] = []
    switch = document.get(CDI, bool)
    if options.cdi and not switch and not cdi_is_on(options.engine_version, said=switch):
        edits.append((CDI, True))
    if options.spec_dirs and not _same_folders(_spec_dirs(document), options.spec_dirs):
        edits.append(((SPEC_DIRS,), list(options.spec_dirs)))
    return edits


def _same_folders(configured: tuple[str, ...], options: tuple[str, ...]) -> bool:
    """Report whether Docker reads these folders; CDI's defaults if daemon.json names none."""
    current = configured or paths.CDI_SPEC_DIRS
    return list(map(without_var, current)) == list(map(without_var, options))


def _spec_dirs(document: Document) -> tuple[str, ...]:
    folders = document.get((SPEC_DIRS,), list) or []
    if not all(isinstance(folder, str) for folder in folders):
        value = document.find((SPEC_DIRS,))
        raise document.refusal(value.value if value else 0, f"{SPEC_DIRS} must hold strings")
    return tuple(folders)


def _check_flag(options: EngineOptions, name: str, path: str) -> None:
    """Refuse a setting that dockerd's command line has, too: dockerd does not start with both."""
    flag = FLAGS.get(name)
    for word in options.arguments if flag else ():
        if word.partition("=")[0] == flag:
            raise EngineConfigError(
                f"dockerd runs with {word}, so {path} must not set {name}",
                hint=f"remove {flag} from its command line, see systemctl cat docker",
            )


def _notes(options: EngineOptions) -> tuple[str, ...]:
    version = options.engine_version
    if not version or not (options.cdi or options.spec_dirs):
        return ()
    text = ".".join(map(str, version))
    if version < WITH_CDI:
        return (f"Docker {text} does not support CDI: 25.0 and later do",)
    if options.cdi and version >= GPUS_BY_CDI:
        note = "uses CDI if nvidia-cdi-hook is on dockerd's PATH, and then needs a CDI spec"
        return (f"docker run --gpus of Docker {text} {note}",)
    return ()
