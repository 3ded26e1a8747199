# SPDX-License-Identifier: Apache-2.0
"""Checks that the engines of this host can read the CDI specifications in force. Cold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from nvct.cdi import engines
from nvct.cdi.registry import Registry
from nvct.doctor.engine_access import CDI_NAMES, older_remedy, spec_folders
from nvct.doctor.model import Finding, Part, count
from nvct.doctor.parts import part_of
from nvct.doctor.reasons import Reason
from nvct.engine.status import Status
from nvct.host import procfs


def check(statuses: Sequence[Status], registry: Registry, folders: Sequence[str]) -> Part:
    """Check each local engine's release against each specification that it reads."""
    local = [status for status in statuses if not status.engine.foreign and status.engine.version]
    found = [*_refused(local, registry), *_ignored(folders)]
    if not found and not (local and registry.specs):
        text = "no engine whose release is known" if registry.specs else "no specification"
        return part_of("versions", [text], health="absent")
    names = ", ".join(f"{one.engine.engine} {one.engine.version}" for one in local)
    lines = [finding.evidence for finding in found]
    return part_of(
        "versions", lines or [f"{names}: {count(len(registry.specs), 'spec')} can be read"], found
    )


def _refused(statuses: Sequence[Status], registry: Registry) -> Iterator[Finding]:
    for status in statuses:
        engine = CDI_NAMES.get(status.engine.engine, status.engine.engine)
        folders = spec_folders(status)
        for file in registry.specs:
            if os.path.dirname(file.path) not in folders:
                continue
            if text := engines.refusal(file.spec, engine, status.engine.version):
                yield Finding(
                    reason=Reason.SpecificationTooNew,
                    # An engine that gives GPUs by a runtime of NVIDIA's does not need it.
                    severity="note" if status.registered else "warning",
                    evidence=f"{file.path}: {text}",
                    remedy=older_remedy(file, engine, status.engine.version),
                )


def _ignored(folders: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each file that engines ignore because of its name."""
    for folder in folders:
        for name in procfs.list_directory(folder):
            if engines.is_ignored(name):
                path = f"{folder}/{name}"
                yield Finding(
                    reason=Reason.SpecificationTooNew,
                    severity="error",
                    evidence=f"{path}: engines do not read .yml",
                    remedy=f"Rename it to {os.path.splitext(path)[0]}.yaml.",
                )
