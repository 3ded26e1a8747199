# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct_sim.node_changes and mig: changes of a simulated node."""

import os
import re
from pathlib import Path

import pytest

from nvct.errors import HostError, UsageError
from nvct.kernel.kmsg import Kmsg
from nvct_sim import node_changes, package, state, tree
from tests.support.nvml_node import CACHE

# The profile "mixed": GPU 0 is a T4, 1 an A100 with three MIG instances, 2 an A100 in MIG mode
# without instances, 3 and 4 are H100s without MIG mode.


def caps(node: tree.Node) -> list[str]:
    return sorted(path.name for path in (node.dev / "nvidia-caps").iterdir())


def access_files(node: tree.Node) -> list[str]:
    root = node.proc / "driver/nvidia/capabilities"
    return sorted(str(path.relative_to(root)) for path in root.glob("gpu*/mig/**/access"))


def test_seven_small_instances_have_the_ids_of_the_real_driver(tmp_path: Path) -> None:
    node = tree.create("mig", "h100-mig", tmp_path, native=False, nodes="plain")

    ids = sorted(int(gi.fields["id"]) for gi in node.state().find("gi"))

    assert ids == [7, 8, 9, 11, 12, 13, 14]


def test_an_instance_appears_in_state_proc_and_dev_and_leaves_nothing(
    plain_node: tree.Node,
) -> None:
    before = caps(plain_node), access_files(plain_node), plain_node.state().records

    gi, ci = node_changes.create_instance(plain_node, 2, "3g.40gb")

    assert plain_node.state().find("ci", gpu=2, gi=gi, id=ci)
    minors = {f"nvidia-cap{c.fields['minor']}" for c in plain_node.state().find("cap", gpu=2)}
    assert set(caps(plain_node)) - set(before[0]) == minors
    added = {f"gpu1/mig/gi{gi}/access", f"gpu1/mig/gi{gi}/ci{ci}/access"}
    assert set(access_files(plain_node)) - set(before[1]) == added
    node_changes.destroy_instance(plain_node, 2, gi)
    assert (caps(plain_node), access_files(plain_node), plain_node.state().records) == before


def test_the_same_ids_give_the_same_mig_uuid_by_name_or_number(plain_node: tree.Node) -> None:
    uuids = []
    for name in ("1g.10gb", "9", "9"):
        gi, _ = node_changes.create_instance(plain_node, 2, name)
        uuids.append(plain_node.state().find("ci", gpu=2)[0].fields["uuid"])
        assert bool(plain_node.state().find("gi", gpu=2, profile=9)) == (name == "9")
        node_changes.destroy_instance(plain_node, 2, gi)

    assert uuids[1] == uuids[2]


@pytest.mark.parametrize(
    ("index", "names", "message"),
    [
        (3, ["1g.10gb"], "GPU 3 is not in MIG mode"),
        (2, ["9g.90gb"], "GPU 2 has no MIG profile '9g.90gb'"),
        (2, ["4g.40gb", "3g.40gb", "1g.10gb"], r"no room on GPU 2 for another 1g\.10gb"),
        (2, ["1g.10gb+me", "1g.10gb+me"], r"GPU 2 can have no further 1g\.10gb\+me"),
    ],
    ids=["mode", "profile", "memory", "maximum"],
)
def test_an_impossible_instance_is_refused(
    plain_node: tree.Node, index: int, names: list[str], message: str
) -> None:
    for name in names[:-1]:
        node_changes.create_instance(plain_node, index, name)
    generation = plain_node.state().generation

    with pytest.raises(UsageError, match=message):
        node_changes.create_instance(plain_node, index, names[-1])

    assert plain_node.state().generation == generation


def test_leaving_mig_mode_removes_the_instances(plain_node: tree.Node) -> None:
    node_changes.set_mig_mode(plain_node, 1, on=False)

    assert plain_node.state().find("gi", gpu=1) == []
    assert caps(plain_node) == ["nvidia-cap1", "nvidia-cap2"]
    assert access_files(plain_node) == []
    with pytest.raises(UsageError, match="GPU 0, a Tesla T4, has no MIG"):
        node_changes.set_mig_mode(plain_node, 0, on=True)


def test_a_lost_gpu_is_marked_and_has_an_event(plain_node: tree.Node) -> None:
    node_changes.lose_gpu(plain_node, 3)

    now = plain_node.state()
    assert now.gpu(3).fields["lost"] == "1"
    assert [e.fields["data"] for e in now.find("event", gpu=3)] == ["79"]

    node_changes.restore_gpu(plain_node, 3)
    assert plain_node.state().gpu(3).fields["lost"] == "0"


def test_events_are_numbered(plain_node: tree.Node) -> None:
    for data in (31, 48):
        node_changes.add_xid(plain_node, 0, data, {})

    events = plain_node.state().find("event")
    assert [(e.fields["seq"], e.fields["data"]) for e in events] == [("1", "31"), ("2", "48")]


def test_an_upgrade_replaces_the_files_and_leaves_the_module_until_a_reload(
    plain_node: tree.Node,
) -> None:
    before = (plain_node.library_dir / "libcuda.so.1").stat()
    assert node_changes.upgrade(plain_node, "580.159.04") == plain_node
    assert (plain_node.library_dir / "libcuda.so.1").stat() == before

    upgraded = node_changes.upgrade(plain_node, "581.1.2")

    assert [*plain_node.driver_root.rglob("*580.159.04*")] == []
    assert (upgraded.library_dir / "libcuda.so.1").resolve().name == "libcuda.so.581.1.2"
    links = [path for path in plain_node.driver_root.rglob("*") if path.is_symlink()]
    assert [link for link in links if not link.exists()] == []
    assert upgraded.state().driver == "580.159.04"
    assert "580.159.04" in (plain_node.proc / "driver/nvidia/version").read_text()
    assert tree.load(plain_node.tree) == upgraded
    node_changes.reload_module(upgraded)
    assert upgraded.state().driver == "581.1.2"
    assert "581.1.2" in (upgraded.proc / "driver/nvidia/version").read_text()
    assert (upgraded.sys / "module/nvidia/version").read_text() == "581.1.2\n"
    assert upgraded.state().find("gi") == []


@pytest.mark.parametrize(("before", "after"), [("615.10", "580.1"), ("580.1", "615.10")])
def test_an_upgrade_leaves_no_dangling_link(tmp_path: Path, before: str, after: str) -> None:
    node = tree.create("lab", "t4", tmp_path, driver_version=before, native=False, nodes="plain")

    node_changes.upgrade(node, after)

    links = [path for path in node.driver_root.rglob("*") if path.is_symlink()]
    assert [link.name for link in links if not link.exists()] == []


def test_built_programs_work_after_an_upgrade(tmp_path: Path) -> None:
    node = tree.create("lab", "t4", tmp_path, nodes="plain", native_cache=CACHE)
    names = ("libnvidia-ml", "libnvidia-sandboxutils")
    before = [(node.library_dir / f"{name}.so.1").read_bytes() for name in names]

    upgraded = node_changes.upgrade(node, "581.1.2")

    assert [(upgraded.library_dir / f"{name}.so.1").read_bytes() for name in names] == before


def test_an_upgrade_does_not_change_a_copy_of_the_user_space(plain_node: tree.Node) -> None:
    before = tree.frozen(plain_node)

    upgraded = node_changes.upgrade(plain_node, "581.1.2")

    names = [path.name for path in (before / package.library_dir(plain_node.machine)).iterdir()]
    assert "libcuda.so.580.159.04" in names
    assert not [name for name in names if "581.1.2" in name]
    assert tree.frozen(plain_node) == tree.frozen(upgraded) != before
    tree.destroy(upgraded)
    assert not plain_node.tree.exists()


def test_a_module_is_unloaded_unless_somebody_uses_it(plain_node: tree.Node) -> None:
    module, version = plain_node.sys / "module/nvidia", plain_node.proc / "driver/nvidia/version"
    with plain_node.state_file.open():
        with pytest.raises(HostError, match=rf"module nvidia is in use by process {os.getpid()} "):
            node_changes.unload_module(plain_node)
        assert (module / "refcnt").read_text() == "1\n"
    node_changes.unload_module(plain_node)
    assert not module.exists()
    assert not version.exists()
    node_changes.reload_module(plain_node)
    assert plain_node.installed in version.read_text()
    assert (module / "initstate").read_text() == "live\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nonsense", "unknown change 'nonsense'"),
        ("lose", "wrong arguments for lose"),
        ("lose 1 2", "wrong arguments for lose"),
        ("lose -1", "'-1' is not a number"),
        ("lose \u0661", "is not a number"),
        ("mig-mode 1 yes", "neither on nor off"),
        ("gpu 0 temp", "'temp' is not a list of FIELD=VALUE"),
        ("gpu 0 colour=3", "a GPU has no field 'colour'"),
        ("gpu 0 temp=hot", "temp must be a number, not 'hot'"),
        ("upgrade latest", "bad driver version 'latest'"),
        ("gpu 0 util=101", "util=101 is too large"),
        ("gpu 0 recovery=maybe", "'maybe' is not a recovery"),
        ("gpu 0 throttle=idle+heat", "'heat' is not a reason that limits clocks"),
        ("gpu 0 hang=soon", "hang must be a number, not 'soon'"),
        ("gpu 0 ecc_corrected=-1", "ecc_corrected must be a number, not '-1'"),
        *((f"gpu 0 {name}=1", "cannot be changed")
          for name in ("uuid", "minor", "index", "bus", "mig")),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_and_change_nothing(
    plain_node: tree.Node, words: str, message: str
) -> None:
    before = plain_node.state()
    change, *arguments = words.split()

    with pytest.raises(UsageError, match=re.escape(message)):
        node_changes.apply(plain_node, change, arguments)

    assert plain_node.state() == before


def test_reasons_and_actions_have_names(plain_node: tree.Node) -> None:
    node_changes.apply(plain_node, "gpu", ["0", "throttle=hw-slowdown+hw-thermal"])
    node_changes.apply(plain_node, "gpu", ["0", "recovery=drain-and-reset"])

    fields = plain_node.state().gpu(0).fields
    assert (fields["throttle"], fields["recovery"]) == ("72", "4")


def test_the_energy_is_kept_when_the_power_changes(plain_node: tree.Node) -> None:
    node_changes.apply(plain_node, "gpu", ["0", "util=100"])
    assert int(plain_node.state().gpu(0).fields["energy"]) > 1_000_000
    node_changes.apply(plain_node, "gpu", ["0", "energy=5000", "util=100"])
    node_changes.apply(plain_node, "gpu", ["0", "util=0"])
    assert int(plain_node.state().gpu(0).fields["energy"]) >= 5000


def test_a_reset_sets_back_what_it_does_on_a_real_gpu(plain_node: tree.Node) -> None:
    words = ["ecc_uncorrected=2", "ecc_uncorrected_total=3", "remap_pending=1", "recovery=reset"]
    node_changes.apply(plain_node, "gpu", ["0", *words, "energy=5000"])

    node_changes.apply(plain_node, "reset", ["0"])

    fields = plain_node.state().gpu(0).fields
    assert not fields.keys() & set(state.ENDED_BY_RESET)
    assert (fields["ecc_uncorrected_total"], fields["energy"]) == ("3", "0")
    node_changes.lose_gpu(plain_node, 0)
    with pytest.raises(UsageError, match="it has fallen off the bus"):
        node_changes.reset_gpu(plain_node, 0)


def test_an_xid_is_in_the_messages_of_the_kernel_too(plain_node: tree.Node) -> None:
    for words in (["0", "31", "gi=7"], ["1", "79"]):
        node_changes.apply(plain_node, "xid", words)

    bus = plain_node.state().gpu(1).fields["bus"].lower()[4:-2]
    with Kmsg(str(plain_node.tree / "kmsg"), past=True) as kmsg:
        first, second = kmsg.read()
    assert (first.sequence, second.sequence) == (0, 1)
    assert second.text == f"NVRM: Xid (PCI:{bus}): 79, simulated"
    assert [e.fields.get("gi") for e in plain_node.state().find("event")] == ["7", None]


def test_a_process_is_changed_and_ends(plain_node: tree.Node) -> None:
    node_changes.apply(plain_node, "process", ["0", "11", "memory=5"])
    node_changes.apply(plain_node, "process", ["0", "11", "sm=50"])

    (process,) = plain_node.state().find("process")
    assert process.fields == {"gpu": "0", "pid": "11", "memory": "5", "sm": "50"}
    node_changes.apply(plain_node, "process-end", ["0", "11"])
    assert plain_node.state().find("process") == []
    with pytest.raises(UsageError, match="GPU 0 has no process 11"):
        node_changes.apply(plain_node, "process-end", ["0", "11"])
    with pytest.raises(UsageError, match="unknown field 'size'"):
        node_changes.apply(plain_node, "process", ["0", "11", "size=5"])
