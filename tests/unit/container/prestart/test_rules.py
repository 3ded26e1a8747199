# SPDX-License-Identifier: Apache-2.0
"""Device rules: their cgroup, the written rules, and the calls of systemctl."""

import json
from pathlib import Path

import pytest

from nvct.container.prestart import rules
from nvct.container.prestart.container import Process
from nvct.container.prestart.device_filter import ANY, Rule
from nvct.errors import HostError
from tests.support.launcher import script

GPU = json.dumps({"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"})


class Host:
    """A /proc with the cgroup and the mounts of a process, and a folder for hierarchies."""

    def __init__(self, home: Path) -> None:
        self.proc = home / "proc"
        self.cgroup = home / "cgroup"
        for path in (self.proc / "77", self.proc / "self", self.cgroup):
            path.mkdir(parents=True)
        self.lines: list[str] = []
        self.mounts: list[str] = []

    def hierarchy(self, folder: str, controllers: str, path: str, root: str = "/") -> Path:
        """Mount a hierarchy in which process 77 is somewhere; return the folder of its cgroup."""
        unified = not controllers
        kind, options = ("cgroup2", "rw") if unified else ("cgroup", f"rw,{controllers}")
        folder_path = self.cgroup / folder
        number = len(self.mounts)
        self.mounts.append(
            f"{30 + number} 1 0:{number} {root} {folder_path} rw - {kind} x {options}"
        )
        self.lines.append(f"{number}:{controllers}:{path}")
        its = Path(f"{folder_path}{path.removeprefix(root.rstrip('/'))}")
        its.mkdir(parents=True)
        (self.proc / "77/cgroup").write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        text = "".join(f"{line}\n" for line in self.mounts)
        (self.proc / "self/mountinfo").write_text(text, encoding="utf-8")
        return its

    def find(self) -> rules.Cgroup:
        return rules.find(77, str(self.proc))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_cgroup_v1_has_a_hierarchy_for_devices(host: Host) -> None:
    host.hierarchy("memory", "memory", "/docker/a")
    its = host.hierarchy("devices", "devices", "/docker/a")
    host.hierarchy("unified", "", "/docker/a")

    cgroup = host.find()

    assert (cgroup.folder, cgroup.unified) == (str(its), False)


def test_the_cgroup_is_that_of_the_process_that_was_opened(host: Host) -> None:
    its = host.hierarchy("devices", "devices", "/docker/a")
    process = Process(77, str(host.proc))
    (host.proc / "77").rename(host.proc / "78")
    (host.proc / "77").mkdir()
    (host.proc / "77/cgroup").write_text("0:devices:/docker/b\n", encoding="utf-8")

    cgroup = rules.find(77, str(host.proc), process)

    assert cgroup.folder == str(its)
    process.close()


def test_controllers_may_share_a_hierarchy(host: Host) -> None:
    its = host.hierarchy("x", "cpu,devices", "/a")

    assert host.find().folder == str(its)


def test_a_hidden_v1_hierarchy_does_not_count(host: Host) -> None:
    hidden = host.hierarchy("devices", "devices", "/docker/a")
    its = host.hierarchy("unified", "", "/docker/b")
    hidden.rmdir()

    cgroup = host.find()

    assert (cgroup.folder, cgroup.unified) == (str(its), True)


def test_a_part_of_a_hierarchy_may_be_mounted(host: Host) -> None:
    its = host.hierarchy("devices", "devices", "/outer/inner", root="/outer")

    assert host.find().folder == str(its)


def test_no_hierarchy_with_devices_is_an_error(host: Host) -> None:
    host.hierarchy("memory", "memory", "/a")

    with pytest.raises(HostError, match="no cgroup with device rules of process 77 is mounted"):
        host.find()


@pytest.mark.parametrize(
    ("path", "unit", "folders"),
    [
        ("/docker/a", "", ["/docker/a"]),
        ("/", "", [""]),
        ("/s.slice/x.scope", "x.scope", ["/s.slice/x.scope"]),
        ("/s.slice/x.scope/container", "x.scope", ["/s.slice/x.scope/container", "/s.slice/x.scope"]),
        ("/a.service/b/c", "a.service", ["/a.service/b/c", "/a.service/b", "/a.service"]),
        ("/user@1.service/x.scope/c", "x.scope", ["/user@1.service/x.scope/c", "/user@1.service/x.scope"]),
    ],
)  # fmt: skip
def test_rules_of_a_unit_are_those_of_its_cgroups(
    path: str, unit: str, folders: list[str]
) -> None:
    cgroup = rules.Cgroup(path, f"/cg{path}".rstrip("/"), unified=True)

    assert cgroup.unit == unit
    assert cgroup.folders() == [f"/cg{folder}" for folder in folders]


def test_each_rule_is_written_once_to_devices_allow(host: Host) -> None:
    its = host.hierarchy("devices", "devices", "/docker/a")
    (its / "devices.allow").write_text("", encoding="utf-8")
    uvm = json.dumps({"allow": True, "type": "c", "major": 511, "minor": 1, "access": "rwm"})

    rules.allow([GPU, uvm, GPU], 77, [], env={}, warn=pytest.fail, proc=str(host.proc))

    assert (its / "devices.allow").read_text(encoding="utf-8") == "c 195:0 rwc 511:1 rwm"


def test_the_top_of_a_hierarchy_has_no_rules(host: Host) -> None:
    its = host.hierarchy("devices", "devices", "/")

    rules.allow([GPU], 77, [], env={}, warn=pytest.fail, proc=str(host.proc))

    assert list(its.iterdir()) == []


def test_a_rule_that_cannot_be_written_is_an_error(host: Host) -> None:
    its = host.hierarchy("devices", "devices", "/docker/a")
    (its / "devices.allow").mkdir()

    with pytest.raises(
        HostError, match=r"cannot allow a device in .*devices.allow: Is a dir"
    ) as e:
        rules.allow([GPU], 77, [], env={}, warn=pytest.fail, proc=str(host.proc))

    assert "no-cgroups = true" in e.value.hint


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"allow": False, "access": "rwm"}, "a *:* rwm"),
        ({"allow": True, "type": "c", "major": 1, "minor": 3}, "c 1:3 rwm"),
        ({"allow": True, "type": "u", "major": 1, "minor": -1, "access": "r"}, "c 1:* r"),
        ({"allow": True, "type": "b", "major": None, "access": "m"}, "b *:* m"),
    ],
)
def test_entries_of_config_json_are_read_as_runtimes_do(
    entry: dict[str, object], text: str
) -> None:
    rule = Rule.read(entry)

    assert str(rule) == text
    assert rule.allow == entry["allow"]


def _systemctl(folder: Path, body: str) -> tuple[str, ...]:
    folder.mkdir()
    script(folder / "systemctl", body)
    return ("/no/such/folder", str(folder))


def test_systemd_gets_the_rules(tmp_path: Path) -> None:
    folders = _systemctl(tmp_path / "bin", f'printf "%s\\n" "$@" > {tmp_path}/said\n')
    device_rules = [Rule("c", 195, 0, "rw", allow=True), Rule("b", 8, 1, "r", allow=True)]

    rules.allow_in_unit(
        "docker-x.scope", device_rules, env={"PATH": "/bin"}, warn=pytest.fail, running=str(tmp_path),
        folders=folders,
    )  # fmt: skip

    assert (tmp_path / "said").read_text(encoding="utf-8").splitlines() == [
        "set-property", "--runtime", "--", "docker-x.scope",
        "DeviceAllow=/dev/char/195:0 rw", "DeviceAllow=/dev/block/8:1 r",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "answer"),
    [
        ("DevicePolicy=auto", False),
        ("DevicePolicy=auto\\nDeviceAllow=", False),
        ("DevicePolicy=auto\\nDeviceAllow=char-pts rwm", True),
        ("DevicePolicy=strict", True),
        ("DevicePolicy=closed\\nDeviceAllow=", True),
        ("", True),
    ],
)
def test_a_unit_that_may_open_every_device_is_not_changed(
    shown: str, answer: object, tmp_path: Path
) -> None:
    body = f'[ "$1" = show ] && printf "{shown}\\n" || echo "$1" > {tmp_path}/said\n'

    rules.allow_in_unit(
        "docker.service", [Rule("c", 195, 0, "rw", allow=True)], env={"PATH": "/bin"},
        warn=pytest.fail, running=str(tmp_path), folders=_systemctl(tmp_path / "bin", body),
    )  # fmt: skip

    assert (tmp_path / "said").exists() is answer


def test_on_a_host_without_systemd_no_program_is_started(tmp_path: Path) -> None:
    folders = _systemctl(tmp_path / "bin", "exit 1\n")

    rules.allow_in_unit(
        "x.scope", [], env={}, warn=pytest.fail, running=str(tmp_path / "no"), folders=folders
    )
    rules.allow_in_unit("x.scope", [], env={}, warn=pytest.fail, running=str(tmp_path), folders=())


def test_a_refusal_of_systemd_is_a_warning(tmp_path: Path) -> None:
    warnings: list[str] = []

    rules.allow_in_unit(
        "x.scope", [Rule("c", ANY, ANY, "r", allow=True)], env={}, warn=warnings.append,
        running=str(tmp_path), folders=_systemctl(tmp_path / "bin", "exit 1\n"),
    )  # fmt: skip

    assert warnings == [
        "systemd did not take device rules for x.scope: a daemon-reload may undo them"
    ]
