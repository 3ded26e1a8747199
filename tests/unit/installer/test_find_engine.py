# SPDX-License-Identifier: Apache-2.0
"""Which engine runs a container: by its ancestors, on a host that is a folder."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from nvct.engine.engine_control import EngineControl
from nvct.engine.model import Engine, EngineOptions, FileEdit
from nvct.errors import EngineError
from nvct.installer import host as installer
from nvct.installer.host import ContainerReloader, HostPrograms, Starter
from tests.support.forked import may_unshare
from tests.unit.engine.fake_host import FakeHost

K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
SOCKET = "/run/containerd/containerd.sock"
SELF, PARENT = 900, 800


def shim(socket: str = SOCKET, namespace: str = "k8s.io") -> list[str]:
    program = "/usr/bin/containerd-shim-runc-v2"
    return [program, "-namespace", namespace, "-id", "f00", "-address", socket]


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def parents(host: FakeHost, *lines: Sequence[str]) -> None:
    """Make this process the child of programs, the nearest one first."""
    _stat(host, SELF, PARENT)
    for number, words in enumerate(lines, PARENT):
        last = number == PARENT + len(lines) - 1
        host.process(number, words[0], words)
        _stat(host, number, 1 if last else number + 1)


def _stat(host: FakeHost, pid: int, parent: int) -> None:
    folder = Path(host.proc, str(pid))
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"{pid} (a) b) S {parent} 1 1 0 -1 4194560\n")


def containerd(host: FakeHost, pid: int, *args: str, exe: str = "/usr/bin/containerd") -> None:
    host.process(pid, exe, [exe, *args], cgroup="0::/system.slice/containerd.service")


def found(host: FakeHost) -> Engine:
    return installer.find(str(host.root), host.proc, SELF, host.ask)


@pytest.mark.parametrize(
    ("lines", "starter"),
    [
        ([shim()], Starter("containerd", SOCKET)),
        ([["/pause"], ["sh", "-c", "x"], shim("/run/k3s/c.sock")], Starter("containerd", "/run/k3s/c.sock")),
        ([["/x/containerd-shim-runc-v2", "-namespace=k8s.io", "-address=/a"]], Starter("containerd", "/a")),
        ([shim(namespace="moby")], Starter("docker")),
        ([["/usr/bin/conmon", "-b", "/x"], shim()], Starter("crio")),
        ([["/usr/libexec/crio/conmonrs"]], Starter("crio")),
        ([["bash"], ["sshd"]], None),
    ],
)  # fmt: skip
def test_an_ancestor_says_which_engine_it_is(
    host: FakeHost, lines: list[list[str]], starter: Starter | None
) -> None:
    parents(host, *lines)
    assert installer.starter_of(SELF, host.proc) == starter


def test_parents_that_go_in_a_circle_end(host: FakeHost) -> None:
    _stat(host, SELF, PARENT)
    _stat(host, PARENT, SELF)
    assert installer.starter_of(SELF, host.proc) is None


def test_of_two_containerds_it_is_the_one_that_runs_this_container(host: FakeHost) -> None:
    containerd(host, 20)
    host.process(
        30, "/var/lib/rancher/k3s/data/0f1e/bin/containerd",
        ["containerd", "-c", f"{K3S}/config.toml", "-a", "/run/k3s/containerd/containerd.sock"],
        cgroup="0::/system.slice/k3s.service",
    )  # fmt: skip
    host.file(f"{K3S}/config.toml", f'version = 3\nimports = ["{K3S}/config-v3.toml.d/*.toml"]\n')
    parents(host, shim("/run/k3s/containerd/containerd.sock"))
    engine = found(host)
    assert (engine.platform, engine.config) == ("k3s", f"{K3S}/config.toml")
    assert engine.drop_in == f"{K3S}/config-v3.toml.d/99-nvidia.toml"
    assert engine.restart == ("systemctl", "restart", "k3s.service")


def test_a_socket_has_two_names(host: FakeHost) -> None:
    containerd(host, 20, "--address", "/var/run/containerd/containerd.sock")
    parents(host, shim())
    assert found(host).pid == 20


def test_files_of_an_appliance_are_left_alone_with_a_sentence(host: FakeHost) -> None:
    host.file("/etc/os-release", "ID=talos\n")
    containerd(host, 20)
    parents(host, shim())
    engine = found(host)
    assert engine.leave
    assert "Talos' machine configuration" in engine.advice[0]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([["bash"]], "not visible among the ancestors"),
        ([shim("/run/other.sock")], "containerd on /run/other.sock runs this container, but was not"),
        ([["conmon"]], "crio runs this container, but was not found"),
    ],
)  # fmt: skip
def test_an_engine_that_is_not_found_is_named(
    host: FakeHost, lines: list[list[str]], sentence: str
) -> None:
    containerd(host, 20)
    parents(host, *lines)
    with pytest.raises(EngineError, match=sentence):
        found(host)


# An engine that rejects its own files is not restarted into them.


ALREADY = "containerd refuses even its present files: bad plugin"


def check(folder: Path, restart: str) -> Sequence[str]:
    """Check an edit with an engine that takes no file."""
    program = folder / "containerd"
    program.write_text("#!/bin/sh\necho bad plugin >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    config = folder / "config.toml"
    config.write_bytes(b"old")
    options = EngineOptions(
        engine="containerd", handlers=(), config=str(config), executable=str(program)
    )
    reloader = ContainerReloader(engine="containerd", mode=restart, socket="")
    control = EngineControl(
        options=options, program=str(program), reloader=reloader, run=HostPrograms("/")
    )
    return control.check([FileEdit(path=str(config), before=b"old", after=b"new")])


@pytest.mark.skipif(not may_unshare(), reason="needs CAP_SYS_ADMIN")
@pytest.mark.parametrize("restart", ["signal", "systemd"])
def test_an_engine_that_refuses_its_files_is_not_reloaded(tmp_path: Path, restart: str) -> None:
    with pytest.raises(EngineError, match=ALREADY) as caught:
        check(tmp_path, restart)
    assert "--restart-mode=none" in caught.value.hint


@pytest.mark.skipif(not may_unshare(), reason="needs CAP_SYS_ADMIN")
def test_without_a_reload_the_files_are_still_written(tmp_path: Path) -> None:
    assert check(tmp_path, "none") == [ALREADY]


@pytest.mark.parametrize("mode", ["signal", "systemd"])
def test_a_platforms_own_command_reloads_the_engine(mode: str, tmp_path: Path) -> None:
    file = tmp_path / "restarted"
    command = ("touch", str(file))
    reloader = ContainerReloader(engine="containerd", mode=mode, socket="", command=command)
    decision = reloader.choose(restart=True, removing=False)
    assert reloader.carry_out(decision, HostPrograms("/"), restored=False) == ""
    assert file.exists()


def test_no_command_is_run_where_nothing_is_to_be_restarted() -> None:
    reloader = ContainerReloader(
        engine="containerd", mode="none", socket="", command=("systemctl", "restart", "k3s")
    )
    assert not reloader.choose(restart=True, removing=False).argv
