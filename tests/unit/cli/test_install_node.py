# SPDX-License-Identifier: Apache-2.0
"""Command nvct install as an init container of the node agent, and its --uninstall."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.engine.model import Engine
from nvct.host import modes
from nvct.installer import host as installer_host
from tests.support.commands import invoke
from tests.unit.cli.test_install import CONTAINERD, Node, node, parsed

POLICY = """\
[[nvct.policy.rules]]
kubernetes = true
by = ["image-env"]
then = "ignore"
"""


@pytest.fixture
def containerd(tmp_path: Path) -> Iterator[Node]:
    yield from node(tmp_path, "containerd", "config.toml", CONTAINERD)


def config(node: Node) -> dict[str, Any]:
    """Return the installed config.toml."""
    return parsed(node.toolkit / ".config/nvidia-container-runtime/config.toml")


def test_a_policy_file_becomes_the_policy_of_config_toml(containerd: Node, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    containerd.succeeds(f"--policy-file={file}")
    (rule,) = config(containerd)["nvct"]["policy"]["rules"]
    assert rule == {"kubernetes": True, "by": ["image-env"], "then": "ignore"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[nvct.policy.rules]\n", "is not TOML"),
        ("[nvct]\nlayout = 'farm'\n", "has nvct.layout"),
        ("disable-require = true\n", "has disable-require"),
        ("[[nvct.policy.rules]]\nby = ['hearsay']\nthen = 'ignore'\n", "hearsay"),
    ],
)
def test_a_policy_file_with_something_else_is_refused(
    text: str, message: str, containerd: Node, tmp_path: Path
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    completed = containerd.run(f"--policy-file={file}")
    assert completed.exit_code == 1
    assert message in str(completed.exception)
    assert containerd.config.read_bytes() == CONTAINERD


def test_a_machine_without_a_gpu_is_left_alone(
    containerd: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes, "has_gpu", lambda: False)
    output = containerd.succeeds("--gpu-nodes-only")
    assert "no NVIDIA GPU: nothing is installed" in output
    assert containerd.config.read_bytes() == CONTAINERD
    assert not containerd.toolkit.exists()


def test_without_a_driver_the_hosts_root_is_taken_and_the_reason_is_printed(
    containerd: Node, tmp_path: Path
) -> None:
    ready = tmp_path / "ready/driver-ready"
    containerd.args.remove("--driver-root=/")
    output = containerd.succeeds("--find-driver", f"--driver-ready-file={ready}")
    assert f"no driver yet: no working driver on the host: {tmp_path}/host" in output
    assert config(containerd)["nvidia-container-cli"]["root"] == "/"
    assert f"NVIDIA_DRIVER_ROOT=/\nDRIVER_ROOT_CTR_PATH={tmp_path}/host\n" in ready.read_text()


@pytest.mark.parametrize(
    ("there", "upgrades", "root"),
    [
        ("run/nvidia/driver", "", "/run/nvidia/driver"),  # unmounted while it is replaced
        ("run", "true", "/run/nvidia/driver"),  # after a boot: it comes later
        ("run", "", "/"),
        ("usr/bin/nvidia-smi", "true", "/"),  # the host's own, whose module is not loaded
    ],
)
def test_a_driver_that_does_not_work_yet_is_expected_where_it_will_be(
    there: str, upgrades: str, root: str, containerd: Node, tmp_path: Path
) -> None:
    host, ready = tmp_path / "host", tmp_path / "ready/driver-ready"
    (host / there).mkdir(parents=True, exist_ok=True)
    containerd.args.remove("--driver-root=/")
    words = ("--find-driver", f"--driver-ready-file={ready}")
    output = containerd.succeeds(*words, NVCT_DRIVER_UPGRADES=upgrades)
    assert f"the driver is expected in {root}\n" in output
    assert config(containerd)["nvidia-container-cli"]["root"] == root
    here = f"{host}{root}".rstrip("/")
    assert f"NVIDIA_DRIVER_ROOT={root}\nDRIVER_ROOT_CTR_PATH={here}\n" in ready.read_text()


def test_uninstall_leaves_the_programs_of_others(containerd: Node) -> None:
    containerd.toolkit.mkdir(parents=True)
    (containerd.toolkit / "nvidia-container-runtime").touch()
    output = containerd.succeeds("--uninstall")
    assert f"nothing is installed: {containerd.toolkit} has no programs of nvct" in output
    assert (containerd.toolkit / "nvidia-container-runtime").exists()


@pytest.mark.parametrize("switch", [(), ("--enable-nri-plugin",)])
def test_uninstall_keeps_the_programs_of_a_running_container(
    switch: tuple[str, ...], containerd: Node, tmp_path: Path
) -> None:
    bundle = tmp_path / "run/io.containerd.runtime.v2.task/k8s.io/0123abcd"
    bundle.mkdir(parents=True)
    (bundle / "runtime").write_text(f"{containerd.toolkit}/nvidia-container-runtime.cdi")
    socket = f"--socket={tmp_path}/run/containerd.sock"
    (tmp_path / "run/containerd.sock").touch()
    assert containerd.run(socket, *(("--no-runtime-config",) if switch else ())).exit_code == 0
    completed = invoke("nvct", [*containerd.args, "--uninstall", socket, *switch])
    assert completed.exit_code == 0, completed.output
    assert containerd.config.read_bytes() == CONTAINERD
    assert f"{containerd.toolkit} stays: container 0123abcd was started by it" in completed.output
    assert (containerd.toolkit / "nvidia-container-runtime").exists()


def found(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Let this process's container have an engine with these fields."""
    engine = Engine(**{"engine": "containerd", "pid": 1, "version": "2.1.4", **fields})
    monkeypatch.setattr(installer_host, "find", lambda _host: engine)


def test_the_engine_of_this_container_is_configured_in_the_files_of_its_platform(
    containerd: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/agent/etc/config.toml"
    config = tmp_path / f"host{path}"
    config.parent.mkdir(parents=True)
    config.write_bytes(CONTAINERD)
    found(monkeypatch, config=path, drop_in="", platform="k3s")
    output = containerd.succeeds("--runtime=auto")
    assert f"the engine is containerd 2.1.4 on k3s, with {path}" in output
    assert f"{containerd.config} has no effect" in output
    assert b"nvidia-container-runtime" in config.read_bytes()
    assert containerd.config.read_bytes() == CONTAINERD
    output = containerd.succeeds("--runtime=auto", "--uninstall")
    assert f"removed {containerd.toolkit}" in output
    assert config.read_bytes() == CONTAINERD


def test_an_engine_whose_platform_makes_its_files_is_left_alone_with_a_sentence(
    containerd: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = ("put the handler into the settings",)
    config = str(containerd.config)
    found(monkeypatch, config=config, platform="Talos", leave=True, advice=advice)
    output = containerd.succeeds("--runtime=auto")
    assert advice[0] in output
    assert containerd.config.read_bytes() == CONTAINERD
    assert (containerd.toolkit / "nvidia-container-runtime").exists()
    containerd.succeeds("--runtime=auto", "--uninstall")
    assert not containerd.toolkit.exists()
    assert containerd.config.read_bytes() == CONTAINERD
