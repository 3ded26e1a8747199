# SPDX-License-Identifier: Apache-2.0
"""Links /dev/char/MAJOR:MINOR to the driver's device nodes.

systemd and runc look up devices in /dev/char for cgroup rules. No udev rule makes these links for
the driver's nodes; without them, `systemctl daemon-reload` takes the GPUs away from running
containers. Contract: a link with another target, or with a number that its node no longer has, is
corrected; udev's relative links are correct and stay.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nvct.errors import HostError
from nvct.host import device_nodes, procfs
from nvct.host.gpu import pci
from nvct.host.gpu.nodes import mig_minors
from nvct.host.model import Findings
from nvct.host.roots import Roots
from nvct.linux.files import temporary_name
from nvct.linux.kernel import Kernel

# As nvidia-container-toolkit v1.20: these nodes are not GPUs, and their modules make the links.
NOT_LINKED = ("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")
FOLDERS = ("", "nvidia-caps", "nvidia-caps-imex-channels")
NUMBERS = re.compile(r"(\d+):(\d+)")
GPU_CAP = re.compile(r"gpu(\d+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStep:
    """The action on one link; target is "" for a link to remove."""

    path: str
    target: str
    action: Literal["make", "replace", "remove", "keep", "blocked"]
    was: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPlan:
    """The steps by device number, and the majors' names that /proc/devices lacks."""

    steps: tuple[LinkStep, ...]
    missing: tuple[str, ...] = ()


def plan_links(roots: Roots, folder: str, findings: Findings, *, create_all: bool) -> LinkPlan:
    """Compare the links that the nodes need with those in a folder.

    `create_all` adds links for nodes that can be made later, of every GPU and MIG instance, and
    warns of a GPU without a minor. HostError if the folder is unreadable.
    """
    missing: tuple[str, ...] = ()
    nodes = dict(_existing(roots))
    if create_all:
        possible, missing = _possible(roots, findings)
        # The link belongs to the right node, not to an existing one with wrong numbers.
        nodes = {n: path for n, path in nodes.items() if path not in possible.values()} | possible
    links = _links(folder)
    steps = [_step(folder, n, path, links.get(n)) for n, path in sorted(nodes.items())]
    stale = (n for n in sorted(links) if n not in nodes and _is_stale(folder, n, links[n], nodes))
    steps += [
        LinkStep(path=_name(folder, n), target="", action="remove", was=links[n] or "")
        for n in stale
    ]
    return LinkPlan(steps=tuple(steps), missing=missing)


def _existing(roots: Roots) -> Iterator[tuple[tuple[int, int], str]]:
    for folder in FOLDERS:
        directory = f"{roots.dev}/{folder}".rstrip("/")
        for name in procfs.list_directory(directory):
            if folder == "" and not name.startswith("nvidia"):
                continue
            path = f"{directory}/{name}"
            numbers = None if name.startswith(NOT_LINKED) else _numbers(path)
            if numbers:
                yield numbers, path


def _possible(
    roots: Roots, findings: Findings
) -> tuple[dict[tuple[int, int], str], tuple[str, ...]]:
    """Return the paths of existing and possible nodes by number, and names of missing majors."""
    nodes, missing = device_nodes.expected_nodes(roots, device_nodes.KINDS, findings)
    by_number = {(node.major, node.minor): node.path for node in nodes}
    majors = procfs.majors(roots)
    nvidia = majors.get("nvidia", majors.get("nvidia-frontend"))
    gpus = [gpu.minor for gpu in procfs.gpus(roots) if gpu.minor is not None]
    if not gpus:  # until a GPU is initialized, only the PCI bus shows how many there are
        gpus = list(range(pci.count(roots)))
    if nvidia is not None:
        by_number.update({(nvidia, minor): f"{roots.dev}/nvidia{minor}" for minor in gpus})
    caps = majors.get("nvidia-caps")
    for name, minor in mig_minors(roots).items() if caps is not None else ():
        match = GPU_CAP.match(name)
        if match is None or int(match[1]) in gpus:
            by_number[caps or 0, minor] = f"{roots.dev}/nvidia-caps/nvidia-cap{minor}"
    return by_number, missing


def _numbers(path: str) -> tuple[int, int] | None:
    """Return the numbers of the character device that a path leads to, None for other files."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    return os.major(status.st_rdev), os.minor(status.st_rdev)


def _links(folder: str) -> dict[tuple[int, int], str | None]:
    """Return the entries of a folder by number: the text of a link, None for another file."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise HostError(f"cannot read {folder}: {error.strerror}") from error
    entries: dict[tuple[int, int], str | None] = {}
    for name in names:
        if match := NUMBERS.fullmatch(name):
            path = f"{folder}/{name}"
            text = os.readlink(path) if os.path.islink(path) else None
            entries[int(match[1]), int(match[2])] = text
    return entries


def _step(folder: str, number: tuple[int, int], target: str, text: str | None) -> LinkStep:
    path = _name(folder, number)
    if text is None and not os.path.lexists(path):
        return LinkStep(path=path, target=target, action="make")
    # Any link to the device is right, such as udev's "../nvidia0"; a link to a node that does not
    # exist yet can only be compared by name.
    if _numbers(path) == number or (text is not None and _leads_to(folder, text) == target):
        return LinkStep(path=path, target=target, action="keep")
    if text is None:
        return LinkStep(path=path, target=target, action="blocked")
    return LinkStep(path=path, target=target, action="replace", was=text)


def _is_stale(
    folder: str, number: tuple[int, int], text: str | None, nodes: dict[tuple[int, int], str]
) -> bool:
    """Return whether a link leads to one of the nodes, which now has another number."""
    return (
        text is not None
        and _leads_to(folder, text) in nodes.values()
        and _numbers(_name(folder, number)) != number
    )


def _leads_to(folder: str, text: str) -> str:
    return os.path.normpath(os.path.join(folder, text))


def _name(folder: str, number: tuple[int, int]) -> str:
    return f"{folder}/{number[0]}:{number[1]}"


def update_links(plan: LinkPlan, folder: str, kernel: Kernel) -> None:
    """Execute a plan: make, replace and remove links; a missing folder is made.

    HostError if the kernel refuses a call; the links of earlier steps are made.
    """
    action, path = "make", folder
    try:
        if plan.steps and not os.path.isdir(folder):
            kernel.mkdir(folder, 0o755)
        for step in plan.steps:
            action, path = step.action, step.path
            _do(step, folder, kernel)
    except OSError as error:
        hint = "run as root" if isinstance(error, PermissionError) else ""
        raise HostError(f"cannot {action} {path}: {error.strerror}", hint=hint) from error


def _do(step: LinkStep, folder: str, kernel: Kernel) -> None:
    if step.action == "make":
        kernel.symlink(step.target, step.path)
    elif step.action == "replace":
        aside = f"{folder}/{temporary_name()}"
        kernel.symlink(step.target, aside)
        kernel.rename(aside, step.path)
    elif step.action == "remove":
        kernel.unlink(step.path)


def shell_commands(step: LinkStep) -> list[str]:
    """Return shell commands that do a step."""
    from shlex import quote

    if step.action in ("make", "replace"):
        force = "-f " if step.action == "replace" else ""
        return [f"ln -s {force}{quote(step.target)} {quote(step.path)}"]
    return [f"rm {quote(step.path)}"] if step.action == "remove" else []


def describe(step: LinkStep) -> str:
    """Return a sentence about an executed step, "" if it corrected nothing."""
    if step.action == "replace":
        return f"{step.path} led to {step.was}: now {step.target}"
    if step.action == "remove":
        return f"{step.path} removed: {step.was} has another number now"
    if step.action == "blocked":
        return f"warning: {step.path} is not a link: left as it is"
    return ""
