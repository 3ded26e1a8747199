# SPDX-License-Identifier: Apache-2.0
"""Devices that an engine puts into config.json are requests, if config.toml says so."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from nvct.config.load import from_toml
from nvct.container import device_access, host_view, recorder
from nvct.container.decide import Decision
from nvct.container.request import origin
from nvct.container.request.kubelet_record import CLAIMS
from nvct.container.settings import launcher_conf
from nvct.errors import ConfigError, NotPermittedError, NvctError
from nvct.oci.bundle import Bundle
from tests.support.host_tree import HostTree
from tests.support.kubelet_records import UID, Given, write, write_claims
from tests.support.policy_lab import HOSTS, Compiled, decision, nodes, part
from tests.support.shim_lab import Lab

EVERYTHING = "management.nvidia.com/gpu=all"
DENIED = {"allow": False, "access": "rwm"}
CONTROL = (195, 255)
HOST_CONFIG = from_toml(b"", "/c")
DENYING = from_toml(b'[nvct.policy]\ndefault = "deny"\nengine-devices = "checked"\n', "/c")
ABSENT: Any = ["absent", "/c", []]
ROOTLESS = "0 1000 1\n1 100000 65536\n"


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.driver(gpus=3)
    return lab


def node(major: int, minor: int, path: str = "") -> dict[str, Any]:
    return {"path": path or f"/dev/x{minor}", "type": "c", "major": major, "minor": minor}


def rule(major: int | None = None, minor: int | None = None, **more: Any) -> dict[str, Any]:
    numbers = {"major": major, "minor": minor}
    named = {name: number for name, number in numbers.items() if number is not None}
    return {"allow": True, "type": "c", **named, "access": "rwm", **more}


def engine(
    lab: Lab,
    *numbers: tuple[int, int],
    rules: list[dict[str, Any]] | None = None,
    env: tuple[str, ...] = (),
    annotations: dict[str, str] | None = None,
    mounts: list[dict[str, Any]] | None = None,
    cgroup: str = "/docker/1",
    bounding: tuple[str, ...] = (),
) -> None:
    """Write the config.json of an engine that gives devices by nodes, or only by rules."""
    granted = rules if rules is not None else [rule(*pair) for pair in numbers]
    linux = {
        "cgroupsPath": cgroup,
        "namespaces": [{"type": "pid"}, {"type": "cgroup"}],
        "devices": [node(*pair) for pair in numbers],
        "resources": {"devices": [DENIED, *granted]},
    }
    lab.asks(*env, annotations=annotations, mounts=mounts or [], linux=linux)
    change(lab, "process", capabilities={"bounding": list(bounding)})


def change(lab: Lab, member: str, **values: Any) -> None:
    document = lab.document()
    document[member] = {**document.get(member, {}), **values}
    lab.config_json.write_text(json.dumps(document), encoding="utf-8")


def after(lab: Lab, made: Decision) -> dict[str, Any]:
    bundle = Bundle("config.json", lab.config_json.read_text(encoding="utf-8"))
    made.into(bundle, HOST_CONFIG, None)
    document: dict[str, Any] = json.loads(bundle.document.render())
    return document


def checked(lab: Lab, *rules: dict[str, object], default: str = "allow") -> Decision:
    return decision(lab, *rules, default=default, engine_devices="checked")


def asked(lab: Lab) -> str:
    """Return what a policy that denies everything says was asked for, "" if nothing was."""
    error = checked(lab, default="deny").error
    if error is None:
        return ""
    assert isinstance(error, NotPermittedError), error
    text, _, ids = error.message.partition("denies engine devices='")
    assert ids, text
    return ids.partition("'")[0]


@pytest.mark.parametrize(
    ("numbers", "ids"),
    [
        ([(195, 0), CONTROL], "0"),
        ([(195, 1), (195, 2), CONTROL, (508, 0)], "1,2"),
        ([(195, 7)], "/dev/x7"),
        ([CONTROL, (508, 0)], ""),
        ([(10, 229)], ""),
    ],
)
def test_nodes_are_named_by_their_numbers(
    numbers: list[tuple[int, int]], ids: str, lab: Lab
) -> None:
    engine(lab, *numbers)
    assert asked(lab) == ids


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ([rule(195, 1)], "1"),
        ([rule(195, 1, access="mw")], "1"),
        ([rule(195, 1, access="m")], ""),
        ([rule(195)], "0,1,2"),
        ([rule(-1, 2)], EVERYTHING),
        ([rule()], EVERYTHING),
        ([{"allow": True, "access": "rwm"}], EVERYTHING),
        ([rule(195, 3, type="a")], EVERYTHING),  # runc ignores its numbers
        ([rule(195, 3, type="a", access="m")], EVERYTHING),
        ([rule(195, 0, type="b")], ""),
        ([rule(195, 0, type="u")], "0"),
        ([rule(195, 0), rule(195, 0, allow=False)], ""),
        ([rule(195, 0), rule(195, 0, allow=False, access="w")], "0"),
        ([{"allow": True, "access": "rwm"}, rule(195, allow=False)], EVERYTHING),
        ([{"allow": True, "access": "rwm"}, rule(195, allow=False), rule(236, allow=False)], ""),
        ([rule(236)], EVERYTHING),
        ([rule((1 << 32) + 195, 1)], "1"),  # crun cuts numbers to 32 bits
        ([rule(195, (1 << 32) + 1)], "1"),
        ([rule((1 << 32) - 1, (1 << 32) - 1)], EVERYTHING),
        ([rule(195, 1, type="cx")], "1"),  # crun takes the first letter
        ([rule(195, 1, type="z")], EVERYTHING),
        ([rule(195, 1, type="p")], EVERYTHING),
        ([rule(-2, -2)], EVERYTHING),
        ([rule(195, 0), rule(195, allow=False)], "0"),
        ([rule(195, 0), {"allow": False, "type": "x", "access": "rwm"}], "0"),
        ([rule(508)], ""),
        ([rule(1, 3), rule(10, 229)], ""),
    ],
)  # fmt: skip
def test_a_rule_without_a_node_is_enough(given: list[dict[str, Any]], ids: str, lab: Lab) -> None:
    engine(lab, rules=given)
    assert asked(lab) == ids


SYSTEMD = "org.systemd.property.DeviceAllow"
WAYS_OUT: dict[str, dict[str, Any]] = {
    "systemd": {"annotations": {SYSTEMD: "[('/dev/nvidia1', 'rw')]"}},
    "the root": {"mounts": [{"destination": "/x", "source": "/", "options": ["rbind", "rw"]}]},
    "CAP_SYS_ADMIN": {"bounding": ("CAP_SYS_ADMIN",)},
    "own root": {"mounts": [{"destination": "/x", "source": "rootfs", "type": "bind"}]},
}


WORDS: dict[str, tuple[dict[str, Any], str]] = {
    "node": ({"numbers": [(195, 1)]}, "the node /dev/x1"),
    "rule": ({"rules": [rule(195, 1)]}, "the device rule for 195:1"),
    "every": ({"rules": [rule()]}, "the device rule for *:*"),
    "driver": ({"rules": [rule(236)]}, "the device rule for 236:*"),
    "unit": (WAYS_OUT["systemd"], f"the annotation {SYSTEMD}"),
    "capability": (WAYS_OUT["CAP_SYS_ADMIN"], "CAP_SYS_ADMIN"),
}


@pytest.mark.parametrize("case", WORDS)
def test_a_refusal_says_by_what_the_devices_are_given(case: str, lab: Lab) -> None:
    given, words = WORDS[case]
    engine(lab, *given.pop("numbers", ()), **given)
    error = checked(lab, default="deny").error
    assert error is not None
    assert error.message.endswith(f"', given by {words}")
    made = checked(lab, default="ignore")
    assert f"', given by {words}, which is ignored by " in made.notes[0]


@pytest.mark.parametrize(
    ("key", "value", "is_way"),
    [
        ("run.oci.seccomp.receiver", "/run/agent", True),
        ("run.oci.delegate-cgroup", "../..", True),
        ("run.oci.systemd.subgroup", "x/../..", True),
        ("run.oci.delegate-cgroup", "x", False),
        ("run.oci.keep_original_groups", "1", False),
        ("org.criu.config", "/run/criu.conf", True),
    ],
)
def test_an_annotation_that_a_runtime_obeys_counts(
    key: str, value: str, lab: Lab, *, is_way: bool
) -> None:
    """crun takes the process to other control groups; CRIU's file of settings names programs."""
    engine(lab, annotations={key: value})
    assert asked(lab) == (EVERYTHING if is_way else "")
    if is_way:
        error = checked(lab, default="deny").error
        assert error is not None
        assert error.message.endswith(f", given by the annotation {key}")


@pytest.mark.parametrize("path", ["/run/agent", ""])
def test_a_listener_of_seccomp_gives_descriptors(path: str, lab: Lab) -> None:
    """Docker takes a profile with listenerPath; what listens there hands over what it has open."""
    engine(lab)
    change(lab, "linux", seccomp={"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": path})
    assert asked(lab) == (EVERYTHING if path else "")
    if path:
        error = checked(lab, default="deny").error
        assert error is not None
        assert error.message.endswith(", given by linux.seccomp.listenerPath")


@pytest.mark.parametrize("way", WAYS_OUT)
def test_who_can_leave_the_control_group_asks_for_every_device(way: str, lab: Lab) -> None:
    engine(lab, **WAYS_OUT[way])
    assert asked(lab) == EVERYTHING
    lab.host.write("proc/devices", "Character devices:\n  1 mem\n")
    assert bool(asked(lab)) == (way == "systemd")


def test_without_a_driver_a_rule_for_every_device_gives_no_gpu(lab: Lab) -> None:
    lab.host.write("proc/devices", "Character devices:\n  1 mem\n")
    engine(lab, rules=[{"allow": True, "access": "rwm"}])
    assert asked(lab) == ""
    engine(lab, rules=[rule(195)])
    assert asked(lab) != ""


@pytest.mark.parametrize(
    ("vendor", "base", "is_gpu"),
    [
        ("0x10de", "0x030200", True),
        ("0x10de", "0x030000", True),
        ("0x10de", "0x040300", False),  # its sound
        ("0x1a03", "0x030000", False),
    ],
)
def test_a_gpu_whose_driver_is_loaded_later_counts(
    vendor: str, base: str, lab: Lab, *, is_gpu: bool
) -> None:
    """A container keeps its wide rights until then; at boot engines start those of before."""
    lab.host.write("proc/devices", "Character devices:\n  1 mem\n")
    for bus_id, kind in (("0000:00:00.0", "0x060000"), ("0000:01:00.0", base)):
        lab.host.write(f"sys/bus/pci/devices/{bus_id}/vendor", f"{vendor}\n")
        lab.host.write(f"sys/bus/pci/devices/{bus_id}/class", f"{kind}\n")
    engine(lab, rules=[{"allow": True, "access": "rwm"}])
    assert asked(lab) == (EVERYTHING if is_gpu else "")
    engine(lab, bounding=("CAP_SYS_ADMIN",))
    assert asked(lab) == (EVERYTHING if is_gpu else "")
    engine(lab)
    assert asked(lab) == ""


def test_a_mig_device_has_its_name(lab: Lab) -> None:
    devices = {f"1:{n}": part(1, 30 + 2 * n, 31 + 2 * n) for n in range(2)}
    lab.spec(devices={"0": nodes((195, 0)), **devices})
    host = HOSTS.setdefault(lab, Compiled(lab))
    host.made["own"] = host.plan("registry")  # NVML would tell of MIG devices
    engine(lab, (195, 1), (236, 30), (236, 31), CONTROL)
    assert asked(lab) == "1:0"
    assert checked(lab, {"devices": ["nvidia.com/gpu=1:0"], "then": "deny"}).error is not None
    assert checked(lab, {"devices": ["nvidia.com/gpu=1:1"], "then": "deny"}).error is None
    engine(lab, (195, 1), (236, 30), (236, 31), (195, 0))
    assert asked(lab) == "0,1:0"
    engine(lab, (195, 1), (236, 30))
    assert asked(lab) == "/dev/x1,/dev/x30"
    engine(lab, (236, 30), (236, 31), CONTROL)
    assert asked(lab) == "/dev/x30,/dev/x31"
    allow: dict[str, object] = {"devices": ["nvidia.com/gpu=1:0"], "then": "allow"}
    asks = ("NVIDIA_VISIBLE_DEVICES=1:0",)
    engine(lab, env=asks)
    assert checked(lab, allow, default="deny").error is None
    engine(lab, (236, 32), (236, 33), env=asks)  # of its neighbor
    error = checked(lab, allow, default="deny").error
    assert error is not None
    assert "engine devices='1:1'" in error.message


def test_a_gpu_that_several_kinds_have_is_named_once(lab: Lab) -> None:
    lab.spec(devices={str(n): nodes((195, n)) for n in range(2)})
    for kind in ("acme.com/gpu", "b.com/gpu"):
        device = {**nodes((195, 1)), "env": [f"KIND={kind}"]}
        lab.spec(f"{kind.partition('.')[0]}.json", kind=kind, devices={"1": device})
    engine(lab, (195, 1))
    host = HOSTS.setdefault(lab, Compiled(lab))
    host.made["own"] = host.plan("registry")
    error = checked(lab, default="deny").error
    assert error is not None
    assert "engine devices='1'" in error.message, error


def test_a_refused_extra_has_its_name(lab: Lab) -> None:
    """The nodes nvidia-cap1 and nvidia-cap2 let a container change or watch MIG."""
    lab.host.write("proc/driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\n")
    lab.host.write("proc/devices", "Character devices:\n195 nvidia\n236 nvidia-caps\n")
    engine(lab, (236, 1), CONTROL)
    assert asked(lab) == "nvidia.com/mig=config"
    engine(lab, (195, 0), (236, 2), CONTROL)
    assert asked(lab) == "0,nvidia.com/mig=monitor"


def test_rules_name_engine_devices(lab: Lab) -> None:
    engine(lab, (195, 1))
    cases: list[tuple[dict[str, object], bool]] = [
        ({"by": ["engine"]}, True),
        ({"by": ["env", "annotation", "mount", "cdi-name"]}, False),
        ({"devices": ["nvidia.com/gpu=1"]}, True),
        ({"devices": [f"nvidia.com/gpu={HostTree.uuid(1)}"]}, True),
        ({"devices": ["nvidia.com/gpu=0"]}, False),
        ({"asks-for": ["devices"]}, True),
        ({"asks-for": ["management"]}, False),
        ({"more-gpus-than": 0}, True),
        ({"more-gpus-than": 1}, False),
        ({"privileged": False}, True),
        ({"kubernetes": True}, False),
        ({"cgroups": ["/docker/*"]}, True),
    ]
    for condition, holds in cases:
        refused = isinstance(checked(lab, {**condition, "then": "deny"}).error, NotPermittedError)
        assert refused == holds, condition
        made = checked(lab, {**condition, "then": "allow"}, default="deny")
        assert (made.error is None) == holds, condition


def test_a_rule_that_refuses_a_gpu_refuses_a_rule_for_every_device(lab: Lab) -> None:
    engine(lab, rules=[{"allow": True, "access": "rwm"}])
    assert checked(lab, {"devices": ["nvidia.com/gpu=2"], "then": "deny"}).error is not None
    assert checked(lab, {"more-gpus-than": 2, "then": "deny"}).error is not None
    assert checked(lab, {"asks-for": ["management"], "then": "deny"}).error is not None
    assert checked(lab, {"asks-for": ["all"], "then": "allow"}, default="deny").error is not None
    assert checked(lab, {"privileged": False, "then": "allow"}, default="deny").error is None


def test_what_the_policy_allows_by_another_way_is_not_asked_for_again(lab: Lab) -> None:
    ways: dict[str, object] = {"by": ["env"], "then": "allow"}
    engine(lab, (195, 1), CONTROL, env=("NVIDIA_VISIBLE_DEVICES=1",))
    assert checked(lab, ways, default="deny").error is None
    engine(lab, (195, 1), (195, 2), CONTROL, env=("NVIDIA_VISIBLE_DEVICES=1",))
    assert checked(lab, ways, default="deny").error is not None


def test_a_decision_is_noted_and_explained(lab: Lab) -> None:
    engine(lab, (195, 1))
    made = checked(lab, {"name": "x", "by": ["engine"], "then": "allow"}, default="deny")
    assert made.notes == ["policy rule 'x' allows it: by: engine devices"]
    assert made.origin is not None
    assert [(r.rule, r.holds) for r in made.origin.results] == [("x (engine devices)", True)]


def test_gpus_of_a_rule_for_every_major_cannot_be_ignored(lab: Lab) -> None:
    engine(lab, rules=[rule()])
    with pytest.raises(NotPermittedError, match="cannot be taken out alone"):
        after(lab, checked(lab, default="ignore"))


@pytest.mark.parametrize(
    ("given", "env", "left"),
    [
        ([rule(195, 1)], (), []),
        ([{"allow": True, "access": "rwm"}], (), []),
        ([rule(195, 1)], ("NVIDIA_VISIBLE_DEVICES=2",), [(195, 2), CONTROL]),
    ],
)
def test_ignored_devices_are_taken_away(
    given: list[dict[str, Any]], env: tuple[str, ...], left: list[tuple[int, int]], lab: Lab
) -> None:
    engine(lab, (195, 1), CONTROL, (10, 229), rules=given, env=env)
    made = checked(lab, {"by": ["env"], "then": "allow"}, default="ignore")
    assert made.error is None
    linux = after(lab, made)["linux"]
    numbers = {(d["major"], d["minor"]) for d in linux["devices"]}
    assert {n for n in numbers if n[0] == 195} - {(195, 254)} == set(left)
    assert (10, 229) in numbers
    usable = []
    for minor in (0, 1, 2, 255):
        allows = [
            r["allow"] for r in linux["resources"]["devices"]
            if r.get("major", 195) == 195 and r.get("minor", minor) == minor
        ]  # fmt: skip
        usable += [(195, minor)] if allows[-1] else []
    assert usable == left


def test_a_pods_own_devices_are_given_by_the_kubelet(lab: Lab, tmp_path: Path) -> None:
    for index in range(3):
        lab.host.write(f"dev/nvidia{index}")
    rules: dict[str, object] = {"given-by-kubelet": str(tmp_path), "then": "allow"}
    lab.spec("k8s.json", kind="k8s.device-plugin.nvidia.com/gpu", devices={"a": nodes((195, 1))})
    pod: dict[str, Any] = {
        "cgroup": f"/kubepods/burstable/pod{UID}/1",
        "annotations": {
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.container-name": "main",
        },
    }
    name = "k8s.device-plugin.nvidia.com/gpu=a"
    for given in (
        Given(cdi=(name,)),
        Given(env={"NVIDIA_VISIBLE_DEVICES": "1"}),
        Given(annotations={"cdi.k8s.io/x": name}),
    ):
        write(tmp_path, given)
        engine(lab, (195, 1), CONTROL, (508, 0), **pod)
        assert checked(lab, rules, default="deny").error is None, given
        engine(lab, (195, 1), (195, 2), CONTROL, **pod)
        assert checked(lab, rules, default="deny").error is not None, given
    write(tmp_path, Given(env={"NVIDIA_VISIBLE_DEVICES": "0,1,2"}))
    engine(lab, rules=[rule(195)], **pod)
    assert checked(lab, rules, default="deny").error is None
    engine(lab, rules=[{"allow": True, "access": "rwm"}], **pod)  # the MIG devices of others, too
    assert checked(lab, rules, default="deny").error is not None
    write(tmp_path)
    engine(lab, (195, 1), **pod)
    assert checked(lab, rules, default="deny").error is not None


@pytest.mark.parametrize("names_container", [True, False])
def test_devices_of_a_pods_claims_are_given_by_the_kubelet(
    lab: Lab, tmp_path: Path, *, names_container: bool
) -> None:
    lab.spec("claim.json", kind="k8s.gpu.nvidia.com/claim", devices={"a": nodes((195, 1))})
    write(tmp_path)
    rules: dict[str, object] = {"given-by-kubelet": str(tmp_path), "then": "allow"}
    names = {"io.kubernetes.cri.container-name": "main"} if names_container else {}
    pod: dict[str, Any] = {"cgroup": f"/kubepods/burstable/pod{UID}/1", "annotations": names}

    def error(*numbers: tuple[int, int]) -> NvctError | None:
        engine(lab, *numbers, CONTROL, (508, 0), **pod)
        return checked(lab, rules, default="deny").error

    assert error((195, 1)) is not None
    write_claims(tmp_path, "k8s.gpu.nvidia.com/claim=a", uid=UID.replace("a", "b"))
    assert error((195, 1)) is not None
    write_claims(tmp_path, "k8s.gpu.nvidia.com/claim=a")
    assert error((195, 1)) is None
    assert error((195, 1), (195, 2)) is not None
    for text in ("", "{}", '{"Data": "[]"}', '{"Data": "{}"}'):
        (tmp_path / CLAIMS).write_text(text)
        assert error((195, 1)) is not None


@pytest.mark.parametrize("env", [(), ("NVIDIA_VISIBLE_DEVICES=1",)])
def test_what_the_kubelet_gave_stays_in_a_privileged_pod(
    env: tuple[str, ...], lab: Lab, tmp_path: Path
) -> None:
    """Runc makes no hole in a rule for a whole major: each other GPU is refused alone."""
    write(tmp_path, Given(env={"NVIDIA_VISIBLE_DEVICES": "1"}))
    names = {"io.kubernetes.cri.container-name": "main"}
    everything = [{"allow": True, "access": "rwm"}]
    engine(lab, rules=everything, cgroup=f"/kubepods/pod{UID}/1", annotations=names)
    made = checked(lab, {"given-by-kubelet": str(tmp_path), "then": "allow"}, {"then": "ignore"})
    rules = after(lab, made)["linux"]["resources"]["devices"]
    refused = [(r["major"], r.get("minor")) for r in rules if not r["allow"] and "major" in r]
    assert sorted(n for n in refused if n[0] == 195) == [(195, 0), (195, 2)]
    assert {n[0] for n in refused if n[1] is None} == {236}


def test_the_example_of_the_documents(lab: Lab, tmp_path: Path) -> None:
    text = (Path(__file__).parents[4] / "docs/policy.md").read_text(encoding="utf-8")
    example = text.partition("## What the engine gives")[2].partition("```toml\n")[2]
    rules = example.partition("```")[0].replace("/var/lib/kubelet", str(tmp_path))
    config = from_toml(rules.encode(), "/c")
    policy = [json.loads(text) for text in config.policy]
    assert policy.pop()["then"] == "deny"
    assert config.engine_devices == "checked"
    names = {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": "main",
        "io.kubernetes.cri.sandbox-namespace": "team-a",
    }
    pod: dict[str, Any] = {"cgroup": f"/kubepods/pod{UID}/1", "annotations": names}
    asks = ("NVIDIA_VISIBLE_DEVICES=1",)
    write(tmp_path, Given(env={"NVIDIA_VISIBLE_DEVICES": "1"}))
    rules_of = [{k: v for k, v in rule.items() if k != "name"} for rule in policy]

    engine(lab, env=asks, **pod)  # allocated by a variable
    assert checked(lab, *rules_of, default="deny").request is not None
    engine(lab, (195, 1), CONTROL, **pod)  # allocated by nodes
    assert checked(lab, *rules_of, default="deny").error is None
    write(tmp_path)
    engine(lab, (195, 2), CONTROL, **pod)
    assert checked(lab, *rules_of, default="deny").removal is not None
    lab.spec("claim.json", kind="k8s.gpu.nvidia.com/claim", devices={"a": nodes((195, 2))})
    write_claims(tmp_path, "k8s.gpu.nvidia.com/claim=a")
    assert checked(lab, *rules_of, default="deny").removal is None
    for env in (asks, ()):
        engine(lab, (195, 2), env=env)  # Docker
        assert checked(lab, *rules_of, default="deny").error is not None


@pytest.fixture
def rootless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A runtime in a user namespace, and a folder with a GPU's node if this user may make one."""
    (tmp_path / "uid_map").write_text(ROOTLESS)
    monkeypatch.setattr(origin.Origin.__init__, "__defaults__", (str(tmp_path / "uid_map"),))
    folder = tmp_path / "dev"
    folder.mkdir()
    try:
        os.mknod(folder / "gpu", stat.S_IFCHR | 0o666, os.makedev(195, 1))
    except OSError:
        pytest.skip("only root makes device nodes")
    return folder


def bind(path: Path) -> list[dict[str, Any]]:
    return [{"destination": "/x", "source": str(path), "type": "bind", "options": ["rbind"]}]


@pytest.mark.parametrize("cgroup", ["/docker/1", ""])
def test_a_mount_gives_a_device_where_no_rule_refuses_the_rest(
    cgroup: str, tmp_path: Path, lab: Lab
) -> None:
    """As of Podman for a container with a user namespace; crun refuses nothing then."""
    try:
        os.mknod(tmp_path / "gpu", stat.S_IFCHR | 0o666, os.makedev(195, 1))
    except OSError:
        pytest.skip("only root makes device nodes")
    engine(lab, mounts=bind(tmp_path / "gpu"), cgroup=cgroup)
    assert bool(asked(lab)) == (not cgroup)  # a runtime may make one, and may not
    without_rules(lab)
    assert asked(lab) == "1"
    allowed = rules_after(lab, "allow")
    assert allowed[0] == DENIED
    assert rule(195, 1) in allowed
    ignored = rules_after(lab, "ignore")
    assert ignored[0] == DENIED
    assert rule(195, 1) not in ignored


@pytest.mark.parametrize("default", ["deny", "ignore"])
def test_what_takes_a_container_out_of_its_control_group_counts(
    default: str, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a user namespace: the host's user or crun does it."""
    monkeypatch.setattr(device_access, "UNIFIED", str(tmp_path))
    (tmp_path / "system/a").mkdir(parents=True)
    (tmp_path / "users/a").mkdir(parents=True)

    def why(cgroup: str, service: str = "gold") -> str:
        engine(lab, cgroup=cgroup)
        namespaces = [{"type": kind} for kind in ("pid", "cgroup", "user")]
        mappings = [{"containerID": 0, "hostID": 100000, "size": 65536}]
        change(lab, "linux", intelRdt={"closID": service}, namespaces=namespaces,
               uidMappings=mappings)  # fmt: skip
        try:
            after(lab, checked(lab, default=default))
        except NotPermittedError as error:
            return error.message
        return ""

    if os.geteuid() == 0:
        os.chown(tmp_path / "users", 1000, 1000)
        for group in ("/users/a", "users/a/b/1", "/users/1"):
            assert f"the control group {tmp_path}/users of user 1000" in why(group), group
        assert why("/system/a/1") == why("/new/1") == why("system.slice:x:1") == ""
    assert "the class of service ../cgroup/devices" in why("/new", "../cgroup/devices")
    for group in ("../../run/x", "/../1", "x/../../run", "/x/..", "a.slice:../x:1"):
        assert f"the control group {group}" in why(group), group
    assert why("/a..b/1") == ""


def without_rules(lab: Lab) -> None:
    change(lab, "linux", resources={"pids": {"limit": 2048}})


def rules_after(lab: Lab, default: str) -> list[dict[str, Any]]:
    """Return the device rules of a container that the runtime has made."""
    text = lab.config_json.read_text(encoding="utf-8")
    lab.keys["nvct.policy"] = {"default": default, "engine-devices": "checked"}
    lab.configure()
    lab.configure(
        f'{lab.config_toml.read_text()}[[nvct.policy.rules]]\nusers = [7]\nthen = "deny"\n'
    )
    result = lab.create()
    assert result.status == 0, result.stderr
    made = lab.document()["linux"]["resources"]["devices"]
    lab.config_json.write_text(text, encoding="utf-8")
    return list(made)


@pytest.mark.parametrize("default", ["allow", "ignore", "deny"])
def test_a_rule_refuses_the_rest_where_none_did(default: str, lab: Lab) -> None:
    """Else a node that nobody sees, in a folder of root's, would be a GPU for crun."""
    engine(lab, (10, 229))
    without_rules(lab)
    block = {"path": "/d", "type": "b", "major": 7, "minor": 0}
    change(lab, "linux", devices=[node(10, 229), block])
    rules = rules_after(lab, default)
    assert rules[0] == DENIED
    assert {r["major"] for r in rules[1:]} == {7, 10, 195, 508}
    assert [r["minor"] for r in rules[1:] if r["major"] == 195] == [254, 255]


def test_a_mount_gives_a_device_where_no_control_group_refuses_it(
    rootless: Path, lab: Lab
) -> None:
    link, other = rootless.parent / "link", rootless.parent / "other"
    link.symlink_to(rootless)
    other.mkdir()
    os.mknod(other / "x", stat.S_IFCHR | 0o666, os.makedev(195, 1))
    for path in (rootless / "gpu", rootless, rootless.parent, link, other):
        engine(lab, mounts=bind(path))
        assert asked(lab) == "1", path
    engine(lab, mounts=bind(rootless / "gpu"))
    assert after(lab, checked(lab, default="ignore"))["mounts"] == []
    engine(lab, mounts=bind(rootless))
    with pytest.raises(NotPermittedError, match="cannot be taken out alone"):
        after(lab, checked(lab, default="ignore"))


def shown(monkeypatch: pytest.MonkeyPatch, work: Path, *lines: str) -> None:
    """Let the kernel's list of mounts have some more."""
    own = work / "proc" / "self"
    own.mkdir(parents=True, exist_ok=True)
    for name in ("fd", "ns"):
        if not (own / name).is_symlink():
            (own / name).symlink_to(f"/proc/self/{name}")
    text = "".join(f"{n} 1 0:5 / {line} rw\n" for n, line in enumerate(lines))
    (own / "mountinfo").write_text(f"9 1 8:1 / / rw - ext4 /dev/vda1 rw\n{text}")
    monkeypatch.setattr(host_view, "PROC", str(work / "proc"))


@pytest.mark.parametrize("options", ["rw,nosuid", "rw,nodev"])
def test_a_mount_of_dev_below_a_mount_or_a_root_gives_its_devices(
    options: str, rootless: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever uses a rootless engine can mount there: `podman unshare mount --rbind`."""
    home = rootless.parent / "home"
    (home / "a/b/c/d").mkdir(parents=True)
    rootless.rename(home / "a/b/c/d/deep")
    shown(monkeypatch, rootless.parent, f"{home}/a/b/c/d/deep {options} - devtmpfs devtmpfs")
    ids = "" if "nodev" in options else "1"
    engine(lab, mounts=bind(home))
    assert asked(lab) == ids
    engine(lab)
    assert asked(lab) == ""
    change(lab, "root", path=str(home))
    assert asked(lab) == ids


def test_a_rootless_container_that_sees_processes_of_the_host_asks_for_every_device(
    rootless: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc/PID/root of the engine's own processes has the host's /dev."""
    shown(monkeypatch, rootless.parent, "/proc rw,nodev - proc proc")
    (rootless / "gpu").unlink()
    own_users = {"type": "user"}
    for mounts, namespaces, ids in (
        ([], [{"type": "pid"}], ""),
        ([], [], EVERYTHING),
        ([], [{"type": "pid", "path": "/proc/self/ns/pid"}], EVERYTHING),
        (bind(Path("/proc")), [{"type": "pid"}], EVERYTHING),
        (bind(Path("/proc")), [{"type": "pid"}, {**own_users, "path": "/proc/1"}], EVERYTHING),
        (bind(Path("/proc")), [own_users], ""),
        (bind(rootless), [{"type": "pid"}], ""),
    ):
        engine(lab, mounts=mounts)
        change(lab, "linux", namespaces=namespaces)
        assert asked(lab) == ids, (mounts, namespaces)


@pytest.mark.parametrize(("value", "is_valid"), [("checked", 1), ("unchecked", 1), ("yes", 0)])
def test_the_key_has_two_values(value: str, is_valid: int) -> None:
    text = f'[nvct.policy]\nengine-devices = "{value}"\n'.encode()
    if is_valid:
        assert from_toml(text, "/c").engine_devices == value
        return
    with pytest.raises(ConfigError, match=r"nvct.policy.engine-devices cannot be 'yes'"):
        from_toml(text, "/c")


def test_only_checked_rules_cost_the_launcher_words() -> None:
    def words(text: str) -> list[str]:
        lines = launcher_conf(from_toml(text.encode(), "/c"), "/c", ABSENT)
        return [line for line in lines.splitlines() if ":195" in line]

    assert words('[nvct.policy]\ndefault = "deny"\n') == []
    assert words('[nvct.policy]\nengine-devices = "checked"\n') == []
    assert words('[nvct.policy]\ndefault = "deny"\nengine-devices = "checked"\n')


def test_for_a_checked_rootless_engine_the_launcher_decides_nothing() -> None:
    """A mount of any name may lead to a node, and no control group refuses it."""
    assert launcher_conf(DENYING, "/c", ABSENT, is_rootless=True) == "nvct-launcher 2\nend\n"
    assert "word" in launcher_conf(HOST_CONFIG, "/c", ABSENT, is_rootless=True)


def test_while_config_toml_is_invalid_engine_devices_are_refused(lab: Lab) -> None:
    engine(lab, (195, 1))
    lab.configure('[nvct.policy]\nengine-devices = "checked"\ndefault = "deni"\n')
    assert "default cannot be 'deni'" in lab.create().stderr
    for text, numbers in (('engine-devices = "checked"\n', ()), ("", ((195, 1),))):
        engine(lab, *numbers)
        lab.configure(f'[nvct.policy]\n{text}default = "deni"\n')
        assert "deni" not in lab.create().stderr  # the host's runc is started


@pytest.mark.parametrize(
    ("default", "outcome"), [("allow", "given"), ("ignore", "ignored"), ("deny", "refused")]
)
def test_what_becomes_of_engine_devices_is_recorded(default: str, outcome: str, lab: Lab) -> None:
    lab.keys["nvct.policy"] = {"default": "deny", "engine-devices": "checked"}
    rule = f'[[nvct.policy.rules]]\nby = ["engine"]\nthen = "{default}"\n'
    lab.configure()
    lab.configure(lab.config_toml.read_text() + rule)
    engine(lab, (195, 1), (195, 2))
    lab.create()
    (record,) = (lab.run_dir / recorder.NAME).read_text().splitlines()
    fields = json.loads(record)
    assert fields["outcome"] == outcome
    assert fields["asked"] == "engine devices: 1, 2"
    if default != "allow":
        assert ", given by the node /dev/x1" in f"{fields.get('error')}{fields.get('notes')}"


def test_a_create_is_denied(lab: Lab) -> None:
    lab.keys["nvct.policy"] = {"default": "deny", "engine-devices": "checked"}
    lab.configure()
    engine(lab, (195, 1))
    result = lab.create()
    assert result.status == 1
    assert "policy rule 'default' denies engine devices='1'" in result.stderr
    restored = lab.shim(["restore", "--detach", "--bundle", str(lab.bundle), "x"])
    assert restored.status == 1
    assert restored.stderr == result.stderr
    engine(lab, (10, 229))
    assert lab.create().status == 0
