# SPDX-License-Identifier: Apache-2.0
"""A low-level runtime whose containers see the simulated node's part of /proc and /sys.

A container has a /proc of its own PID namespace, with the files of a real kernel module, but not
of the simulated one. This program adds a createContainer hook to config.json and executes runc or
crun. The hook binds the node's files into the container's mount namespace before pivot_root(2).
Mounts in config.json do not work, because runc refuses them inside /proc
(libcontainer/rootfs_linux.go, checkProcMount).

The program runs under -I -S: standard library and hot modules only.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import nvct
from nvct.errors import HostError, NvctError, line
from nvct.linux import constants as c
from nvct.linux.kernel import KERNEL, Kernel
from nvct.linux.root import Root
from nvct.oci import argv, bundle, jsontext
from nvct.paths import DEFAULT_PATH_DIRS

NODE_PATHS = (
    "/proc/driver", "/proc/devices", "/proc/modules", "/sys/bus/pci/devices",
    "/sys/bus/pci/drivers", "/sys/kernel/iommu_groups", "/sys/module",
)  # fmt: skip
PROGRAMS = "/run/nvct-sim/bin"  # The folder of this program, where no real runtime is
CODE = "import sys; sys.path[:0] = [{folder!r}]; from nvct_sim import {module}; {call}"
"""Runs under -I -S, so the code itself adds this package's folder to the module path."""
HOOKS = ("hooks", "createContainer")
NAMESPACES = ("linux", "namespaces")
KEPT_FLAGS = c.MS_RDONLY | c.MS_NOSUID | c.MS_NODEV | c.MS_NOEXEC
"""The same values in statvfs(3) and mount(2); a user namespace must not clear these flags."""


def python_command(call: str, *arguments: str) -> list[str]:
    """Return the command that calls a function of nvct_sim, such as `oci_runtime.main()`."""
    (package,) = nvct.__path__
    module = call.partition(".")[0]
    code = CODE.format(folder=os.path.dirname(package), module=module, call=call)
    return [sys.executable, "-I", "-S", "-B", "-c", code, *arguments]


def main() -> NoReturn:
    """Run as `runc` or `crun`: the first argument is the name, the others are the runtime's."""
    name, arguments = sys.argv[1], sys.argv[2:]
    try:
        program = find_runtime(name, (*os.environ.get("PATH", "").split(":"), *DEFAULT_PATH_DIRS))
        invocation = argv.parse(arguments)
        if invocation.creates:
            add_hook(bundle.config_path(invocation.bundle, invocation.config), KERNEL)
        os.execv(program, [name, *arguments])
    except NvctError as error:
        sys.stderr.write(line(f"nvct-sim {name}", error) + "\n")
    except OSError as error:
        sys.stderr.write(f"nvct-sim {name}: cannot run it: {error}\n")
    sys.exit(1)


def find_runtime(name: str, folders: tuple[str, ...]) -> str:
    """Return the path of the real runtime; HostError if the runtime is not installed."""
    for folder in folders:
        if folder not in ("", PROGRAMS) and os.access(f"{folder}/{name}", os.X_OK):
            return f"{folder}/{name}"
    raise HostError(f"no {name} in {':'.join(folders)}", hint=f"install {name}")


def add_hook(path: str, kernel: Kernel) -> None:
    """Add the hook to a config.json that has a mount namespace, but no hook yet; BundleError."""
    config = bundle.load(path)
    document = config.document
    kinds = [namespace.get("type") for namespace in config.objects(NAMESPACES)]
    root = document.value(("root", "path"))
    if "mount" not in kinds or not isinstance(root, str):
        return
    root = os.path.join(os.path.dirname(os.path.abspath(path)), root)
    fragment = jsontext.dumps(hook(root))
    hooks = [document.fragment(node) for node in document.elements(HOOKS)]
    if fragment in hooks:
        return
    if hooks:  # first, since other hooks may need the files
        document.rewrite(HOOKS, [fragment, *hooks])
    else:
        document.append(HOOKS, [fragment])
    config.save(kernel)


def hook(root: str) -> dict[str, object]:
    """Return the hook for a container's root."""
    python, *arguments = python_command("oci_runtime.run_hook()", root)
    return {"path": python, "args": ["nvct-sim", *arguments], "env": ["PATH=/usr/bin:/bin"]}


def run_hook() -> None:
    """Run as the hook: bind the NODE_PATHS into the container's root, the first argument."""
    try:
        bind_paths(sys.argv[1], KERNEL)
    except (OSError, NvctError) as error:
        sys.stderr.write(f"nvct-sim: cannot show the simulated driver in a container: {error}\n")
        sys.exit(1)


def bind_paths(root: str, kernel: Kernel) -> None:
    """Bind the NODE_PATHS below a container's root, read-only; skip paths that are missing."""
    base = Root.open(root)
    for path in NODE_PATHS:
        target = base.path_fd(path)
        if target is None:  # no /proc, or no /sys, or no PCI in it
            continue
        kernel.mount(path, f"/proc/self/fd/{target}", None, c.MS_BIND | c.MS_REC)
        mounted = base.path_fd(path) or target
        flags = os.fstatvfs(mounted).f_flag & KEPT_FLAGS | c.MS_RDONLY
        kernel.mount(None, f"/proc/self/fd/{mounted}", None, c.MS_BIND | c.MS_REMOUNT | flags)
