# SPDX-License-Identifier: Apache-2.0
"""Whether specs still describe the host: one thing is changed, one line comes out."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvct.cdi.check import drift
from nvct.cdi.make import generate, provenance, store
from nvct.cdi.read import registry
from nvct.cdi.types import Spec
from nvct.host.model import Inventory
from tests.support.host_tree import VERSION
from tests.support.inventories import Machine

RANK = "whose folder has a higher priority"


class Site:
    """A machine with two CDI folders, low and high, and nvct's spec in the low one."""

    def __init__(self, base: Path, gpus: int = 1) -> None:
        self.base = base
        self.machine = Machine(base, gpus)
        for name in ("low", "high"):
            (base / name).mkdir()
        self.hook = base / "hook"
        self.hook.write_text("")
        self.hook.chmod(0o755)
        self.inventory = self.machine.inventory()

    @property
    def driver(self) -> Path:
        return self.machine.host.driver

    def made(self, **options: object) -> Spec:
        """Return nvct's own spec."""
        given = generate.Options(hook_path=str(self.hook))
        return generate.generate(self.inventory, replace(given, **options))  # type: ignore[arg-type]

    def put(self, name: str, spec: Spec, comment: str = "") -> str:
        path = self.base / name
        path.write_bytes(comment.encode() + store.dumps(spec))
        return str(path)

    def write(self, *, name: str = "low/nvidia.yaml", **options: object) -> str:
        spec, comment = provenance.attach(self.made(**options), self.inventory)
        return self.put(name, spec, comment)

    def foreign(self, edits: dict[str, Any], name: str = "low/acme.json") -> str:
        document = {
            "cdiVersion": "0.5.0",
            "kind": "acme.com/nic",
            "devices": [{"name": "nic0", "containerEdits": edits}],
        }
        path = self.base / name
        path.write_text(json.dumps(document))
        return str(path)

    def check(self, live: Inventory | None = None, *, loaded: str = VERSION) -> drift.Report:
        scanned = registry.scan([str(self.base / "low"), str(self.base / "high")])
        host = drift.HostState(
            live=live or self.machine.inventory(),
            loaded=loaded,
            stat_node=self.machine.host.stat_node,
        )
        return drift.check(scanned, host)

    def texts(self, live: Inventory | None = None, *, loaded: str = VERSION) -> list[str]:
        return [difference.text for difference in self.check(live, loaded=loaded).drift]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def kinds(report: drift.Report) -> list[str]:
    return [difference.kind for difference in report.drift]


@pytest.mark.parametrize(
    "options", [{}, {"node_numbers": True}, {"device_name_strategies": ["type-index"]}]
)
def test_a_spec_that_was_just_made_fits(options: dict[str, object], site: Site) -> None:
    site.write(**options)  # type: ignore[arg-type]

    report = site.check()

    assert report.drift == ()
    assert (report.specs, report.devices, report.gives_driver) == (
        1, 2 if "device_name_strategies" in options else 3, True,
    )  # fmt: skip


@pytest.mark.parametrize(("only", "missing"), [("1", []), ("", ["gpu-missing"])])
def test_a_gpu_that_somebody_has_left_out_is_not_missing(
    only: str, missing: list[str], tmp_path: Path
) -> None:
    site = Site(tmp_path, gpus=2)
    made = site.made(device_ids=["1"])
    site.put("low/nvidia.yaml", *provenance.attach(made, site.inventory, only))

    assert kinds(site.check()) == missing


def test_a_file_that_is_gone_or_inaccessible_is_reported_once_per_spec(site: Site) -> None:
    path = site.write()
    smi = site.driver / "usr/bin/nvidia-smi"
    smi.unlink()
    assert site.texts() == [f"{path}: {smi} is gone"]
    smi.symlink_to(smi)
    (difference,) = site.check().drift
    assert difference.sentence == f"{smi} cannot be used: {os.strerror(40)}"
    smi.parent.rename(site.driver / "usr/old")
    smi.parent.write_text("")
    assert kinds(site.check()) == ["file-gone"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("size", "it has 3 bytes, not {size}"),
        ("inode", "it is another inode"),
        ("time", "it has been written since"),
    ],
)
def test_a_file_that_is_another_one_is_reported_by_the_provenance(
    change: str, sentence: str, site: Site
) -> None:
    path = site.write()
    smi = site.driver / "usr/bin/nvidia-smi"
    before = smi.stat()
    if change == "size":
        smi.write_text("abc")
    elif change == "inode":
        other = smi.with_name("other")
        other.write_bytes(smi.read_bytes())
        other.rename(smi)
        os.utime(smi, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        os.utime(smi, ns=(0, 0))

    assert site.texts() == [
        f"{path}: {smi} is not the file from which the spec was made: "
        + sentence.format(size=before.st_size)
    ]


def test_without_provenance_another_file_of_the_same_name_is_not_noticed(site: Site) -> None:
    site.put("low/nvidia.yaml", site.made())
    (site.driver / "usr/bin/nvidia-smi").write_text("other")

    assert site.texts() == []


def test_another_driver_than_the_loaded_one_is_reported(site: Site) -> None:
    path = site.write()

    assert site.texts(loaded="590.1.2") == [
        f"{path}: it is for driver {VERSION}, but 590.1.2 is loaded"
    ]
    assert site.texts(loaded="") == [
        f"{path}: it is for driver {VERSION}, and the kernel module nvidia is not loaded: modprobe nvidia"
    ]


def test_a_host_without_a_driver_is_reported_of_specs_that_give_one(site: Site) -> None:
    site.write()
    scanned = registry.scan([str(site.base / "low")])

    report = drift.check(
        scanned, drift.HostState(live=None, loaded="", stat_node=site.machine.host.stat_node)
    )

    assert kinds(report) == ["driver-version"]


def test_no_module_is_fine_where_the_driver_has_none(site: Site) -> None:
    site.write()

    assert site.texts(site.machine.inventory(mode="wsl"), loaded="") == []


def test_a_device_node_that_is_gone_is_reported_with_the_devices(site: Site) -> None:
    path = site.write()
    node, common = site.base / "dev/dri/card1", site.base / "dev/nvidiactl"
    live = site.machine.inventory()
    node.unlink()

    (difference,) = site.check(live).drift

    assert difference.text == f"{path}: device node {node} is gone"
    assert difference.devices == (
        "nvidia.com/gpu=0", f"nvidia.com/gpu={site.machine.host.uuid(0)}", "nvidia.com/gpu=all",
    )  # fmt: skip
    site.write()
    common.unlink()
    (in_common, _) = sorted(site.check(live).drift, key=lambda difference: difference.devices)
    assert (in_common.kind, in_common.devices) == ("node-gone", ())
    common.mkdir()
    assert f"{path}: {common} is not a device node" in site.texts(live)


def test_other_numbers_are_reported_of_a_spec_with_numbers_only(site: Site) -> None:
    site.write()
    devices = site.base / "proc/devices"
    devices.write_text(devices.read_text().replace("508 nvidia-uvm", "507 nvidia-uvm"))
    without = site.texts()

    path = site.write(node_numbers=True)
    devices.write_text(devices.read_text().replace("507 nvidia-uvm", "508 nvidia-uvm"))

    assert without == []
    assert site.texts() == []
    devices.write_text(devices.read_text().replace("508 nvidia-uvm", "499 nvidia-uvm"))
    assert site.texts() == [
        f"{path}: {site.base}/dev/nvidia-uvm is device 499:0, the spec says 508:0"
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [("hostPath", "/dev/gone"), ("type", "b"), ("major", 9), ("minor", 99), ("fileMode", 0o600),
     ("gid", 9)],
)  # fmt: skip
def test_every_field_of_a_node_that_nvct_writes_is_compared(
    field: str, value: object, site: Site
) -> None:
    spec, comment = provenance.attach(site.made(node_numbers=True), site.inventory)
    node, *_ = spec["devices"][0]["containerEdits"]["deviceNodes"]
    assert set(node) | {"gid", "hostPath"} == {
        "path",
        "hostPath",
        "type",
        "major",
        "minor",
        "fileMode",
        "permissions",
        "gid",
    }  # fmt: skip - permissions are those of the cgroup, "rwm"; gid of groups but root's
    site.put("low/nvidia.yaml", spec, comment)
    assert site.texts() == []

    node[field] = value  # type: ignore[literal-required]
    site.put("low/nvidia.yaml", spec, comment)

    assert len(site.texts()) == 1


def test_permissions_of_a_node_are_compared(site: Site) -> None:
    path, node = site.write(), site.base / "dev/nvidia0"
    before = node.stat().st_mode & 0o777

    node.chmod(0o640)

    assert site.texts() == [f"{path}: {node} has mode 640, the spec says {before:o}"]
    foreign = {"deviceNodes": [{"path": str(node), "fileMode": 0o666, "gid": 7}]}
    site.foreign(foreign)
    assert len(site.texts()) == 1, "who wrote it may have meant that"
    node.chmod(before)
    assert site.texts() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_the_group_of_a_node_is_compared(site: Site) -> None:
    path, node = site.write(), site.base / "dev/nvidia0"

    os.chown(node, 0, 44)

    assert site.texts() == [f"{path}: {node} has gid 44, the spec says 0"]
    site.inventory = site.machine.inventory()
    site.write()
    assert site.texts() == []


def test_a_hook_that_is_missing_no_program_or_without_environment_is_reported(site: Site) -> None:
    path = site.write()
    site.hook.chmod(0o644)
    assert site.texts() == [f"{path}: its hook {site.hook} is not executable"]
    site.hook.unlink()
    assert site.texts() == [f"{path}: its hook {site.hook} is missing"]
    site.hook.mkdir()
    assert kinds(site.check()) == ["hook-no-program"]
    site.hook.rmdir()
    site.hook.touch(0o755)
    spec = site.made()
    for hook in spec["containerEdits"]["hooks"]:
        del hook["env"]
    site.put("low/nvidia.yaml", spec)
    assert site.texts() == [
        f"{path}: hook {site.hook} has no env, so an image could run code in it"
    ]


# --- specs of others ---


def test_of_a_foreign_spec_files_nodes_and_hooks_are_looked_for(site: Site) -> None:
    site.write()
    path = site.foreign(
        {
            "mounts": [{"hostPath": "/no/such/file", "containerPath": "/f"}],
            "deviceNodes": [{"path": "/dev/no-such-nic"}, {"path": "/dev/null"}],
            "hooks": [{"hookName": "createContainer", "path": "/no/such/hook"}],
        }
    )

    assert site.texts(loaded=VERSION) == [
        f"{path}: /no/such/file is gone",
        f"{path}: device node /dev/no-such-nic is gone",
        f"{path}: its hook /no/such/hook is missing",
    ]


NUMBERS = {"path": "/dev/null", "major": 1, "minor": 9}


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ({"mounts": [{"hostPath": "tmpfs", "containerPath": "/t", "type": "tmpfs"},
                     {"hostPath": "/no/such/proc", "containerPath": "/p", "type": "proc"}]}, []),
        ({"deviceNodes": [NUMBERS]}, ["/dev/null is device 1:3, the spec says 1:9"]),
        ({"env": ["A=b"]}, []),
    ],
    ids=["mounts that are no binds need no file", "numbers", "no driver of ours"],
)  # fmt: skip
def test_of_a_foreign_spec_only_what_it_says_is_compared(
    edits: dict[str, Any], said: list[str], site: Site
) -> None:
    site.write()
    path = site.foreign(edits)

    assert site.texts() == [f"{path}: {text}" for text in said]
    assert site.check().specs == 2


def test_a_fifo_is_a_node_of_type_p(site: Site) -> None:
    site.write()
    fifo = site.base / "fifo"
    os.mkfifo(fifo)
    site.foreign({"deviceNodes": [{"path": str(fifo), "type": "p"}]})
    as_pipe = site.texts()
    path = site.foreign({"deviceNodes": [{"path": str(fifo), "type": "c"}]})

    assert as_pipe == []
    assert site.texts() == [f"{path}: {fifo} is a FIFO"]


@pytest.mark.parametrize("known_by", ["libraries", "provenance"])
def test_the_driver_is_known_by_its_libraries_else_by_the_provenance(
    known_by: str, site: Site
) -> None:
    spec, comment = provenance.attach(site.made(), site.inventory)
    if known_by == "libraries":  # whoever made the spec
        spec, comment = site.made(), ""
        spec["kind"] = "acme.com/gpu"
    else:
        spec["containerEdits"]["mounts"] = spec["containerEdits"]["mounts"][:1]
        assert "nvidia-smi" in spec["containerEdits"]["mounts"][0]["hostPath"]
    path = site.put("low/nvidia.yaml", spec, comment)

    assert site.texts(loaded="570.1") == [
        f"{path}: it is for driver {VERSION}, but 570.1 is loaded"
    ]


# --- files in each other's way ---


def test_a_shadowed_spec_is_reported_and_not_checked(site: Site) -> None:
    low = site.put("low/nvidia.yaml", site.made(hook_path="/no/such/hook"))
    high = site.write(name="high/nvidia.yaml")

    report = site.check()
    uuid = f"nvidia.com/gpu={site.machine.host.uuid(0)}"

    assert [difference.text for difference in report.drift] == [
        f"{low}: nvidia.com/gpu=0, {uuid}, nvidia.com/gpu=all are taken from {high}, {RANK}"
    ]
    assert (report.specs, report.devices) == (1, 3)


def test_nothing_at_all_fits_a_host_without_gpus(site: Site) -> None:
    report = site.check(site.machine.inventory(gpus=()))

    assert (report.specs, report.devices, report.gives_driver, report.drift) == (0, 0, False, ())


def test_a_node_that_is_inaccessible_is_reported_with_the_reason(site: Site) -> None:
    site.write()
    loop = site.base / "loop"
    loop.symlink_to("loop")
    path = site.foreign({"deviceNodes": [{"path": f"{loop}/x", "type": "c", "major": 1}]})

    assert site.texts() == [f"{path}: device node {loop}/x cannot be used: {os.strerror(40)}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_numbers_of_a_block_device_are_compared(site: Site) -> None:
    site.write()
    disk = site.base / "disk"
    try:
        os.mknod(disk, 0o600 | stat.S_IFBLK, os.makedev(7, 3))
    except PermissionError:
        pytest.skip("needs CAP_MKNOD")
    site.foreign({"deviceNodes": [{"path": str(disk), "type": "b", "major": 7, "minor": 3}]})
    same = site.texts()
    path = site.foreign({"deviceNodes": [{"path": str(disk), "type": "b", "major": 7}]})

    assert same == []
    assert site.texts() == [f"{path}: {disk} is device 7:3, the spec says 7:0"]
