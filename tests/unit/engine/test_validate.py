# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.engine.engine_control: an engine reads files that only it sees."""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nvct.engine import command, containerd, engine_control
from nvct.engine.command import Completed, Run
from nvct.engine.engine_control import EngineControl
from nvct.engine.model import EngineOptions, FileEdit, Handler
from nvct.engine.reload import Reload, Reloader
from nvct.errors import EngineError
from tests.support.forked import may_unshare

NEW = b"new\n"
OLD = b"old\n"


@pytest.fixture
def private() -> None:
    if not may_unshare():
        pytest.skip("needs CAP_SYS_ADMIN")


def engine(folder: Path, text: str) -> str:
    """Make a program that stands for an engine; $CONFIG is its main file."""
    path = folder / "engine"
    path.write_text(f'#!/bin/sh\nCONFIG="${{1#--config=}}"\n{text}\n', encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def config(folder: Path) -> Path:
    path = folder / "etc/containerd/config.toml"
    path.parent.mkdir(parents=True)
    path.write_bytes(OLD)
    return path


def edit(path: Path, after: bytes | None = NEW) -> FileEdit:
    before = path.read_bytes() if path.exists() else None
    return FileEdit(path=str(path), before=before, after=after)


@dataclass
class Quiet(Reloader):
    """Reloads nothing, or would."""

    option: str = ""

    def opt_out(self) -> str:
        return self.option

    def choose(self, *, restart: bool, removing: bool) -> Reload:
        del restart, removing
        return Reload()

    def carry_out(self, decision: Reload, run: Run, *, restored: bool) -> str:
        del decision, run, restored
        raise AssertionError


def control(
    asked: EngineOptions, program: str, run: Run = command.run, opt_out: str = ""
) -> EngineControl:
    return EngineControl(options=asked, program=program, reloader=Quiet(opt_out), run=run)


def check(program: str, main: Path, *edits: FileEdit, opt_out: str = "") -> Sequence[str]:
    return control(options("containerd", main), program, opt_out=opt_out).check(edits)


def options(engine: str, main: Path) -> EngineOptions:
    return EngineOptions(engine=engine, handlers=(), config=str(main))


@pytest.mark.usefixtures("private")
def test_only_the_engine_sees_the_edited_files(tmp_path: Path) -> None:
    main = config(tmp_path)
    drop_in = main.parent / "conf.d/99-nvidia.toml"
    removed = main.parent / "gone.toml"
    removed.write_bytes(OLD)
    (tmp_path / "srv").mkdir()
    elsewhere = tmp_path / "srv/opt/other.toml"
    seen_file = tmp_path / "seen"
    seen_file.mkdir()
    program = engine(
        tmp_path,
        f'cp "$CONFIG" {drop_in} {elsewhere} {seen_file}\n[ -e {removed} ] && touch {seen_file}/gone\nexit 0',
    )

    notes = check(program, main, edit(drop_in), edit(main), edit(removed, None), edit(elsewhere))

    assert notes == []
    assert sorted(path.name for path in seen_file.iterdir()) == [
        "99-nvidia.toml", "config.toml", "other.toml",
    ]  # fmt: skip
    assert {path.read_bytes() for path in seen_file.iterdir()} == {NEW}
    assert main.read_bytes() == OLD
    assert removed.read_bytes() == OLD
    assert not drop_in.parent.exists()
    assert not elsewhere.parent.exists()


@pytest.mark.usefixtures("private")
def test_a_link_is_followed(tmp_path: Path) -> None:
    main = config(tmp_path)
    link = tmp_path / "link.toml"
    link.symlink_to(main)

    check(engine(tmp_path, f'cp "$CONFIG" {tmp_path}/seen'), link, edit(link))

    assert (tmp_path / "seen").read_bytes() == NEW
    assert main.read_bytes() == OLD


@pytest.mark.usefixtures("private")
@pytest.mark.parametrize("name", ["a,b", "a:b", "a b", "ä\\c"])
def test_folders_of_any_name_are_served(tmp_path: Path, name: str) -> None:
    main = tmp_path / name / "config.toml"
    main.parent.mkdir()
    main.write_bytes(OLD)

    check(engine(tmp_path, f'cp "$CONFIG" {shlex.quote(str(tmp_path))}/seen'), main, edit(main))

    assert (tmp_path / "seen").read_bytes() == NEW


@pytest.mark.usefixtures("private")
def test_a_refusal_quotes_the_engine(tmp_path: Path) -> None:
    main = config(tmp_path)
    program = engine(tmp_path, 'grep -q old "$CONFIG" || { echo line 7: no >&2; exit 1; }')

    with pytest.raises(EngineError, match="containerd refuses the new configuration: line 7: no"):
        check(program, main, edit(main))


@pytest.mark.usefixtures("private")
def test_an_edit_is_not_blamed_for_files_that_were_refused_before(tmp_path: Path) -> None:
    main = config(tmp_path)

    notes = check(engine(tmp_path, "echo bad plugin >&2; exit 1"), main, edit(main))

    assert notes == ["containerd refuses even its present files: bad plugin"]


@pytest.mark.usefixtures("private")
def test_a_running_engine_is_not_reloaded_with_files_that_it_refuses(tmp_path: Path) -> None:
    main = config(tmp_path)

    with pytest.raises(EngineError, match="refuses even its present files: bad plugin"):
        check(engine(tmp_path, "echo bad plugin >&2; exit 1"), main, edit(main), opt_out="--x")


@pytest.mark.usefixtures("private")
def test_a_new_main_file_is_checked_and_a_removed_one_is_not(tmp_path: Path) -> None:
    main = config(tmp_path)
    program = engine(tmp_path, "echo no such file >&2; exit 1")

    assert check(program, main, edit(main, None)) == []
    main.unlink()
    with pytest.raises(EngineError, match="refuses the new configuration: no such file"):
        check(program, main, edit(main))


@pytest.mark.usefixtures("private")
@pytest.mark.parametrize(
    "message", ["unknown flag: --validate", "flag provided but not defined: -validate"]
)
def test_an_engine_that_cannot_check_is_not_asked_twice(tmp_path: Path, message: str) -> None:
    main = config(tmp_path)

    assert check(engine(tmp_path, f"echo {message} >&2; exit 125"), main, edit(main)) == []


def test_a_missing_engine_is_a_note(tmp_path: Path) -> None:
    main = config(tmp_path)

    assert check(str(tmp_path / "containerd"), main, edit(main)) == [
        "not checked by containerd itself: containerd is not installed here"
    ]


def test_a_host_without_private_mounts_is_a_note(tmp_path: Path) -> None:
    main = config(tmp_path)

    def run(
        _argv: Sequence[str], _timeout_s: float = 0, *, enter: Callable[[], None] | None = None
    ) -> Completed:
        if enter is not None:
            raise PermissionError(1, os.strerror(1))
        return Completed(status=0)

    assert control(options("containerd", main), engine(tmp_path, ""), run).check([edit(main)]) == [
        "not checked by containerd itself: a private mount failed (Operation not permitted)"
    ]


def test_crio_reads_its_folder_of_drop_ins_with_and_without_a_main_file(tmp_path: Path) -> None:
    main = options("crio", tmp_path / "crio.conf")
    other = replace(main, drop_in="/opt/crio.d/99-nvidia.toml")

    assert engine_control.check_argv(main, "crio", has_file=True) == [
        "crio", f"--config={tmp_path}/crio.conf", "--config-dir=/etc/crio/crio.conf.d", "config",
    ]  # fmt: skip
    assert engine_control.check_argv(other, "crio", has_file=False) == [
        "crio", "--config-dir=/opt/crio.d", "config",
    ]  # fmt: skip


def test_podman_reads_its_files_at_every_command(tmp_path: Path) -> None:
    assert engine_control.check_argv(options("podman", tmp_path), "podman", has_file=False) == [
        "podman", "version",
    ]  # fmt: skip


# What has no effect

DUMP = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""


def _missing(dump: str, default: str) -> str:
    asked = EngineOptions(
        engine="containerd",
        handlers=(Handler(name="nvidia", path="/usr/bin/nvidia-container-runtime"),),
        default=default,
        config="/etc/containerd/config.toml",
    )
    return containerd.missing_in_dump(asked, dump)


@pytest.mark.parametrize(
    ("dump", "default", "missing"),
    [
        (DUMP, "", ""),
        (DUMP, "nvidia", "the default runtime nvidia"),
        (DUMP.replace('"runc"', '"nvidia"'), "nvidia", ""),
        (DUMP.replace("runtimes.nvidia", "runtimes.other"), "", "the runtime nvidia of /usr/bin"),
        (DUMP.replace("/usr/bin/nv", "/opt/nv"), "", "the runtime nvidia of /usr/bin"),
        (
            DUMP.replace('"runc"', '"nvidia"')
            + '[plugins."io.containerd.grpc.v1.cri".containerd.default_runtime]\n'
            + 'runtime_type = "x"\n',
            "nvidia",
            "the default runtime nvidia",
        ),
        ("version = 2\n", "", ""),
        ('disabled_plugins = ["io.containerd.grpc.v1.cri"]\n' + DUMP, "nvidia", ""),
        ("no TOML", "", ""),
    ],
)
def test_options_that_are_not_in_force_are_reported(dump: str, default: str, missing: str) -> None:
    message = _missing(dump, default)

    assert message.startswith(missing)
    assert bool(message) == bool(missing)


@pytest.mark.usefixtures("private")
def test_an_edit_without_effect_is_refused(tmp_path: Path) -> None:
    main = config(tmp_path)
    dump = tmp_path / "dump"
    dump.write_text(DUMP)
    program = engine(tmp_path, f"cat {dump}")
    asked = EngineOptions(
        engine="containerd", handlers=(Handler(name="other", path="/x"),), config=str(main)
    )

    with pytest.raises(EngineError, match="without the runtime other of /x") as caught:
        control(asked, program).check([edit(main)])
    assert caught.value.hint == "nothing was changed"
    assert replace(control(asked, program), removing=True).check([edit(main)]) == []
    with pytest.raises(EngineError, match="without the runtime other of /x"):
        control(asked, program).activate(restart=False)
