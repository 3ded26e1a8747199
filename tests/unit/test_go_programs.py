# SPDX-License-Identifier: Apache-2.0
"""Unit tests for tests.support.go_programs, with a fake go and a fake C compiler."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.support import go_programs
from tests.support.go_programs import Program

GO = """#!/bin/sh
case $1 in
env) echo go1.26.8 ;;
list) echo {module} ;;
build)
  echo "$*" >> {log}
  for word; do case $word in -o=*) : > "${{word#-o=}}" ;; esac; done ;;
esac
"""
CC = """#!/bin/sh
echo "cc $*" >> {log}
for word; do case $word in -o*) : > "${{word#-o}}" ;; esac; done
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A program of two files; what is run for it is in tmp_path/log."""
    module = tmp_path / "module"
    (module / "src").mkdir(parents=True)
    (module / "src/pinns.c").touch()
    source = tmp_path / "source"
    source.mkdir()
    (source / "go.mod").write_text("module tests\n\nrequire example.com/crio v1.34.0\n")
    (source / "go.sum").write_text("")
    _install(tmp_path, "go", GO.format(module=module, log=tmp_path / "log"))
    _install(tmp_path, "cc", CC.format(log=tmp_path / "log"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv(go_programs.CACHE_ENV, str(tmp_path / "cache"))
    return Program(
        name="crio", source=source, module="example.com/crio", package="example.com/crio/cmd",
        tags=("one", "two"), c_programs={"pinns": "src"}, prefix="crio-",
    )  # fmt: skip


def _install(folder: Path, name: str, text: str) -> None:
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_a_program_is_built_once_with_its_c_programs(program: Program, tmp_path: Path) -> None:
    folder = go_programs.build(program)
    assert folder == go_programs.build(program) == program.folder()
    assert sorted(os.listdir(folder)) == ["crio", "pinns"]
    go, cc = (tmp_path / "log").read_text().splitlines()
    assert "-mod=readonly" in go
    assert "-tags=one,two" in go
    assert cc.endswith(f"{tmp_path}/module/src/pinns.c")


def test_other_tags_or_checksums_build_it_again_and_the_old_one_goes(program: Program) -> None:
    first = go_programs.build(program)
    second = go_programs.build(replace(program, tags=("one",)))
    (program.source / "go.sum").write_text("changed\n")
    third = go_programs.build(program)
    assert len({first, second, third}) == 3
    assert [third] == list(third.parent.glob("crio-*"))


def test_programs_of_other_names_stay(program: Program) -> None:
    other = go_programs.build(replace(program, prefix=""))
    go_programs.build(program)
    assert other.is_dir()


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("go", "crio is not built: there is no go on PATH"),
        ("cc", "crio is not built: there is no C compiler (cc) for its pinns"),
    ],
)
def test_a_missing_tool_is_named_and_nothing_is_kept(
    missing: str, sentence: str, program: Program, tmp_path: Path
) -> None:
    (tmp_path / "bin" / missing).unlink()
    with pytest.raises(ContainerNotPossibleError) as caught:
        go_programs.build(program)
    assert caught.value.message == sentence
    assert not program.folder().exists()


@pytest.mark.parametrize(
    ("go", "sentence"),
    [
        ("echo go1.27.0", "crio is not built: it needs Go 1.26, this is go1.27.0"),
        (
            '[ $1 = env ] && echo go1.26.8 || { echo "go.sum: mismatch" >&2; exit 1; }',
            "go cannot build crio here: go.sum: mismatch",
        ),
    ],
)
def test_another_go_and_a_refused_module_are_named(
    go: str, sentence: str, program: Program, tmp_path: Path
) -> None:
    _install(tmp_path, "go", f"#!/bin/sh\n{go}\n")
    with pytest.raises(ContainerNotPossibleError) as caught:
        go_programs.build(program)
    assert caught.value.message == sentence
    assert not program.folder().exists()
