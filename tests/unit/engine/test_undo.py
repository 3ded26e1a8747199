# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.engine.undo: every engine, edited by its admin after configure."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nvct.engine import modules, restore, writing
from nvct.engine.journal import Entry, Journal
from nvct.engine.model import EngineOptions, Files, Handler, State
from nvct.engine.transaction import Transaction
from tests.support.memory import in_memory
from tests.support.recording_kernel import RecordingKernel

SHIM = "/usr/bin/nvidia-container-runtime"
HANDLERS = (
    Handler(name="nvidia", path=SHIM),
    Handler(name="nvidia-cdi", path=f"{SHIM}.cdi"),
    Handler(name="nvidia-legacy", path=f"{SHIM}.legacy"),
)
CRI2 = 'plugins."io.containerd.grpc.v1.cri".containerd'
CRI3 = "plugins.'io.containerd.cri.v1.runtime'.containerd"
CONTAINERD = """\
# The admin's own.
version = {version}

[{cri}]
  default_runtime_name = "runsc"
  [{cri}.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [{cri}.runtimes.runc.options]
      SystemdCgroup = true
  [{cri}.runtimes.runsc]
    runtime_type = "io.containerd.runsc.v1"
  [{cri}.runtimes.nvidia-legacy]
    runtime_type = "io.containerd.runc.v2"
    [{cri}.runtimes.nvidia-legacy.options]
      BinaryName = "/opt/their/runtime"

[debug]
  level = "info"
"""
CONTAINERD_KATA = '\n[{cri}.runtimes.kata]\n  runtime_type = "io.containerd.kata.v2"\n'
DOCKER = """\
{
    "log-driver": "json-file",
    "default-runtime": "runsc",
    "runtimes": {
        "runsc": {"path": "/usr/bin/runsc"},
        "nvidia-legacy": {"path": "/opt/their/runtime"}
    }
}
"""
CRIO = """\
# The admin's own.
[crio.runtime]
default_runtime = "runsc"

[crio.runtime.runtimes.runc]
runtime_path = "/usr/bin/runc"
monitor_path = "/usr/bin/conmon"

[crio.runtime.runtimes.runsc]
runtime_path = "/usr/bin/runsc"
monitor_path = "/usr/bin/conmon"

[crio.runtime.runtimes.nvidia-legacy]
runtime_path = "/opt/their/runtime"
"""
PODMAN = """\
# The admin's own.
[engine]
runtime = "runsc"

[engine.runtimes]
runsc = ["/usr/bin/runsc"]
nvidia-legacy = ["/opt/their/runtime"]
"""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine with a configuration of its admin.

    Attributes:
        text: of the main file.
        kata: what registers another runtime, at the end of a file.
        default: how the default runtime nvidia is written.
        option: a line, and the line that adds an option of the admin's to our handler after it.
        edited: the program of our handler as it is written, and another program.
        drop_in: the file that configure writes beside the main file.
    """

    engine: str
    text: str
    kata: str = ""
    default: str
    option: tuple[str, str] = ("", "")
    drop_in: str = ""
    version: tuple[int, ...] = ()
    wanted_drop_in: str | None = None

    @property
    def config(self) -> str:
        return modules.CONFIG[self.engine]

    @property
    def written(self) -> str:
        return self.drop_in or self.config

    def options(self) -> EngineOptions:
        return EngineOptions(
            engine=self.engine, handlers=HANDLERS, default="nvidia",
            cdi=self.engine in ("docker", "containerd"), config=self.config,
            drop_in="" if self.engine == "docker" else self.wanted_drop_in,
            engine_version=self.version,
        )  # fmt: skip


def _containerd(version: tuple[int, ...], form: int, cri: str, **more: str) -> Engine:
    return Engine(
        engine="containerd", text=CONTAINERD.format(version=form, cri=cri),
        kata=CONTAINERD_KATA.format(cri=cri), version=version,
        default='default_runtime_name = "nvidia"', **more,  # type: ignore[arg-type]
    )  # fmt: skip


ENGINES = {
    "docker": Engine(engine="docker", text=DOCKER, default='"default-runtime": "nvidia"'),
    "containerd-1.7": _containerd((1, 7, 24), 2, CRI2),
    "containerd-1.7-dropin": _containerd(
        (1, 7, 24), 2, CRI2, drop_in="/etc/containerd/conf.d/99-nvidia.toml",
        wanted_drop_in="/etc/containerd/conf.d/99-nvidia.toml",
    ),
    "containerd-2.1-v2": _containerd(
        (2, 1, 9), 2, CRI2, drop_in="/etc/containerd/conf.d/99-nvidia.toml"
    ),
    "containerd-2.1": _containerd(
        (2, 1, 9), 3, CRI3, drop_in="/etc/containerd/conf.d/99-nvidia.toml"
    ),
    "crio": Engine(
        engine="crio", text=CRIO, drop_in="/etc/crio/crio.conf.d/99-nvidia.toml",
        kata='\n[crio.runtime.runtimes.kata]\nruntime_path = "/usr/bin/kata"\n',
        default='default_runtime = "nvidia"',
    ),
    "podman": Engine(
        engine="podman", text=PODMAN, drop_in="/etc/containers/containers.conf.d/99-nvidia.conf",
        default='runtime = "nvidia"',
    ),
}  # fmt: skip
FOREIGN_HANDLERS = {"runsc": "/usr/bin/runsc", "nvidia-legacy": "/opt/their/runtime"}


class Host:
    """A tree with one engine's files."""

    def __init__(self, root: Path, engine: Engine) -> None:
        self.root = root
        self.engine = engine
        self.files = Files(f"{root}/host")
        self.journal = Journal(f"{root}/state")
        self.write(engine.config, engine.text)

    @property
    def transaction(self) -> Transaction:
        return Transaction(modules.of(self.engine.engine), self.files, self.journal)

    def at(self, path: str) -> Path:
        return Path(self.files.at(path))

    def read(self, path: str) -> str:
        return self.at(path).read_text(encoding="utf-8")

    def write(self, path: str, text: str) -> None:
        self.at(path).parent.mkdir(parents=True, exist_ok=True)
        self.at(path).write_text(text, encoding="utf-8")

    def replace(self, path: str, old: str, new: str) -> None:
        text = self.read(path)
        assert old in text, (path, old, text)
        self.write(path, text.replace(old, new))

    def configure(self) -> None:
        self.transaction.configure(self.engine.options())

    def undo(self) -> tuple[str, ...]:
        return self.transaction.undo(self.engine.options()).notes

    def remove(self) -> tuple[str, ...]:
        bare = replace(self.engine.options(), cdi=False)
        return self.transaction.remove(bare).notes

    def state(self) -> State:
        return self.transaction.module.state(self.engine.options(), self.files)

    def tree(self) -> dict[str, str]:
        top = Path(self.files.root)
        return {
            f"/{path.relative_to(top)}": path.read_text(encoding="utf-8")
            for path in sorted(top.rglob("*"))
            if path.is_file()
        }


@pytest.fixture(params=ENGINES, ids=str)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    with in_memory(tmp_path) as folder:
        yield Host(folder, ENGINES[request.param])


def _starts(host: Host) -> None:
    """Assert that the default is registered: no engine starts, or has its CRI, without it."""
    state = host.state()
    assert state.default in {"", *state.handlers}, state


def _edit_json(host: Host, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(host.read(host.engine.config))
    change(document)
    host.write(host.engine.config, json.dumps(document, indent=4) + "\n")


@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("file", ["main", "written"])
def test_a_comment_stays_and_our_settings_are_removed(host: Host, where: str, file: str) -> None:
    host.configure()
    path = host.engine.config if file == "main" else host.engine.written
    if host.engine.engine == "docker":
        _edit_json(host, lambda document: document.update({"debug": True}))
        host.undo()
        assert json.loads(host.read(path)) == {**json.loads(DOCKER), "debug": True}
        return
    text = host.read(path)
    host.write(path, f"# mine\n{text}" if where == "first" else f"{text}# mine\n")

    host.undo()

    text = host.engine.text
    edited = f"# mine\n{text}" if where == "first" else f"{text}# mine\n"
    expected = {host.engine.config: text}
    if path == host.engine.config:
        expected = {path: edited}
    else:
        assert "# mine\n" in host.read(path)
        expected[path] = host.read(path)
        assert "nvidia" not in host.read(path).replace("nvct runtime undo", "").lower()
    assert host.tree() == expected
    _starts(host)


@pytest.mark.parametrize("file", ["main", "written"])
def test_another_runtime_stays_and_is_read(host: Host, file: str) -> None:
    host.configure()
    path = host.engine.config if file == "main" else host.engine.written
    engine = host.engine.engine
    if engine == "docker":
        _edit_json(
            host, lambda document: document["runtimes"].update({"kata": {"path": "/usr/bin/kata"}})
        )
    elif engine == "podman":
        host.replace(path, "[engine.runtimes]\n", '[engine.runtimes]\nkata = ["/usr/bin/kata"]\n')
    else:
        host.write(path, host.read(path) + host.engine.kata)

    host.undo()

    state = host.state()
    assert state.default == "runsc"
    names = set(state.handlers)
    assert names - {"runc"} == {"kata", *FOREIGN_HANDLERS}, host.tree()
    assert SHIM not in "".join(host.tree().values())


def _cut_short(host: Host, command: Callable[[], object], at: int) -> bool:
    """Kill a command after a rename; return whether it came so far."""
    child = os.fork()
    if not child:
        host.journal.kernel = RecordingKernel(("rename", "after", at))
        try:
            command()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("command", ["configure", "undo"])
def test_an_edit_by_others_after_a_kill_stays_and_our_settings_are_removed(
    host: Host, command: str
) -> None:
    path, at, is_killed = host.engine.config, 0, True
    before = host.tree()
    while is_killed:
        at += 1
        if command == "undo":
            host.configure()
        is_killed = _cut_short(host, host.undo if command == "undo" else host.configure, at)
        if host.engine.engine == "docker":
            _edit_json(host, lambda document: document.update({"debug": True}))
        else:
            host.write(path, f"# theirs\n{host.read(path)}")
        _starts(host)

        host.undo()

        tree = host.tree()
        if host.engine.engine == "docker":
            theirs = {**json.loads(before[path]), "debug": True}
            assert json.loads(tree.pop(path)) == theirs, at
        else:
            assert tree.pop(path) == f"# theirs\n{before[path]}", at
        assert tree == {name: text for name, text in before.items() if name != path}, at
        assert host.journal.paths() == []
        host.write(path, before[path])
    assert at >= 2


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize(
    ("name", "later", "text"),
    [
        (
            "crio",
            "/etc/crio/crio.conf.d/nv.conf",
            '[crio.runtime.runtimes.nvidia]\nruntime_path = "/old" # why\n',
        ),
        (
            "podman",
            "/etc/containers/containers.conf.d/nvidia.conf",
            '[engine.runtimes]\nnvidia = ["/old"] # why\n',
        ),
    ],
)
def test_a_file_of_the_admins_that_was_edited_in_place_gets_its_bytes_back(
    tmp_path: Path, name: str, later: str, text: str, *, edited: bool
) -> None:
    host = Host(tmp_path, ENGINES[name])
    host.write(later, text)
    before = host.tree()
    options = replace(host.engine.options(), in_place=True)
    host.transaction.configure(options)
    assert {path for path, data in host.tree().items() if before.get(path) != data} == {later}
    assert host.transaction.module.state(options, host.files).handlers["nvidia"] != "/old"
    if edited:
        host.write(later, "# theirs\n" + host.read(later))

    host.transaction.undo(options)

    if edited:
        assert host.state().handlers["nvidia"] == "/old"
        assert host.read(later).split() == f"# theirs\n{text}".split()
    else:
        assert host.tree() == before


def test_a_default_of_the_admins_stays(host: Host) -> None:
    host.configure()
    path = host.engine.config
    for written in dict.fromkeys((host.engine.written, path)):
        if host.engine.default in host.read(written):
            default = host.engine.default.replace("nvidia", "runc")
            host.replace(written, host.engine.default, default)
    assert host.state().default == "runc"

    host.undo()

    state = host.state()
    assert state.default == "runc"
    assert set(state.handlers) - {"runc"} == set(FOREIGN_HANDLERS)
    assert "runc" in state.handlers or host.engine.engine in ("docker", "podman")


def test_another_default_of_ours_is_replaced_by_the_former_one(host: Host) -> None:
    host.configure()
    for written in dict.fromkeys((host.engine.written, host.engine.config)):
        if host.engine.default in host.read(written):
            default = host.engine.default.replace("nvidia", "nvidia-cdi")
            host.replace(written, host.engine.default, default)
    assert host.state().default == "nvidia-cdi"

    notes = host.undo()

    assert host.state().default == "runsc"
    assert set(host.state().handlers) - {"runc"} == set(FOREIGN_HANDLERS)
    if host.engine.version >= (2, 1):  # the default and the runtime are in different files
        assert any("nvidia-cdi is no longer registered" in note for note in notes), notes


@pytest.mark.parametrize("host", ["docker", "containerd-1.7"], indirect=True)
def test_a_former_default_that_is_gone_is_not_put_back(host: Host) -> None:
    host.configure()
    if host.engine.engine == "docker":
        _edit_json(host, lambda document: document["runtimes"].pop("runsc"))
    else:
        text = host.read(host.engine.config)
        lines = [line for line in text.splitlines(keepends=True) if "runsc" not in line]
        host.write(host.engine.config, "".join(lines))

    notes = host.undo()

    _starts(host)
    assert host.state().default == ""
    assert any(
        "runsc is no longer registered: the default is the engine's own" in n for n in notes
    )


def test_our_handler_is_removed_unless_it_has_another_program(host: Host) -> None:
    host.configure()
    our_program, other = f"{SHIM}.cdi", "/opt/mine/runtime"
    host.replace(host.engine.written, our_program, other)
    engine = host.engine.engine
    if engine == "docker":
        _edit_json(host, lambda document: document["runtimes"]["nvidia"].update({"args": ["-x"]}))
    elif engine == "crio":
        host.replace(
            host.engine.written, f'runtime_path = "{SHIM}"\n',
            f'runtime_path = "{SHIM}"\nallowed_annotations = ["x"]\n',
        )  # fmt: skip
    elif engine == "containerd":
        text = host.read(host.engine.written)
        line = next(line for line in text.splitlines() if SHIM in line and ".legacy" not in line)
        host.replace(host.engine.written, f"{line}\n", f"{line}\n      Root = '/x'\n")

    host.undo()

    handlers = host.state().handlers
    assert handlers.get("nvidia-cdi") == other, host.tree()
    assert "nvidia" not in handlers
    assert host.state().default == "runsc"
    assert SHIM not in "".join(host.tree().values())


def test_remove_without_a_journal_removes_only_handlers_of_our_program(host: Host) -> None:
    host.configure()
    other = "/opt/mine/runtime"
    host.replace(host.engine.written, f"{SHIM}.cdi", other)
    for page in Path(host.journal.folder).glob("*.json"):
        page.unlink()

    host.remove()

    handlers = host.state().handlers
    assert handlers.get("nvidia-cdi") == other, host.tree()
    assert "nvidia" not in handlers
    assert SHIM not in "".join(host.tree().values())
    _starts(host)
    before = host.tree()
    host.remove()
    assert host.tree() == before


LATIN_1 = b"# caf\xe9\n"


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("name", ["containerd-1.7", "containerd-1.7-dropin"])
def test_bytes_that_are_not_utf_8_are_undone(
    tmp_path: Path, name: str, *, remove: bool, edited: bool
) -> None:
    """containerd 1.x takes any byte in a comment."""
    host = Host(tmp_path, ENGINES[name])
    config = host.at(host.engine.config)
    before = LATIN_1 + config.read_bytes()
    config.write_bytes(before)
    host.configure()
    if edited:
        before += LATIN_1
        config.write_bytes(config.read_bytes() + LATIN_1)
        host.transaction.configure(replace(host.engine.options(), spec_dirs=("/srv/cdi",)))

    host.remove() if remove else host.undo()

    assert config.read_bytes().count(LATIN_1) == 1 + edited
    assert SHIM.encode() not in config.read_bytes()
    _starts(host)
    if not remove:
        assert config.read_bytes() == before


def test_remove_with_a_damaged_journal_leaves_an_engine_that_starts(host: Host) -> None:
    host.configure()
    pages = list(Path(host.journal.folder).glob("*.json"))
    for page in pages:
        page.write_text("{", encoding="utf-8")

    notes = host.remove()

    assert f"{pages[0]}.damaged" in notes[0]
    assert SHIM not in "".join(host.tree().values())
    _starts(host)


@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("name", ["10-first.toml", "99-zlast.toml"])
def test_two_drop_ins_of_crio_are_undone_at_once(
    tmp_path: Path, name: str, *, remove: bool
) -> None:
    host = Host(tmp_path, ENGINES["crio"])
    before = host.tree()
    options = replace(host.engine.options(), default="")
    other = f"/etc/crio/crio.conf.d/{name}"
    more = Handler(name="more", path=SHIM)
    host.transaction.configure(options)
    host.transaction.configure(replace(options, default="nvidia", drop_in=other))
    host.transaction.configure(replace(options, handlers=(more,)))
    assert "more" in host.state().handlers
    if remove:
        shutil.rmtree(host.journal.folder)
        host.remove()
        assert SHIM not in "".join(host.tree().values())
        _starts(host)
    else:
        host.transaction.undo(options)
        assert host.tree() == before


def test_an_additional_runtime_is_removed_unless_others_added_one() -> None:
    head = "[plugins.cri.containerd.runtimes."
    before = f'{head}mine]\nruntime_type = "m"\n'.encode()
    configured = before + f'{head}former-default]\nruntime_type = "x"\n'.encode()
    foreign = configured + f'{head}kata]\nruntime_type = "k"\n'.encode()
    syntax = modules.of("containerd").SYNTAX
    file = writing.new_file("/x")
    entry = Entry(path="/x", before=file.with_content(before), after=file.with_content(configured))

    for current, is_removed in ((configured, True), (foreign, False)):
        restored, _ = restore.restored(entry, current, syntax, {"nvidia"})
        assert (b"former-default" not in (restored or b"")) is is_removed


def test_a_default_of_another_kind_that_others_wrote_stays() -> None:
    cri = "plugins.cri.containerd"
    before = f'[{cri}]\ndefault_runtime_name = "runc"\n'
    table = f'[{cri}.runtimes.nvidia]\nruntime_type = "x"\n'
    configured = before.replace('"runc"', '"nvidia"') + table
    current = configured.replace('"nvidia"', '["a"]')
    file = writing.new_file("/x")
    entry = Entry(
        path="/x",
        before=file.with_content(before.encode()),
        after=file.with_content(configured.encode()),
    )
    syntax = modules.of("containerd").SYNTAX

    restored, _ = restore.restored(entry, current.encode(), syntax, {"nvidia"})

    assert (restored or b"").decode() == before.replace('"runc"', '["a"]')
