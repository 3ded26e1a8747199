# SPDX-License-Identifier: Apache-2.0
"""The C files of the simulation call each other in one direction."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvct_sim.native import build as native

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
EXPORTED = re.compile(r"^(?!static\b)[a-z_][\w *]*?\b(\w+)\([^;]*?\)\n\{", re.MULTILINE)


def calls(folder: Path) -> dict[str, set[str]]:
    """Return, for each file, the other files whose functions it names."""
    texts = {path.name: COMMENT.sub("", path.read_text()) for path in folder.glob("*.c")}
    owners = {name: file for file, text in texts.items() for name in EXPORTED.findall(text)}
    return {
        file: {owners[word] for word in set(re.findall(r"\w+", text)) if word in owners} - {file}
        for file, text in texts.items()
    }


@pytest.mark.parametrize("folder", ["nvml", "smi"])
def test_files_do_not_call_each_other_in_a_circle(folder: str) -> None:
    left = calls(native.FOLDER / folder)
    assert sum(map(len, left.values())) > len(left)  # calls were recognized

    while free := [file for file, callees in left.items() if not callees & left.keys()]:
        for file in free:
            del left[file]

    assert left == {}
