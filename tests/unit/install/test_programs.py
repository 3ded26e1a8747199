# SPDX-License-Identifier: Apache-2.0
"""The installed programs: whole at any time, and without a driver only the low-level runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nvct.errors import UsageError
from nvct.install import programs
from nvct.paths import HOOK_PROGRAM
from tests.unit.install.conftest import bundle, call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvct.install.programs import Installed
    from nvct.install.request import Request

    Ask = Callable[..., Request]

RUNTIMES = ("runc", "crun")
WRAPPER = Path(__file__).parents[3] / "packaging/bundle/wrapper.c"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    path = tmp_path_factory.mktemp("wrapper") / "wrapper"
    subprocess.run(
        [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-o", path, WRAPPER], check=True
    )
    return path


@pytest.fixture(autouse=True, params=["sh", "c"])
def form(request: pytest.FixtureRequest, source: Path) -> str:
    """Whether the tree has a compiled wrapper."""
    form: str = request.param
    if form == "c":
        place = source / programs.WRAPPER
        place.parent.mkdir()
        shutil.copy(request.getfixturevalue("compiled"), place)
    return form


def install(
    request: Request, runtimes: Sequence[str] = RUNTIMES, *, loaded: bool = True
) -> Installed:
    there = os.path.dirname(request.pid_file.removesuffix("/run/toolkit.pid"))
    return programs.install(
        request, runtimes, ("/nonexistent/1", there if loaded else "/nonexistent/2")
    )


def test_the_runtime_gets_its_configuration_and_its_folder(ask: Ask) -> None:
    request = ask()
    installed = install(request, RUNTIMES)
    for name in programs.RUNTIMES:
        done = call(request.program(name), "create", "a b", "")
        assert done.stderr == ""
        assert done.stdout.splitlines() == [
            f"{installed.tree}/bin/{name} create a b ",
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
    done = call(request.program("nvidia-container-runtime"), "--log", "x y", "create")
    assert done.stdout == f"{low}|--log|x y|create|"
    assert "modules are not yet loaded" in done.stderr
    done = call(request.program("nvidia-ctk"), "--version")
    assert done.stdout.startswith(f"{request.toolkit}/.nvct/"), "only runtimes are passed through"


def test_a_wrapper_is_what_the_tree_has_for_one(ask: Ask, form: str) -> None:
    request = ask()
    install(request)
    with open(request.program("nvidia-ctk"), "rb") as file:
        assert file.read(4) == {"sh": b"#!/b", "c": programs.ELF}[form]


@pytest.mark.parametrize("content", [b"", b"\x7fELF", programs.ELF + programs.MARK + b"\0" * 99])
def test_what_is_no_compiled_wrapper_is_left_alone(content: bytes, ask: Ask, source: Path) -> None:
    (source / "libexec").mkdir(exist_ok=True)
    (source / programs.WRAPPER).write_bytes(content)
    request = ask()
    install(request)
    assert call(request.program("nvidia-ctk")).stdout.startswith(f"{request.toolkit}/.nvct/")


def test_names_for_which_a_compiled_wrapper_has_no_room_stand_in_a_script(ask: Ask) -> None:
    request = ask()
    install(request, ["/nonexistent/" + "x" * programs.ROOM, "/bin/true"], loaded=False)
    assert call(request.program("nvidia-container-runtime")).returncode == 0


def test_without_a_variable_path_the_folders_of_programs_are_found(ask: Ask) -> None:
    request = ask()
    install(request)
    done = subprocess.run(
        [request.program("nvidia-ctk")], env={}, capture_output=True, text=True, check=True
    )
    path = done.stdout.splitlines()[1].split(":")
    assert path[0] == request.toolkit
    assert {"/usr/bin", "/bin"} <= set(path)


def test_without_driver_and_runtime_it_says_so(ask: Ask) -> None:
    request = ask()
    install(request, ["/nonexistent/runc", "/nonexistent/crun"], loaded=False)
    done = call(request.program("nvidia-container-runtime"), "create")
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.splitlines() == [
        "nvidia driver modules are not yet loaded, invoking /nonexistent/runc directly",
        "no low-level runtime: /nonexistent/runc, /nonexistent/crun",
    ]


@pytest.mark.parametrize(
    "word", ["$(touch made)", "`touch made`", "a'; touch made; '", '"; touch made']
)
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
    hook.unlink()
    shutil.copy("/bin/true", hook)
    request = ask()
    install(request, RUNTIMES)
    assert os.readlink(request.program(HOOK_PROGRAM)).startswith(".nvct/")
    assert call(request.program(HOOK_PROGRAM)).returncode == 0
    assert os.readlink(request.program("nvidia-container-toolkit")) == programs.HOOK


def test_twice_is_the_same_as_once(ask: Ask) -> None:
    request = ask()
    assert install(request, RUNTIMES).changed
    before = os.stat(request.program("nvidia-container-runtime")).st_ino
    assert not install(request, RUNTIMES).changed
    assert os.stat(request.program("nvidia-container-runtime")).st_ino == before
    assert install(request, ["crun"]).changed


def test_an_upgrade_keeps_the_tree_before_and_no_more(ask: Ask, tmp_path: Path) -> None:
    request = ask()
    trees = [install(request, RUNTIMES).tree]
    for number in range(3):
        newer = bundle(tmp_path / f"bundle{number}", f"#!/bin/sh\necho {number}\n")
        trees.append(install(ask(source=str(newer)), RUNTIMES).tree)
        there = {
            f"{request.toolkit}/.nvct/{name}" for name in os.listdir(f"{request.toolkit}/.nvct")
        }
        assert there == set(trees[-2:])
    assert call(request.program("nvidia-ctk")).stdout == "2\n"


def test_what_the_incumbent_left_goes_and_what_others_put_there_stays(ask: Ask) -> None:
    request = ask()
    os.makedirs(request.toolkit)
    for name in ("nvidia-container-runtime.real", "libnvidia-container.so.1.18.0", "mine.txt"):
        with open(f"{request.toolkit}/{name}", "w", encoding="utf-8") as file:
            file.write("old")
    install(request, RUNTIMES)
    left = set(os.listdir(request.toolkit))
    assert "mine.txt" in left
    assert not left & {"nvidia-container-runtime.real", "libnvidia-container.so.1.18.0"}


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
