# SPDX-License-Identifier: Apache-2.0
"""The programs nvct and nvidia-ctk: what they import, and how they end."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import click
import pytest

from nvct.cli import main
from nvct.errors import HostError, UsageError
from nvct.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    ours, others = done.stderr.splitlines()[-2:]
    return ours.split(), others.split()


@pytest.mark.parametrize("name", ["nvct", "nvidia-ctk"])
@pytest.mark.parametrize("flag", ["--help", "-h", "--version"])
def test_help_imports_no_command(name: str, flag: str) -> None:
    ours, others = modules(name, flag)

    assert ours == [
        "nvct",
        "nvct.cli",
        "nvct.cli.lazy",
        "nvct.cli.main",
        "nvct.errors",
        "nvct.version",
    ]
    assert others == []


def test_help_of_one_group_imports_no_other() -> None:
    ours, others = modules("nvct", "cdi", "--help")

    assert "nvct.cli.cdi" in ours
    assert [
        m for m in ours if m.startswith("nvct.cli.") and m[9:] not in ("main", "lazy", "cdi")
    ] == []
    assert "pynvml" not in others
    assert "rich" not in others


@pytest.mark.parametrize("argv", [["nvct"], ["nvidia-ctk"], ["nvct", "cdi"], ["nvct", "refresh"]])
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
    ("error", "status", "said"),
    [
        (HostError("no disk", hint="buy one"), 1, "nvct: no disk; buy one [host]\n"),
        (UsageError("odd"), 2, "nvct: odd [usage]\n"),
        (KeyError("x"), 1,
         "nvct: unexpected KeyError: 'x'; please report it; NVCT_DEBUG=1 shows more [bug]\n"),
        (KeyboardInterrupt(), 130, "\nnvct: stopped\n"),
        (click.UsageError("No."), 2, "nvct: no; nvct x --help shows what there is [usage]\n"),
        (SystemExit(7), 7, ""),
    ],
    ids=["ours", "usage", "bug", "interrupt", "click", "exit"],
)  # fmt: skip
def test_an_error_is_one_line_and_a_status(
    error: BaseException,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, text = ended(monkeypatch, capsys, failing(error))

    assert code == status
    assert text.endswith(said)


def test_a_bug_has_its_traceback_for_debugging(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NVCT_DEBUG", "1")

    code, text = ended(monkeypatch, capsys, failing(KeyError("x")))

    assert code == 1
    assert text.startswith("Traceback")
    assert text.endswith("please report it; NVCT_DEBUG=1 shows more [bug]\n")


def test_a_command_that_returns_ends_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def command() -> None:
        pass

    assert ended(monkeypatch, capsys, command) == (0, "")


def nvct(*args: str) -> subprocess.CompletedProcess[str]:
    code = "from nvct.cli.main import nvct; nvct()"
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_no_command_is_a_usage_error_that_shows_the_commands() -> None:
    done = nvct()

    assert done.returncode == 2
    assert done.stdout == ""
    assert "refresh" in done.stderr


@pytest.mark.parametrize("args", [["nosuch"], ["--nosuch"], ["cdi", "nosuch"], ["refresh", "odd"]])
def test_what_does_not_exist_is_a_usage_error(args: list[str]) -> None:
    done = nvct(*args)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.endswith(" --help shows what there is [usage]\n")
    assert done.stderr.count("\n") == 1


def test_version_is_the_packages() -> None:
    assert nvct("--version").stdout == f"nvct, version {__version__}\n"


def test_a_reader_that_goes_away_is_no_bug() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", "from nvct.cli.main import nvct; nvct()", "sim", "list", "--profiles"],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
    )  # fmt: skip
    os.close(writing)

    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nosuch"], "no such option '--nosuch'; nvct"),
        (["sim", "list", "--profiles=x"],
         "option '--profiles' does not take a value; nvct"),
        (["cdi", "validate"], "missing argument 'FILES...'; nvct cdi validate"),
    ],
    ids=["option", "value", "argument"],
)  # fmt: skip
def test_a_mistake_in_the_command_line_is_one_line(
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["nvct", *words])

    with pytest.raises(SystemExit) as caught:
        main.run("nvct")

    assert caught.value.code == 2
    assert capsys.readouterr().err == f"nvct: {said} --help shows what there is [usage]\n"
