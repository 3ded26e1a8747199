# SPDX-License-Identifier: Apache-2.0
"""Lets an engine check a configuration that is not in place yet.

The engine runs in a mount namespace of its own, where overlays show the edited files at their
paths, imports and drop-ins included. No other process sees them, and they vanish with the engine.
A check that is not possible gives a note, not an error.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence

from nvct.engine import command, containerd_dump, crio, reload, writing
from nvct.engine.command import Completed, Run
from nvct.engine.model import EngineOptions, FileEdit
from nvct.errors import EngineError
from nvct.kernel.calls import KERNEL, Kernel
from nvct.linux import constants

TIMEOUT_S = 20.0


def argv(options: EngineOptions, program: str, *, has_file: bool) -> list[str]:
    """Return the command with which an engine reads its files and exits; [] if it has none.

    dockerd has --validate since 23.0. CRI-O's `config` reads its drop-ins as a start does. Every
    command of Podman reads its files first. A main file that is named must exist.
    """
    config = options.config
    if options.engine == "crio":
        folder = os.path.dirname(options.drop_in) if options.drop_in else crio.CONFIG_DIR
        main = [f"--config={config}"] if has_file else []
        return [program, *main, f"--config-dir={folder}", "config"]
    if options.engine == "podman":
        return [program, "version"]
    commands = {
        "docker": [program, "--validate", f"--config-file={config}"],
        "containerd": [program, f"--config={config}", "config", "dump"],
    }
    return commands.get(options.engine, []) if has_file else []


def check(
    options: EngineOptions,
    program: str,
    edits: Sequence[FileEdit],
    run: Run,
    *,
    root: str = "/",
    opt_out: str = "",
    removing: bool = False,
) -> list[str]:
    """Let the engine read the files as they will be; return notes.

    Args:
        root: the engine's root directory as a path of this process.
        opt_out: the option that prevents a reload of the engine; "" if there will be none. An
            engine that refuses its files must not be restarted, whoever wrote them.
        removing: the runtimes are removed, not registered.

    Raises:
        EngineError: it refuses them, although it accepts the present files or is to be reloaded;
            or it accepts them, but the options do not take effect.
    """
    engine = options.engine
    after = {edit.path: edit.after for edit in edits}
    has_file_now = os.path.exists(root.rstrip("/") + options.config)
    has_file_after = after[options.config] is not None if options.config in after else has_file_now
    args = argv(options, program, has_file=has_file_after)
    if not args:
        return []
    if not _is_runnable(program, root):
        return [f"not checked by {engine} itself: {os.path.basename(program)} is not here"]
    try:
        content = {root.rstrip("/") + path: data for path, data in after.items()}
        completed = _try(args, content, run)
    except OSError as error:
        return [f"not checked by {engine} itself: no private mounts here ({error.strerror})"]
    if completed.status == 0 and not removing:
        _refuse_without_effect(options, completed.out, "nothing was changed")
    if completed.status == command.NOT_FOUND:
        return [f"not checked by {engine} itself: {completed.reason}"]
    if completed.status == 0 or _has_no_such_command(completed):
        return []
    args = argv(options, program, has_file=has_file_now)
    present = run(args, TIMEOUT_S) if args else None
    if present and present.status != 0:
        already = f"{engine} refuses its files already as they are: {_reason(present)}"
        if not opt_out:
            return [already]
        raise EngineError(
            already, hint=f"correct them, or do not reload it ({opt_out}); nothing was changed"
        )
    raise EngineError(
        f"{engine} refuses the new configuration: {_reason(completed)}",
        hint="nothing was changed",
    )


def check_in_force(options: EngineOptions, program: str, run: Run, *, root: str = "/") -> None:
    """Let an engine that can do so print its present configuration, and compare it.

    Raises:
        EngineError: the options are not in it.
    """
    args = argv(options, program, has_file=True) if options.engine == "containerd" else []
    if args and _is_runnable(program, root):
        completed = run(args, TIMEOUT_S)
        if completed.status == 0:
            _refuse_without_effect(options, completed.out)


def _is_runnable(program: str, root: str) -> bool:
    """Report whether a program is there, as far as that is known before it is run."""
    return root != "/" or shutil.which(program) is not None


def _refuse_without_effect(options: EngineOptions, dump: str, hint: str = "") -> None:
    missing = containerd_dump.missing(options, dump) if options.engine == "containerd" else ""
    if missing:
        raise EngineError(
            f"containerd reads {options.config} without {missing}: see its version and imports,"
            " and `containerd config dump`",
            hint=hint,
        )


def _try(args: list[str], files: Mapping[str, bytes | None], run: Run) -> Completed:
    """Run a program; it alone sees files with other content."""
    with tempfile.TemporaryDirectory(prefix="nvct-") as stage:
        return run(args, TIMEOUT_S, enter=lambda: enter_preview(files, stage, KERNEL))


def enter_preview(files: Mapping[str, bytes | None], stage: str, kernel: Kernel) -> None:
    """Enter a mount namespace in which these paths have this content.

    Raises:
        OSError: this process may not create such a namespace or such mounts.
    """
    kernel.unshare(constants.CLONE_NEWNS)
    kernel.mount(None, "/", None, constants.MS_REC | constants.MS_PRIVATE)
    kernel.mount("nvct", stage, "tmpfs", 0, "mode=0700")
    changed = {os.path.realpath(path): data for path, data in files.items()}
    folders = sorted({_nearest_folder(path) for path in changed})
    for number, folder in enumerate(folders):
        # An overlay over a part of an overlay adds a layer, and the kernel has only two.
        if not any(_is_below(folder, parent) for parent in folders):
            _overlay(folder, f"{stage}/{number}", kernel)
    for path, data in changed.items():
        _write_content(path, data)


def _nearest_folder(path: str) -> str:
    """Return the innermost folder of a path that exists."""
    missing = writing.missing_folders(path)
    return os.path.dirname(missing[0] if missing else path)


def _is_below(folder: str, parent: str) -> bool:
    return folder != parent and folder.startswith(parent.rstrip("/") + "/")


def _overlay(folder: str, stage: str, kernel: Kernel) -> None:
    upper, work = f"{stage}/upper", f"{stage}/work"
    os.makedirs(upper)
    os.makedirs(work)
    lower = kernel.open(folder, os.O_PATH | os.O_DIRECTORY)  # a name may hold "," and ":"
    try:
        data = f"lowerdir=/proc/self/fd/{lower},upperdir={upper},workdir={work}"
        kernel.mount("overlay", folder, "overlay", 0, data)
    finally:
        kernel.close(lower)


def _write_content(path: str, content: bytes | None) -> None:
    if content is None:
        if os.path.lexists(path):
            os.unlink(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def _reason(completed: Completed) -> str:
    """Return the error in an engine's output."""
    return reload.pick(completed.err.splitlines()) or completed.reason


def _has_no_such_command(completed: Completed) -> bool:
    """Report whether the engine is older than the command, or could not be run at all."""
    old = ("unknown flag", "flag provided but not defined", "unknown command", "No help topic")
    if completed.status in (command.TIMED_OUT, errno.ENOEXEC, command.NOT_FOUND):
        return True
    return any(text in completed.err for text in old)
