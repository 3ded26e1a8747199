# SPDX-License-Identifier: Apache-2.0
"""Writes generated CDI specs: to files of one folder, to stdout, or as one JSON object."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nvct.cdi.make import downgrade, provenance, store
from nvct.cdi.types import Spec
from nvct.host.model import Inventory

FORMAT_OF_ENDING = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The options of `nvidia-ctk cdi generate` for its output, under their names there."""

    output: str = "-"
    form: str | None = None  # None lets the ending of `output` decide
    cdi_version_max: str | None = None
    # the specification records these two
    device_id: Sequence[str] = ()
    no_hooks: str | None = None
    # "make" or "plan": stdout gets a JSON object, path → text of each file, and no file is
    # written; with "plan", no view is made either
    staged: str | None = None


def write(
    specs: dict[str, Spec],  # by the suffix of the file name before its extension
    inventory: Inventory,
    request: Output,
    say: Callable[[str], None],
    *,
    follow: bool = False,
) -> list[str]:
    """Write specs to files in one folder; return the texts to print to stdout instead.

    Raises HostError if a file cannot be written, and CdiSpecError if the version is too low for a
    spec.
    """
    output, form, limit = request.output, request.form, request.cdi_version_max
    only = "" if "all" in request.device_id else ",".join(request.device_id)
    finished = {}
    for suffix, full in specs.items():
        spec, dropped = downgrade.lower(full, limit) if limit else (full, [])
        for sentence in dropped:
            say(f"warning: CDI {limit}: {sentence}")
        say(f"Generated CDI spec with version {spec['cdiVersion']}")  # the incumbent's text
        finished[suffix] = provenance.attach(spec, inventory, only, request.no_hooks or "")
    if output in store.STDOUT:
        return [
            store.dumps(spec, form or "yaml", comment).decode()
            for spec, comment in finished.values()
        ]
    stem, ending = os.path.splitext(output)
    if ending == ".yml":
        say(f"warning: {output}: engines read .yaml and .json only")
    if form and form != FORMAT_OF_ENDING.get(ending, form):
        say(f"warning: {output} is written as {form}, as --format says")
    paths = {suffix: f"{stem}.{suffix}{ending}" if suffix else output for suffix in finished}
    if request.staged:
        usual = form or FORMAT_OF_ENDING.get(ending, "yaml")
        return [
            json.dumps({
                paths[suffix]: store.dumps(spec, usual, comment, source=output).decode()
                for suffix, (spec, comment) in finished.items()
            })
        ]  # fmt: skip
    for suffix, (spec, comment) in finished.items():
        path = store.save(spec, paths[suffix], form, comment, follow=follow)
        plural = "" if len(spec["devices"]) == 1 else "s"
        say(f"wrote {len(spec['devices'])} device{plural} to {path}")
    return []
