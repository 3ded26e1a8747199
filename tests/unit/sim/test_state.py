# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct_sim.state."""

import os
import threading
from pathlib import Path

import pytest

from nvct.errors import DocumentError
from nvct.linux import elf
from nvct_sim import state


@pytest.fixture
def path(tmp_path: Path) -> Path:
    first = state.State(1, "580.159.04", "13000", "/tree")
    first.add("gpu", index=0, name="NVIDIA H100 80GB HBM3", lost=0)
    first.add("gpu", index=1, name="NVIDIA H100 80GB HBM3", lost=0)
    state.create(tmp_path / "state", first, machine="x86_64")
    return tmp_path / "state"


def test_the_file_is_a_library_followed_by_text(path: Path) -> None:
    data = path.read_bytes()

    assert len(data) == state.FILE_SIZE
    assert elf.Elf(data[: state.ELF_SIZE]).soname == state.SONAME
    assert data[state.ELF_SIZE :].startswith(b"nvct-sim\t1\t1\ndriver\t580.159.04\n")


def test_a_change_is_visible_and_increases_the_generation(path: Path) -> None:
    with state.change(path) as now:
        now.gpu(1).fields["lost"] = "1"

    after = state.read(path)

    assert [gpu.fields["lost"] for gpu in after.find("gpu")] == ["0", "1"]
    assert after.generation == 2


def test_a_change_keeps_the_inode(path: Path) -> None:
    before = path.stat().st_ino

    with state.change(path) as now:
        now.add("event", seq=1, gpu=0, type=8, data=79)

    assert path.stat().st_ino == before
    assert path.stat().st_size == state.FILE_SIZE


def test_a_change_keeps_the_modification_time_of_the_file(path: Path) -> None:
    before = path.stat().st_mtime_ns

    with state.change(path) as now:
        now.add("event", seq=1, gpu=0, type=8, data=79)

    assert path.stat().st_mtime_ns == before


def test_an_error_during_a_change_leaves_the_file_as_it_was(path: Path) -> None:
    before = path.read_bytes()

    with pytest.raises(DocumentError, match="no GPU 9"), state.change(path) as now:
        now.records = [now.add("gpu", index=7), now.gpu(9)]

    assert path.read_bytes() == before


def test_a_shorter_state_leaves_nothing_of_the_longer_one(path: Path) -> None:
    with state.change(path) as now:
        now.remove("gpu")

    assert path.read_bytes().count(b"H100") == 0
    assert state.read(path).records == []


def test_records_of_unknown_kinds_survive_a_change(path: Path) -> None:
    with state.change(path) as now:
        now.add("fabric", clique=7)
    with state.change(path) as now:
        now.gpu(0).fields["temp"] = "90"

    assert state.read(path).find("fabric", clique=7)


def test_a_value_with_a_tab_is_refused(path: Path) -> None:
    with pytest.raises(DocumentError, match="control character"), state.change(path) as now:
        now.gpu(0).fields["name"] = "a\tb"


def test_a_state_that_does_not_fit_is_refused(path: Path) -> None:
    with pytest.raises(DocumentError, match="too long"), state.change(path) as now:
        now.gpu(0).fields["name"] = "x" * state.FILE_SIZE


def test_an_incomplete_state_is_refused(path: Path) -> None:
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"nvct-sim\t1\t9", state.ELF_SIZE)

    with pytest.raises(DocumentError, match="is incomplete"):
        state.read(path, timeout_s=0.02)


def test_a_file_that_is_not_a_state_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(bytes(state.FILE_SIZE))

    with pytest.raises(DocumentError, match="not the state of a simulated node"):
        state.read(other, timeout_s=0)


def test_readers_and_writers_do_not_disturb_each_other(path: Path) -> None:
    def write() -> None:
        for number in range(50):
            with state.change(path) as now:
                now.gpu(0).fields["used"] = "9" * number
                now.gpu(1).fields["used"] = "9" * number

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        used = {gpu.fields.get("used") for gpu in state.read(path).find("gpu")}
        assert len(used) == 1
    for writer in writers:
        writer.join()

    assert state.read(path).generation == 101
