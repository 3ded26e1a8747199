# SPDX-License-Identifier: Apache-2.0
"""Under a policy for what engines give, the launcher looks at what a container sees of the host."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.launcher.install import Built
from tests.support.launcher import PRINT_ARGS, compiled, script
from tests.unit.launcher.conftest import PROGRAM, Lab

PRIVATE = [{"type": "mount"}, {"type": "pid"}, {"type": "cgroup"}]
READ_ONLY = ["/proc/bus", "/proc/sys", "/proc/sysrq-trigger"]
REFUSED = {"devices": [{"allow": False, "access": "rwm"}]}
POLICY = ('{"then": "deny"}',)
CGROUPS = "/sys/fs/cgroup"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def decided_by(lab: Lab, source: str | Path = "/etc", **more: Any) -> str:
    """Return which program a create with a mount goes to; Docker writes config.json so."""
    seccomp = {"syscalls": [{"names": ["bind", "mount"]}]}
    devices = [{"path": "/dev/no-such-device"}]
    linux = {
        "resources": REFUSED, "cgroupsPath": "/no/1", "namespaces": PRIVATE, "devices": devices,
        "seccomp": seccomp,
    }  # fmt: skip
    document: dict[str, Any] = {
        "process": {"args": ["/proc/sys", '"/proc/sys"', '"readonlyPaths":["/proc/sys"]']},
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid"]},
            {"destination": "/x", "type": "bind", "source": str(source), "options": ["rbind"]},
        ],
        **more,
        "linux": {"readonlyPaths": READ_ONLY, **linux, **more.get("linux", {})},
    }
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    (lab.home / "bundle/rootfs").mkdir(exist_ok=True)
    return lab.went_to("create", "-b", lab.bundle(text), "id")


def mount(source: str, kind: str | None = "bind", *options: str) -> dict[str, Any]:
    """Return a mount with its members in the order of Go's specs.Mount."""
    typed = {} if kind is None else {"type": kind}
    return {"destination": "/x", **typed, "source": source, "options": options or ["rbind"]}


@pytest.fixture
def checked(lab: Lab) -> Lab:
    lab.keep(policy=POLICY, engine_devices="checked")
    assert "\nhost\t" in lab.conf.read_text()
    assert lab.conf.read_text().count("\nword\t") <= 64  # MAX_WORDS of the launcher
    return lab


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is not in /dev, for which there is a word."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        yield Path(path)


def test_an_ordinary_container_is_handed_over(checked: Lab, folder: Path) -> None:
    (folder / "é b").mkdir()
    (folder / "link").symlink_to("/usr")
    for source in ("/etc/hostname", folder / "é b", folder / "link", "/no"):
        assert decided_by(checked, source) == "bin/runc", source
    label = 'context="system_u:object_r:container_file_t:s0"'
    for kind in ("tmpfs", "devpts", "mqueue", "sysfs", "cgroup"):
        own = mount(kind, kind, "nosuid", "bind=none", "bindings", label, "ro")
        assert decided_by(checked, mounts=[own, mount("/etc")]) == "bin/runc", kind
        assert decided_by(checked, mounts=[mount("/etc"), own]) == "bin/runc", kind
    many = [mount("/etc/hostname")] * 200
    assert decided_by(checked, mounts=many) == "bin/runc"


@pytest.mark.parametrize(
    "target",
    ["/", "/proc", "/proc/sys", CGROUPS, "/sys", "/sys/fs", "/sys/kernel", "/sys/kernel/debug"],
)
def test_what_shows_the_host_is_found_behind_any_name(
    target: str, checked: Lab, folder: Path
) -> None:
    if not os.path.ismount(CGROUPS):
        pytest.skip("needs control groups")
    link, second = folder / "link", folder / "second"
    link.symlink_to(target)
    second.symlink_to(link)
    for source in (target, f"/{target}/.", str(link), str(second), f"{folder}/../.{link}"):
        if os.path.exists(source):
            assert decided_by(checked, source) == "python", source
            assert decided_by(checked, root={"path": source}) == "python", source


@pytest.mark.parametrize(
    "attack",
    [
        mount("../../sys/fs/cgroup"), mount("../../etc", "none"), mount("x", ""), mount("", "foo"),
        mount("proc", "proc", "bind"), mount("tmpfs", "tmpfs", "ro", "rbind"), mount("x", None),
        {"destination": "/x", "type": "/etc", "options": ["rbind"]},
        mount("cpuset", "cpuset", "rw"), mount("/etc", "debugfs", "rw"), mount("x", "none", "rw"),
        mount("tmpfs", "tmpfs", "remount", "rw"), mount("/etc", "bind", "remount"),
        mount("sysfs", "sysfs", "rw"), mount("sysfs", "sysfs", "ro", "rw"),
        mount("sysfs", "sysfs", "rrw", "ro"), mount("proc", "proc", "nosuid"),
        {**mount("/no", "cpuset", "rw"), "x": "bind"}, {**mount("sysfs", "sysfs", "rw"), "x": "ro"},
        mount("/proc/self/cwd"), mount("/proc/self/fd/99"), mount("/proc/self/task/../cwd/etc"),
        mount("/dev/fd/9"), mount("/etc", "bind", "rbind", "rslave"), mount("/etc", "bind", "ro", "shared"),
    ],
    ids=str,
)  # fmt: skip
def test_a_mount_that_is_another_for_the_runtime_is_for_python(
    attack: dict[str, Any], checked: Lab
) -> None:
    for mounts in ([attack], [mount("/etc"), attack, mount("/etc")]):
        assert decided_by(checked, mounts=mounts) == "python", mounts
        said: Any = {"bind": "bind", "ro": '"options":["ro"]', "x": ["bind", "ro"]}
        assert decided_by(checked, mounts=mounts, annotations=said) == "python", mounts


def test_a_container_without_a_rule_that_refuses_the_rest_is_for_python(checked: Lab) -> None:
    """As Podman 5.4 writes it with --userns=auto; crun then refuses nothing."""
    allowed = {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}
    for rules in ([], [allowed], [{"allow": False, "type": "c", "major": 1, "access": "rwm"}]):
        said = {"x": '{"allow":false,"access":"rwm"}'}
        found = decided_by(checked, annotations=said, linux={"resources": {"devices": rules}})
        assert found == "python", rules


@as_root
def test_a_control_group_of_another_user_is_for_python(checked: Lab) -> None:
    """Its owner can empty it."""
    hierarchies = (f"{CGROUPS}/pids", CGROUPS)  # of version 1 and 2
    try:
        top = tempfile.mkdtemp(dir=next(filter(os.path.isdir, hierarchies)))
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    up = top.removeprefix(CGROUPS)
    try:
        os.makedirs(f"{top}/a/b")
        for group in (f"{up}/a/b", f"{up}/a", f"{up}/new"):
            assert decided_by(checked, linux={"cgroupsPath": group}) == "bin/runc", group
        os.chown(f"{top}/a", 1000, 1000)
        for group in (f"{up}/a/b", f"{up}/a", f"{up}/a/new/1"):
            assert decided_by(checked, linux={"cgroupsPath": group}) == "python", group
            said = {"cgroupsPath": "/no"}
            found = decided_by(checked, annotations=said, linux={"cgroupsPath": group})
            assert found == "python", group
    finally:
        for folder in (f"{top}/a/b", f"{top}/a", top):
            os.rmdir(folder)


def test_a_folder_that_is_no_control_group_is_for_python(checked: Lab) -> None:
    """crun follows `..` out of its control groups."""
    assert decided_by(checked, linux={"cgroupsPath": "a.slice:b:c"}) == "bin/runc"
    for group in ("../../run/x", "/../1", "x/../../run", "/x/..", "a.slice:../x:1"):
        assert decided_by(checked, linux={"cgroupsPath": group}) == "python", group


def test_a_class_of_service_and_a_cgroup_namespace_of_others_are_for_python(checked: Lab) -> None:
    others = [*PRIVATE[:2], {"type": "cgroup", "path": "/proc/9/ns/cgroup"}]
    for linux in ({"intelRdt": {"closID": "../cgroup/devices"}}, {"namespaces": others}):
        assert decided_by(checked, linux=linux) == "python", linux


def test_a_link_through_proc_is_for_python(checked: Lab, folder: Path) -> None:
    (folder / "cwd").symlink_to("/proc/self/cwd")
    (folder / "deep").mkdir()
    (folder / "deep/link").symlink_to("../cwd")
    (folder / "round").symlink_to("round")
    for name in ("cwd", "cwd/etc", "deep/link", "deep/../cwd", "round"):
        assert decided_by(checked, folder / name) == "python", name


def test_a_mount_of_the_containers_own_root_is_for_python(checked: Lab, folder: Path) -> None:
    bundle = checked.home / "bundle"
    (folder / "link").symlink_to(bundle)
    for source in (bundle, bundle / "rootfs", checked.home, folder / "link/rootfs"):
        assert decided_by(checked, source) == "python", source
    root = folder / "root"
    (root / "etc").mkdir(parents=True)
    assert decided_by(checked, root / "etc", root={"path": str(root)}) == "python"
    assert decided_by(checked, folder / "link", root={"path": str(root)}) == "bin/runc"
    for path in (folder / "none", "/proc/self/cwd"):
        assert decided_by(checked, root={"path": str(path)}) == "python", path


@pytest.mark.parametrize("held", [[], ["/proc/sys"], ["/proc/bus", "/proc/sys/kernel"], None])
def test_settings_of_the_kernel_that_can_be_written_are_for_python(
    held: Any, checked: Lab
) -> None:
    """As with systempaths=unconfined of Docker, and unmask of Podman."""
    assert decided_by(checked, linux={"readonlyPaths": held}) == "python"


def test_without_such_a_policy_nothing_is_looked_at(lab: Lab) -> None:
    for values in ({}, {"policy": POLICY}, {"engine_devices": "checked"}):
        lab.keep(**values)
        assert decided_by(lab, "/", linux={}) == "bin/runc"


def test_the_hosts_processes_are_for_python(checked: Lab) -> None:
    joined = [{"type": "cgroup"}, {"type": "pid", "path": "/proc/1/ns/pid"}]
    assert decided_by(checked, linux={"namespaces": joined}) == "python"
    assert decided_by(checked, linux={"namespaces": [{"type": "cgroup"}]}) == "python"


def test_the_hosts_control_groups_are_for_python_where_one_mount_has_all(checked: Lab) -> None:
    unified = os.path.exists(f"{CGROUPS}/cgroup.controllers")
    found = decided_by(checked, linux={"namespaces": [{"type": "pid"}]})
    assert found == ("python" if unified else "bin/runc")


@pytest.mark.parametrize("kind", ["pid", "cgroup"])
def test_what_a_user_writes_is_no_namespace(kind: str, checked: Lab) -> None:
    """`docker run --annotation type=pid`, and maps and lists of other options."""
    unified = os.path.exists(f"{CGROUPS}/cgroup.controllers")
    goes = "python" if unified or kind == "pid" else "bin/runc"
    others = [namespace for namespace in PRIVATE if namespace["type"] != kind]
    said = json.dumps({"type": kind}, separators=(",", ":"))
    listed = f'"namespaces":[{said}]'
    options: list[dict[str, Any]] = [
        {"annotations": {"type": kind}},
        {"annotations": {listed: listed, "namespaces": f"[{said}]", said: said}},
        {"hostname": listed, "process": {"args": [said, listed], "env": [f"namespaces=[{said}]"]}},
        {"mounts": [mount("tmpfs", "tmpfs", said, listed)]},
    ]
    for more in options:
        assert decided_by(checked, **more) == "bin/runc", more
        linux: dict[str, Any] = {"namespaces": others}
        assert decided_by(checked, **more, linux=linux) == goes, more
        for member in ("sysctl", "resources"):
            linux = {
                "namespaces": others,
                member: {**REFUSED, "unified": {"type": kind}, "type": kind},
            }
            assert decided_by(checked, **more, linux=linux) == goes, more
    linux = {"namespaces": others, "x": {"namespaces": PRIVATE}}
    assert decided_by(checked, linux=linux) == "python"


def test_what_a_user_writes_holds_no_setting(checked: Lab) -> None:
    listed = '"readonlyPaths":["/proc/sys"]'
    said = {listed: listed, "readonlyPaths": '["/proc/sys"]', "/proc/sys": "/proc/sys"}
    for held in ([], ["/proc/bus", listed]):
        linux = {"readonlyPaths": held, "sysctl": said}
        assert decided_by(checked, annotations=said, linux=linux) == "python", held


@pytest.mark.parametrize("source", ["\\/etc/hostname", "/etc\\/hostname", "/" + "x" * 5000])
def test_what_the_launcher_cannot_read_is_for_python(source: str, checked: Lab) -> None:
    linux = {"namespaces": PRIVATE, "readonlyPaths": READ_ONLY}
    text = json.dumps({"linux": linux}, separators=(",", ":"))
    mounts = json.dumps([mount("SOURCE")], separators=(",", ":")).replace("SOURCE", source)
    text = text.replace("{", f'{{"root":{{"path":"rootfs"}},"mounts":{mounts},', 1)
    (checked.home / "bundle/rootfs").mkdir()
    assert checked.went_to("create", "-b", checked.bundle(text), "id") == "python"
    many = [mount("/etc/hostname")] * 300
    assert decided_by(checked, mounts=many) == "python"


PROCESS = '{"args":["sh"],"capabilities":{"bounding":["CAP_CHOWN"%s]}}'
ADMIN = PROCESS % ',"CAP_SYS_ADMIN"'


@pytest.mark.parametrize("flag", ["--process %s", "--process=%s", "-p %s", "-process=%s"])
def test_an_exec_is_for_python_if_it_may_bring_an_admin(flag: str, checked: Lab) -> None:
    file = checked.home / "process"
    words = [*(flag % file).split(), "--detach", "id"]
    for text, goes in ((PROCESS % "", "bin/runc"), (ADMIN, "python"), ("", "python")):
        file.write_text(text)
        assert checked.went_to("--root", "/r", "exec", *words) == goes, text
    file.unlink()
    assert checked.went_to("exec", *words) == "python"


def test_an_exec_by_hand_is_for_python_if_it_names_capabilities(checked: Lab) -> None:
    for word in ("--cap=CAP_SYS_ADMIN", "-c", "--cap"):
        assert checked.went_to("exec", word, "x", "id", "sh") == "python"
    assert checked.went_to("exec", "--tty", "id", "sh") == "bin/runc"


@pytest.mark.parametrize("flag", ["--resources %s", "--resources=%s", "-r %s"])
def test_an_update_with_device_rules_is_for_python(flag: str, checked: Lab) -> None:
    file = checked.home / "resources"
    words = ["update", *(flag % file).split(), "id"]
    for text, goes in (('{"pids":{"limit":9}}', "bin/runc"), ('{"devices":[]}', "python")):
        file.write_text(text)
        assert checked.went_to(*words) == goes, text
    assert checked.went_to("update", *(flag % "-").split(), "id") == "python"  # stdin
    assert checked.went_to("update", "--pids-limit", "9", "id") == "bin/runc"


def test_without_such_a_policy_exec_and_update_are_handed_over(lab: Lab) -> None:
    lab.keep(policy=POLICY)
    (lab.home / "file").write_text(ADMIN + '"devices"')
    for command in ("exec", "update"):
        for flag in ("--process", "--resources", "--cap"):
            assert lab.went_to(command, flag, "file", "id") == "bin/runc"


@as_root
def test_where_the_host_has_a_policy_no_variable_names_another_file(tmp_path: Path) -> None:
    """Podman starts its runtime with the environment of its caller."""
    hosts = tmp_path / "hosts.toml"
    (tmp_path / "c").mkdir()
    built = Built(
        python=str(script(tmp_path / "python", PRINT_ARGS)), packages="/p", cold="/v/bin/python"
    )
    compiled(tmp_path / "c", built, f'-DNVCT_CONFIG="{hosts}"', name=PROGRAM)
    (tmp_path / "home").mkdir()
    lab = Lab(tmp_path / "home", tmp_path, "c")
    lab.keep()
    for text, goes in (
        (None, "bin/runc"), ("debug = 1\n", "bin/runc"), ("[nvct.policy]\n", "python"),
        ("#" * (1 << 20), "python"), ("#" * (1 << 20) + "\n[nvct.policy]\n", "python"),
    ):  # fmt: skip
        if text is not None:
            hosts.write_text(text)
        assert lab.went_to("state", "id") == goes, text and text[-20:]
    del lab.env["NVIDIA_CTK_CONFIG_FILE_PATH"]  # the file of NVCT_RUN_DIR does not count either
    lab.age(hosts)
    real, lab.env["NVIDIA_CTK_CONFIG_FILE_PATH"] = lab.config, str(hosts)
    lab.keep()
    assert real.exists()
    assert lab.went_to("state", "id") == "python"
    hosts.unlink()
    hosts.mkdir()  # it cannot be read
    assert lab.went_to("state", "id") == "python"
