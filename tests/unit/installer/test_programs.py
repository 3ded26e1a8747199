# SPDX-License-Identifier: Apache-2.0
"""The installed programs: whole at any time, and without a driver only the low-level runtime."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from nvct.errors import UsageError
from nvct.installer import programs
from nvct.installer.request import Request
from nvct.launcher.install import is_static
from nvct.paths import HOOK_PROGRAM
from tests.support.processes import captured
from tests.unit.installer.conftest import Ask, bundle, call

RUNTIMES = ("runc", "crun")


def install(request: Request, runtimes: Sequence[str] = RUNTIMES, *, loaded: bool = True) -> bool:
    folder = os.path.dirname(request.pid_file.removesuffix("/run/toolkit.pid"))
    return programs.install(
        request, runtimes, ("/nonexistent/1", folder if loaded else "/nonexistent/2")
    )


def test_the_runtime_gets_its_configuration_and_its_folder(ask: Ask) -> None:
    request = ask()
    install(request, RUNTIMES)
    for name in programs.RUNTIMES:
        completed = call(request.program(name), "create", "a b", "")
        assert completed.stderr == ""
        assert completed.stdout.splitlines() == [
            f"{programs._used(request)}/bin/{name} create a b ",
            f"{request.toolkit}:/usr/bin:/bin",
            request.config_toml,
        ]


def test_without_a_driver_the_low_level_runtime_gets_the_same_words(
    ask: Ask, tmp_path: Path
) -> None:
    (tmp_path / "low").mkdir()
    low = tmp_path / "low/it's crun"
    low.write_text('#!/bin/sh\nprintf "%s|" "$0" "$@"\n', encoding="utf-8")
    low.chmod(0o755)
    request = ask()
    install(request, ["/nonexistent/runc", str(low)], loaded=False)
    completed = call(request.program("nvidia-container-runtime"), "--log", "x y", "create")
    assert completed.stdout == f"{low}|--log|x y|create|"
    assert "modules are not yet loaded" in completed.stderr
    completed = call(request.program("nvidia-ctk"), "--version")
    assert completed.stdout.startswith(f"{request.toolkit}/.nvct/"), (
        "only runtimes are passed through"
    )


@pytest.mark.parametrize(
    "content",
    [
        None, b"", b"\x7fELF", b"\x7fELF" + programs.MARK + b"\0" * 99,
        b"#!/bin/sh\n" + programs.MARK + b"\0" * programs.ROOM,
    ],
    ids=["none", "empty", "elf", "no room", "script"],
)  # fmt: skip
def test_a_tree_without_a_static_wrapper_is_refused(
    content: bytes | None, ask: Ask, source: Path
) -> None:
    """A shell script in its place would load an image's LD_PRELOAD when it stands for a hook."""
    (source / programs.WRAPPER).unlink()
    if content is not None:
        (source / programs.WRAPPER).write_bytes(content)
    request = ask()

    with pytest.raises(UsageError, match="nvct-wrapper is not a static wrapper"):
        install(request)

    assert not os.path.exists(request.toolkit)


def test_every_program_is_static(ask: Ask) -> None:
    request = ask()
    install(request)
    for name in (*programs.RUNTIMES, programs.HOOK, *programs.COMMAND_LINES, HOOK_PROGRAM):
        data = Path(request.program(name)).read_bytes()
        assert is_static(data), name


def test_names_for_which_a_wrapper_has_no_room_are_refused(ask: Ask) -> None:
    request = ask()
    with pytest.raises(UsageError, match="more than 8192 bytes"):
        install(request, ["/nonexistent/" + "x" * programs.ROOM, "/bin/true"], loaded=False)


@pytest.mark.parametrize(
    "arguments",
    [
        [HOOK_PROGRAM, "noop"], ["nvidia-ctk", "hook", "noop"],
        ["nvidia-ctk", "--debug", "--config", "/x", "hook", "noop"], ["nvct", "hook", "noop"],
        [programs.HOOK, "prestart"], ["nvidia-container-toolkit", "prestart"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_hook_gets_no_variable_of_an_image(
    arguments: list[str], ask: Ask, tmp_path: Path
) -> None:
    says = '#!/bin/sh\ntr "\\0" "\\n" < /proc/$$/environ\n'
    request = ask(source=str(bundle(tmp_path / "says", says)))
    install(request)
    evil = {"PYTHONPATH": "/x", "LD_DEBUG_OUTPUT": "/x", "LD_LIBRARY_PATH": "/x", "ENV": "/x"}

    completed = captured(
        [request.program(arguments[0]), *arguments[1:]], env={"NVIDIA_CTK_DEBUG": "true", **evil}, check=True,
    )  # fmt: skip

    assert dict(line.split("=", 1) for line in completed.stdout.splitlines()) == {
        "PATH": f"{request.toolkit}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "NVIDIA_CTK_CONFIG_FILE_PATH": request.config_toml,
        "NVCT_CONFIG_FILE_PATH": request.config_toml,
        "NVIDIA_CTK_DEBUG": "true",
    }


def test_without_driver_and_runtime_it_says_so(ask: Ask) -> None:
    request = ask()
    install(request, ["/nonexistent/runc", "/nonexistent/crun"], loaded=False)
    completed = call(request.program("nvidia-container-runtime"), "create")
    assert (completed.returncode, completed.stdout) == (127, "")
    assert completed.stderr.splitlines() == [
        "nvidia driver modules are not yet loaded, invoking /nonexistent/runc directly",
        "no low-level runtime: /nonexistent/runc, /nonexistent/crun",
    ]


@pytest.mark.parametrize("word", ["$(touch made)", "a'; touch made; '"])
def test_the_runtimes_name_is_no_shell_code(
    word: str, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = ask()
    install(request, [word], loaded=False)
    assert call(request.program("nvidia-container-runtime")).returncode == 127
    assert not (tmp_path / "made").exists()


def test_a_hook_that_is_a_program_is_reached_by_a_link(ask: Ask, source: Path) -> None:
    hook = source / "bin" / HOOK_PROGRAM
    (source / "x.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
    subprocess.run(["cc", "-static", "-o", hook, source / "x.c"], check=True)
    request = ask()
    install(request, RUNTIMES)
    assert os.readlink(request.program(HOOK_PROGRAM)).startswith(".nvct/")
    assert call(request.program(HOOK_PROGRAM)).returncode == 0
    assert os.readlink(request.program("nvidia-container-toolkit")) == programs.HOOK


def test_twice_is_the_same_as_once(ask: Ask) -> None:
    request = ask()
    assert install(request, RUNTIMES)
    before = os.stat(request.program("nvidia-container-runtime")).st_ino
    assert not install(request, RUNTIMES)
    assert os.stat(request.program("nvidia-container-runtime")).st_ino == before
    assert install(request, ["crun"])


def test_an_upgrade_keeps_the_tree_before_and_no_more(ask: Ask, tmp_path: Path) -> None:
    request = ask()
    install(request, RUNTIMES)
    trees = [programs._used(request)]
    for number in range(3):
        newer = bundle(tmp_path / f"bundle{number}", f"#!/bin/sh\necho {number}\n")
        install(ask(source=str(newer)), RUNTIMES)
        trees.append(programs._used(request))
        present = {
            f"{request.toolkit}/.nvct/{name}" for name in os.listdir(f"{request.toolkit}/.nvct")
        }
        assert present == set(trees[-2:])
    assert call(request.program("nvidia-ctk")).stdout == "2\n"


def test_files_of_the_incumbent_are_removed_and_foreign_files_stay(ask: Ask) -> None:
    request = ask()
    os.makedirs(request.toolkit)
    for name in ("nvidia-container-runtime.real", "libnvidia-container.so.1.18.0", "mine.txt"):
        with open(f"{request.toolkit}/{name}", "w", encoding="utf-8") as file:
            file.write("old")
    install(request, RUNTIMES)
    remaining = set(os.listdir(request.toolkit))
    assert "mine.txt" in remaining
    assert not remaining & {"nvidia-container-runtime.real", "libnvidia-container.so.1.18.0"}


def test_a_tree_without_a_program_is_refused_before_anything_calls_it(
    ask: Ask, source: Path
) -> None:
    (source / "bin/nvidia-container-runtime.cdi").unlink()
    request = ask()
    with pytest.raises(UsageError, match=r"bin has no nvidia-container-runtime\.cdi"):
        install(request, RUNTIMES)
    assert not os.path.exists(request.program("nvidia-container-runtime"))


def test_the_source_is_named_or_the_tree_that_this_program_is_of(
    source: Path, tmp_path: Path
) -> None:
    assert programs.source_root("", str(source / "lib/nvct/model.py")) == str(source)
    assert programs.source_root(str(source), "/elsewhere.py") == str(source)
    with pytest.raises(UsageError, match="in no relocatable tree"):
        programs.source_root("", str(tmp_path / "nvct/cli/__init__.py"))
    with pytest.raises(UsageError, match="has no bin/nvidia-container-runtime"):
        programs.source_root(str(tmp_path), "")
