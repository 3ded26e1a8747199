# SPDX-License-Identifier: Apache-2.0
"""Installs the programs: a tree of them, and the wrappers that engines and people call.

::

    TOOLKIT/nvidia-container-runtime{,.cdi,.legacy}   wrappers: see `wrapper`
    TOOLKIT/nvidia-container-runtime-hook, nvidia-container-toolkit, nvidia-ctk, ...
    TOOLKIT/nvidia-cdi-hook                           a link: hooks run in any environment
    TOOLKIT/.nvct/HASH/                               the installed tree
    TOOLKIT/.config/nvidia-container-runtime/config.toml

A new tree is copied beside the old one. Then the wrappers are replaced one by one, each by rename,
so that a container that starts at that time finds a complete program. The previous tree is kept.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from collections.abc import Sequence

from nvct import paths
from nvct.errors import HostError, UsageError
from nvct.host import procfs
from nvct.installer import tree
from nvct.installer.request import Request
from nvct.launcher.install import fill, is_static
from nvct.linux.files import temporary_name, write_atomic

TREES = ".nvct"
RUNTIMES = paths.SHIM_PROGRAMS
HOOK = paths.RUNTIME_HOOK_PROGRAM
COMMAND_LINES = (paths.CTK_PROGRAM, paths.CONTAINER_CLI_PROGRAM, "nvct")
OPTIONAL = (paths.CONTAINER_CLI_PROGRAM, "nvct")
LINKS = ((paths.RUNTIME_HOOK_ALIAS, HOOK),)
FOLDERS = ("bin", "usr/bin")
MODULES = ("/sys/module/nvidia", "/sys/module/nvgpu", "/dev/dxg")
"""Paths of which one exists if a driver is loaded: for PCI cards, for Tegra boards, in WSL."""

OF_THE_INCUMBENT = re.compile(r"nvidia-.*\.real|libnvidia-container.*\.so[.\d]*")
"""Files that NVIDIA's installer left in the same toolkit folder."""

WRAPPER = "libexec/nvct-wrapper"
"""The static program in a tree that becomes a wrapper (packaging/bundle/wrapper.c). It is not a
shell script: engines may start hooks with an image's environment, and a shell loads LD_PRELOAD."""
MARK = b"@nvct wrapper@"  # in this program, before the bytes for a wrapper's paths
ROOM = 8192  # the number of these bytes


def source_root(option: str, package: str) -> str:
    """Return the tree to install, by default that of this program; UsageError if there is none."""
    if option:
        if not _folder(option):
            raise UsageError(
                f"{option} has no bin/{paths.SHIM_PROGRAM}",
                hint="--toolkit-source-root must name a tree as make bundle makes it",
            )
        return option
    folder = os.path.dirname(os.path.realpath(package))
    while folder not in ("/", "/usr", "/usr/local"):
        if _folder(folder) and not os.path.exists(f"{folder}/pyvenv.cfg"):
            return folder
        folder = os.path.dirname(folder)
    raise UsageError(
        "this nvct is in no relocatable tree, so it cannot be copied to a host",
        hint="use the bundle's nvct, or name its folder by --toolkit-source-root",
    )


def install(request: Request, runtimes: Sequence[str], modules: Sequence[str] = MODULES) -> bool:
    """Copy the tree, and write or replace the wrappers; report whether anything changed.

    UsageError for a tree without wrappers.
    """
    trees = f"{request.toolkit}/{TREES}"
    previous = _used(request)
    folder = _folder(request.source)
    names = _names(f"{request.source}/{folder}")
    template = _template(f"{request.source}/{WRAPPER}")
    installed = tree.copy(request.source, trees)
    changed = previous != installed
    try:
        for name in names:
            program = f"{installed}/{folder}/{name}"
            fallback = runtimes if name in RUNTIMES else ()
            data = wrapper(template, request, program, fallback, modules)
            changed |= _put(request, name, program, data)
        for name, target in LINKS:
            changed |= _link(request.program(name), target)
        for name in filter(OF_THE_INCUMBENT.fullmatch, os.listdir(request.toolkit)):
            _remove(f"{request.toolkit}/{name}")
        tree.prune(trees, {installed, previous})
    except OSError as error:
        path = error.filename or request.toolkit
        raise HostError(f"{path} cannot be written: {error.strerror}") from error
    return changed


def _names(folder: str) -> list[str]:
    names = []
    for name in (*RUNTIMES, HOOK, paths.HOOK_PROGRAM, *COMMAND_LINES):
        if os.access(f"{folder}/{name}", os.X_OK):
            names.append(name)
        elif name not in OPTIONAL:
            raise UsageError(
                f"{folder} has no {name}", hint="--toolkit-source-root must name a whole bundle"
            )
    return names


def _template(path: str) -> bytes:
    """Return a tree's wrapper, in which no paths are filled in yet."""
    data = procfs.read_bytes(path) or b""
    try:
        fill(data, MARK, b"", ROOM)
        is_wrapper = is_static(data)
    except ValueError:
        is_wrapper = False
    if not is_wrapper:
        raise UsageError(
            f"{path} is not a static wrapper, so hooks cannot be started by it",
            hint="--toolkit-source-root must name a whole bundle, as make bundle makes it",
        )
    return data


def wrapper(
    template: bytes,
    request: Request,
    program: str,
    runtimes: Sequence[str],
    modules: Sequence[str],
) -> bytes:
    """Return the wrapper of a program.

    While none of the paths `modules` exists, no driver is loaded, and the wrapper starts one of
    the low-level `runtimes` instead of the program, unless there are none. Raises UsageError if
    the paths are too long for the wrapper.
    """
    strings = [program, request.toolkit, request.config_toml, *modules, "", *runtimes, ""]
    data = b"".join(os.fsencode(word) + b"\0" for word in strings)
    if len(data) > ROOM:
        raise UsageError(
            f"the paths of {os.path.basename(program)} and of low-level runtimes have more than"
            f" {ROOM} bytes together"
        )
    return fill(template, MARK, data, ROOM)


def _put(request: Request, name: str, program: str, data: bytes) -> bool:
    """Write a wrapper or link; return whether it changed."""
    path = request.program(name)
    if name == paths.HOOK_PROGRAM and is_static(procfs.read_bytes(program) or b""):
        return _link(path, os.path.relpath(program, request.toolkit))
    if os.path.islink(path) or os.path.isdir(path):
        _remove(path)
    elif procfs.read_bytes(path) == data and os.access(path, os.X_OK):
        return False
    write_atomic(path, data, mode=0o755)
    return True


def _link(path: str, target: str) -> bool:
    if os.path.islink(path) and os.readlink(path) == target:
        return False
    temporary = f"{posixpath.dirname(path)}/{temporary_name()}"
    os.symlink(target, temporary)
    os.rename(temporary, path)
    return True


def _used(request: Request) -> str:
    """Return the tree of the installed runtime, "" for none."""
    data = procfs.read_bytes(request.program(paths.SHIM_PROGRAM)) or b""
    prefix = f"{request.toolkit}/{TREES}/"
    match = re.search(re.escape(prefix).encode() + rb"([0-9a-f]+)/", data)
    return prefix + match[1].decode() if match else ""


def _folder(root: str) -> str:
    for folder in FOLDERS:
        if os.access(f"{root}/{folder}/{paths.SHIM_PROGRAM}", os.X_OK):
            return folder
    return ""


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
