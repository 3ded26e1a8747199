# SPDX-License-Identifier: Apache-2.0
"""Hosts with a file that registers a runtime with an engine, which reads other files."""

from pathlib import Path

from nvct.doctor import registered
from nvct.doctor.model import Finding
from nvct.engine import status
from nvct.engine.model import Files
from tests.unit.doctor.broken_nodes import write
from tests.unit.doctor.statuses import engine

PROGRAM = "/usr/bin/nvidia-container-runtime"
CRIO = f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{PROGRAM}"\n'
CONTAINERD = (
    'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n'
    f'BinaryName = "{PROGRAM}"\n'
)
DOCKER = f'{{"runtimes": {{"nvidia": {{"path": "{PROGRAM}"}}}}}}'
UNREAD = {
    "crio": ("/srv/crio.conf", "etc/crio/crio.conf.d/99-nvidia.toml", CRIO),
    "crio's conf.d": ("/etc/crio/crio.conf", "etc/crio/conf.d/99-nvidia.toml", CRIO),
    "containerd": ("/srv/config.toml", "etc/containerd/config.toml", CONTAINERD),
    "containerd's conf.d": (
        "/etc/containerd/config.toml", "etc/containerd/conf.d/99-nvidia.toml", CONTAINERD,
    ),
    "docker": ("/srv/daemon.json", "etc/docker/daemon.json", DOCKER),
}  # fmt: skip


def findings(home: Path, name: str) -> list[Finding]:
    """Make a host of UNREAD, and return what is found on it."""
    config, path, text = UNREAD[name]
    write(home, path, text)
    write(home, config[1:], "{}" if config.endswith("json") else "")
    return look(home, name, config)


def look(home: Path, name: str, config: str) -> list[Finding]:
    """Return what is found for an engine with a main file."""
    kind = name.partition("'")[0]
    folder = "/srv/crio.conf.d" if config == "/srv/crio.conf" else "/etc/crio/crio.conf.d"
    found = engine(
        kind, "1.33.0", config=config, root=str(home),
        config_dir=folder if kind == "crio" else "",
        drop_in=f"{folder}/99-nvidia.toml" if kind == "crio" else None,
    )  # fmt: skip
    shown = status.of(found, Files(str(home)), silent)
    return list(registered.of_unread_files([shown], Files(str(home))))


def silent(_socket: str, _target: str) -> tuple[int, bytes]:
    raise OSError(2, "No such file or directory")
