# SPDX-License-Identifier: Apache-2.0
"""Plans `nvct doctor --fix`: a mend does what a command of nvct does to remove a finding's reason.

Contract: nothing here changes the host. A mend's step returns paths with their new states, and
`fix` changes the paths.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nvct.compile import published_spec
from nvct.config.model import Config
from nvct.doctor.fix import Say, Step
from nvct.doctor.model import Part
from nvct.doctor.reasons import Reason
from nvct.engine.journal import OTHERS_WRITE
from nvct.engine.writing import ABSENT, LINK_LIMIT, PathState, state_of
from nvct.errors import HostError
from nvct.host import dev_char, device_nodes
from nvct.host.model import Findings
from nvct.host.roots import Roots
from nvct.launcher import cold

States = dict[str, PathState]

NODES = ("system", "create-device-nodes", "--all")
LINKS = ("system", "create-dev-char-symlinks")
PUBLISH = ("publish",)
COMMANDS = {
    Reason.SpecificationStale: PUBLISH,
    Reason.SpecificationIncomplete: PUBLISH,
    Reason.HookMissing: PUBLISH,
    Reason.HookWithoutEnvironment: PUBLISH,
    Reason.DeviceNodesMissing: NODES,
    Reason.CharacterLinksMissing: LINKS,
}
"""The words after `nvct` of the command that removes a reason."""
ORDER = (NODES, PUBLISH, LINKS)  # Nodes come first, because specifications name them
SPEC_MODE = 0o644
WRITTEN = "Generated CDI spec "
"""Start of a line of `nvct publish` that is not shown: the transaction writes the file later."""


@dataclass(frozen=True, slots=True)
class Mend:
    """A command, and the reasons that it removes."""

    words: tuple[str, ...]
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        return " ".join(("nvct", *self.words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host that mends are planned for, and the options of `nvct publish`."""

    roots: Roots
    settings: Config
    output: str
    options: Sequence[str]
    say: Say
    dry_run: bool = False


def plan(parts: Sequence[Part]) -> list[Mend]:
    """Return the mends for the faults of some parts, in the order of ORDER."""
    found = [finding.reason for part in parts for finding in part.findings if finding.is_fault]
    reasons = {words: [one for one in found if COMMANDS.get(one) == words] for words in ORDER}
    return [Mend(words, tuple(dict.fromkeys(of))) for words, of in reasons.items() if of]


def step(mend: Mend, host: Host) -> Step:
    """Return a mend as a step of the transaction."""
    states = {NODES: _nodes, LINKS: _links, PUBLISH: _specification}[mend.words]
    return Step(name=str(mend), plan=lambda: states(host))


def lines(mend: Mend, host: Host) -> Iterator[str]:
    """Yield lines about the paths that a mend changes, leaves out, and that stay after --undo."""
    findings = Findings()
    if mend.words == NODES:
        nodes = device_nodes.plan_nodes(host.roots, device_nodes.KINDS, findings)
        for node in nodes.steps:
            if node.action != "keep":
                yield f"{node.node.path}: {_action(node)}"
        if nodes.missing:
            error = device_nodes.missing_majors_error(nodes.missing, host.roots)
            yield f"left out: {error.message}; {error.hint}"
    elif mend.words == LINKS:
        folder = _link_folder(host)
        for link in dev_char.plan_links(host.roots, folder, findings, create_all=False).steps:
            if link.action == "blocked":
                yield f"left out: {link.path} is not a link"
            elif link.action != "keep":
                yield f"{link.path}: {link.action} the link to {link.target or link.was}"
    else:
        path = published_spec.output_path(host.output)
        yield f"{path}: {'replace' if os.path.lexists(path) else 'make'} the specification"
        if host.settings.wants_view:
            farm = host.settings.farm_dir
            yield f"stays after --undo: a view of the driver, if one is made, in {farm}"
    yield from (f"left out: {warning}" for warning in findings.warnings)


def _action(node: device_nodes.NodeStep) -> str:
    expected = node.node
    permissions = expected.permissions
    new = f"device {expected.major}:{expected.minor}"
    if node.action == "permissions":
        new = f"mode {permissions.mode:04o} of {permissions.uid}:{permissions.gid}"
    return f"{new} instead of {node.was}" if node.was else f"make {new}"


def _nodes(host: Host) -> States:
    planned = device_nodes.plan_nodes(host.roots, device_nodes.KINDS, Findings())
    return {
        step.node.path: PathState(
            mode=stat.S_IFCHR | step.node.permissions.mode,
            uid=step.node.permissions.uid,
            gid=step.node.permissions.gid,
            rdev=os.makedev(step.node.major, step.node.minor),
        )
        for step in planned.steps
        if step.action != "keep"
    }


def _links(host: Host) -> States:
    planned = dev_char.plan_links(host.roots, _link_folder(host), Findings(), create_all=False)
    link = PathState(mode=stat.S_IFLNK | 0o777, uid=os.geteuid(), gid=os.getegid())
    return {
        step.path: replace(link, text=step.target) if step.target else ABSENT
        for step in planned.steps
        if step.action not in ("keep", "blocked")
    }


def _link_folder(host: Host) -> str:
    return f"{host.roots.dev}/char"


def _specification(host: Host) -> States:
    output = published_spec.output_path(os.path.abspath(host.output))
    words = [*PUBLISH, f"--output={output}", f"--staged={'plan' if host.dry_run else 'make'}"]
    argv = [cold.interpreter(), "-I", "-m", "nvct.cli", "nvct", *host.options, *words]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    for line in done.stderr.splitlines():
        if not line.startswith(WRITTEN):
            host.say(line)
    if done.returncode:
        raise HostError(f"nvct publish ended with exit status {done.returncode}")
    if not done.stdout:
        return {_target(output): ABSENT}
    texts = {_target(path): text for path, text in json.loads(done.stdout).items()}
    return {path: _file(path, text) for path, text in texts.items()}


def _target(path: str) -> str:
    """Return the file to which the links at a path lead, if no other user could have made them."""
    for _ in range(LINK_LIMIT):
        folder = os.path.dirname(path)
        if not os.path.lexists(path):
            break
        is_link, owner = os.path.islink(path), os.lstat(path).st_uid
        if os.stat(folder).st_mode & OTHERS_WRITE and (is_link or owner != os.geteuid()):
            kind = "a link" if is_link else f"a file of uid {owner}"
            raise HostError(
                f"{path} is {kind} in a folder that others can write to",
                hint=f"chmod go-w {folder}",
            )
        if not is_link:
            break
        path = os.path.join(folder, os.readlink(path))
    return path


def _file(path: str, text: str) -> PathState:
    """Return the new state of a specification; an existing file keeps its owner."""
    before = state_of(path)
    uid, gid = (before.uid, before.gid) if before.is_file else (os.geteuid(), os.getegid())
    return PathState(mode=stat.S_IFREG | SPEC_MODE, uid=uid, gid=gid, text=text)
