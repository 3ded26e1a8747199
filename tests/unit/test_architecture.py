# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md names what exists; documents fit a terminal; the text of the unit file."""

import ast
import configparser
import re
import shlex
import subprocess
import sys
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
    table = TEXT.partition("| what | where |")[2]
    together = [
        f"nvct/{before}{name}{after}"
        for before, names, after in re.findall(r"`([\w/]*)\{([\w/.,]+)\}([./\w]*)`", table)
        for name in names.split(",")
    ]
    below = [f"nvct/{name}" for name in re.findall(r"`([\w/]+\.py)`", table)]

    assert together
    assert below
    named = (*alone, *together, *below)
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


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


INSTALLED = {
    "click", "jsonschema", "pynvml", "rich", "tomli", "yaml",
    "bcrypt", "google", "grpc", "httpx2", "lightkube", "msgspec",
    "nvct", "nvct_sim", "_nvct", "_frozen_importlib",
}  # fmt: skip
"""What pyproject.toml's dependencies bring, what those of the agent bring, and what is always there."""


def of_others(node: ast.AST) -> set[str]:
    """Return what a module loads of others' when it runs: what is for types alone is not loaded."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return set()
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    found = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - INSTALLED
    return found.union(*map(of_others, ast.iter_child_nodes(node)))


def test_only_what_is_installed_is_loaded() -> None:
    """The tools of a checkout bring more, typing_extensions for one."""
    paths = [path for package in PACKAGES for path in package.rglob("*.py")]
    loaded = {
        str(path.relative_to(REPOSITORY)): of_others(ast.parse(path.read_text())) for path in paths
    }
    assert {path: names for path, names in loaded.items() if names} == {}


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


# Documents: no line is too wide for a terminal, and no link leads nowhere.


COLUMNS = 120
DOCUMENTS = sorted(
    str(path.relative_to(REPOSITORY))
    for pattern in ("*.md", "docs/*.md", "cdi/*.md", "packaging/**/*.md", "tests/**/*.md")
    for path in REPOSITORY.glob(pattern)
)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_line_is_too_wide(name: str) -> None:
    lines = (REPOSITORY / name).read_text(encoding="utf-8").splitlines()

    # The name of a test or an address has no place to break at.
    words = [(line, len(line.strip(" -").split())) for line in lines]
    assert [line for line, number in words if len(line) > COLUMNS and number > 1] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_to_a_file_leads_to_one(name: str) -> None:
    document = REPOSITORY / name
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))

    files = [link for link in links if "://" not in link]
    assert [link for link in files if not (document.parent / link).exists()] == []


# The unit that keeps the specification: what its text alone decides.


FOLDER = Path(__file__).parents[2] / "packaging/systemd"


def service(name: str = "nvidia-cdi-refresh") -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as its documentation has it
    parser.read(FOLDER / f"{name}.service", encoding="utf-8")
    return parser["Service"]


def test_what_fails_for_good_is_not_tried_without_end_at_a_nodes_cost() -> None:
    # RestartSteps= came with systemd 254: Debian 12's and RHEL 9's wait RestartSec= each time.
    assert int(service()["RestartSec"]) >= 30


def test_a_setting_that_means_nothing_is_not_tried_again() -> None:
    assert service()["RestartPreventExitStatus"] == "2"


PROGRAM = """#!/bin/sh
echo "${0##*/} $*" >> "$LOG"
[ "$1" != apply ] || exit ${STATUS:-0}
"""


@pytest.mark.parametrize(
    ("env", "status", "calls"),
    [
        ({}, 0, []),
        ({"MIG_PARTED_SELECTED_CONFIG": "all-balanced"}, 0, ["generate-config", "apply"]),
        ({"MIG_PARTED_SELECTED_CONFIG": "mine", "MIG_PARTED_CONFIG_FILE": "FILE"}, 0, ["apply"]),
        ({"MIG_PARTED_SELECTED_CONFIG": "mine", "STATUS": "1"}, 1, ["generate-config", "apply"]),
    ],
)
def test_mig_is_applied_at_boot_only_if_a_drop_in_names_it(
    env: dict[str, str], status: int, calls: list[str], tmp_path: Path
) -> None:
    for name in ("nvidia-mig-parted", "nvidia-ctk"):
        (tmp_path / name).write_text(PROGRAM)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "FILE").touch()
    text = service("nvidia-mig-manager")["ExecStart"].replace("$$", "$").replace("\\\n", "")
    _, _, script = shlex.split(text.replace("/usr/bin/", f"{tmp_path}/"))
    env = {**env, "LOG": str(tmp_path / "log"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", "-euc", script], env=env, cwd=tmp_path, check=False)
    assert done.returncode == status
    log = (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""
    called = [line.split()[1] for line in log.splitlines() if line.startswith("nvidia-mig-parted")]
    assert called == calls
    assert ("nvidia-ctk" in log) == (bool(calls) and status == 0)
