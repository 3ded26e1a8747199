# SPDX-License-Identifier: Apache-2.0
"""Users without root, user namespaces, AppArmor and inotify on odd hosts."""

import os
import pwd
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from nvct.doctor import kubelet, security, user_namespaces
from nvct.doctor.model import Part
from nvct.doctor.node import Log
from nvct.doctor.user_namespaces import User
from nvct.host import procfs
from tests.unit.doctor import broken_nodes as hosts
from tests.unit.doctor.test_fabric import in_a_container


def look(home: Path, user: User | None = None, container: str = "train") -> Part:
    if not (home / "dev").exists():
        hosts.write(home, "dev/nvidiactl").chmod(0o666)
    return user_namespaces.check(hosts.with_container(home, container, "podman"), user)


def test_a_group_that_was_kept_is_enough(tmp_path: Path) -> None:
    hosts.container_in_a_namespace(tmp_path, 0o660)
    node = tmp_path / "proc/4117/root/dev/nvidia0"
    group = str(node.stat().st_gid)
    status = tmp_path / "proc/4117/status"

    assert look(tmp_path).health == "attention"
    os.chown(node, 100_007, 100_044)  # mapped: the namespace's root can open it
    assert look(tmp_path).findings == ()
    os.chown(node, os.getuid(), int(group))
    status.write_text(status.read_text().replace("Groups:\t", f"Groups:\t{group} "))
    assert look(tmp_path).findings == ()


def test_links_of_a_container_are_not_followed(tmp_path: Path) -> None:
    hosts.container_in_a_namespace(tmp_path, 0o660)
    node = tmp_path / "proc/4117/root/dev/nvidia0"
    node.rename(tmp_path / "target")
    node.symlink_to(tmp_path / "target")
    assert look(tmp_path).findings == ()

    node.unlink()
    (tmp_path / "target").rename(tmp_path / "elsewhere-nvidia0")
    node.parent.rmdir()
    node.parent.symlink_to(tmp_path)
    assert look(tmp_path).findings == ()


@pytest.mark.parametrize("text", ["", "Uid:\tx\nGid:\t\xff\n", "Uid:\n"])
def test_a_process_that_cannot_be_read_or_is_no_container_is_not_blamed(
    text: str, tmp_path: Path
) -> None:
    hosts.container_in_a_namespace(tmp_path, 0o660)
    assert look(tmp_path, container="").findings == ()
    (tmp_path / "proc/4117/status").write_text(text)

    assert look(tmp_path).findings == ()


def test_this_process_in_a_namespace_names_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.write(tmp_path, "proc/self/uid_map", "0 1000 1\n")
    for name in ("nvidiactl", "nvidia0"):
        hosts.write(tmp_path, f"dev/{name}").chmod(0o660)
    monkeypatch.setattr(os, "access", lambda *_args, **_more: False)

    part = look(tmp_path)

    assert [one.severity for one in part.findings] == ["error"]
    assert "cannot open " in part.lines[0]
    assert part.lines[0].endswith("nor 1 more")


def test_the_user_may_open_the_nodes_by_a_group_to_be_kept(tmp_path: Path) -> None:
    node = hosts.write(tmp_path, "dev/nvidiactl")
    node.chmod(0o660)
    user = User(uid=1000, name="me", groups=frozenset((node.stat().st_gid,)))

    part = user_namespaces.check(hosts.with_container(tmp_path, ""), user)

    assert [one.severity for one in part.findings] == ["note"]
    assert "keep-groups" in part.lines[0]


@pytest.mark.parametrize(
    ("mode", "group", "remedy"),
    [(0o660, 44, "usermod -aG 44 me"), (0o660, 0, "chmod 666"), (0o640, 44, "chmod 666")],
)
def test_no_group_is_advised_that_does_not_help_or_is_roots(
    mode: int, group: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.stat_result((stat.S_IFCHR | mode, 1, 1, 1, 0, group, 0, 0, 0, 0))
    monkeypatch.setattr(user_namespaces, "driver_nodes", lambda _dev: {"/dev/nvidiactl": status})

    (finding,) = look(tmp_path, User(uid=1000, name="me")).findings[:1]

    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("files", "severities"),
    [
        ({}, ["warning", "warning"]),
        ({"subuid": "1000:1:2\n", "subgid": "me:1:2\n"}, []),
        ({"subuid": "\udcff:1:2\nmemo:1:2\n", "subgid": "me:1:2\n"}, ["warning"]),
        ({"nsswitch.conf": "passwd: files\nsubid: sss\n"}, ["unknown"]),
    ],
)
def test_where_subordinate_ids_come_from(
    files: dict[str, str], severities: list[str], tmp_path: Path
) -> None:
    (tmp_path / "etc").mkdir()
    for name, text in files.items():
        (tmp_path / "etc" / name).write_bytes(text.encode(errors="surrogateescape"))

    part = look(tmp_path, User(uid=1000, name="me", runs_containers=True))

    assert [one.severity for one in part.findings] == severities


def test_the_ids_to_add_are_free(tmp_path: Path) -> None:
    text = "a:100000:65536\nb:165536:65536\nc:x:1\nd:\u0663:1\n"
    hosts.write(tmp_path, "etc/subuid", text)
    hosts.write(tmp_path, "etc/subgid", "me:1:1\n")

    (finding,) = look(tmp_path, User(uid=1000, name="me", runs_containers=True)).findings

    ids = "231072-296607"
    command = f"usermod --add-subuids {ids} --add-subgids {ids} me"
    assert finding.remedy == f"Run `sudo {command}`, then `podman system migrate`."


def test_without_a_gpu_or_containers_little_is_blamed(tmp_path: Path) -> None:
    (tmp_path / "bare/dev").mkdir(parents=True)
    user = User(uid=1000, name="me")

    assert look(tmp_path / "bare", user).health == "absent"
    assert {one.severity for one in look(tmp_path, user).findings} == {"note"}


def test_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"USER": "somebody; reboot", "HOME": str(tmp_path)}
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="me"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert user_namespaces.who_asks(env) is None
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    (tmp_path / user_namespaces.STORAGE).mkdir(parents=True)

    user = user_namespaces.who_asks(env)

    assert user is not None
    assert (user.uid, str(user), user.runs_containers) == (7, "me (7)", True)
    assert os.getegid() in user.groups


def apparmor(home: Path, log: Log) -> Part:
    hosts.write(home, "sys/module/apparmor/parameters/enabled", "Y\n")
    return security.apparmor(hosts.node_of(home, log=log))


@pytest.mark.parametrize(
    "text",
    [
        hosts.apparmor_line("/dev/nvidiactl", "ALLOWED"),
        hosts.apparmor_line("/tmp/dev/nvidiactl"),
        hosts.apparmor_line("/etc/x").replace('"/etc/x"', "2F6465762F6E7669646961"),
        'comm=" apparmor=DENIED /dev/nvidia0 "',
        # What a container with CAP_AUDIT_WRITE sends.
        f"audit: type=1107 audit(1.2:3): pid=9 uid=0 msg='{hosts.apparmor_line('/dev/nvidia0')}'",
    ],
)
def test_other_messages_are_no_denials_of_a_device(text: str, tmp_path: Path) -> None:
    assert apparmor(tmp_path, hosts.said(text)).findings == ()


@pytest.mark.parametrize(
    ("profile", "severity"),
    [
        ("/usr/bin/totem-video-thumbnailer", "note"),
        ("snap.firefox.firefox", "note"),
        ("snap.docker.dockerd", "warning"),
        ("cri-containerd.apparmor.d", "warning"),
    ],
)
def test_denials_of_programs_that_are_no_containers_are_no_faults(
    profile: str, severity: str, tmp_path: Path
) -> None:
    text = hosts.apparmor_line("/dev/nvidiactl").replace("docker-default", profile)

    assert [one.severity for one in apparmor(tmp_path, hosts.said(text)).findings] == [severity]


def test_an_old_denial_does_not_count_and_a_closed_log_is_said(tmp_path: Path) -> None:
    log = hosts.said(hosts.apparmor_line("/dev/nvidia0"))
    assert security.apparmor(hosts.node_of(tmp_path, log=log)).health == "absent"  # no AppArmor
    old = hosts.said(hosts.apparmor_line("/dev/nvidia0"), age_s=7200)
    assert apparmor(tmp_path, old).health == "ok"
    closed = apparmor(tmp_path, Log(problem="/dev/kmsg cannot be read: Permission denied"))
    assert [one.severity for one in closed.findings] == ["unknown"]


def test_watches_are_counted_too_but_not_without_time_or_in_a_container(tmp_path: Path) -> None:
    hosts.inotify_instances(tmp_path, 3, 128)
    node = hosts.node_of(tmp_path)
    in_no_time = kubelet.watches(node, uid=os.geteuid(), budget_s=-1)
    limit = hosts.write(tmp_path, "proc/sys/fs/inotify/max_user_watches", "1000\n")

    part = kubelet.watches(node, uid=os.geteuid())

    assert part.health == "attention"
    assert "2 of 1000 inotify watches (fs.inotify.max_user_watches)" in part.lines[0]
    assert [one.severity for one in in_no_time.findings] == ["unknown"]
    assert in_no_time.lines[0].startswith("at least 0 of 128")
    limit.unlink()
    in_a_container(tmp_path)
    inside = kubelet.watches(node, uid=os.geteuid())
    assert (inside.health, inside.findings) == ("absent", ())


@pytest.mark.parametrize("text", ["", "-1\n", "x", "\u0663", "9" * 4000])
def test_a_limit_that_is_none(text: str, tmp_path: Path) -> None:
    hosts.inotify_instances(tmp_path, 1, 128)
    hosts.write(tmp_path, "proc/sys/fs/inotify/max_user_instances", text)

    assert kubelet.watches(hosts.node_of(tmp_path)).health == "absent"


def test_processes_may_be_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert procfs.hidden_processes(str(tmp_path / "no")).endswith("lists no process")
    in_a_container(tmp_path)
    assert "another PID namespace" in procfs.hidden_processes(str(tmp_path / "proc"))
    inode = (tmp_path / "proc/self/ns/pid").stat().st_ino
    monkeypatch.setattr(procfs, "INITIAL_PID_NAMESPACE", inode)
    assert procfs.hidden_processes(str(tmp_path / "proc")).endswith("hidepid")
    hosts.write(tmp_path, "proc/1/comm", "systemd\n")
    assert procfs.hidden_processes(str(tmp_path / "proc")) == ""


def test_a_kubelet_that_may_be_hidden_is_not_blamed(tmp_path: Path) -> None:
    statuses = hosts.node_of_kubernetes(tmp_path, [])
    hosts.write(tmp_path, "proc/77/comm", "x\n")
    in_a_container(tmp_path)

    part = kubelet.check(hosts.of_kubernetes(tmp_path, 1, statuses))

    assert (part.health, [one.severity for one in part.findings]) == ("absent", ["unknown"])
