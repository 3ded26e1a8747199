# SPDX-License-Identifier: Apache-2.0
"""Makes the driver's device nodes: control nodes, GPUs, and capabilities (MIG, IMEX).

Contract: numbers come from the kernel's tables, permissions from the driver's parameters. A node
with wrong numbers, or another kind of file in its place, is replaced by rename. `plan_nodes`
changes nothing, `make_nodes` executes a plan, `shell_commands` describes a step. `load` loads the
driver's kernel modules, after a chroot if the driver root is not /.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from nvct.errors import HostError
from nvct.host import procfs
from nvct.host.model import Findings
from nvct.host.roots import Roots
from nvct.linux.files import temporary_name
from nvct.linux.kernel import Kernel

Kind: TypeAlias = Literal["control", "gpu", "cap"]
KINDS: tuple[Kind, ...] = ("control", "gpu", "cap")

# As nvidia-modprobe and the open kernel modules: 255 and 254 are fixed, uvm counts from 0. Before
# driver 550.40 the major's name was nvidia-frontend; later drivers also list nvidiactl and
# nvidia-modeset, with the same number.
CONTROL: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("nvidiactl", 255, ("nvidiactl", "nvidia", "nvidia-frontend")),
    ("nvidia-modeset", 254, ("nvidia-modeset", "nvidia", "nvidia-frontend")),
    ("nvidia-uvm", 0, ("nvidia-uvm",)),
    ("nvidia-uvm-tools", 1, ("nvidia-uvm",)),
)
GPU_MAJORS = ("nvidia", "nvidia-frontend")
CAP_MAJORS = ("nvidia-caps",)
MODULE_OF = {"nvidia-uvm": "nvidia-uvm", "nvidia-caps": "nvidia"}
FIELD = re.compile(r"^(\w+): *(\d+)$", re.MULTILINE)
PERMISSIONS = 0o777


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Mode and owner of the driver's nodes; `modify`: whether an existing node gets them."""

    mode: int = 0o666
    uid: int = 0
    gid: int = 0
    modify: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedNode:
    """A node as it must be; `path` is on the host."""

    path: str
    major: int
    minor: int
    permissions: Permissions


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStep:
    """The action on one node."""

    node: ExpectedNode
    action: Literal["make", "replace", "permissions", "keep"]
    was: str = ""  # the existing file, in words; "" if there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """The steps, and the majors' names that /proc/devices lacks."""

    steps: tuple[NodeStep, ...]
    missing: tuple[str, ...] = ()


def plan_nodes(roots: Roots, kinds: Sequence[Kind], findings: Findings) -> NodePlan:
    """Compare the nodes that the driver needs with the existing ones.

    HostError if a node is unreadable, or a directory has a node's name.
    """
    nodes, missing = expected_nodes(roots, kinds, findings)
    return NodePlan(steps=tuple(_step(node) for node in nodes), missing=missing)


def expected_nodes(
    roots: Roots, kinds: Sequence[Kind], findings: Findings
) -> tuple[list[ExpectedNode], tuple[str, ...]]:
    """Return the nodes that the driver needs, sorted by path, and the names of missing majors."""
    majors = procfs.majors(roots)
    nodes: list[ExpectedNode] = []
    missing: dict[str, None] = {}
    for name, minor, names, permissions in _names(roots, kinds, findings):
        major = next((majors[n] for n in names if n in majors), None)
        if major is None:
            missing[names[0] if len(names) == 1 else "nvidia"] = None
            continue
        path = f"{roots.dev}/{name}"
        nodes.append(ExpectedNode(path=path, major=major, minor=minor, permissions=permissions))
    return sorted(nodes, key=lambda node: node.path), tuple(missing)


def missing_majors_error(missing: Sequence[str], roots: Roots) -> HostError:
    """Return the error for nodes that cannot be made."""
    modules = dict.fromkeys(MODULE_OF.get(name, name) for name in missing)
    return HostError(
        f"{roots.proc}/devices has no {' and no '.join(missing)}: "
        f"{'their' if len(missing) > 1 else 'its'} nodes are not made",
        hint=f"load the module: modprobe {' '.join(modules)}, or --load-kernel-modules",
    )


def _names(
    roots: Roots, kinds: Sequence[Kind], findings: Findings
) -> Iterator[tuple[str, int, tuple[str, ...], Permissions]]:
    general = parse_permissions(procfs.read_text(f"{roots.proc}/driver/nvidia/params") or "")
    if "control" in kinds:
        for name, minor, names in CONTROL:
            yield name, minor, names, general
    for gpu in procfs.gpus(roots) if "gpu" in kinds else ():
        if gpu.minor is None:
            findings.warn(f"the GPU at {gpu.bus_id} has no device minor yet: its node is not made")
        else:
            yield f"nvidia{gpu.minor}", gpu.minor, GPU_MAJORS, general
    for minor, permissions in capabilities(roots) if "cap" in kinds else ():
        yield f"nvidia-caps/nvidia-cap{minor}", minor, CAP_MAJORS, permissions


def capabilities(roots: Roots) -> list[tuple[int, Permissions]]:
    """Return the minors of the capabilities, with the permissions of each.

    Each file below driver/nvidia/capabilities that has a DeviceFileMinor is a capability: MIG's
    config and monitor, each instance's access, fabric-imex-mgmt.
    """
    by_minor = {}
    for folder, _, names in os.walk(f"{roots.proc}/driver/nvidia/capabilities"):
        for name in names:
            text = procfs.read_text(f"{folder}/{name}") or ""
            fields: dict[str, str] = dict(FIELD.findall(text))
            if "DeviceFileMinor" in fields:
                by_minor[int(fields["DeviceFileMinor"])] = parse_permissions(text)
    return sorted(by_minor.items(), key=lambda item: item[0])


def parse_permissions(text: str) -> Permissions:
    """Parse driver/nvidia/params or a capability's file; a missing field has its default.

    The names and defaults are those of nvidia-modprobe; all numbers are decimal.
    """
    fields: dict[str, str] = dict(FIELD.findall(text))
    modify = fields.get("ModifyDeviceFiles", fields.get("DeviceFileModify", "1"))
    return Permissions(
        mode=int(fields.get("DeviceFileMode", 0o666)) & PERMISSIONS,
        uid=int(fields.get("DeviceFileUID", 0)),
        gid=int(fields.get("DeviceFileGID", 0)),
        modify=int(modify) == 1,
    )


def _step(node: ExpectedNode) -> NodeStep:
    try:
        status = os.lstat(node.path)
    except (FileNotFoundError, NotADirectoryError):
        return NodeStep(node=node, action="make")
    except OSError as error:
        raise HostError(f"cannot look at {node.path}: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        raise HostError(f"{node.path} is a directory, not a device node", hint="remove it")
    if not stat.S_ISCHR(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "not a device node"
        return NodeStep(node=node, action="replace", was=kind)
    numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
    if numbers != (node.major, node.minor):
        return NodeStep(node=node, action="replace", was=f"device {numbers[0]}:{numbers[1]}")
    permissions = node.permissions
    current = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
    if not permissions.modify or current == (permissions.mode, permissions.uid, permissions.gid):
        return NodeStep(node=node, action="keep")
    return NodeStep(
        node=node, action="permissions", was=f"mode {current[0]:04o} of {current[1]}:{current[2]}"
    )


def make_nodes(plan: NodePlan, kernel: Kernel) -> None:
    """Execute a plan; missing directories of nodes are made.

    HostError if the kernel refuses a call; the nodes of earlier steps are made.
    """
    for step in plan.steps:
        try:
            _do(step, kernel)
        except OSError as error:
            hint = _HINTS.get(type(error), "")
            raise HostError(
                f"cannot {_VERBS[step.action]} {step.node.path}: {error.strerror}", hint=hint
            ) from error


_HINTS: dict[type[OSError], str] = {
    PermissionError: "run as root",
    FileNotFoundError: "does the folder of --dev-root exist?",
}
_VERBS = {"make": "make", "replace": "replace", "permissions": "change", "keep": "keep"}


def _do(step: NodeStep, kernel: Kernel) -> None:
    node, folder = step.node, os.path.dirname(step.node.path)
    if step.action == "keep":
        return
    if step.action == "permissions":
        _permit(node.path, node.permissions, kernel)
        return
    # A missing dev/ is made together with nvidia-caps; the caller makes a missing dev root.
    above = [os.path.dirname(folder)] if folder.endswith("/nvidia-caps") else []
    for path in (*above, folder):
        if not os.path.isdir(path):
            kernel.mkdir(path, 0o755)
            kernel.chmod(path, 0o755)  # the umask restricts mkdir's mode
    aside = f"{folder}/{temporary_name()}"
    kernel.mknod(aside, stat.S_IFCHR, os.makedev(node.major, node.minor))
    try:
        # Only the rename makes the node visible: with its owner and mode, and without a gap.
        _permit(aside, node.permissions, kernel)
        kernel.rename(aside, node.path)
    except BaseException:
        kernel.unlink(aside)
        raise


def _permit(path: str, permissions: Permissions, kernel: Kernel) -> None:
    kernel.lchown(path, permissions.uid, permissions.gid)
    kernel.chmod(path, permissions.mode)  # after the owner: chown(2) clears bits


def shell_commands(step: NodeStep) -> list[str]:
    """Return shell commands that do a step."""
    from shlex import quote

    node, permissions = step.node, step.node.permissions
    path = quote(node.path)
    owner = f"chown {permissions.uid}:{permissions.gid} {path}"
    if step.action == "permissions":
        return [f"chmod {permissions.mode:04o} {path}", owner]
    if step.action == "keep":
        return []
    lines = [f"rm {path}"] if step.action == "replace" else []
    lines.append(f"mknod --mode={permissions.mode:04o} {path} c {node.major} {node.minor}")
    if (permissions.uid, permissions.gid) != (0, 0):
        lines.append(owner)
    return lines


def describe(step: NodeStep) -> str:
    """Return a sentence about an executed step, "" if it changed nothing."""
    node = step.node
    if step.action == "keep":
        return ""
    if step.action == "permissions":
        new = node.permissions
        return f"{node.path} had {step.was}: now {new.mode:04o} of {new.uid}:{new.gid}"
    numbers = f"{node.major}:{node.minor}"
    if step.action == "replace":
        return f"{node.path} was {step.was}: now device {numbers}"
    return f"{node.path} made as device {numbers}"


# Runs a program; returns its exit status and last line; raises OSError if it does not start.
Run: TypeAlias = Callable[[Sequence[str]], tuple[int, str]]

MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset")
OPTIONAL = ("nvidia-modeset",)
"""A driver installed only for computing lacks nvidia-modeset, which containers do not need."""
MODPROBE = "/sbin/modprobe"


def commands(driver_root: str) -> list[list[str]]:
    """Return the commands that load the modules, with the modprobe of the driver root."""
    enter = [] if driver_root == "/" else ["chroot", driver_root]
    return [[*enter, MODPROBE, name] for name in MODULES]


def run(argv: Sequence[str]) -> tuple[int, str]:
    """Run a program; return its exit status and the last line of its output."""
    completed = subprocess.run(
        argv, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    lines = completed.stdout.decode(errors="replace").strip().splitlines()
    return completed.returncode, lines[-1] if lines else ""


def load(driver_root: str, run: Run, sys_root: str = "/sys") -> list[str]:
    """Load the modules; return a warning for each optional module that cannot be loaded.

    A loaded module is skipped, because a host with a read-only root possibly has no modprobe.
    HostError if a required module cannot be loaded.
    """
    warnings = []
    for argv in commands(driver_root):
        name = argv[-1]
        if os.path.isdir(f"{sys_root}/module/{name.replace('-', '_')}"):
            continue
        try:
            status, output = run(argv)
        except OSError as error:
            status, output = 1, error.strerror or str(error)
        if status == 0:
            continue
        text = f"cannot load module {name} ({' '.join(argv)}): {output or f'status {status}'}"
        if name not in OPTIONAL:
            raise HostError(
                text, hint="is the driver built for this kernel? run as root; see dmesg"
            )
        warnings.append(text)
    return warnings
