# SPDX-License-Identifier: Apache-2.0
"""CDI specs compiled into plans: what is shared, what is refused, and what is watched."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nvct.cdi.read import registry
from nvct.compile import plans as compiler
from nvct.container.plan import fingerprints, model
from nvct.host.roots import Roots

NO_DRIVER = Roots(proc="/nonexistent", sys="/nonexistent")
NULL = {"deviceNodes": [{"path": "/dev/null"}]}


class Specs:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.proc, self.sys = home / "proc", home / "sys"
        self.roots = Roots(proc=str(self.proc), sys=str(self.sys))
        self.dirs = [home / "low", home / "high"]
        for folder in (self.proc, *self.dirs):
            folder.mkdir()

    def write(
        self,
        name: str = "a.json",
        devices: Mapping[str, Any] | None = None,
        common: Mapping[str, Any] | None = None,
        *,
        kind: str = "acme.com/gpu",
        folder: int = 0,
    ) -> str:
        document: dict[str, Any] = {
            "cdiVersion": "0.7.0",
            "kind": kind,
            "devices": [
                {"name": n, "containerEdits": edits}
                for n, edits in (devices or {"0": NULL}).items()
            ],
        }
        if common:
            document["containerEdits"] = common
        path = self.dirs[folder] / name
        path.write_text(json.dumps(document), encoding="utf-8")
        return str(path)

    def load(self, version: str) -> None:
        path = self.proc / "driver/nvidia/version"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Jul  1 2025\n"
            "GCC version:  gcc version 12.2.0\n"
        )

    def plan(self) -> model.Plan:
        scanned = registry.scan([str(folder) for folder in self.dirs])
        return compiler.compile_registry(scanned, "/c.toml", self.roots)

    def refusal(self, name: str = "acme.com/gpu=0") -> str:
        """Return why a device is refused, by itself or by its spec."""
        plan = self.plan()
        device = plan["devices"][name]
        return plan["specs"][device["spec"]]["refuse"] or device["refuse"]


@pytest.fixture
def specs(tmp_path: Path) -> Specs:
    return Specs(tmp_path)


def bind(path: object, **more: Any) -> dict[str, Any]:
    return {"hostPath": str(path), "containerPath": "/x", "options": ["ro", "rbind"], **more}


def hook(path: object, **more: Any) -> dict[str, Any]:
    return {"hookName": "createContainer", "path": str(path), "env": ["A=b"], **more}


def test_a_plan_has_what_is_pasted_into_config_json(specs: Specs) -> None:
    path = specs.write(
        devices={"0": NULL},
        common={
            "env": ["A=1"],
            "mounts": [bind(specs.home)],
            "hooks": [hook("/bin/true", args=["true"], timeout=5)],
            "additionalGids": [7],
        },
    )

    plan = specs.plan()

    null = os.stat("/dev/null")
    status = [null.st_rdev, null.st_mode & 0o7777, null.st_uid, null.st_gid]
    assert plan["nvct-plan"] == model.FORMAT
    assert plan["config"] == "/c.toml"
    assert plan["kinds"] == ["acme.com/gpu"]
    assert plan["devices"] == {
        "acme.com/gpu=0": {
            "spec": 0, "edits": 0, "facts": [["node", "/dev/null", status]], "refuse": "",
        }
    }  # fmt: skip
    (spec,) = plan["specs"]
    assert (spec["path"], spec["facts"], spec["refuse"]) == (path, [], "")
    common = spec["edits"]
    assert common["env"] == ["A=1"]
    assert common["gids"] == [7]
    assert [(at, json.loads(text)) for at, text in common["mounts"]] == [
        ("/x", {"destination": "/x", "source": str(specs.home), "options": ["ro", "rbind"]})
    ]
    assert [json.loads(text) for text in common["hooks"]["createContainer"]] == [
        {"path": "/bin/true", "args": ["true"], "env": ["A=b"], "timeout": 5}
    ]
    (node,) = plan["edits"][0]["nodes"]
    assert json.loads(node["rule"]) == {
        "allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm",
    }  # fmt: skip
    assert json.loads(node["node"])["major"] == 1
    assert node["path"] == "/dev/null"


def test_two_names_with_the_same_edits_share_them(specs: Specs) -> None:
    specs.write(devices={"0": NULL, "GPU-1": NULL, "1": {"env": ["A=1"]}})

    plan = specs.plan()

    indices = {name: device["edits"] for name, device in plan["devices"].items()}
    assert indices["acme.com/gpu=0"] == indices["acme.com/gpu=GPU-1"] != indices["acme.com/gpu=1"]
    assert len(plan["edits"]) == 2


def test_two_spec_files_of_one_kind_keep_their_common_edits_apart(specs: Specs) -> None:
    specs.write("a.json", {"0": NULL}, {"env": ["FROM=a"]})
    specs.write("b.json", {"1": {"env": ["B=1"]}}, {"env": ["FROM=b"]})

    plan = specs.plan()

    assert [spec["edits"]["env"] for spec in plan["specs"]] == [["FROM=a"], ["FROM=b"]]
    collected = model.collect(plan, ["acme.com/gpu=1"])
    assert [edits["env"] for edits in collected] == [["FROM=b"], ["B=1"]]
    assert plan["kinds"] == ["acme.com/gpu"]


def test_a_conflict_names_its_files_and_its_kind_stays_known(specs: Specs) -> None:
    a, b = specs.write("a.json"), specs.write("b.json")

    plan = specs.plan()

    assert plan["devices"] == {}
    assert plan["conflicts"] == {"acme.com/gpu=0": [a, b]}
    assert plan["kinds"] == ["acme.com/gpu"]


WORK: model.Work = {**model.no_work(), "folders": ["/lib"]}


def own_plan(program: object = "/bin/true", **more: compiler.Part) -> model.Plan:
    own = compiler.Own(
        kind="nvidia.com/gpu",
        common={
            "": compiler.Part({"env": ["A=1"]}, WORK, [["i386", "libz.so", "/lib/z"]]),
            **more,
        },
        devices=[(["0", "GPU-1"], {"": compiler.Part({"deviceNodes": [{"path": "/dev/null"}]})})],
        hook={"path": str(program), "args": ["nvidia-cdi-hook", "apply"], "env": ["A=B"]},
    )
    return compiler.compile_own(own, "/run/own.json", "/c.toml", NO_DRIVER)


def test_work_is_kept_as_it_is_beside_the_edits_of_each_capability() -> None:
    more: model.Work = {**model.no_work(), "links": [["a", "/b"]]}

    plan = own_plan(compute=compiler.Part({"env": ["B=1"]}, more))

    edits = plan["specs"][0]["edits"]
    assert (edits["env"], edits["work"], edits["hooks"]) == (["A=1"], WORK, {})
    assert edits["cache"] == [["i386", "libz.so", "/lib/z"]]
    assert edits["parts"]["compute"]["env"] == ["B=1"]
    assert edits["parts"]["compute"]["work"] == more
    assert plan["hook"]["path"] == "/bin/true"
    assert json.loads(json.dumps(plan)) == plan


def test_without_any_capability_the_work_is_left_to_a_hook() -> None:
    plan = own_plan()

    edits = plan["specs"][0]["edits"]
    assert "work" not in edits
    (text,) = edits["hooks"]["createContainer"]
    assert json.loads(text)["args"] == ["nvidia-cdi-hook", "apply", "--folder", "/lib"]


def test_our_own_plan_is_refused_without_its_hook(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-cdi-hook"

    assert own_plan(program)["specs"][0]["refuse"] == f"its hook {program} is missing"
    program.touch(mode=0o644)
    assert own_plan(program)["specs"][0]["refuse"] == f"its hook {program} is not executable"
    program.chmod(0o755)
    assert own_plan(program)["specs"][0]["refuse"] == ""


def test_a_spec_for_the_loaded_driver_is_not_refused_and_watches_it(specs: Specs) -> None:
    specs.load("580.159.04")
    libcuda = specs.home / "libcuda.so.580.159.04"
    libcuda.touch()
    specs.write(common={"mounts": [bind(libcuda)]})

    plan = specs.plan()

    (spec,) = plan["specs"]
    assert spec["refuse"] == ""
    assert [fact[:2] for fact in spec["facts"]] == [
        ["text", f"{specs.proc}/driver/nvidia/version"],
        ["stat", str(libcuda)],
    ]
    assert fingerprints.broken(spec["facts"]) is None
    specs.load("590.44.01")
    assert fingerprints.broken(spec["facts"])


def test_a_spec_for_another_driver_is_refused(specs: Specs) -> None:
    specs.load("580.159.04")
    libcuda = specs.home / "libcuda.so.550.54.14"
    libcuda.touch()
    specs.write(common={"mounts": [bind(libcuda)]})

    assert specs.refusal() == "it is for driver 550.54.14, but 580.159.04 is loaded"


def test_without_a_loaded_module_no_version_is_wrong(specs: Specs) -> None:
    libcuda = specs.home / "libcuda.so.550.54.14"
    libcuda.touch()
    specs.write(common={"mounts": [bind(libcuda)]})

    assert specs.refusal() == ""


@pytest.mark.parametrize("source", ["common", "device"])
@pytest.mark.parametrize(
    "mount",
    [{}, {"options": ["bind"]}, {"options": [], "type": "bind"}],
    ids=["rbind", "bind", "type"],
)
def test_a_mount_source_that_is_gone_is_refused(
    source: str, mount: dict[str, Any], specs: Specs
) -> None:
    edits = {"mounts": [bind("/no/such/file", **mount)]}
    if source == "common":
        specs.write(common=edits)
    else:
        specs.write(devices={"0": edits})

    assert specs.refusal() == "/no/such/file is gone"


def test_a_mount_that_binds_nothing_needs_no_source(specs: Specs) -> None:
    specs.write(common={"mounts": [bind("tmpfs", type="tmpfs", options=["ro"])]})

    assert specs.refusal() == ""


@pytest.mark.parametrize("env", [None, []])
def test_a_hook_without_an_environment_is_refused(env: list[str] | None, specs: Specs) -> None:
    entry = hook("/bin/true")
    del entry["env"]
    if env is not None:
        entry["env"] = env
    specs.write(common={"hooks": [entry]})

    assert specs.refusal() == "hook /bin/true has no env, so an image could run code in it"


def test_a_hook_that_is_missing_or_no_program_is_refused(specs: Specs) -> None:
    plain = specs.home / "plain"
    plain.write_text("")
    plain.chmod(0o644)
    specs.write(devices={"0": {"hooks": [hook("/no/hook")]}, "1": {"hooks": [hook(plain)]}})

    assert specs.refusal("acme.com/gpu=0") == "its hook /no/hook is missing"
    assert specs.refusal("acme.com/gpu=1") == f"its hook {plain} is not executable"


def test_a_missing_node_refuses_its_device_alone_and_is_watched(specs: Specs) -> None:
    gone = specs.home / "nvidia7"
    specs.write(devices={"0": NULL, "7": {"deviceNodes": [{"path": str(gone)}]}})

    plan = specs.plan()

    device = plan["devices"]["acme.com/gpu=7"]
    assert device["refuse"] == f"device node {gone} is missing"
    assert device["facts"] == [["node", str(gone), None]]
    assert plan["devices"]["acme.com/gpu=0"]["refuse"] == ""


def test_a_node_with_other_numbers_is_refused(specs: Specs) -> None:
    specs.write(devices={"0": {"deviceNodes": [{"path": "/dev/null", "major": 195, "minor": 3}]}})

    assert specs.refusal() == "/dev/null is device 1:3, the spec says 195:3"


def test_the_host_path_of_a_node_is_what_is_watched(specs: Specs) -> None:
    specs.write(devices={"0": {"deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/null"}]}})

    plan = specs.plan()

    assert plan["devices"]["acme.com/gpu=0"]["facts"] == [fingerprints.take("node", "/dev/null")]
    assert plan["edits"][0]["nodes"][0]["path"] == "/dev/x"


def test_a_version_that_only_sysfs_has_is_compared_too(specs: Specs, tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.550.54.14"
    library.touch()
    mounts = [{"hostPath": str(library), "containerPath": "/c", "options": ["bind"]}]
    specs.write(common={"mounts": mounts})
    version = specs.sys / "module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("580.159.04\n")

    plan = specs.plan()

    assert specs.refusal() == "it is for driver 550.54.14, but 580.159.04 is loaded"
    assert fingerprints.take("text", str(version)) in plan["specs"][0]["facts"]
