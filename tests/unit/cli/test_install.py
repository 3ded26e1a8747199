# SPDX-License-Identifier: Apache-2.0
"""Command nvct install: an engine is configured while it runs, and has its former files after."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from nvct.cli.install import install
from nvct.config import toml_file
from nvct.version import TOOLKIT_VERSION, __version__
from tests.support.commands import invoke
from tests.support.launcher import script
from tests.unit.installer.conftest import bundle

DAEMON_JSON = b'{\n\t"log-driver": "journald",\n\t"runtimes": {"runc-2": {"path": "/opt/runc"}}\n}'
CONTAINERD = b"""\
# by hand
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
      BinaryName = "/opt/bin/runc"
"""
CRIO = b'[crio.runtime.runtimes.crun]\nruntime_path = "/usr/libexec/crio/crun"\n'


def parsed(path: Path) -> dict[str, Any]:
    return toml_file.parse(path.read_bytes(), str(path))


class Node:
    """The folders of a container of the toolkit, and the installer's command line for them."""

    def __init__(self, base: Path, engine: str, name: str, data: bytes) -> None:
        self.base = base
        self.bundle = bundle(base / "bundle")
        self.toolkit = base / "nvidia/toolkit"
        self.config = base / "config-dir" / name
        self.config.parent.mkdir()
        self.config.write_bytes(data)
        (base / "host").mkdir()
        self.pid_file = base / "run/toolkit.pid"
        self.daemons: list[subprocess.Popen[str]] = []
        self.args = [
            "install", f"--runtime={engine}", f"--config={self.config}", f"--root={base}/nvidia",
            f"--toolkit-source-root={self.bundle}", f"--pid-file={self.pid_file}",
            "--restart-mode=none", f"--host-root={base}/host", "--driver-root=/",
        ]  # fmt: skip

    def run(self, *args: str, **env: str) -> Result:
        return invoke("nvct", [*self.args, "--no-daemon", *args], env=env)

    def succeeds(self, *args: str, **env: str) -> str:
        """Run it; return what it prints."""
        completed = self.run(*args, **env)
        assert completed.exit_code == 0, completed.output
        return str(completed.output)

    def start(self, *args: str) -> subprocess.Popen[str]:
        code = "from nvct.cli.main import run; run('nvct')"
        daemon = subprocess.Popen(
            [sys.executable, "-c", code, *self.args, *args], text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.daemons.append(daemon)
        assert daemon.stderr is not None
        lines = []
        for line in daemon.stderr:
            lines.append(line)
            if "waiting for a signal" in line:
                return daemon
        raise AssertionError("".join(lines))

    def end(self) -> None:
        """Kill what still runs."""
        for daemon in self.daemons:
            if daemon.returncode is None:
                daemon.kill()
                daemon.communicate()

    def settings(self) -> dict[str, Any]:
        return parsed(self.toolkit / ".config/nvidia-container-runtime/config.toml")


def ended(daemon: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> str:
    """Send a signal; return the output of the daemon, which must exit with 0."""
    daemon.send_signal(number)
    output = daemon.communicate(timeout=30)[1]
    assert daemon.returncode == 0, output
    return output


def node(base: Path, engine: str, name: str, data: bytes) -> Iterator[Node]:
    new_node = Node(base, engine, name, data)
    yield new_node
    new_node.end()


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[Node]:
    yield from node(tmp_path, "docker", "daemon.json", DAEMON_JSON)


@pytest.fixture
def containerd(tmp_path: Path) -> Iterator[Node]:
    yield from node(tmp_path, "containerd", "config.toml", CONTAINERD)


@pytest.fixture
def crio(tmp_path: Path) -> Iterator[Node]:
    yield from node(tmp_path, "crio", "crio.conf", CRIO)


@pytest.fixture
def running(docker: Node) -> subprocess.Popen[str]:
    return docker.start()


def test_a_signal_restores_the_engines_files(docker: Node, running: subprocess.Popen[str]) -> None:
    assert docker.config.read_bytes() != DAEMON_JSON
    assert docker.pid_file.read_text(encoding="utf-8") == f"{running.pid}\n"
    for _ in range(4):
        running.terminate()
        time.sleep(0.01)
    ended(running, signal.SIGHUP)
    assert docker.config.read_bytes() == DAEMON_JSON
    assert not docker.pid_file.exists()
    assert (docker.toolkit / "nvidia-container-runtime").exists(), "containers may be using it"


def test_a_killed_one_is_taken_over_and_its_former_bytes_are_known(
    docker: Node, running: subprocess.Popen[str]
) -> None:
    running.kill()
    running.communicate()
    assert docker.config.read_bytes() != DAEMON_JSON
    second_run = docker.start()
    ended(second_run)
    assert docker.config.read_bytes() == DAEMON_JSON


def test_only_one_runs_and_the_second_changes_nothing(
    docker: Node, running: subprocess.Popen[str]
) -> None:
    before = docker.config.read_bytes()
    completed = docker.run("--runtime-name=other")
    assert completed.exit_code == 1
    assert "another installer runs" in str(completed.exception)
    assert docker.config.read_bytes() == before
    assert docker.pid_file.read_text(encoding="utf-8") == f"{running.pid}\n"


def test_containerds_low_level_runtime_is_the_wrappers_and_the_shims(containerd: Node) -> None:
    containerd.succeeds()
    runtime = containerd.settings()["nvidia-container-runtime"]
    assert runtime["runtimes"] == ["/opt/bin/runc", "runc", "crun"]
    wrapper = (containerd.toolkit / "nvidia-container-runtime").read_bytes()
    assert b"\0/opt/bin/runc\0runc\0crun\0" in wrapper
    containerd.succeeds()
    assert containerd.settings()["nvidia-container-runtime"] == runtime, "not the shim itself"


def test_containerds_drop_in_is_written_here_and_named_as_the_host_has_it(
    containerd: Node, tmp_path: Path
) -> None:
    containerd.succeeds(
        RUNTIME_DROP_IN_CONFIG=f"{tmp_path}/config-dir.d/99-nvidia.toml",
        RUNTIME_DROP_IN_CONFIG_HOST_PATH="/etc/containerd/conf.d/99-nvidia.toml",
    )
    drop_in = parsed(tmp_path / "config-dir.d/99-nvidia.toml")
    runtimes = drop_in["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    assert set(runtimes) >= {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert runtimes["nvidia"]["options"]["SystemdCgroup"] is True
    root = parsed(containerd.config)
    assert root["imports"] == ["/etc/containerd/conf.d/*.toml"]
    assert not (tmp_path / "host/etc").exists()


def test_the_drop_in_is_removed_with_its_new_folder(containerd: Node, tmp_path: Path) -> None:
    drop_in = tmp_path / "config-dir.d/99-nvidia.toml"
    daemon = containerd.start(
        f"--drop-in-config={drop_in}", "--drop-in-config-host-path=/x/99-nvidia.toml"
    )
    assert drop_in.exists()
    ended(daemon, signal.SIGINT)
    assert containerd.config.read_bytes() == CONTAINERD
    assert not drop_in.parent.exists()


def test_crio_keeps_the_runtimes_and_gets_its_default_back(crio: Node, tmp_path: Path) -> None:
    drop_in = tmp_path / "crio.conf.d/99-nvidia.toml"
    daemon = crio.start(f"--drop-in-config={drop_in}")
    assert 'default_runtime = "nvidia"' in drop_in.read_text(encoding="utf-8")
    ended(daemon, signal.SIGQUIT)
    text = drop_in.read_text(encoding="utf-8")
    assert "default_runtime" not in text
    assert "runtimes.nvidia-cdi" in text
    assert crio.config.read_bytes() == CRIO
    assert crio.settings()["nvidia-container-runtime"]["runtimes"] == [
        "/usr/libexec/crio/crun", "runc", "crun"
    ]  # fmt: skip


def test_crios_deprecated_hook_is_written_and_removed(crio: Node, tmp_path: Path) -> None:
    daemon = crio.start("--config-mode=hook", f"--hooks-dir={tmp_path}/hooks.d")
    hook = tmp_path / "hooks.d/oci-nvidia-hook.json"
    document = json.loads(hook.read_bytes())["hook"]
    assert document["path"] == f"{crio.toolkit}/nvidia-container-runtime-hook"
    ended(daemon)
    assert not hook.exists()


def test_variables_are_written_to_config_toml(docker: Node) -> None:
    output = docker.succeeds(
        NVIDIA_CONTAINER_RUNTIME_MODE="cdi",
        NVIDIA_CONTAINER_RUNTIME_DEBUG="/var/log/n.log",
        NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES="cdi.k8s.io/,nvidia.cdi.k8s.io/",
        NVIDIA_CONTAINER_RUNTIME_RUNTIMES="docker-runc,runc",
        ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED="false",
        ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS="true",
        NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES="disable-imex-channel-creation,from-tomorrow",
        NVIDIA_RUNTIME_SET_AS_DEFAULT="false",
        NVIDIA_RUNTIME_NAME="nvidia-cdi",
    )
    assert "warning: the feature from-tomorrow is unknown" in output
    document = docker.settings()
    runtime = document["nvidia-container-runtime"]
    assert (runtime["mode"], runtime["debug"]) == ("cdi", "/var/log/n.log")
    assert runtime["runtimes"] == ["docker-runc", "runc"]
    assert runtime["modes"]["cdi"]["annotation-prefixes"] == ["cdi.k8s.io/", "nvidia.cdi.k8s.io/"]
    assert document["accept-nvidia-visible-devices-envvar-when-unprivileged"] is False
    assert document["accept-nvidia-visible-devices-as-volume-mounts"] is True
    assert document["features"] == {"disable-imex-channel-creation": True, "from-tomorrow": True}
    assert document["nvct"]["hook-path"] == f"{docker.toolkit}/nvidia-cdi-hook"
    daemon_json = json.loads(docker.config.read_bytes())
    program = f"{docker.toolkit}/nvidia-container-runtime"
    assert {name: entry["path"] for name, entry in daemon_json["runtimes"].items()} == {
        "runc-2": "/opt/runc", "nvidia": program, "nvidia-cdi": f"{program}.cdi",
        "nvidia-legacy": f"{program}.legacy",
    }  # fmt: skip
    assert "default-runtime" not in daemon_json


def test_the_drivers_roots_come_from_the_validators_file(docker: Node, tmp_path: Path) -> None:
    ready = tmp_path / "driver-ready"
    ready.write_text(
        "IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\n"
        "DRIVER_ROOT_CTR_PATH=/driver-root\nNVIDIA_DEV_ROOT=/\nDEV_ROOT_CTR_PATH=/host\n",
        encoding="utf-8",
    )
    docker.args.remove("--driver-root=/")
    docker.succeeds(f"--driver-ready-file={ready}")
    document = docker.settings()
    assert document["nvidia-container-cli"]["root"] == "/run/nvidia/driver"
    assert document["nvct"]["dev-root"] == "/"
    completed = docker.run(f"--driver-ready-file={ready}", "--driver-root=/opt/driver")
    assert docker.settings()["nvidia-container-cli"]["root"] == "/opt/driver"
    completed = docker.run(f"--driver-ready-file={tmp_path}/none")
    assert completed.exit_code == 1
    assert "nvct validate driver" in getattr(completed.exception, "hint", "")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--runtime=podman"], "unknown runtime 'podman'"),
        (["--restart-mode=reboot"], "unknown restart mode 'reboot'"),
        (["--runtime=crio", "--restart-mode=signal"], "CRI-O does not read"),
        (["--pid-file=/run/other.pid"], "is not named toolkit.pid"),
        (["--root=relative"], "is not an absolute path"),
        (["--root=/a b"], "has a character that is special"),
        (["--cdi-kind=nothing", "--cdi-enabled"], "CDI class"),
        (["--create-device-nodes=all", "--cdi-enabled"], "invalid --create-device-nodes"),
        (["--runtime=containerd", "--config-source=ask"], "unrecognized config source"),
        (
            ["--runtime=crio", "--drop-in-config=/a/b", "--drop-in-config-host-path=/c/d"],
            "the drop-in has two names",
        ),
        (["--runtime=containerd", "--runtime-type=io.containerd.kata.v2"], "cannot start nvct's runtimes"),
        (["--opt-in-features=a.b=c"], "cannot name a feature"),
        (["--toolkit-source-root=/nonexistent"], "has no bin/nvidia-container-runtime"),
        (["--nvidia-container-runtime.mode=fast"], "fast"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_malformed_values_are_refused_and_nothing_is_changed(
    args: list[str], message: str, docker: Node
) -> None:
    result = invoke("nvct", [*docker.args, "--no-daemon", *args])
    assert result.exit_code != 0
    assert message in str(result.exception), result.output
    assert docker.config.read_bytes() == DAEMON_JSON


def with_plugin(
    docker: Node, folder: Path, *args: str
) -> tuple[subprocess.Popen[str], socket.socket]:
    """Start the installer with its NRI plugin; return also the engine's end of its connection."""
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(folder / "nri.sock"))
        engine.listen()
        engine.settimeout(60)
        daemon = docker.start("--enable-nri-plugin", f"--nri-socket={folder}/nri.sock", *args)
        return daemon, engine.accept()[0]


def test_the_nri_plugin_runs_instead_of_a_change_of_the_engine(
    docker: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NRI_RECORD_DIR", str(tmp_path / "record"))
    daemon, connection = with_plugin(docker, tmp_path, "--nri-plugin-index=7")
    with connection:
        assert b"\x12\x0207" in connection.recv(4096)  # the index of its registration
        assert docker.config.read_bytes() == DAEMON_JSON
        assert docker.settings()["nvidia-container-runtime"]
        ended(daemon)
        assert docker.config.read_bytes() == DAEMON_JSON
        assert connection.recv(4096) == b"", "the plugin has ended, too"


def test_a_switch_to_the_nri_plugin_undoes_what_was_configured_before(docker: Node) -> None:
    docker.succeeds()
    assert docker.config.read_bytes() != DAEMON_JSON
    for _ in range(2):  # the second time, there is nothing to undo
        completed = docker.run("--undo-runtime-config")
        assert completed.exit_code == 0, completed.output
        assert docker.config.read_bytes() == DAEMON_JSON
    assert (docker.toolkit / "nvidia-container-runtime").exists()
    docker.succeeds()
    docker.succeeds("--uninstall", "--undo-runtime-config")
    assert docker.config.read_bytes() == DAEMON_JSON


def test_a_switch_undoes_what_was_configured_for_another_engine(
    docker: Node, tmp_path: Path
) -> None:
    config = tmp_path / "config-dir/config.toml"
    config.write_bytes(CONTAINERD)
    other = ["--runtime=containerd", f"--config={config}"]
    docker.succeeds(*other)
    assert list((docker.toolkit / ".state").glob("containerd-*.json"))
    docker.succeeds("--undo-runtime-config")
    assert config.read_bytes() == CONTAINERD
    assert docker.config.read_bytes() == DAEMON_JSON
    assert not list((docker.toolkit / ".state").glob("*.json"))


@pytest.mark.parametrize(
    ("args", "env", "message"),
    [
        (["--nri-plugin-index=100"], {}, "100 is not in the range"),
        ([], {"NRI_GIVEN_BY_KUBELET": "sometimes"}, "'sometimes' is not one of"),
        (
            [], {"NRI_GIVEN_BY_KUBELET": "audit", "KUBELET_DIR": "/nonexistent"},
            "/nonexistent/device-plugins does not exist",
        ),
    ],
)  # fmt: skip
def test_an_nri_plugin_that_cannot_run_is_refused_before_any_change(
    args: list[str], env: dict[str, str], message: str, docker: Node
) -> None:
    result = invoke("nvct", [*docker.args, "--enable-nri-plugin", *args], env=env)
    assert result.exit_code != 0
    assert message in str(result.exception), result.output
    assert not docker.toolkit.exists()
    assert docker.config.read_bytes() == DAEMON_JSON


def test_without_protobuf_the_nri_plugin_is_refused_before_any_change(
    docker: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.startswith(("google.protobuf", "nvct.nri"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    monkeypatch.delattr("nvct.nri.main", raising=False)
    result = invoke("nvct", [*docker.args, "--enable-nri-plugin"])
    assert "the NRI plugin cannot start" in str(result.exception)
    assert not docker.toolkit.exists()


def test_a_killed_installer_leaves_no_nri_plugin(
    docker: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NRI_RECORD_DIR", str(tmp_path / "record"))
    daemon, connection = with_plugin(docker, tmp_path)
    with connection:
        connection.settimeout(30)
        assert connection.recv(4096)
        daemon.kill()
        assert connection.recv(4096) == b"", "the plugin has ended, too"


def test_with_no_daemon_there_is_no_plugin(docker: Node) -> None:
    output = docker.succeeds("--enable-nri-plugin")
    assert "has no effect with --no-daemon" in output
    assert docker.config.read_bytes() != DAEMON_JSON


def test_the_version_is_the_incumbents_installers(docker: Node) -> None:
    for flag in ("--version", "-v"):
        result = invoke("nvct", ["install", flag])
        expected = f"nvidia-ctk-installer version {TOOLKIT_VERSION}\nnvct: {__version__}\n"
        assert result.output == expected
    assert docker.config.read_bytes() == DAEMON_JSON


SWITCHES = {
    option.opts[0]: option
    for option in install.params
    if isinstance(option, click.Option) and option.is_flag and option.expose_value
}


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(("word", "value"), [("false", False), ("T", True)])
def test_every_switch_can_be_switched_off_against_its_variable(
    name: str, word: str, *, value: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = SWITCHES[name]
    variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
    for variable in variables:
        monkeypatch.setenv(variable, str(not value))

    context = install.make_context("install", [f"{name}={word}"])

    assert context.params[str(option.name)] is value


def test_a_switch_whose_variable_is_set_to_nothing_is_off(docker: Node) -> None:
    docker.succeeds(NVIDIA_RUNTIME_SET_AS_DEFAULT="", DOCKER_SET_AS_DEFAULT="true")
    assert "default-runtime" not in json.loads(docker.config.read_bytes())
    docker.succeeds("--set-as-default", NVIDIA_RUNTIME_SET_AS_DEFAULT="")
    assert json.loads(docker.config.read_bytes())["default-runtime"] == "nvidia"


def test_cdi_can_be_left_out_of_the_runtime_alone(docker: Node, tmp_path: Path) -> None:
    args = ("--cdi-enabled", f"--cdi-output-dir={tmp_path}/cdi", "--ignore-errors",
            "--create-device-nodes=none")  # fmt: skip
    docker.succeeds(*args, "--enable-cdi-in-runtime=false")
    assert "features" not in json.loads(docker.config.read_bytes())
    docker.succeeds(*args, "--enable-cdi-in-runtime=true")
    assert json.loads(docker.config.read_bytes())["features"] == {"cdi": True}


DUMP = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "crun"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
runtime_type = ""
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
BinaryName = "/opt/of-the-dump/crun"
SystemdCgroup = true
"""


@pytest.fixture
def telling(containerd: Node) -> Node:
    """containerd that prints its configuration, with the options that it gets."""
    program = containerd.base / "containerd"
    (containerd.base / "dump.toml").write_text(DUMP, encoding="utf-8")
    script(program, f'[ "$1 $2" = "config dump" ] && exec cat {containerd.base}/dump.toml\n')
    containerd.args += [f"--executable-path={program}", "--host-root=/nonexistent"]
    return containerd


def low_level(node: Node) -> list[str]:
    runtimes: list[str] = node.settings()["nvidia-container-runtime"]["runtimes"]
    return runtimes


@pytest.mark.parametrize("sources", [["command"], ["command,file"], [" command", "file"]])
def test_the_engine_tells_its_low_level_runtimes(sources: list[str], telling: Node) -> None:
    telling.succeeds(*(f"--config-source={source}" for source in sources))
    assert low_level(telling)[0] == "/opt/of-the-dump/crun"


def test_an_unavailable_source_is_followed_by_the_next(telling: Node) -> None:
    (telling.base / "dump.toml").unlink()

    telling.succeeds("--config-source=command,file")
    assert "/opt/of-the-dump/crun" not in low_level(telling)
    telling.base.joinpath("other.toml").write_text(DUMP, encoding="utf-8")
    other = f"file={telling.base}/none,command,file={telling.base}/other.toml,file"
    telling.succeeds(RUNTIME_CONFIG_SOURCES=other)
    assert low_level(telling)[0] == "/opt/of-the-dump/crun"


def test_only_unavailable_sources_are_an_error(telling: Node) -> None:
    (telling.base / "dump.toml").unlink()
    before = telling.config.read_bytes()

    completed = telling.run("--config-source=command")

    assert completed.exit_code == 1
    assert "does not print its configuration" in str(completed.exception)
    assert telling.config.read_bytes() == before


def test_a_runtime_type_is_for_handlers_that_inherit_none(telling: Node) -> None:
    args = ("--config-source=command", "--drop-in-config=", "--runtime-config-override={")
    output = telling.succeeds(*args, CONTAINERD_RUNTIME_TYPE="io.containerd.runc.v1")
    assert "--runtime-config-override has no effect" in output
    assert telling.config.read_text().count('runtime_type = "io.containerd.runc.v1"') == 3


def test_without_a_driver_there_is_no_specification_and_the_engine_is_left_alone(
    docker: Node, tmp_path: Path
) -> None:
    (tmp_path / "no-driver").mkdir()
    args = (
        "--cdi-enabled", "--create-device-nodes=none", f"--cdi-output-dir={tmp_path}/cdi",
        f"--driver-root-ctr-path={tmp_path}/no-driver", f"--dev-root-ctr-path={tmp_path}",
    )  # fmt: skip
    completed = docker.run(*args)
    assert completed.exit_code == 1
    assert docker.config.read_bytes() == DAEMON_JSON
    output = docker.succeeds(*args, "--ignore-errors")
    assert "warning: ignored: " in output
    assert docker.config.read_bytes() != DAEMON_JSON
    assert not (tmp_path / "cdi").exists()


def test_an_empty_variable_says_that_there_is_to_be_none(docker: Node, tmp_path: Path) -> None:
    output = docker.succeeds(CDI_ENABLED="true", CDI_OUTPUT_DIR="")
    assert "no CDI specification: --cdi-output-dir is empty" in output
    args = (f"--driver-root-ctr-path={tmp_path}", f"--dev-root-ctr-path={tmp_path}")
    completed = docker.run(*args, "--ignore-errors", CDI_ENABLED="true", CREATE_DEVICE_NODES="")
    assert "ignored: " in completed.output, "of the specification alone"
    assert "modprobe" not in completed.output
