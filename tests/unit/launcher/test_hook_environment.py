# SPDX-License-Identifier: Apache-2.0
"""What a launcher gives a hook of the environment, which an engine may have taken from an image."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nvct.launcher.install import HOOKS, Built
from tests.support.launcher import PRINT_ARGS, Answer, ask, compiled, script
from tests.unit.launcher.conftest import HOOK, PROGRAM, Lab

CTK = "nvidia-ctk"
EVIL = {
    "LD_PRELOAD": "", "LD_AUDIT": "", "LD_DEBUG_OUTPUT": "/x", "LD_LIBRARY_PATH": "/x",
    "GLIBC_TUNABLES": "x=y", "PYTHONPATH": "/x", "PYTHONHOME": "/x", "PYTHONSTARTUP": "/x",
    "BASH_ENV": "/x", "ENV": "/x", "IFS": "x", "OPENSSL_CONF": "/x", "GCONV_PATH": "/x",
}  # fmt: skip
SWITCHES = {"NVIDIA_CTK_DEBUG": "a b", "NVIDIA_CTK_QUIET": ""}
ENGINES = {
    "PATH": "/engine/bin:/usr/bin:/bin", "HOME": "/root", "XDG_RUNTIME_DIR": "/run/user/1",
    "XDG_CONFIG_HOME": "/etc/xdg", "XDG_DATA_DIRS": "/usr/share", "NVCT_RUN_DIR": "/run/x",
    "NVIDIA_CTK_CONFIG_FILE_PATH": "/c.toml",
}  # fmt: skip
EXECUTE = "import json,os,sys; os.execve(sys.argv[1], sys.argv[3:], json.loads(sys.argv[2]))"
TELLS = "tr '\\0' '\\n' </proc/$$/environ | grep -v ^PWD= >env || :\n" + PRINT_ARGS


@pytest.fixture
def lab(lab: Lab) -> Iterator[Lab]:
    """A launcher with an interpreter that records its environment."""
    script(lab.launchers / "python", TELLS)
    yield lab
    script(lab.launchers / "python", PRINT_ARGS)


def start(
    lab: Lab, path: str | Path, args: Sequence[str], env: dict[str, str]
) -> tuple[Answer, dict[str, str]]:
    """Execute a file with any argv, as a runtime starts a hook; return what Python got."""
    (lab.home / "env").unlink(missing_ok=True)
    arguments = [sys.executable, "-c", EXECUTE, str(path), json.dumps(env), *args]
    answer = ask(arguments, {}, lab.home)
    lines = (lab.home / "env").read_text().splitlines()
    return answer, dict(line.split("=", 1) for line in lines)


def boot(module: str) -> bytes:
    return (
        f"import sys;sys.path.append('/pack ages');from nvct.{module} import main;"
        "main('/ve nv/bin/python')"
    ).encode()


@pytest.mark.parametrize(
    "args",
    [
        (HOOK, [HOOK, "update-ldcache", "--folder", "", "*"]),
        (HOOK, ["/usr/bin/" + HOOK, "update-ldcache", "--folder", "", "*"]),
        (HOOK, [PROGRAM, "update-ldcache", "--folder", "", "*"]),
        (HOOK, ["update-ldcache", "update-ldcache", "--folder", "", "*"]),
        (HOOK, ["-", "update-ldcache", "--folder", "", "*"]),
        (CTK, [CTK, "hook", "update-ldcache", "--folder", "", "*"]),
        (CTK, ["x", "hook", "update-ldcache", "--folder", "", "*"]),
        ("nvct", ["nvct", "hook", "update-ldcache", "--folder", "", "*"]),
        (CTK, [CTK, "--config", "/x", "hook", "update-ldcache", "--folder", "", "*"]),
        (CTK, [CTK, "--config=/x", "--", "hook", "update-ldcache", "--folder", "", "*"]),
        (CTK, [CTK, "--config", "hook", "hook", "update-ldcache", "--folder", "", "*"]),
    ],
    ids=lambda args: " ".join(args[1]),
)
def test_a_cdi_hook_gets_two_switches_whatever_it_is_called(
    lab: Lab, args: tuple[str, list[str]]
) -> None:
    program, argv = args

    answer, env = start(lab, lab.launchers / "c" / program, argv, EVIL | ENGINES | SWITCHES)

    hook = [HOOK.encode(), b"update-ldcache", b"--folder", b"", b"*"]
    assert answer.words == [
        lab.python,
        b"-I",
        b"-S",
        b"-c",
        boot("container.cdi_hook.launch"),
        *hook,
    ]
    assert env == SWITCHES


@pytest.mark.parametrize(
    "options",
    [
        ["--debug"], ["-d"], ["--quiet"], ["-q"], ["-debug"], ["--debug=true"],
        ["--debug", "--quiet"], ["--new-option"], ["--new-option", "value"], ["--help"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_options_may_stand_before_the_command_hook(lab: Lab, options: list[str]) -> None:
    argv = [CTK, *options, "hook", "noop"]

    answer, env = start(lab, lab.launchers / "c" / CTK, argv, EVIL)

    assert answer.words[5:] == [HOOK.encode(), *map(os.fsencode, options), b"noop"]
    assert env == {}


@pytest.mark.parametrize("how", ["link", "link of a link", "copy of the name"])
def test_a_link_is_the_program_that_it_leads_to(lab: Lab, how: str, tmp_path: Path) -> None:
    path = tmp_path / "odd-name"
    path.symlink_to(lab.launchers / "c" / HOOK)
    if how == "link of a link":
        (tmp_path / "other").symlink_to(path)
        path = tmp_path / "other"
    if how == "copy of the name":
        path = tmp_path / CTK
        path.symlink_to(lab.launchers / "c" / PROGRAM)
    argv = ["x", *(["hook"] if how == "copy of the name" else []), "noop"]

    answer, env = start(lab, path, argv, EVIL)

    assert answer.words[5:] == [HOOK.encode(), b"noop"]
    assert env == {}


@pytest.mark.parametrize("copied", [HOOK, CTK])
@pytest.mark.parametrize("called", ["the same", "x"])
def test_a_copy_that_was_put_aside_is_the_program(
    lab: Lab, tmp_path: Path, copied: str, called: str
) -> None:
    path = tmp_path / f"{copied}.real"
    os.link((lab.launchers / "c" / copied).resolve(), path)
    argv = [
        path.name if called == "the same" else "x",
        *(["hook"] if copied == CTK else []),
        "noop",
    ]

    answer, env = start(lab, path, argv, EVIL)

    assert answer.words[5:] == [HOOK.encode(), b"noop"]
    assert env == {}


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_hook_has_three_streams(lab: Lab, closed: str) -> None:
    """Without, Python has no sys.stdout to flush, and a file of the container is 2."""
    script(
        lab.launchers / "python", "(readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2 >env)\n:"
    )
    path = lab.launchers / "c" / HOOK

    ask(["sh", "-c", f'exec "$0" noop {closed} 3>&-', path], os.environ, lab.home)

    streams = (lab.home / "env").read_text().split()
    assert len(streams) == 3
    assert streams.count("/dev/null") == closed.count("&")


@pytest.mark.parametrize("program", ["nvidia-container-runtime-hook", "nvidia-container-toolkit"])
def test_the_prestart_hook_gets_nothing_that_loaders_read(lab: Lab, program: str) -> None:
    answer, env = start(
        lab, lab.launchers / "c" / program, [program, "prestart"], EVIL | ENGINES | SWITCHES
    )

    expected = [lab.python, b"-I", b"-S", b"-c", boot("container.prestart.launch")]
    assert answer.words == [*expected, program.encode(), b"prestart"]
    assert env == ENGINES | SWITCHES


@pytest.fixture(scope="module")
def with_cold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A launcher whose cold side, beside it, records its environment."""
    folder = tmp_path_factory.mktemp("cold")
    python = script(folder / "cold", TELLS)
    return compiled(folder, Built(python="/p", packages="/q", cold=str(python)))


@pytest.mark.parametrize("program", [CTK, "nvct"])
@pytest.mark.parametrize(
    "args", [[], ["cdi", "list"], ["--debug", "cdi", "hook"], ["--config", "hook", "config"]]
)
def test_other_commands_get_the_environment_as_it_is(
    lab: Lab, tmp_path: Path, with_cold: Path, program: str, args: list[str]
) -> None:
    python, path = with_cold.with_name("cold"), tmp_path / program
    path.hardlink_to(with_cold)
    variables = {"PYTHONPATH": "/x", "LD_LIBRARY_PATH": "/x", "PATH": os.environ["PATH"], "E": ""}

    answer, env = start(lab, path, [program, *args], variables)

    arguments = ["-I", "-m", "nvct.cli", program, *args]
    assert answer.words == [os.fsencode(python), *map(os.fsencode, arguments)]
    assert env == variables


def test_every_hook_program_is_recognized_by_its_name(lab: Lab) -> None:
    for name in HOOKS:
        answer, _ = start(lab, lab.launchers / "c" / name, ["x", "--new-option", "hook"], EVIL)

        assert b"nvct.container.shim.main" not in answer.stdout, name
