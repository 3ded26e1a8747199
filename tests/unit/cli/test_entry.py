# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.cli.__main__: what is answered without the command line library."""

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from nvct.cli.__main__ import find
from nvct.cli.cdi.commands import generate
from nvct.compile.publish import Request
from nvct.doctor import one_container
from nvct_sim import tree
from tests.support.processes import captured

BY_CLICK = "import sys; sys.argv[0] = 'x'; from nvct.cli.main import run; run('nvidia-ctk')"
Ended = tuple[int, str, str]


@pytest.fixture(autouse=True)
def no_option_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NVIDIA_CTK_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The folder of a config.toml: of a plain node."""
    node = tree.create("plain", "t4", tmp_path / "nodes", native=False, nodes="plain")
    folder = tmp_path / "etc/nvidia-container-runtime"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        f'[nvidia-container-cli]\nroot = "{node.driver_root}"\n[nvct]\nplain-nodes = true\n'
        f'dev-root = "{node.tree}"\nproc-root = "{node.proc}"\nsys-root = "{node.sys}"\n'
        f'farm-dir = "{tmp_path}/no-farm"\nhook-path = "/bin/true"\n',
        encoding="utf-8",
    )
    return folder.parent


def run(start: list[str], arguments: list[str], config: Path) -> Ended:
    """Return the exit status of nvidia-ctk, and what it prints on stdout and stderr."""
    completed = captured(
        [sys.executable, "-I", *start, *arguments],
        timeout=60, env={"PATH": os.environ["PATH"], "XDG_CONFIG_HOME": str(config)},
    )  # fmt: skip
    return completed.returncode, completed.stdout, completed.stderr


def both(arguments: list[str], config: Path) -> tuple[Ended, Ended]:
    """Return how nvidia-ctk ends as the launcher starts it, and with the library."""
    return (
        run(["-m", "nvct.cli", "nvidia-ctk"], arguments, config),
        run(["-c", BY_CLICK], arguments, config),
    )


def test_the_defaults_are_those_of_the_options() -> None:
    defaults = {
        name: value for name, value in asdict(Request()).items() if name != "xdg_data_dirs"
    }

    assert {**defaults, "config": None} == generate.make_context("generate", []).params


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"], ["cdi", "list"], ["cdi", "generate"],
        ["cdi", "generate", "--output", "x"], ["cdi", "generate", "--output=x"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_scripts_ask_most_often_is_answered_here(arguments: list[str]) -> None:
    assert find(arguments) is not None


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["-v"], ["--version", "x"], ["--quiet", "cdi", "list"], ["cdi", "list", "--json"],
        ["cdi", "generate", "--mode=nvml"], ["cdi", "generate", "--output"],
        ["cdi", "generate", "--output", "--quiet"], ["cdi", "generate", "x"],
        ["cdi", "generate", "--output=x", "--output=y"], ["cdi", "generate", "-output=x"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_other_command_lines_are_parsed_by_the_library(arguments: list[str]) -> None:
    assert find(arguments) is None


def test_variables_of_options_are_parsed_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_CTK_QUIET", "1")

    assert find(["cdi", "list"]) is None
    assert find(["cdi", "generate"]) is None
    assert find(["--version"]) is not None


@pytest.mark.parametrize("arguments", [["cdi", "list"], ["cdi", "generate"]], ids=" ".join)
def test_the_answer_is_the_same(arguments: list[str], config: Path) -> None:
    direct, by_click = both(arguments, config)

    assert direct == by_click
    assert direct[0] == 0


def test_an_error_is_the_same(config: Path) -> None:
    text = '[nvidia-container-cli]\nroot = "/nonexistent"\n'
    (config / "nvidia-container-runtime/config.toml").write_text(text, encoding="utf-8")

    direct, by_click = both(["cdi", "generate"], config)

    assert direct == by_click
    assert direct[0] == 1
    assert direct[2].startswith("nvidia-ctk: ")


def test_a_full_disk_is_one_line(config: Path) -> None:
    command = [sys.executable, "-I", "-m", "nvct.cli", "nvidia-ctk", "cdi", "generate"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        completed = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
            env={"PATH": os.environ["PATH"], "XDG_CONFIG_HOME": str(config)},
        )  # fmt: skip

    assert completed.returncode == 1
    assert "the spec cannot be written to stdout: No space left on device" in completed.stderr
    assert "Traceback" not in completed.stderr


def test_a_reader_that_goes_away_is_no_error(config: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    completed = subprocess.run(
        [sys.executable, "-I", "-m", "nvct.cli", "nvidia-ctk", "cdi", "generate"],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        env={"PATH": os.environ["PATH"], "XDG_CONFIG_HOME": str(config)},
    )  # fmt: skip
    os.close(writing)

    assert completed.returncode == 1
    assert "Traceback" not in completed.stderr
    assert "BrokenPipe" not in completed.stderr


def program(*words: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run nvct as a process."""
    start = "import sys; sys.argv[0] = 'x'; from nvct.cli.main import run; run('nvct')"
    return subprocess.run(
        [sys.executable, "-I", "-c", start, *words], text=True, check=False, timeout=60,
        stdout=subprocess.PIPE if stdout is None else stdout, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_command_that_is_nearly_one_is_suggested() -> None:
    assert "did you mean status?" in program("status2").stderr
    assert "did you mean apply?" in program("mig", "applyy").stderr
    assert "did you mean" not in program("xyzzy").stderr


def test_output_that_does_not_fit_is_a_sentence() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = program("--help", stdout=full)
    finally:
        os.close(full)

    assert done.returncode == 1
    assert done.stderr == (
        "nvct: the output cannot be written: No space left on device; free space for it [host]\n"
    )


def test_names_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import ShellComplete

    from nvct.cli.main import program as command_line

    for name in ("lab-a", "lab-b", "other"):
        tree.create(name, "t4", tmp_path, native=False, nodes="plain")
    completed = ShellComplete(command_line("nvct"), {}, "nvct", "_NVCT_COMPLETE")

    def names(*words: str) -> list[str]:
        return [one.value for one in completed.get_completions(list(words[:-1]), words[-1])]

    assert names("sim", "--base", str(tmp_path), "exec", "lab") == ["lab-a", "lab-b"]
    assert names("sim", "--base", str(tmp_path), "set", "lab-a", "mig-c") == ["mig-create"]
    monkeypatch.setattr(
        one_container, "names", lambda _env: {"ab": "trainer", "cd": "team/p/main"}
    )
    assert names("log", "tra") == ["trainer"]
    assert names("explain", "tea") == ["team/p/main", "tea"]
    assert names("explain", "DriverNotL") == ["DriverNotLoaded", "DriverNotL"]


def test_help_costs_no_search_for_cycles(config: Path) -> None:
    """Each search costs as much as a module; those before --help was printed were ten."""
    code = (
        "import atexit, gc, sys\n"
        "searches = []\n"
        "gc.callbacks.append(lambda phase, _: searches.append(phase))\n"
        "atexit.register(lambda: print(len(searches), gc.get_freeze_count() > 0))\n"
        "sys.argv[1:] = ['nvct', '--help']\n"
        "from nvct.cli.__main__ import main\n"
        "main()\n"
    )
    status, out, _ = run(["-c", code], [], config)
    assert (status, out.splitlines()[-1]) == (0, "0 True")
