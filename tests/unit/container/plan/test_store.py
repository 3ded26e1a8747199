# SPDX-License-Identifier: Apache-2.0
"""The run directory: its files are used only if no other user could write them; their depth."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.container.plan import store as stores
from nvct.container.plan.store import Store, run_dir
from nvct.oci.jsontext import DEPTH_LIMIT as LIMIT
from tests.support.descriptors import none_left_open
from tests.support.shim_lab import Lab

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
PLAN = b'{"nvct-plan":1,"facts":[]}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    new_folder = tmp_path / "run"
    new_folder.mkdir(0o700)
    return new_folder


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    new_store = Store(str(folder))
    yield new_store
    new_store.close()


def test_a_written_document_is_read_unchanged_and_is_plain_json(
    store: Store, folder: Path
) -> None:
    document = {"nvct-plan": 1, "facts": [], "a": "\u20ac\udcff"}
    assert store.write_json("own.plan", document)
    assert store.read_json("own.plan") == document
    sealed = json.loads((folder / "own.plan").read_bytes())
    assert sealed.pop("sum")
    assert sealed == document


def test_a_document_with_any_changed_byte_is_not_used(store: Store, folder: Path) -> None:
    assert store.write_json("own.plan", {"devices": {"a": {"refuse": "no", "edits": 1}}})
    path = folder / "own.plan"
    good = path.read_bytes()
    for at in range(len(good)):
        for byte in (good[at] ^ 1, 0x20, 0x30):
            if byte == good[at]:
                continue
            path.write_bytes(good[:at] + bytes([byte]) + good[at + 1 :])
            assert store.read_json("own.plan") is None, at
        path.write_bytes(good[:at] + good[at + 1 :])
        assert store.read_json("own.plan") is None, at
    path.write_bytes(good)
    assert store.read_json("own.plan") is not None


def test_files_of_a_killed_process_do_not_stop_the_next_write(store: Store, folder: Path) -> None:
    (folder / f".f.{os.getpid()}").write_bytes(b"half of a much longer thing")
    assert store.write("f", b"new")
    assert store.read("f") == "new"
    assert os.listdir(folder) == ["f"]


def test_a_failed_write_is_reported_and_leaves_nothing(store: Store, folder: Path) -> None:
    (folder / "f").mkdir()
    assert store.write("f", b"x") is False
    assert store.reason == f"{folder}/f: Is a directory"
    assert os.listdir(folder) == ["f"]


@pytest.mark.parametrize("name", ["gone", "folder", "fifo", "link", "dangling"])
def test_only_a_regular_file_is_read(store: Store, folder: Path, name: str) -> None:
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo", 0o600)
    (folder / "real").write_bytes(PLAN)
    (folder / "link").symlink_to("real")
    (folder / "dangling").symlink_to("nowhere")
    assert store.read(name) is None
    assert store.read_json(name) is None


@pytest.mark.parametrize(
    ("mode", "is_read"),
    [(0o620, False), (0o602, False), (0o666, False), (0o722, False), (0o600, True), (0o400, True),
     (0o644, True)],
)  # fmt: skip
def test_a_file_that_others_may_write_is_not_read(
    store: Store, folder: Path, mode: int, *, is_read: bool
) -> None:
    store.write("f", PLAN)
    (folder / "f").chmod(mode)
    assert store.read("f") == (PLAN.decode() if is_read else None)


@as_root
def test_a_file_of_another_user_is_not_read(store: Store, folder: Path) -> None:
    store.write("f", PLAN)
    os.chown(folder / "f", 12345, -1)
    assert store.read("f") is None


def test_a_file_that_is_too_large_is_not_read(store: Store, folder: Path) -> None:
    (folder / "f").touch(0o600)
    os.truncate(folder / "f", stores.LIMIT + 1)
    assert store.read("f") is None


@pytest.mark.parametrize(
    "data",
    [b"", b"{", PLAN[:-1], PLAN[: len(PLAN) // 2], PLAN + b"}", b"[]", b"null", b"\x00" * 26, b"NaN",
     b"\xff", b"[" * 100_000],
)  # fmt: skip
def test_a_half_written_or_damaged_plan_is_not_used(store: Store, data: bytes) -> None:
    store.write("own.plan", data)
    assert store.read_json("own.plan") is None
    text = data.decode("latin-1")
    store.write("own.plan", (stores._seal(text) + text).encode("latin-1"))
    assert store.read_json("own.plan") is None


def test_a_missing_directory_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "user" / "nvct"
    assert Store(str(path)).reason == f"{path}: No such file or directory"
    store = Store(str(path), create=True)
    assert store.reason == ""
    assert path.stat().st_mode & 0o7777 == 0o700
    assert path.parent.stat().st_mode & 0o022 == 0
    assert store.write("f", b"x")
    store.close()
    again = Store(str(path), create=True)
    assert again.read("f") == "x"
    again.close()


def test_a_directory_is_private_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(f"{tmp_path}/run", create=True)
        store.write("f", b"x")
    finally:
        os.umask(before)
    assert store.read("f") == "x"
    assert (tmp_path / "run").stat().st_mode & 0o7777 == 0o700
    assert (tmp_path / "run" / "f").stat().st_mode & 0o7777 == 0o600
    store.close()


@pytest.mark.parametrize("mode", [0o770, 0o701, 0o710, 0o750, 0o755, 0o777, 0o1777])
def test_a_directory_that_is_open_to_others_is_refused(folder: Path, mode: int) -> None:
    (folder / "f").write_bytes(PLAN)
    folder.chmod(mode)
    assert_unusable(Store(str(folder), create=True), f"with mode {mode:o}")


@as_root
def test_a_directory_of_another_user_is_refused(folder: Path) -> None:
    (folder / "f").write_bytes(PLAN)
    os.chown(folder, 12345, -1)
    assert_unusable(Store(str(folder), create=True), "belongs to uid 12345")


def test_what_is_no_directory_of_its_own_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "f").write_bytes(PLAN)
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").touch()
    assert_unusable(Store(f"{tmp_path}/link", create=True), "Not a directory")
    assert_unusable(Store(f"{tmp_path}/file", create=True), "Not a directory")
    assert_unusable(Store("/proc/self/nvct", create=True), "No such file or directory")


def assert_unusable(store: Store, reason: str) -> None:
    assert store.fd == -1
    assert reason in store.reason
    assert store.read("f") is None
    assert store.read_json("f") is None
    assert store.write("g", b"x") is False
    store.close()


def test_no_descriptor_is_left_open(folder: Path) -> None:
    with none_left_open():
        folder.chmod(0o755)
        Store(str(folder), create=True)
        folder.chmod(0o700)
        store = Store(str(folder))
        store.write("f", b"x")
        (folder / "f").chmod(0o666)
        store.read("f")
        store.read("gone")
        store.close()
    with none_left_open():
        Store(str(folder))  # that nobody closes


def test_root_of_a_user_namespace_has_the_run_directory_of_its_user(tmp_path: Path) -> None:
    private = {"XDG_RUNTIME_DIR": "/y"}
    assert run_dir(private, root=str(tmp_path)) == "/run/nvct"
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, 65534)  # what / looks like where the host's root is not mapped
        assert run_dir(private, root=str(tmp_path)) == "/y/nvct"
        assert run_dir({}, root=str(tmp_path)) == "/run/nvct"


def test_the_run_directory_is_named_by_the_environment() -> None:
    assert run_dir({"NVCT_RUN_DIR": "/x", "XDG_RUNTIME_DIR": "/y"}) == "/x"
    private = {"XDG_RUNTIME_DIR": "/y", "NVCT_RUN_DIR": ""}
    assert run_dir(private) == ("/run/nvct" if os.geteuid() == 0 else "/y/nvct")
    assert run_dir({}) == run_dir({"XDG_RUNTIME_DIR": ""}) == "/run/nvct"


# Plans are parsed without a check of their depth: no CDI spec can make one deep.


PLAN_DEPTH = 10
"""As `nvct.oci.jsontext.parse_trusted` says."""
EVERYTHING = {
    "env": ["A=1"],
    "deviceNodes": [{"path": "/dev/null", "permissions": "rw"}],
    "mounts": [{"hostPath": "/", "containerPath": "/x", "options": ["ro"]}],
    "hooks": [{"hookName": "createContainer", "path": "/bin/true", "env": ["A=1"]}],
}


def depth(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def nested(levels: int) -> Any:
    return json.loads('{"a":[' * (levels // 2) + "1" + "]}" * (levels // 2))


def plan_depths(lab: Lab) -> dict[str, int]:
    return {path.name: depth(lab.kept(path.name)) for path in lab.run_dir.glob("*.plan")}


def test_a_plan_of_the_driver_has_few_levels(lab: Lab) -> None:
    lab.driver(8)
    lab.asks("NVIDIA_VISIBLE_DEVICES=all")

    assert lab.create().status == 0
    assert max(plan_depths(lab).values()) < PLAN_DEPTH


@pytest.mark.parametrize("member", ["annotations", "args", "unknown"])
def test_a_plan_has_few_levels_with_any_spec(member: str, lab: Lab) -> None:
    lab.configure(mode="cdi")
    lab.spec(devices={"0": EVERYTHING}, common=EVERYTHING)
    path = lab.spec("acme.json", kind="acme.com/gpu", devices={"0": EVERYTHING})
    spec = json.loads(path.read_text())
    if member == "args":
        spec["devices"][0]["containerEdits"]["hooks"][0]["args"] = nested(LIMIT - 10)
    else:
        spec[member] = nested(LIMIT - 10)
    path.write_text(json.dumps(spec), encoding="utf-8")
    lab.age(path)
    lab.asks(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"})

    assert lab.create().status == 0
    assert plan_depths(lab).keys() == {"registry.plan"}
    assert plan_depths(lab)["registry.plan"] < PLAN_DEPTH
