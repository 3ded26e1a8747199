# SPDX-License-Identifier: Apache-2.0
"""Finds hook programs of another release than nvct's, or of a vulnerable toolkit. Cold.

A hook program is asked by `--version`, as root only if nobody else could have written it. nvct's
prints the toolkit's release that it stands in for, and then its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from nvct.cdi.conflicts import EffectiveSpec
from nvct.doctor import incumbent
from nvct.doctor.model import Finding
from nvct.doctor.reasons import Reason
from nvct.engine import command
from nvct.engine.command import Run
from nvct.paths import CTK_PROGRAM, HOOK_PROGRAM
from nvct.version import __version__

PROGRAMS = (HOOK_PROGRAM, CTK_PROGRAM)
"""Names of programs that print a release; others are of other vendors."""
TIMEOUT_S = 1.0
LIMIT = 4
"""Programs that are asked: a host has one or two."""
OURS = re.compile(r"^nvct: (\d[\w.+~-]{0,40})$", re.MULTILINE)
TOOLKIT = re.compile(r"\bversion (1\.\d{1,4}\.\d{1,4})\b")
OTHERS_WRITE = 0o002
STICKY = 0o1000


def findings(specs: Sequence[EffectiveSpec], run: Run = command.run) -> Iterator[Finding]:
    """Yield a finding for each hook program that is not of the installed release."""
    for program, path in list(_programs(specs).items())[:LIMIT]:
        if not os.access(program, os.X_OK) or not os.path.isfile(program):
            continue  # as another finding says
        if why := _distrust(program):
            text = f"{path}: the release of its hook {program} cannot be told: {why}"
            yield Finding(reason=Reason.HookOtherRelease, severity="unknown", evidence=text)
            continue
        printed = run([program, "--version"], TIMEOUT_S)
        if printed.status:
            text = f"{path}: its hook {program} does not tell its release: {printed.reason}"
            yield Finding(reason=Reason.HookOtherRelease, severity="unknown", evidence=text)
        elif finding := _judged(path, program, printed.out):
            yield finding


def _programs(specs: Sequence[EffectiveSpec]) -> dict[str, str]:
    """Return the hook programs that print a release, with the first specification of each."""
    found: dict[str, str] = {}
    for spec in specs:
        for edits, _ in spec.edits():
            for hook in edits.get("hooks", ()):
                if os.path.basename(hook["path"]) in PROGRAMS:
                    found.setdefault(hook["path"], spec.file.path)
    return found


def _distrust(program: str) -> str:
    """Return why a program must not be run by root, "" if it may be."""
    path = os.path.realpath(program)
    for each in (path, os.path.dirname(path)):
        try:
            status = os.stat(each)
        except OSError as error:
            return f"{each}: {error.strerror}"
        if status.st_uid not in (0, os.geteuid()):
            return f"{each} belongs to the user {status.st_uid}"
        if status.st_mode & OTHERS_WRITE and not status.st_mode & STICKY:
            return f"everybody can write {each}"
    return ""


def _judged(path: str, program: str, printed: str) -> Finding | None:
    ours, toolkit = OURS.search(printed), TOOLKIT.search(printed)
    if ours:
        if ours[1] == __version__:
            return None
        text = f"{path}: its hook {program} is of nvct {ours[1]}; nvct {__version__} is installed"
        return Finding(reason=Reason.HookOtherRelease, severity="warning", evidence=text)
    if not toolkit:
        text = f"{path}: its hook {program} does not tell its release"
        return Finding(reason=Reason.HookOtherRelease, severity="unknown", evidence=text)
    holes = incumbent.open_holes(toolkit[1])
    if not holes:
        return None
    text = f"{path}: its hook {program} is of NVIDIA Container Toolkit {toolkit[1]}, which is open"
    return Finding(
        reason=Reason.ToolkitVulnerable,
        severity="error",
        evidence=f"{text} to {', '.join(holes)}",
        remedy="Update nvidia-container-toolkit, or run `nvct publish`.",
    )
