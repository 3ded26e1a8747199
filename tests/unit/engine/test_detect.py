# SPDX-License-Identifier: Apache-2.0
"""Engines are found by what really runs: program, unit, socket, and the file that it reads."""

from pathlib import Path

import pytest

from nvct.engine import detect, processes
from nvct.engine.model import Engine
from tests.unit.engine.fake_host import FakeHost


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def _engines(host: FakeHost, uid: int = 0) -> list[Engine]:
    return detect.engines(host.files, host.ask, host.proc, uid)


def test_several_containerds_are_distinguished(host: FakeHost) -> None:
    k3s = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    host.process(
        10, "/usr/bin/containerd", ["/usr/bin/containerd"],
        cgroup="0::/system.slice/containerd.service",
    )  # fmt: skip
    host.process(
        20, "/usr/bin/containerd",
        ["containerd", "--config", "/var/run/docker/containerd/containerd.toml"],
        cgroup="0::/system.slice/docker.service",
    )  # fmt: skip
    host.process(
        30, "/var/lib/rancher/k3s/data/0f1e/bin/k3s",
        ["containerd", "-c", k3s, "-a", "/run/k3s/containerd/containerd.sock",
         "--state", "/run/k3s/containerd"],
        cgroup="0::/system.slice/k3s.service",
    )  # fmt: skip
    engines = _engines(host)
    assert [(one.engine, one.pid, one.unit, one.platform) for one in engines] == [
        ("containerd", 10, "containerd.service", ""),
        ("containerd", 20, "docker.service", "Docker"),
        ("containerd", 30, "k3s.service", "k3s"),
    ]
    assert [one.config for one in engines] == [
        "/etc/containerd/config.toml", "/var/run/docker/containerd/containerd.toml", k3s,
    ]  # fmt: skip
    assert [one.socket for one in engines] == [
        "/run/containerd/containerd.sock", "/run/containerd/containerd.sock",
        "/run/k3s/containerd/containerd.sock",
    ]  # fmt: skip
    # k3s is one program under many names, so it is asked by containerd's.
    assert host.asked[2] == (f"{host.proc}/30/exe", ("containerd", "--version"))
    assert engines[2].numbers == (2, 1, 4)


def test_a_program_of_many_names_is_called_by_the_engines(host: FakeHost) -> None:
    data = "/var/lib/rancher/k3s/data/0f1e/bin"
    host.process(30, f"{data}/k3s", ["containerd"])
    assert _engines(host)[0].binary == f"{data}/k3s"
    host.file(f"{data}/containerd", mode=0o755)
    assert _engines(host)[0].binary == f"{data}/containerd"


@pytest.mark.parametrize(
    ("args", "config"),
    [
        ([], "/etc/docker/daemon.json"),
        (["--config-file", "/a.json"], "/a.json"),
        (["--config-file=/a.json", "--debug"], "/a.json"),
        (["--config-file=/a.json", "--config-file", "/b.json"], "/b.json"),
        (["--config-file=b.json"], "/srv/b.json"),
    ],
    ids=["default", "word", "equals", "last", "relative"],
)
def test_dockerds_file_is_the_one_of_its_command_line(
    host: FakeHost, args: list[str], config: str
) -> None:
    host.process(7, "/usr/bin/dockerd", ["/usr/bin/dockerd", *args], cwd="/srv")
    assert _engines(host)[0].config == config


def test_dockers_socket_is_the_one_of_its_command_line_or_file(host: FakeHost) -> None:
    host.process(7, "/usr/bin/dockerd", ["dockerd", "-H", "fd://", "-H", "unix:///run/a.sock"])
    assert _engines(host)[0].socket == "/run/a.sock"
    host.file("/etc/docker/daemon.json", '{"hosts": ["tcp://127.0.0.1:2375", "unix:///b.sock"]}')
    host.process(8, "/usr/bin/dockerd", ["dockerd", "-H", "fd://"])
    assert _engines(host)[1].socket == "/b.sock"


def test_cri_os_drop_in_goes_where_it_reads_and_usually_there_is_none(host: FakeHost) -> None:
    host.process(
        7, "/usr/bin/crio", ["/usr/bin/crio", "-d", "/srv/crio.d"],
        env={"CONTAINER_CONFIG": "/srv/crio.conf"},
    )  # fmt: skip
    host.process(8, "/usr/bin/crio", ["/usr/bin/crio"])
    host.file("/srv/crio.conf", '[crio.api]\nlisten = "/run/my.sock"\n')
    own, usual = _engines(host)
    assert (own.config, own.config_dir) == ("/srv/crio.conf", "/srv/crio.d")
    assert (own.drop_in, own.socket) == ("/srv/crio.d/99-nvidia.toml", "/run/my.sock")
    assert (usual.config, usual.config_dir) == ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d")
    assert usual.drop_in is None


def test_a_rootless_docker_reads_its_users_file(host: FakeHost) -> None:
    host.process(
        7, "/usr/bin/dockerd", ["dockerd"],
        env={"ROOTLESSKIT_STATE_DIR": "/run/user/1000/x", "HOME": "/home/ann",
             "XDG_RUNTIME_DIR": "/run/user/1000"},
        cgroup="0::/user.slice/user-1000.slice/user@1000.service/app.slice/docker.service",
        uid=1000,
    )  # fmt: skip
    (engine,) = _engines(host, uid=1000)
    assert engine.config == "/home/ann/.config/docker/daemon.json"
    assert (engine.unit, engine.user_unit, engine.platform) == ("docker.service", True, "rootless")
    assert engine.socket == "/run/user/1000/docker.sock"
    assert engine.restart == ("systemctl", "--user", "restart", "docker.service")
    assert not engine.leave


def test_rootless_podman_reads_its_users_file(host: FakeHost) -> None:
    host.file("/usr/bin/podman", mode=0o755)
    environ = {"HOME": "/home/ann"}
    engines = detect.engines(host.files, host.ask, host.proc, 1000, environ)
    assert [one.config for one in engines] == ["/home/ann/.config/containers/containers.conf"]
    engines = detect.engines(host.files, host.ask, host.proc, 0, environ)
    assert [one.config for one in engines] == ["/etc/containers/containers.conf"]


def test_another_users_engine_is_not_run_and_left(host: FakeHost) -> None:
    host.process(7, "/home/eve/dockerd", ["dockerd", "--config-file=/etc/shadow"], uid=1000)
    (engine,) = _engines(host)
    assert (engine.version, engine.leave) == ("", True)
    assert engine.advice == ("it belongs to user 1000: run the command as that user",)
    assert host.asked == []
    (Path(host.proc) / "7/status").unlink()  # without its user it would pass for root's
    assert _engines(host) == []
    assert host.asked == []


def test_another_users_engine_does_not_stand_for_the_installed_one(host: FakeHost) -> None:
    unit = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/docker.service"
    host.file("/usr/bin/dockerd", mode=0o755)
    host.file("/usr/lib/systemd/system/docker.service", "[Service]\nExecStart=/usr/bin/dockerd\n")
    host.process(7, "/usr/bin/dockerd", ["dockerd"], cgroup=unit, uid=1000)
    flags_by_pid = {one.pid: (one.leave, one.foreign) for one in _engines(host)}
    assert flags_by_pid == {7: (True, True), 0: (False, False)}


def test_an_engine_with_another_file_system_is_not_run_and_left(
    host: FakeHost, tmp_path: Path
) -> None:
    other = tmp_path / "image"
    (other / "etc").mkdir(parents=True)
    (other / "usr").mkdir()
    scope = "0::/system.slice/docker-0123.scope"
    host.process(7, "/usr/bin/containerd", ["containerd"], root=other, cgroup=scope)
    (engine,) = _engines(host)
    assert engine.root == f"{host.proc}/7/root"
    assert (engine.leave, engine.notes) == (True, ("it runs in a container",))
    assert host.asked == []


def test_a_mount_over_etc_is_another_file_system(host: FakeHost, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    for name in ("usr",):
        (private / name).symlink_to(host.root / name)
    (private / "etc").mkdir()
    host.process(7, "/usr/bin/dockerd", ["dockerd"], root=private)
    assert _engines(host)[0].leave


def test_a_replaced_program_is_reported(host: FakeHost) -> None:
    host.process(7, "/usr/bin/dockerd (deleted)", ["/usr/bin/dockerd"])
    (engine,) = _engines(host)
    assert engine.binary == "/usr/bin/dockerd"
    assert engine.notes == (
        "/usr/bin/dockerd was replaced after its start: the old program still runs",
    )


@pytest.mark.parametrize(
    ("exe", "args"),
    [
        ("/usr/bin/containerd", ["containerd", "config", "dump"]),
        ("/usr/bin/containerd", ["containerd", "--version"]),
        ("/usr/bin/dockerd", ["dockerd", "--validate", "--config-file=/x"]),
        ("/usr/bin/crio", ["crio", "wipe"]),
        ("/usr/bin/podman", ["podman", "run", "alpine"]),
        ("/usr/bin/containerd-shim-runc-v2", ["containerd-shim-runc-v2", "-id", "x"]),
        ("/usr/bin/vim", ["vim", "dockerd"]),
        ("/usr/bin/bash", []),
    ],
    ids=["dump", "version", "validate", "wipe", "client", "shim", "vim", "no-arguments"],
)
def test_short_lived_and_similar_programs_are_no_engines(
    host: FakeHost, exe: str, args: list[str]
) -> None:
    host.process(7, exe, args)
    assert _engines(host) == []


def test_podmans_service_is_an_engine(host: FakeHost) -> None:
    host.process(7, "/usr/bin/podman", ["/usr/bin/podman", "system", "service", "--time=0"])
    (engine,) = _engines(host)
    assert (engine.engine, engine.config) == ("podman", "/etc/containers/containers.conf")
    assert engine.config_dir == "/etc/containers/containers.conf.d"
    assert engine.socket == "/run/podman/podman.sock"


def test_an_installed_engine_is_judged_by_its_unit(host: FakeHost) -> None:
    host.prints = "Docker version 28.5.2, build x"
    host.file("/usr/bin/dockerd", mode=0o755)
    host.file(
        "/usr/lib/systemd/system/docker.service",
        "[Service]\nExecStart=/usr/bin/dockerd -H fd:// $OPTS\n",
    )
    host.file(
        "/etc/systemd/system/docker.service.d/10-config.conf",
        "[Service]\nEnvironmentFile=-/etc/default/docker\n",
    )
    host.file("/etc/default/docker", 'OPTS="--config-file=/srv/daemon.json --debug"\n')
    (engine,) = _engines(host)
    assert (engine.pid, engine.binary, engine.unit) == (0, "/usr/bin/dockerd", "docker.service")
    assert (engine.config, engine.numbers) == ("/srv/daemon.json", (28, 5, 2))


def test_an_installed_engine_is_listed_unless_it_runs_itself(host: FakeHost) -> None:
    for name in ("dockerd", "containerd"):
        host.file(f"/usr/bin/{name}", mode=0o755)
    own_config = "/run/docker/containerd/containerd.toml"
    for pid, name, args in ((5, "crio", []), (6, "containerd", ["--config", own_config]),
                            (7, "dockerd", [])):  # fmt: skip
        host.process(pid, f"/usr/bin/{name}", [name, *args])
    assert [(engine.engine, engine.pid, engine.platform) for engine in _engines(host)] == [
        ("docker", 7, ""), ("containerd", 6, "Docker"), ("containerd", 0, ""), ("crio", 5, ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("Docker version 20.10.24+dfsg1, build 297e128", "20.10.24"),
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1", "1.6.20"),
        ("containerd github.com/k3s-io/containerd v2.0.5-k3s2 d1e2", "2.0.5"),
        ("crio version 1.34.1\nVersion:        1.34.1\nGitCommit: x", "1.34.1"),
        ("podman version 5.8.6", "5.8.6"),
        ("containerd github.com/containerd/containerd/v2 2.1.9 x", "2.1.9"),
        ("", ""),
        ("exec format error", ""),
    ],
    ids=["docker", "debian", "k3s", "crio", "podman", "go-module", "none", "error"],
)
def test_a_version_is_read_out_of_what_engines_print(printed: str, version: str) -> None:
    assert detect.version(printed) == version


def test_a_version_that_cannot_be_asked_is_empty(tmp_path: Path) -> None:
    assert detect.run(str(tmp_path / "none"), ["containerd", "--version"]) == ""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "x version 1.2.3 $1"\n')
    program.chmod(0o755)
    assert detect.run(str(program), ["containerd", "--version"]) == "x version 1.2.3 --version\n"


@pytest.mark.parametrize(
    ("text", "unit", "user", "container"),
    [
        ("0::/system.slice/docker.service", "docker.service", False, False),
        ("0::/system.slice/docker.service/sub", "docker.service", False, False),
        (
            "12:cpu:/x\n1:name=systemd:/system.slice/crio.service\n0::/y",
            "crio.service",
            False,
            False,
        ),
        (
            "0::/user.slice/user-9.slice/user@9.service/app.slice/p.service",
            "p.service",
            True,
            False,
        ),
        ("0::/user.slice/user-9.slice/user@9.service/init.scope", "", True, False),
        ("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-ab.scope", "", False, True),
        ("11:devices:/docker/0f\n1:name=systemd:/docker/0f", "", False, True),
        ("0::/", "", False, False),
        ("", "", False, False),
        ("nonsense", "", False, False),
    ],
    ids=["v2", "delegated", "v1", "user", "user-none", "pod", "docker-v1", "root", "empty", "odd"],
)
def test_a_unit_is_read_out_of_the_control_group(
    tmp_path: Path, text: str, unit: str, user: bool, container: bool
) -> None:
    host = FakeHost(tmp_path)
    host.process(7, "/usr/bin/dockerd", ["dockerd"], cgroup=text)
    process = processes.inspect(7, host.proc, str(host.root))
    assert process is not None
    assert (process.unit, process.user_unit, process.container) == (unit, user, container)


def test_a_process_that_cannot_be_inspected_is_recognized_by_its_arguments(host: FakeHost) -> None:
    host.process(7, "x", ["/usr/bin/dockerd", "--config-file=/x.json"])
    for name in ("exe", "environ", "root", "cwd"):
        (Path(host.proc) / "7" / name).unlink()
    process = processes.inspect(7, host.proc, str(host.root))
    assert process is not None
    assert (process.exe, process.root, process.env) == ("/usr/bin/dockerd", "/", {})


def test_a_process_that_has_ended_is_none(host: FakeHost) -> None:
    assert processes.inspect(7, host.proc) is None
    assert list(processes.running(str(host.root / "none"))) == []
