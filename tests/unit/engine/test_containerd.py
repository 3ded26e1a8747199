# SPDX-License-Identifier: Apache-2.0
"""containerd's configuration: its state, and the smallest edit of it."""

from pathlib import Path

import pytest

from nvct.config import tables, toml_file
from nvct.engine import containerd, restore, writing
from nvct.engine import containerd_load as loading
from nvct.engine.journal import Entry
from nvct.engine.model import State
from nvct.errors import EngineConfigError
from tests.unit.engine.containerd_host import (
    CONFIG,
    V1_6,
    V1_7,
    V2,
    V2_0,
    V2_1,
    Host,
    options,
)

CRI = 'plugins."io.containerd.grpc.v1.cri"'
CRI_3 = "plugins.'io.containerd.cri.v1.runtime'"


# State


def test_without_a_file_the_engine_has_its_defaults(tmp_path: Path) -> None:
    assert containerd.state(options(), Host(tmp_path)) == State(handlers={}, version=2)
    assert containerd.state(options(V2_1), Host(tmp_path)) == State(
        handlers={}, version=3, cdi=True
    )


def test_the_state_lists_registered_runtimes(tmp_path: Path) -> None:
    host = Host(
        tmp_path,
        f"""version = 2
[{CRI}]
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/x"]
[{CRI}.containerd]
default_runtime_name = "nvidia"
[{CRI}.containerd.runtimes.runc]
[{CRI}.containerd.runtimes.nvidia.options]
BinaryName = "/opt/nvidia-container-runtime"
""",
    )

    assert containerd.state(options(), host) == State(
        files=(CONFIG,),
        version=2,
        handlers={"runc": "", "nvidia": "/opt/nvidia-container-runtime"},
        default="nvidia",
        cdi=True,
        spec_dirs=("/etc/cdi", "/x"),
    )


@pytest.mark.parametrize(
    ("engine", "text", "cdi"),
    [
        (V1_6, "version = 2\n", False),
        (V1_7, "version = 2\n", False),
        (V2_0, "version = 2\n", True),
        ((), "version = 2\n", None),
        ((), "version = 3\n", True),
        (V2_1, f"version = 3\n[{CRI_3}]\nenable_cdi = false\n", False),
    ],
)
def test_cdi_is_on_by_the_file_or_by_the_version(
    tmp_path: Path, engine: tuple[int, ...], text: str, cdi: bool | None
) -> None:
    assert containerd.state(options(engine), Host(tmp_path, text)).cdi is cdi


def _imports(tmp_path: Path) -> Host:
    return Host(
        tmp_path,
        f"""version = 2
imports = ["conf.d/*.toml", "/etc/containerd/config.toml", "/gone/*.toml"]
[{CRI}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
""",
        {
            "/etc/containerd/conf.d/b.toml": f"[{CRI}.containerd.runtimes.b]\n",
            "/etc/containerd/conf.d/a.toml": (
                f'imports = ["../z.toml"]\n[{CRI}.containerd.runtimes.a]\n'
            ),
            "/etc/containerd/conf.d/c.conf": "this is no toml",
            "/etc/containerd/z.toml": f"[{CRI}.containerd.runtimes.z]\n",
        },
    )


def test_imports_are_read_in_containerds_order(tmp_path: Path) -> None:
    state = containerd.state(options(V2_1), _imports(tmp_path))

    folder = "/etc/containerd"
    assert state.files == (
        CONFIG, f"{folder}/conf.d/a.toml", f"{folder}/conf.d/b.toml", f"{folder}/z.toml",
    )  # fmt: skip
    assert list(state.handlers) == ["runc", "a", "b", "z"]
    before_2_0 = containerd.state(options(V1_7), _imports(tmp_path))
    assert list(before_2_0.handlers) == ["z"]  # the last table replaces the others


# Handlers


# Versions


# Default and CDI


# What cannot be done


# Removal


# Bytes that are no UTF-8


def test_containerd_1_accepts_any_byte_and_containerd_2_only_utf_8(tmp_path: Path) -> None:
    host = Host(tmp_path, V2)
    path = tmp_path / CONFIG.lstrip("/")
    path.write_bytes(b"# caf\xe9\n" + path.read_bytes())

    (edit,) = containerd.plan(options(V1_7), host).edits

    assert edit.after is not None
    assert edit.after.startswith(b"# caf\xe9\n")
    with pytest.raises(EngineConfigError, match="line 1 is not UTF-8"):
        containerd.plan(options(V2_1), host)


# The cgroup driver


@pytest.mark.parametrize("empty", [f"[{CRI}.containerd.default_runtime.options]\n", ""])
def test_a_legacy_default_keeps_its_cgroup_driver_with_empty_options_and_without(
    tmp_path: Path, empty: str
) -> None:
    """As `config default` of 1.3 and guides for kubeadm: empty options hide the CRI's switch."""
    text = f"""version = 2
[{CRI}]
systemd_cgroup = true
[{CRI}.containerd.default_runtime]
runtime_type = "io.containerd.runtime.v1.linux"
{empty}"""
    host = Host(tmp_path, text)
    ask = options(V1_7, default="nvidia")
    host.apply(containerd.plan(ask, host))
    configured = host.text()
    cri = loading.load(ask, host).effective()
    former = cri.runtimes["former-default"]
    current = (
        configured + f'[{CRI}.containerd.runtimes.zz]\nruntime_type = "io.containerd.runc.v2"\n'
    )
    file = writing.new_file(CONFIG)
    entry = Entry(
        path=CONFIG,
        before=file.with_content(text.encode()),
        after=file.with_content(configured.encode()),
    )

    restored, _ = restore.restored(entry, current.encode(), containerd.SYNTAX, {"nvidia"})

    remaining = restored or b""

    assert cri.systemd_cgroup(former) == (not empty)
    legacy = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "default_runtime")
    assert tables.find(toml_file.parse(remaining, CONFIG), legacy) == tables.find(
        toml_file.parse(text, CONFIG), legacy
    )


# Versions
