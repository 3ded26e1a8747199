# SPDX-License-Identifier: Apache-2.0
"""Output of `nvidia-ctk cdi list`. Contract: imports no command line library."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nvct.cdi.read import registry
from nvct.cli.context import say, tell
from nvct.errors import line


def read(folders: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of the CDI devices in folders, sorted, and the lines for stderr."""
    scanned = registry.scan(folders)
    names = sorted(scanned.devices)
    messages = [line("warning", error) for error in scanned.errors.values()]
    messages += [
        f"warning: {name} is defined by {' and '.join(files)}"
        for name, files in sorted(scanned.conflicts.items())
    ]
    # The incumbent's text; scripts search for it.
    messages.append(f"Found {len(names)} CDI devices")
    return names, messages


def show(folders: Sequence[str]) -> None:
    """Print the output of the command without options."""
    names, messages = read(folders)
    tell(*names)
    sys.stdout.flush()  # before the lines on stderr
    for text in messages:
        say(text)
