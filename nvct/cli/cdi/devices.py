# SPDX-License-Identifier: Apache-2.0
"""What `nvidia-ctk cdi list` prints. Contract: imports no command line library."""

from __future__ import annotations

import os
import sys

from nvct.cdi import registry
from nvct.errors import line, unexpected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def read(folders: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of the CDI devices in folders, sorted, and the lines for stderr."""
    found = registry.scan(folders)
    names = sorted(found.devices)
    said = [line("warning", error) for error in found.errors.values()]
    said += [
        f"warning: {name} is defined by {' and '.join(files)}"
        for name, files in sorted(found.conflicts.items())
    ]
    said.append(f"Found {len(names)} CDI devices")  # the incumbent's words, which scripts look for
    return names, said


def show(program: str, folders: Sequence[str]) -> int:
    """Print what the command prints without options; return the exit status."""
    names, said = read(folders)
    try:
        sys.stdout.write("".join(f"{name}\n" for name in names))
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(line(program, unexpected(error)) + "\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
        return 1
    sys.stderr.write("".join(f"{text}\n" for text in said))
    return 0
