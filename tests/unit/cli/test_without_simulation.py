# SPDX-License-Identifier: Apache-2.0
"""nvct where the package nvct-sim is not installed: the other commands work, two name it."""

import os
import sys
from pathlib import Path

import pytest

import nvct
from nvct.cli.gostyle import TOOLS
from tests.support.processes import captured

RUN = (
    "import sys; sys.path[:] = [{tree!r}, *(p for p in sys.path if p != {checkout!r})]; "
    "from nvct.cli.main import nvct; nvct()"
)
CHECKOUT = str(Path(nvct.__file__).parents[1])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with the package nvct as production hosts have it."""
    package = tmp_path / "site/nvct"
    package.mkdir(parents=True)
    for path in Path(nvct.__file__).parent.iterdir():
        if path.name != "__pycache__":
            (package / path.name).symlink_to(path)
    return package.parent


def run(tree: Path, *args: str, path: str = os.environ["PATH"]) -> tuple[int, str]:
    """Return the exit status of nvct, and what it prints on stderr."""
    completed = captured(
        [sys.executable, "-I", "-c", RUN.format(tree=str(tree), checkout=CHECKOUT), *args], timeout=60, env={"PATH": path},
    )  # fmt: skip
    return completed.returncode, completed.stderr


@pytest.mark.parametrize(
    ("args", "tool"),
    [(("sim", "--help"), ""), (("sim", "replay", "x"), ""), *((("demo",), t) for t in TOOLS)],
)
def test_a_command_of_the_simulation_names_the_package(
    args: tuple[str, ...], tool: str, tree: Path, tmp_path: Path
) -> None:
    if tool:
        (tmp_path / tool).touch(mode=0o755)

    status, output = run(tree, *args, path=str(tmp_path))

    hint = f"run {tool} install nvct-sim" if tool else "install nvct-sim"
    needs = f"nvct {args[0]} needs the package nvct-sim, which is not installed"
    assert (status, output) == (1, f"nvct: {needs}; {hint} [host]\n")


def test_byte_code_that_a_removed_package_left_is_no_simulation(tree: Path) -> None:
    (tree / "nvct_sim/demo/__pycache__").mkdir(parents=True)

    assert "needs the package nvct-sim" in run(tree, "sim", "list")[1]
    assert "needs the package nvct-sim" in run(tree, "demo")[1]


@pytest.mark.parametrize("name", ["agent", "doctor"])
def test_another_command_is_there(name: str, tree: Path) -> None:
    assert run(tree, name, "--help") == (0, "")


def test_a_bug_in_the_simulation_is_no_missing_package(tree: Path) -> None:
    (tree / "nvct_sim").mkdir()
    (tree / "nvct_sim/__init__.py").touch()

    status, output = run(tree, "demo")

    assert status == 1
    assert output.endswith("[bug]\n")


IMPORT_ALL = """
import importlib, pkgutil, sys

class Lacking:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("google", "grpc", "httpx2", "lightkube", "nvct_sim"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Lacking())
for folder in ("cli", "compile", "doctor", "engine", "installer", "mig"):
    package = importlib.import_module(f"nvct.{folder}")
    for module in pkgutil.walk_packages(package.__path__, f"nvct.{folder}."):
        if not module.name.endswith(("__main__", "nvct.cli.sim")):
            importlib.import_module(module.name)
"""


def test_commands_are_imported_without_the_simulation_and_the_extra_of_the_agent() -> None:
    """Packages have none of it, and each page of help and most commands do without."""
    completed = captured([sys.executable, "-c", IMPORT_ALL], timeout=60, cwd=CHECKOUT)

    assert completed.stderr == ""
