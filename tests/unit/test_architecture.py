# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md names rooms and files that exist, and every folder says what it is for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = (REPOSITORY / "nvct", REPOSITORY / "nvct_sim")
TEXT = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
FOLDERS = sorted({path.parent for package in PACKAGES for path in package.rglob("*.py")})


def test_each_room_is_listed_once() -> None:
    listed = re.findall(r"^\| `(nvct\w*(?:/\w+)?)` \|", TEXT, re.MULTILINE)
    rooms = [path for path in FOLDERS if path.parent == PACKAGES[0] or path == PACKAGES[1]]

    assert sorted(listed) == sorted(str(path.relative_to(REPOSITORY)) for path in rooms)


def test_each_named_file_exists() -> None:
    alone = re.findall(r"`((?:nvct|nvct_sim|packaging|tests)/[\w/.]+)`", TEXT)
    together = [
        f"{folder}/{name}"
        for names, folder in re.findall(r"((?:`\w+\.py`, )+`\w+\.py`) in `(nvct[\w/]*)`", TEXT)
        for name in re.findall(r"\w+\.py", names)
    ]

    assert together
    assert [name for name in (*alone, *together) if not (REPOSITORY / name).exists()] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_folder_says_what_it_is_for(folder: Path) -> None:
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))

    assert ast.get_docstring(tree)


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
