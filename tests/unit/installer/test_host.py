# SPDX-License-Identifier: Apache-2.0
"""Where the host's files are for a container."""

import os
from pathlib import Path

import pytest

from nvct.engine.command import NOT_ENTERED
from nvct.engine.model import State
from nvct.installer import host
from nvct.installer.engine import handlers, low_level
from nvct.installer.host import HostFiles, HostPrograms
from tests.unit.installer.conftest import Ask

FILES = HostFiles(
    "/host", ("/runtime/config-dir",), (("/etc/containerd/conf.d", "/runtime/config-dir.d"),)
)


@pytest.mark.parametrize(
    ("path", "mount_point"),
    [
        ("/runtime/config-dir/config.toml", "/runtime/config-dir/config.toml"),
        ("/etc/containerd/conf.d/99-nvidia.toml", "/runtime/config-dir.d/99-nvidia.toml"),
        ("/etc/containerd/conf.d", "/runtime/config-dir.d"),
        ("/runtime/config-dir.d/99-nvidia.toml", "/runtime/config-dir.d/99-nvidia.toml"),
        ("/etc/containerd/conf.d2/a.toml", "/host/etc/containerd/conf.d2/a.toml"),
        ("/etc/containerd/other.toml", "/host/etc/containerd/other.toml"),
        ("/host/etc/containerd/other.toml", "/host/etc/containerd/other.toml"),
        ("/runtime/config-dirs/x", "/host/runtime/config-dirs/x"),
    ],
)  # fmt: skip
def test_each_path_of_the_engine_has_one_mount_point(path: str, mount_point: str) -> None:
    assert FILES.at(path) == mount_point
    assert FILES.at(mount_point) == mount_point


def test_on_the_host_itself_paths_stay() -> None:
    assert HostFiles().at("/etc/docker/daemon.json") == "/etc/docker/daemon.json"


def test_the_usual_file_is_below_the_hosts_root_where_it_is_not_mounted(
    ask: Ask, tmp_path: Path
) -> None:
    (tmp_path / "host").mkdir()
    usual = "/etc/crio/crio.conf"
    request = ask(engine="crio", config=usual, host_root=f"{tmp_path}/host")
    if not os.path.isdir("/etc/crio"):
        assert host.files_of(request).at(usual) == f"{tmp_path}/host{usual}"
    named = ask(engine="crio", config="/none/c.conf", host_root=f"{tmp_path}/host")
    assert host.files_of(named).at("/none/c.conf") == "/none/c.conf"


def test_a_root_that_cannot_be_entered_is_a_status_and_no_crash(tmp_path: Path) -> None:
    completed = HostPrograms(f"{tmp_path}/none")(["true"])
    assert completed.status == NOT_ENTERED
    assert "cannot be entered" in completed.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_a_program_of_the_host_runs_in_the_hosts_root(tmp_path: Path) -> None:
    completed = HostPrograms(str(tmp_path))(["/bin/sh", "-c", "true"])
    assert completed.status == 127, "this root has no shell, and this container's is none"


@pytest.mark.parametrize(
    ("name", "names", "default"),
    [
        ("nvidia", ["nvidia", "nvidia-cdi", "nvidia-legacy"], "nvidia"),
        ("gpu", ["gpu", "nvidia-cdi", "nvidia-legacy"], "gpu"),
        ("nvidia-cdi", ["nvidia", "nvidia-cdi", "nvidia-legacy"], "nvidia-cdi"),
    ],
)
def test_names_are_the_incumbents(name: str, names: list[str], default: str, ask: Ask) -> None:
    runtimes, chosen = handlers(ask(name=name))
    assert ([handler.name for handler in runtimes], chosen) == (names, default)
    suffixes = ["", ".cdi", ".legacy"]
    assert [handler.path for handler in runtimes] == [
        f"{ask().toolkit}/nvidia-container-runtime{suffix}" for suffix in suffixes
    ]
    assert handlers(ask(name=name, default=False))[1] == ""


@pytest.mark.parametrize(
    ("default", "registered", "runtimes"),
    [
        ("runc", {"runc": "/opt/runc"}, ("/opt/runc", "runc", "crun")),
        ("crun", {"crun": "/x/crun", "runc": ""}, ("/x/crun", "runc", "crun")),
        ("kata", {"kata": "/k", "crun": "/x/crun"}, ("/k", "/x/crun", "runc", "crun")),
        ("nvidia", {"nvidia": "/n/nvidia-container-runtime"}, ("runc", "crun")),
        ("gpu", {"gpu": "/n/nvidia-container-runtime"}, ("runc", "crun")),
        ("", {}, ("runc", "crun")),
    ],
)
def test_the_shim_is_never_its_own_low_level_runtime(
    default: str, registered: dict[str, str], runtimes: tuple[str, ...]
) -> None:
    assert low_level(State(handlers=registered, default=default)) == runtimes
