# SPDX-License-Identifier: Apache-2.0
"""Under a policy for what engines give, an exec brings no capability and an update no rule."""

import json
from pathlib import Path
from typing import Any

import pytest

from nvct.container import recorder
from nvct.container.shim.running import EXEC_VALUE
from tests.support.launcher import script
from tests.support.shim_lab import Lab, Said

DENY = {"default": "deny", "engine-devices": "checked"}
DENIED = "exec would add CAP_SYS_ADMIN, but policy rule 'default' denies engine devices="
PLAIN = ("CAP_CHOWN", "CAP_MKNOD")
ADMIN = (*PLAIN, "CAP_SYS_ADMIN")


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.driver(gpus=2)
    lab.keys["nvct.policy"] = dict(DENY)
    lab.configure()
    container(lab)
    keep(lab, {"config": {"labels": ["x=y", f"bundle={lab.bundle}"]}})
    return lab


def container(lab: Lab, *capabilities: str, **linux: Any) -> None:
    """Write the config.json of a running container."""
    namespaces = [{"type": "pid"}, {"type": "cgroup"}]
    usual = {"cgroupsPath": "/docker/1", "readonlyPaths": ["/proc/sys"], "namespaces": namespaces}
    lab.asks(linux={**usual, **linux})
    document = json.loads(lab.config_json.read_text(encoding="utf-8"))
    document["process"]["capabilities"] = {"bounding": capabilities or PLAIN}
    lab.config_json.write_text(json.dumps(document), encoding="utf-8")


def keep(lab: Lab, state: dict[str, Any] | None, name: str = "state.json") -> None:
    """Write what a runtime knows of the container `one`."""
    folder = lab.home / "state" / "one"
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    if state is not None:
        (folder / name).write_text(json.dumps(state))


def executed(lab: Lab, *capabilities: str, kind: str = "bounding", **more: Any) -> Said:
    """Start a process with capabilities as Docker does."""
    process = lab.home / "process"
    process.write_text(json.dumps({"args": ["sh"], "capabilities": {kind: capabilities}, **more}))
    words = ("exec", "--process", str(process), "--detach", "--pid-file", "exec", "one")
    return lab.shim(["--root", str(lab.home / "state"), *words])


@pytest.mark.parametrize("kind", ["bounding", "effective", "permitted", "ambient"])
def test_a_privileged_exec_is_asked_of_the_policy(kind: str, lab: Lab) -> None:
    done = executed(lab, *ADMIN, kind=kind)
    assert done.status == 1
    assert DENIED in done.stderr
    assert "runc" not in done.stdout
    done = executed(lab, *PLAIN, kind=kind)
    assert done.stdout.startswith("runc --root ")
    assert done.stdout.endswith(" exec one\n")


def records(lab: Lab) -> list[dict[str, str]]:
    path = lab.run_dir / recorder.NAME
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_refused_exec_or_update_is_recorded(lab: Lab) -> None:
    executed(lab, *PLAIN)
    assert records(lab) == []
    executed(lab, *ADMIN)
    lab.shim(["update", "--resources=/none", "one"])
    keep(lab, None)
    executed(lab, *ADMIN)
    execs, update, unknown = records(lab)
    assert (execs["outcome"], execs["about"]) == ("refused", f"exec {lab.bundle}")
    assert execs["error"].startswith(DENIED)
    assert execs["error"].endswith("', given by CAP_SYS_ADMIN")
    assert (update["about"], update["error"][:11]) == ("update one", "cannot read")
    assert (unknown["about"], unknown["code"]) == ("exec one", "bad-bundle")


def test_an_annotation_names_no_bundle(lab: Lab) -> None:
    """Runc keeps annotations as labels, too, before its own."""
    (lab.home / "lenient").mkdir()
    container(lab, *ADMIN)
    lab.config_json.rename(lab.home / "lenient" / "config.json")
    container(lab)
    labels = [f"bundle={lab.home}/lenient", f"bundle={lab.bundle}"]
    keep(lab, {"config": {"labels": labels}})
    assert DENIED in executed(lab, *ADMIN).stderr
    keep(lab, {"config": {"labels": labels[::-1]}})
    assert executed(lab, *ADMIN).status == 0


def test_crun_keeps_the_bundle_in_another_file(lab: Lab) -> None:
    keep(lab, {"pid": 1, "bundle": str(lab.bundle)}, "status")
    assert DENIED in executed(lab, *ADMIN).stderr


def test_rules_see_the_container(lab: Lab) -> None:
    rules = '[[nvct.policy.rules]]\ncgroups = ["/docker/*"]\nthen = "allow"\n'
    lab.configure(lab.config_toml.read_text() + rules)
    assert executed(lab, *ADMIN).status == 0
    container(lab, cgroupsPath="/other/1")
    assert DENIED in executed(lab, *ADMIN).stderr


def test_an_ignored_exec_starts_as_an_ignored_container_does(lab: Lab) -> None:
    lab.keys["nvct.policy"] = {**DENY, "default": "ignore"}
    lab.configure()
    assert executed(lab, *ADMIN).status == 0


def test_what_the_container_has_is_not_asked_for_again(lab: Lab) -> None:
    """Its create was asked; a probe of a privileged pod that is older than the policy goes on."""
    container(lab, *ADMIN)
    assert executed(lab, *ADMIN).status == 0


def test_a_container_that_sees_the_host_is_asked_when_its_capability_comes(lab: Lab) -> None:
    """It is older than the policy; --pid=host alone enters only processes of as few rights."""
    container(lab, namespaces=[{"type": "cgroup"}])
    assert DENIED in executed(lab, *ADMIN).stderr
    assert executed(lab, *PLAIN).status == 0
    container(lab, *ADMIN, namespaces=[{"type": "cgroup"}])
    assert executed(lab, *ADMIN).status == 0


def test_the_devices_of_a_request_are_not_asked_for_again(lab: Lab) -> None:
    """They are in config.json since the create; and devices are leased only there."""
    nodes = [{"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1}]
    namespaces = [{"type": kind} for kind in ("pid", "cgroup", "user")]
    mappings = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    container(lab, namespaces=namespaces, uidMappings=mappings, devices=nodes)
    assert executed(lab, *ADMIN).status == 0
    container(lab, devices=nodes)
    assert f"{DENIED}'management.nvidia.com/gpu=all'" in executed(lab, *ADMIN).stderr


def test_an_admin_of_a_user_namespace_is_none(lab: Lab) -> None:
    namespaces = [{"type": kind} for kind in ("pid", "cgroup", "user")]
    for host, goes in ((100000, 0), (0, 1)):
        mappings = [{"containerID": 0, "hostID": host, "size": 65536}]
        container(lab, namespaces=namespaces, uidMappings=mappings)
        assert executed(lab, *ADMIN).status == goes, host


@pytest.mark.parametrize("state", [None, {}, {"bundle": ""}, {"config": {"labels": ["x"]}}])
def test_an_unknown_container_gets_no_capability(state: dict[str, Any] | None, lab: Lab) -> None:
    keep(lab, state)
    done = executed(lab, *ADMIN)
    assert done.status == 1
    assert "the bundle of container 'one' cannot be found in" in done.stderr
    assert executed(lab, *PLAIN).status == 0


@pytest.mark.parametrize("flag", ["--cap CAP_SYS_ADMIN", "-c=sys_admin", "--cap=CHOWN,SYS_ADMIN"])
def test_a_capability_by_hand(flag: str, lab: Lab) -> None:
    root = f"--root={lab.home}/state"
    done = lab.shim([root, "exec", "-e", "A=B", *flag.split(), "one", "sh"])
    assert DENIED in done.stderr
    assert lab.shim([root, "exec", "one", "sh", *flag.split()]).status == 0  # the process's own


def test_each_flag_with_a_value_is_known(lab: Lab) -> None:
    names = [name for name in EXEC_VALUE if name not in {"process", "p"}]
    words = [word for name in names for word in ("-" * min(len(name), 2) + name, "one")]
    words += ["--cap=SYS_ADMIN", "one", "sh"]
    assert DENIED in lab.shim([f"--root={lab.home}/state", "exec", *words]).stderr


def test_a_process_that_cannot_be_read_is_refused(lab: Lab) -> None:
    done = lab.shim(["exec", "--process", f"{lab.home}/none", "one"])
    assert done.status == 1
    assert "cannot read" in done.stderr


RULES = [{"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rwm"}]


@pytest.mark.parametrize("flag", ["--resources={}", "--resources {}", "-r {}", "-r=-", "-r -"])
def test_an_update_changes_no_device_rule(flag: str, lab: Lab) -> None:
    """Crun would apply them."""
    show = 'for a; do case $a in --resources=*) cat "${a#*=}";; *) echo "$a";; esac; done\n'
    script(lab.home / "bin/runc", show)
    file: Path = lab.home / "resources"
    text = json.dumps({"pids": {"limit": 99}, "devices": RULES, "unified": {"a": "é"}})
    file.write_text(text, encoding="utf-8")
    words = ["update", "--pids-limit", "7", *flag.format(file).split(), "one"]
    done = lab.shim(words, data=text)
    assert done.stdout.startswith("update\n--pids-limit\n7\n{"), done
    assert done.stdout.endswith("}one\n")
    given = json.loads(done.stdout[done.stdout.index("{") : -len("one\n")])
    assert given == {"pids": {"limit": 99}, "devices": [], "unified": {"a": "é"}}
    assert file.read_text(encoding="utf-8") == text


def test_an_update_without_a_file_is_unchanged(lab: Lab) -> None:
    words = ["update", "--pids-limit", "7", "one"]
    assert lab.shim(words).stdout == "runc update --pids-limit 7 one\n"


def test_without_checks_nothing_is_looked_at(lab: Lab) -> None:
    for key, value in (("default", "deny"), ("engine-devices", "checked")):
        lab.keys["nvct.policy"] = {key: value}
        lab.configure()
        assert executed(lab, *ADMIN).status == 0
        words = ["update", "--resources=/none", "one"]
        assert lab.shim(words).stdout == f"runc {' '.join(words)}\n"
