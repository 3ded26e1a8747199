# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md: its table of layers lists every folder of the package, and no other."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def listed() -> list[str]:
    """Return the names in the first column of the table of layers."""
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_the_table_lists_every_folder_once() -> None:
    package = REPOSITORY / "nvct"
    folders = {path.parent for path in package.rglob("*.py")} - {package}
    names = [name for name in listed() if not name.endswith(".py")]

    assert sorted(names) == sorted(str(path.relative_to(REPOSITORY)) for path in folders)


def test_the_table_lists_every_module_outside_of_a_folder() -> None:
    modules = {path.name for path in (REPOSITORY / "nvct").glob("*.py")} - {"__init__.py"}

    assert {name.rpartition("/")[2] for name in listed() if name.endswith(".py")} == modules
