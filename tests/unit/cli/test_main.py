# SPDX-License-Identifier: Apache-2.0
"""The programs nvct and nvidia-ctk: what they import, and how they end."""

import contextlib
import functools
import io
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from nvct.cli import main
from nvct.errors import HostError, UsageError
from nvct.version import TOOLKIT_VERSION, __version__
from tests.support.processes import captured

SHOW = """
import sys
from nvct.cli import main
sys.argv = {argv!r}
try:
    main.run({name!r})
finally:
    print(*sorted(m for m in sys.modules if m.startswith("nvct")), file=sys.stderr)
    print(*sorted(m for m in ("yaml", "jsonschema", "pynvml", "rich") if m in sys.modules), file=sys.stderr)
"""


def modules(name: str, *args: str) -> tuple[list[str], list[str]]:
    """Return the modules of nvct, and the third-party ones, that a command line loads."""
    code = SHOW.format(argv=[name, *args], name=name)
    completed = captured([sys.executable, "-c", code], check=True, timeout=60)
    own_modules, others = completed.stderr.splitlines()[-2:]
    return own_modules.split(), others.split()


@pytest.mark.parametrize("name", ["nvct", "nvidia-ctk"])
@pytest.mark.parametrize("flag", ["--help", "-h", "--version"])
def test_help_imports_no_command(name: str, flag: str) -> None:
    own_modules, others = modules(name, flag)

    assert own_modules == [
        "nvct",
        "nvct.cli",
        "nvct.cli.ending",
        "nvct.cli.gostyle",
        "nvct.cli.main",
        "nvct.errors",
        "nvct.version",
    ]
    assert others == []


def test_help_of_one_group_imports_no_other() -> None:
    own_modules, others = modules("nvct", "cdi", "--help")

    assert [
        m
        for m in own_modules
        if m.startswith("nvct.cli.") and m[9:] not in ("main", "ending", "gostyle")
    ] == []
    assert "pynvml" not in others
    assert "rich" not in others


@pytest.mark.parametrize("argv", [["nvidia-ctk"], ["nvct", "refresh"]])
def test_help_starts_in_less_than_0_3_seconds(argv: Sequence[str]) -> None:
    code = f"import sys; sys.argv = {[*argv, '--help']!r}\nfrom nvct.cli import main; main.run({argv[0]!r})"

    def spent() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(spent() for _ in range(3)) < 0.3


# --- how a program ends ---


def ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: click.Command
) -> tuple[object, str]:
    """Run nvct with one command; return the exit status and stderr."""
    group = click.Group("nvct", {"x": command})
    monkeypatch.setattr(sys, "argv", ["nvct", "x"])
    with pytest.raises(SystemExit) as caught:
        main.run("nvct", group)
    return caught.value.code, capsys.readouterr().err


def failing(error: BaseException) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (HostError("no disk", hint="buy one"), 1, "nvct: no disk; buy one [host]\n"),
        (UsageError("odd"), 2, "nvct: odd [usage]\n"),
        (KeyError("x"), 1,
         "nvct: unexpected KeyError: 'x'; please report it; NVCT_DEBUG=1 shows more [bug]\n"),
        (ModuleNotFoundError("x", name="httpx2"), 1,
         "need it: pip install '.[agent]' in a checkout [host]\n"),
        (ModuleNotFoundError("x", name="nvct.gone"), 1,
         "nvct: unexpected ModuleNotFoundError: x; please report it; NVCT_DEBUG=1 shows more [bug]\n"),
        (KeyboardInterrupt(), 130, "\nnvct: stopped\n"),
        (click.UsageError("No."), 2, "nvct: no; see nvct x --help [usage]\n"),
        (SystemExit(7), 7, ""),
    ],
    ids=["ours", "usage", "bug", "extra", "ours is gone", "interrupt", "click", "exit"],
)  # fmt: skip
def test_an_error_is_one_line_and_a_status(
    error: BaseException,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, text = ended(monkeypatch, capsys, failing(error))

    assert code == status
    assert text.endswith(message)


def test_a_bug_has_its_traceback_for_debugging(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NVCT_DEBUG", "1")

    code, text = ended(monkeypatch, capsys, failing(KeyError("x")))

    assert code == 1
    assert text.startswith("Traceback")
    assert text.endswith("please report it; NVCT_DEBUG=1 shows more [bug]\n")


def ended_by(name: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *args])
        for variable, value in env.items():
            patch.setenv(variable, value)
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as caught,
        ):
            main.run(name)
    assert isinstance(caught.value.code, int)
    return subprocess.CompletedProcess(args, caught.value.code, out.getvalue(), err.getvalue())


nvct = functools.partial(ended_by, "nvct")
ctk = functools.partial(ended_by, "nvidia-ctk")


def test_without_a_command_the_commands_are_shown() -> None:
    completed = nvct()

    assert (completed.returncode, completed.stderr) == (0, "")
    assert "refresh" in completed.stdout


@pytest.mark.parametrize("args", [["nosuch"], ["--nosuch"], ["cdi", "nosuch"], ["refresh", "odd"]])
def test_unknown_names_are_usage_errors(args: list[str]) -> None:
    completed = nvct(*args)

    assert completed.returncode == 2
    assert completed.stdout == ""
    assert completed.stderr.endswith(" --help [usage]\n")
    assert completed.stderr.count("\n") == 1


def test_version_is_the_packages() -> None:
    assert nvct("--version").stdout == f"nvct, version {__version__}\n"


def test_a_reader_that_goes_away_is_no_bug() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    completed = subprocess.run(
        [sys.executable, "-c", "from nvct.cli.main import nvct; nvct()", "sim", "list", "--profiles"],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
    )  # fmt: skip
    os.close(writing)

    assert "Traceback" not in completed.stderr
    assert "unexpected" not in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nosuch"], "no such option '--nosuch'; see nvct"),
        (["sim", "list", "--profiles=x"],
         "option '--profiles' does not take a value; see nvct"),
        (["cdi", "validate"], "missing argument 'FILES...'; see nvct cdi validate"),
        (["cdi", "generate", "--forma=json"],
         "no such option '--forma'; did you mean --format? see nvct cdi generate"),
    ],
    ids=["option", "value", "argument", "nearly"],
)  # fmt: skip
def test_a_mistake_in_the_command_line_is_one_line(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["nvct", *arguments])

    with pytest.raises(SystemExit) as caught:
        main.run("nvct")

    assert caught.value.code == 2
    assert capsys.readouterr().err == f"nvct: {message} --help [usage]\n"


# --- nvidia-ctk, as scripts call the incumbent's ---


@pytest.mark.parametrize(
    "args",
    [
        ["--debug"], ["--"], ["h"], ["help", "cdi"], ["cdi", "help"], ["cdi", "help", "list"],
        ["cdi", "h", "list"], ["cdi", "list", "help"], ["cdi", "list", "-h"], ["info", "-h"],
        ["info", "help"], ["config", "help"], ["config", "default", "help"],
        ["runtime", "configure", "--runtime=docker", "-h"], ["system", "--quiet"], ["hook", "help"],
        ["hook", "-h"], ["hook", "chmod", "help"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_help_is_on_stdout_and_a_success(args: list[str]) -> None:
    completed = ctk(*args)

    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.lower().startswith("usage: ")


def test_help_of_a_command_is_that_commands() -> None:
    assert ctk("cdi", "help", "list").stdout == ctk("cdi", "list", "--help").stdout
    assert ctk("help", "cdi").stdout == ctk("cdi").stdout == ctk("cdi", "-h").stdout


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["nosuch"], 3), (["cdi", "transform", "nosuch"], 3), (["help", "nosuch"], 3),
        (["info", "extra"], 3), (["--nosuch"], 1), (["cdi", "--version"], 1),
        (["cdi", "list", "--nosuch"], 1), (["cdi", "list", "extra", "--nosuch"], 1),
        (["cdi", "list", "--debug=x"], 1), (["config", "--set"], 1),
    ],
    ids=str,
)  # fmt: skip
def test_a_mistake_ends_with_the_incumbents_status(args: list[str], status: int) -> None:
    completed = ctk(*args)

    assert (completed.returncode, completed.stdout) == (status, "")
    assert completed.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "args",
    [
        ["config", "create-default"],
        ["config", "generate-default", "extra"],
        ["config", "default", "extra", "help"],
        ["config", "extra"],
        ["config", "--debug", "extra", "--config-file=/nonexistent"],
        ["config", "-d", "default", "-quiet", "--config=/nonexistent"],
        ["--debug=true", "config", "--quiet=false", "default", "--debug"],
        ["--", "config"],
    ],
    ids=" ".join,
)
def test_what_the_incumbent_ignores_is_ignored(args: list[str]) -> None:
    completed = ctk(*args, NVIDIA_CTK_CONFIG_FILE_PATH="/nonexistent")

    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.startswith("#accept-nvidia-visible-devices")


def test_quiet_and_config_hold_wherever_they_stand(tmp_path: Path) -> None:
    empty = tmp_path / "config.toml"
    empty.write_text(f'[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{tmp_path}"]\n')

    loud = ctk("cdi", "list", "--config", str(empty))
    assert loud.stderr == "Found 0 CDI devices\n"
    for args in (
        ["--quiet", "cdi", "list"],
        ["cdi", "--quiet", "list"],
        ["cdi", "list", "-quiet"],
    ):
        assert ctk(*args, f"--config={empty}").stderr == ""


def test_the_version_is_the_incumbents_with_ours_behind_it() -> None:
    for flag in ("--version", "-v", "-version"):
        first, second = ctk(flag).stdout.splitlines()

        assert first == f"NVIDIA Container Toolkit CLI version {TOOLKIT_VERSION}"
        assert second == f"nvct: {__version__}"


@pytest.mark.parametrize("name", ["nvct", "nvidia-ctk"])
def test_the_version_needs_no_command_line_library(name: str) -> None:
    command = [sys.executable, "-I", "-X", "importtime", "-m", "nvct.cli", name, "--version"]
    completed = captured(command, check=True)

    assert completed.stdout == ended_by(name, "-v").stdout
    assert "nvct.version" in completed.stderr
    assert "click" not in completed.stderr


def test_every_package_stands_in_for_that_version() -> None:
    packaging = Path(__file__).parents[3] / "packaging"
    control = (packaging / "deb/debian/control").read_text(encoding="utf-8")
    spec = (packaging / "rpm/nvct.spec").read_text(encoding="utf-8")

    for name in ("nvidia-container-toolkit", "nvidia-container-toolkit-base"):
        assert f"{name} (= {TOOLKIT_VERSION})" in control
        assert f"{name} = {TOOLKIT_VERSION}" in spec
