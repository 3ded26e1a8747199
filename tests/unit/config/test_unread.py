# SPDX-License-Identifier: Apache-2.0
"""Every key of config.toml is used, or is in the table of keys without effect."""

import ast
import re
from pathlib import Path

import pytest

from nvct.config import editing
from nvct.config.load import KEYS, POLICY, from_toml
from nvct.config.model import Config
from tests.unit.config.test_load import EVERYTHING

REPOSITORY = Path(__file__).parents[3]
DOCS = REPOSITORY / "docs/config.md"
HOLDERS = {"config", "settings", "_config", "_settings"}
ONLY_CHECKED = {"cli_ldconfig", "allow_ldconfig_from_container"}
"""Read to refuse a value, which has no other effect."""


def _reads(path: Path) -> set[str]:
    """Return the attributes that a module reads of a Config, known by the variable's name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)):
            continue
        holder = node.value
        name = holder.id if isinstance(holder, ast.Name) else getattr(holder, "attr", "")
        if name in HOLDERS:
            names.add(node.attr)
    return names


def _own_reads() -> set[str]:
    """Return the attributes that answers of Config itself read."""
    tree = ast.parse((REPOSITORY / "nvct/config/model.py").read_text(encoding="utf-8"))
    answers = {"bounds_capabilities", "wants_view", "wants_compat"}
    return {
        node.attr
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name in answers
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
    }


def test_every_key_is_read_or_in_the_table() -> None:
    read = _own_reads()
    for path in (REPOSITORY / "nvct").rglob("*.py"):
        if path.parent.name != "config":
            read |= _reads(path)
    unread_names = {KEYS[key] for key in editing.UNREAD}

    assert {key for key, name in KEYS.items() if name not in read | unread_names} == set()
    assert (read & unread_names) - ONLY_CHECKED == set()


def test_every_key_of_the_incumbents_default_file_is_known() -> None:
    """Includes the commented keys."""
    table, missing = "", []
    for row in editing.DEFAULT_TEXT.splitlines():
        line = row.lstrip("#").strip()
        if line.startswith("["):
            table = line.strip("[]") + "."
        elif line and table + line.partition(" = ")[0] not in KEYS:
            missing.append(line)

    assert missing == []


def test_the_table_is_printed_in_the_docs() -> None:
    text = DOCS.read_text(encoding="utf-8")

    section = " ".join(text.partition("\n## Keys without effect\n")[2].split())
    assert [key for key, why in editing.UNREAD.items() if f"- `{key}`: {why}" not in section] == []


def test_the_document_explains_every_key_once() -> None:
    keys = re.findall(r"^- `([a-z.-]+)`", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(keys) == sorted([*KEYS, POLICY])


def test_each_key_without_effect_is_warned_of() -> None:
    settings = from_toml(EVERYTHING.encode(), "/c.toml").replaced(
        cli_ldcache="/other",
        cli_user="nobody",
        cli_ldconfig="@/opt/ldconfig",
        cli_path="/other/nvidia-container-cli",
        ctk_path="/other/nvidia-ctk",
    )

    warnings = editing.unread_warnings(settings)

    assert [line.partition(" has no effect: ")[0] for line in warnings] == list(editing.UNREAD)


def test_the_default_file_warns_of_nothing() -> None:
    commented = "\n".join(
        row.removeprefix("#") for row in editing.DEFAULT_TEXT.splitlines() if "#debug" not in row
    )

    assert editing.unread_warnings(Config()) == []
    assert editing.unread_warnings(from_toml(commented.encode(), "/c.toml")) == []


@pytest.mark.parametrize("folder", ["/usr/bin", "/usr/local/nvidia/toolkit"])
def test_paths_of_nvcts_own_programs_warn_of_nothing(folder: str) -> None:
    settings = Config(
        hook_path=f"{folder}/nvidia-cdi-hook",
        cli_path=f"{folder}/nvidia-container-cli",
        ctk_path=f"{folder}/nvidia-ctk",
        runtime_hook_path=f"{folder}/nvidia-container-runtime-hook",
        driver_root="/run/nvidia/driver",
        cli_ldconfig="@/run/nvidia/driver/sbin/ldconfig.real",
    )

    assert editing.unread_warnings(settings) == []
