# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md: its table of layers lists every folder of the package, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = (REPOSITORY / "nvct", REPOSITORY / "nvct_sim")


def listed() -> list[str]:
    """Return the names in the first column of the table of layers."""
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_the_table_lists_every_folder_once() -> None:
    modules = [path for package in PACKAGES for path in package.rglob("*.py")]
    folders = {path.parent for path in modules} - {PACKAGES[0]}
    names = [name for name in listed() if not name.endswith(".py")]

    assert sorted(names) == sorted(str(path.relative_to(REPOSITORY)) for path in folders)


def test_the_table_lists_every_module_outside_of_a_folder() -> None:
    modules = {path.name for path in (REPOSITORY / "nvct").glob("*.py")} - {"__init__.py"}

    assert {name.rpartition("/")[2] for name in listed() if name.endswith(".py")} == modules


def imported(path: Path) -> set[str]:
    """Return what a module imports, at any time and for types alone too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("folder", ["nvct/container", "nvct_sim"])
def test_modules_do_not_import_each_other_in_a_circle(folder: str) -> None:
    """Remove modules that import no remaining one, until none or a circle remains."""
    modules = (REPOSITORY / folder).rglob("*.py")
    left = {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts): imported(path)
        for path in modules
    }
    while free := [name for name, names in left.items() if not names & left.keys()]:
        for name in free:
            del left[name]

    assert sorted(left) == []
