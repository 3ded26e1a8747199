# SPDX-License-Identifier: Apache-2.0
"""Links /dev/char/MAJOR:MINOR to the driver's device nodes.

systemd and runc look a device up there when they write cgroup rules; the driver's nodes, which
no udev rule knows, lack these links, and a `systemctl daemon-reload` then takes the GPUs away from
running containers. Contract: a link that leads elsewhere, or whose number the node no longer
has, is corrected; udev's relative links are as good as ours and stay.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Literal

from nvct.errors import HostError
from nvct.host import procfs
from nvct.host.device_nodes import create as device_nodes
from nvct.host.gpu import mig
from nvct.linux.files import temporary_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvct.host.model import Findings
    from nvct.host.roots import Roots
    from nvct.linux.kernel import Kernel

# As nvidia-container-toolkit v1.20: these are no GPUs', and their modules make links themselves.
NOT_LINKED = ("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")
FOLDERS = ("", "nvidia-caps", "nvidia-caps-imex-channels")
NUMBERS = re.compile(r"(\d+):(\d+)")
GPU_CAP = re.compile(r"gpu(\d+)/")
PCI_VENDOR = "0x10de"
PCI_DISPLAY = "0x03"  # the base class of both VGA and 3D controllers


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What has to be done about one link; target is "" where it has to go."""

    path: str
    target: str
    action: Literal["make", "replace", "remove", "keep", "blocked"]
    was: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps by number, and the names in /proc/devices that are missing for others."""

    steps: tuple[Step, ...]
    missing: tuple[str, ...] = ()


def plan(roots: Roots, folder: str, findings: Findings, *, create_all: bool) -> Plan:
    """Compare the links that the nodes need with those in a folder.

    Args:
        roots: where the nodes and the kernel's tables are.
        folder: usually /dev/char.
        findings: hears of a GPU that has no number yet.
        create_all: also for nodes that may be made later: every GPU and MIG instance.

    Raises:
        HostError: the folder cannot be read.
    """
    missing: tuple[str, ...] = ()
    nodes = dict(_existing(roots))
    if create_all:
        possible, missing = _possible(roots, findings)
        # A node with wrong numbers must not get a link in place of the right one.
        nodes = {n: path for n, path in nodes.items() if path not in possible.values()} | possible
    links = _links(folder)
    steps = [_step(folder, n, path, links.get(n)) for n, path in sorted(nodes.items())]
    stale = (n for n in sorted(links) if n not in nodes and _is_stale(folder, n, links[n], nodes))
    steps += [
        Step(path=_name(folder, n), target="", action="remove", was=links[n] or "") for n in stale
    ]
    return Plan(steps=tuple(steps), missing=missing)


def _existing(roots: Roots) -> Iterator[tuple[tuple[int, int], str]]:
    for folder in FOLDERS:
        directory = f"{roots.dev}/{folder}".rstrip("/")
        for name in procfs.list_directory(directory):
            if folder == "" and not name.startswith("nvidia"):
                continue
            path = f"{directory}/{name}"
            found = None if name.startswith(NOT_LINKED) else _numbers(path)
            if found:
                yield found, path


def _possible(
    roots: Roots, findings: Findings
) -> tuple[dict[tuple[int, int], str], tuple[str, ...]]:
    """Return the nodes that there are or may be, by number, and the majors that are missing."""
    nodes, missing = device_nodes.wanted(roots, device_nodes.KINDS, findings)
    found = {(node.major, node.minor): node.path for node in nodes}
    majors = procfs.majors(roots)
    nvidia = majors.get("nvidia", majors.get("nvidia-frontend"))
    gpus = [gpu.minor for gpu in procfs.gpus(roots) if gpu.minor is not None]
    if not gpus:  # as long as no GPU is initialized, the bus tells how many there are
        gpus = list(range(_count_on_bus(roots)))
    if nvidia is not None:
        found.update({(nvidia, minor): f"{roots.dev}/nvidia{minor}" for minor in gpus})
    caps = majors.get("nvidia-caps")
    for name, minor in mig.minors(roots).items() if caps is not None else ():
        match = GPU_CAP.match(name)
        if match is None or int(match[1]) in gpus:
            found[caps or 0, minor] = f"{roots.dev}/nvidia-caps/nvidia-cap{minor}"
    return found, missing


def _count_on_bus(roots: Roots) -> int:
    devices = f"{roots.sys}/bus/pci/devices"
    count = 0
    for name in procfs.list_directory(devices):
        vendor = procfs.read_text(f"{devices}/{name}/vendor") or ""
        kind = procfs.read_text(f"{devices}/{name}/class") or ""
        count += vendor.strip() == PCI_VENDOR and kind.startswith(PCI_DISPLAY)
    return count


def _numbers(path: str) -> tuple[int, int] | None:
    """Return the numbers of the character device that a path leads to."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISCHR(found.st_mode):
        return None
    return os.major(found.st_rdev), os.minor(found.st_rdev)


def _links(folder: str) -> dict[tuple[int, int], str | None]:
    """Return what there is by number: a link's text, None for what is no link."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise HostError(f"cannot read {folder}: {error.strerror}") from error
    found: dict[tuple[int, int], str | None] = {}
    for name in names:
        if match := NUMBERS.fullmatch(name):
            path = f"{folder}/{name}"
            found[int(match[1]), int(match[2])] = (
                os.readlink(path) if os.path.islink(path) else None
            )
    return found


def _step(folder: str, number: tuple[int, int], target: str, now: str | None) -> Step:
    path = _name(folder, number)
    if now is None and not os.path.lexists(path):
        return Step(path=path, target=target, action="make")
    # udev's "../nvidia0" is right, and so is whatever leads to the device; a node that is not
    # there yet can only be compared by name.
    if _numbers(path) == number or (now is not None and _leads_to(folder, now) == target):
        return Step(path=path, target=target, action="keep")
    if now is None:
        return Step(path=path, target=target, action="blocked")
    return Step(path=path, target=target, action="replace", was=now)


def _is_stale(
    folder: str, number: tuple[int, int], text: str | None, nodes: dict[tuple[int, int], str]
) -> bool:
    """Tell whether a link leads to one of the nodes, which now has another number."""
    return (
        text is not None
        and _leads_to(folder, text) in nodes.values()
        and _numbers(_name(folder, number)) != number
    )


def _leads_to(folder: str, text: str) -> str:
    return os.path.normpath(os.path.join(folder, text))


def _name(folder: str, number: tuple[int, int]) -> str:
    return f"{folder}/{number[0]}:{number[1]}"


def carry_out(planned: Plan, folder: str, kernel: Kernel) -> None:
    """Make, replace and remove links as planned; the folder is made where it is missing.

    Raises:
        HostError: the kernel refused; links before that one are made.
    """
    path = folder
    try:
        if planned.steps and not os.path.isdir(folder):
            kernel.mkdir(folder, 0o755)
        for step in planned.steps:
            path = step.path
            _do(step, folder, kernel)
    except OSError as error:
        hint = "run as root" if isinstance(error, PermissionError) else ""
        raise HostError(f"cannot make {path}: {error.strerror}", hint=hint) from error


def _do(step: Step, folder: str, kernel: Kernel) -> None:
    if step.action == "make":
        kernel.symlink(step.target, step.path)
    elif step.action == "replace":
        aside = f"{folder}/{temporary_name()}"
        kernel.symlink(step.target, aside)
        kernel.rename(aside, step.path)
    elif step.action == "remove":
        kernel.unlink(step.path)


def shell(step: Step) -> list[str]:
    """Return the command that would do a step."""
    from shlex import quote

    if step.action in ("make", "replace"):
        force = "-f " if step.action == "replace" else ""
        return [f"ln -s {force}{quote(step.target)} {quote(step.path)}"]
    return [f"rm {quote(step.path)}"] if step.action == "remove" else []


def say(step: Step) -> str:
    """Return what was corrected in a step as a sentence, "" where nothing was."""
    if step.action == "replace":
        return f"{step.path} led to {step.was}: now {step.target}"
    if step.action == "remove":
        return f"{step.path} removed: {step.was} has another number now"
    if step.action == "blocked":
        return f"warning: {step.path} is no link: left as it is"
    return ""
