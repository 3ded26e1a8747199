# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct_sim.tree, package, kernelfs and elf_writer: files of a simulated node."""

import os
import platform
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from nvct.errors import DocumentError, HostError, UsageError
from nvct.linux import elf, ldcache
from nvct_sim import kernelfs, profile, tree
from nvct_sim.elf_writer import MACHINES, shared_object
from tests.support.processes import captured

VERSION = "580.159.04"


def test_every_library_has_its_links_by_soname_and_none_dangles(plain_node: tree.Node) -> None:
    folder = plain_node.library_dir
    files = [p for p in folder.rglob("*.so*") if p.is_file() and not p.is_symlink()]

    for path in files:
        soname = elf.Elf(path.read_bytes()).soname
        if soname is not None:
            assert path.with_name(soname).resolve() == path
    assert len(files) > 40
    links = [path for path in plain_node.driver_root.rglob("*") if path.is_symlink()]
    assert [link for link in links if not link.exists()] == []


def test_every_needed_library_of_the_driver_is_in_the_driver(plain_node: tree.Node) -> None:
    folder = plain_node.library_dir
    needed = {
        name
        for path in folder.rglob("*.so*")
        if path.is_file()
        for name in elf.Elf(path.read_bytes()).needed
    }

    missing = {n for n in needed if not (folder / n).exists()}
    assert {n for n in missing if "nvidia" in n or "cuda" in n or "nvcuvid" in n} == set()


def test_libraries_of_the_other_architecture_are_32_bit(plain_node: tree.Node) -> None:
    folder = plain_node.driver_root / "usr/lib/i386-linux-gnu"
    if plain_node.machine != "x86_64":
        pytest.skip("only x86_64 has them")

    machines = {elf.Elf(p.read_bytes()).machine for p in folder.rglob("*.so*") if p.is_file()}

    assert machines == {"i386"}


def test_the_cache_of_the_driver_root_lists_links_and_not_their_files(
    plain_node: tree.Node,
) -> None:
    cache = ldcache.parse((plain_node.driver_root / "etc/ld.so.cache").read_bytes())
    names = {entry[0] for entry in cache.entries}

    assert {"libcuda.so", "libcuda.so.1", f"libnvidia-glcore.so.{VERSION}"} <= names
    assert f"libcuda.so.{VERSION}" not in names
    paths = [entry[1] for entry in cache.entries]
    assert all((plain_node.driver_root / path.lstrip("/")).exists() for path in paths)


def test_a_loaded_node_equals_the_created_one_and_has_its_state(plain_node: tree.Node) -> None:
    library = plain_node.library_dir / f"libnvidia-simstate.so.{VERSION}"
    gpus = plain_node.state().find("gpu")

    assert tree.load(plain_node.tree) == plain_node
    assert os.path.samefile(library, plain_node.state_file)
    assert plain_node.state().tree == str(plain_node.tree)
    assert [gpu.fields["bus"] for gpu in gpus] == sorted(gpu.fields["bus"] for gpu in gpus)
    assert [gpu.fields["minor"] for gpu in gpus] == ["3", "0", "1", "4", "2"]


def test_information_names_uuid_and_minor_of_each_gpu(plain_node: tree.Node) -> None:
    for gpu in plain_node.state().find("gpu"):
        bus = kernelfs.proc_bus(gpu.fields["bus"])
        text = (plain_node.proc / f"driver/nvidia/gpus/{bus}/information").read_text()
        values = dict(line.split(":", 1) for line in text.splitlines())

        assert values["GPU UUID"].strip() == gpu.fields["uuid"]
        assert values["Device Minor"].strip() == gpu.fields["minor"]
        assert (plain_node.sys / f"bus/pci/devices/{bus}/vendor").read_text() == "0x10de\n"


def test_bus_ids_are_written_as_the_kernel_does() -> None:
    assert kernelfs.proc_bus("00000000:18:00.0") == "0000:18:00.0"
    assert kernelfs.proc_bus("00010000:AB:00.0") == "10000:ab:00.0"


def test_the_host_keeps_its_own_lines_in_proc_devices() -> None:
    host = "Character devices:\n  1 mem\n195 nvidia\n226 drm\n\nBlock devices:\n  7 loop\n"

    assert kernelfs.devices(host, {"nvidia": 254, "nvidia-uvm": 508, "drm": 253}) == (
        "Character devices:\n  1 mem\n226 drm\n254 nvidia\n508 nvidia-uvm\n\n"
        "Block devices:\n  7 loop\n"
    )


def test_a_driver_that_is_loaded_or_that_an_open_would_load_keeps_its_majors() -> None:
    taken = kernelfs.host_majors("Character devices:\n195 nvidia\n226 drm\n508 nvidia-uvm\n")
    aliases = "char-major-195-* nvidia", "char-major-10-229 fuse", "pci:v000010DE* x"

    chosen = kernelfs.choose_majors(taken)

    assert not {195, 226, 508} & set(chosen.values())
    assert chosen["nvidia"] == chosen["nvidiactl"] == chosen["nvidia-modeset"]
    lines = "".join(f"alias {alias}\n" for alias in aliases)
    assert kernelfs.modules_majors(lines) == {195: "nvidia", 10: "fuse"}


def test_by_path_links_lead_to_the_nodes(plain_node: tree.Node) -> None:
    links = sorted((plain_node.dev / "dri/by-path").iterdir())

    assert len(links) == 2 * len(plain_node.state().find("gpu"))
    assert all(link.resolve().parent == plain_node.dev / "dri" for link in links)


def test_uuids_depend_on_name_and_index_alone(tmp_path: Path) -> None:
    uuids = []
    for base in ("a", "b"):
        node = tree.create("same", "t4", tmp_path / base, native=False, nodes="plain")
        uuids.append([gpu.fields["uuid"] for gpu in node.state().find("gpu")])

    assert uuids[0] == uuids[1] == [tree.gpu_uuid("same", 0)]
    assert tree.gpu_uuid("same", 0) != tree.gpu_uuid("same", 1) != tree.gpu_uuid("other", 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_as_root_nodes_are_device_nodes(tmp_path: Path) -> None:
    node = tree.create("real", "t4", tmp_path, native=False, nodes="device")
    majors = node.state().find("major")[0].fields

    status = (node.dev / "nvidia0").lstat()

    assert stat.S_ISCHR(status.st_mode)
    assert status.st_rdev == os.makedev(int(majors["nvidia"]), 0)
    assert stat.S_IMODE(status.st_mode) == 0o666
    with pytest.raises(OSError, match="No such device or address"):
        os.open(node.dev / "nvidia0", os.O_RDWR)


def test_another_driver_version_and_machine_can_be_chosen(tmp_path: Path) -> None:
    node = tree.create(
        "old", "t4", tmp_path, driver_version="535.54.03", machine="aarch64", native=False,
        nodes="plain",
    )  # fmt: skip

    library = node.driver_root / "usr/lib/aarch64-linux-gnu/libcuda.so.535.54.03"
    assert elf.Elf(library.read_bytes()).machine == "aarch64"
    assert "  535.54.03  " in (node.proc / "driver/nvidia/version").read_text()
    assert (node.driver_root / "lib/firmware/nvidia/535.54.03/gsp_tu10x.bin").is_file()


FOREIGN = next(m for m in ("aarch64", "x86_64") if m != os.uname().machine)
REFUSED: list[tuple[str, dict[str, str], str]] = [
    *((name, {}, "bad node name") for name in ("", ".", "..", "a/b", "-a", "A", "a b", "x" * 64)),
    *(("a", {"driver_version": version}, "bad driver version")
      for version in ("x", "580", "580.x", "../580.1", "580.1/..", "1.2.3.4.5")),
    ("a", {"profile_name": "b200"}, "unknown profile 'b200'"),
    ("plain", {}, "exists"),
    ("a", {"machine": FOREIGN}, f"NVML for {FOREIGN} cannot be built"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "more", "message"), REFUSED)
def test_a_node_that_cannot_be_made_is_refused(
    plain_node: tree.Node, name: str, more: dict[str, Any], message: str
) -> None:
    model = more.get("profile_name", "t4")
    arguments = {"profile_name": model, "native": "machine" in more, **more}

    with pytest.raises(UsageError, match=message) as caught:
        tree.create(name, base=plain_node.tree.parent, **arguments)

    if model != "t4":
        assert caught.value.hint == "use one of " + ", ".join(profile.names())


def test_a_failed_creation_leaves_nothing(tmp_path: Path) -> None:
    base = tmp_path / "nodes"
    base.mkdir()
    (base / "file").write_text("")

    with pytest.raises(HostError, match="cannot make a simulated node"):
        tree.create("a", "t4", base / "file", native=False, nodes="plain")

    assert [path.name for path in base.iterdir()] == ["file"]


def test_nodes_are_listed_and_destroyed_and_other_folders_are_neither(tmp_path: Path) -> None:
    for name in ("b", "a"):
        tree.create(name, "t4", tmp_path, native=False, nodes="plain")
    (tmp_path / "other").mkdir()
    assert [node.name for node in tree.list_nodes(tmp_path)] == ["a", "b"]

    tree.destroy(tree.find(tmp_path, "a"))

    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "other"]
    with pytest.raises(UsageError, match="no simulated node at"):
        tree.find(tmp_path, "other")


@pytest.mark.parametrize("text", ["", "[]", '{"nvct-sim": 1}', '{"nvct-sim": 2, "name": "x"}'])
def test_a_damaged_node_file_is_an_error_that_names_it(plain_node: tree.Node, text: str) -> None:
    (plain_node.tree / "node.json").write_text(text)

    with pytest.raises(DocumentError, match=r"node\.json"):
        tree.load(plain_node.tree)


def test_the_default_base_is_the_users_own() -> None:
    assert str(tree.default_base({}, 0)) == "/var/lib/nvct-sim"
    assert str(tree.default_base({"HOME": "/home/u"}, 1)) == "/home/u/.local/state/nvct-sim"
    assert str(tree.default_base({"XDG_STATE_HOME": "/s", "HOME": "/h"}, 1)) == "/s/nvct-sim"


def test_every_profile_can_be_created(tmp_path: Path) -> None:
    for name in profile.names():
        node = tree.create(name, name, tmp_path, native=False, nodes="plain")
        assert len(node.state().find("gpu")) == len(profile.load(name).gpus)


def test_the_mode_of_the_setuid_helper_is_kept(plain_node: tree.Node) -> None:
    status = (plain_node.driver_root / "usr/bin/nvidia-modprobe").stat()

    assert stat.S_IMODE(status.st_mode) == 0o4755


# Unit tests for nvct_sim.elf_writer.


def test_a_note_section_is_found_by_name() -> None:
    name, value = b"NVIDIA\0\0", b"\x01\x02\x03\x04"
    note = b"\x07\0\0\0" + b"\x04\0\0\0" + b"\x01\0\0\0" + name + value
    data = shared_object(sections={".note.cuda.fwd_compatibility": note})

    (parsed,) = elf.Elf(data).notes(".note.cuda.fwd_compatibility")

    assert parsed[2] == value


def test_a_padded_library_has_the_requested_size() -> None:
    assert len(shared_object(soname="libx.so.1", size=8192)) == 8192


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="needs x86_64 or aarch64")
def test_the_loader_loads_it_and_finds_its_symbols(tmp_path: Path) -> None:
    path = tmp_path / "libx.so.1"
    symbols = {"first": b"one", "second": b"two", "third": b"three"}
    data = shared_object(
        platform.machine(), soname="libx.so.1", needed=["libc.so.6"], symbols=symbols
    )
    path.write_bytes(data)
    # A separate process, because a damaged library would end this one.
    program = (
        "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1])\n"
        "for name in sys.argv[2:]:\n"
        "    at = ctypes.addressof(ctypes.c_char.in_dll(lib, name))\n"
        "    print(ctypes.string_at(at).decode())\n"
    )

    done = captured([sys.executable, "-c", program, str(path), *symbols], check=True)

    assert done.stdout.split() == ["one", "two", "three"]
