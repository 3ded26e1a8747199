# SPDX-License-Identifier: Apache-2.0
"""Which engine of a host a command line selects, and the options for it."""

from dataclasses import replace

import pytest

from nvct.cli.runtime import engine as runtime_engine
from nvct.engine.model import Engine, EngineOptions, Handler
from nvct.errors import EngineError, UsageError

USUAL = "/etc/containerd/config.toml"
SYSTEM = Engine(engine="containerd", pid=8, version="1.7.24", config=USUAL)
IDLE = replace(SYSTEM, pid=0)
MICROK8S = Engine(
    engine="containerd", pid=9, platform="MicroK8s", config="/var/snap/microk8s/1/containerd.toml",
    edit="/var/snap/microk8s/1/containerd-template.toml", drop_in="",
)  # fmt: skip
K3S = Engine(
    engine="containerd", pid=10, platform="k3s", config="/var/lib/rancher/k3s/config.toml",
    leave=True, advice=("systemctl restart k3s", "and no more"),
)  # fmt: skip
DOCKER = Engine(engine="docker", pid=7, version="28.5.2", config="/etc/docker/daemon.json")
OPTIONS = EngineOptions(
    engine="containerd", handlers=(Handler(name="nvidia", path="/usr/bin/shim"),), config=USUAL
)


def test_the_running_engine_is_selected() -> None:
    assert runtime_engine.choose([DOCKER, SYSTEM], "containerd", None) == SYSTEM
    assert runtime_engine.choose([DOCKER, IDLE, MICROK8S], "containerd", None) == MICROK8S


def test_without_a_running_engine_the_installed_one_is_selected() -> None:
    assert runtime_engine.choose([DOCKER, IDLE], "containerd", None) == IDLE
    assert runtime_engine.choose([DOCKER], "containerd", None) is None
    assert runtime_engine.choose([SYSTEM], "containerd", "/tmp/config.toml") is None


def test_two_running_engines_need_a_choice() -> None:
    with pytest.raises(UsageError, match="2 daemons of containerd run here") as caught:
        runtime_engine.choose([SYSTEM, MICROK8S], "containerd", None)

    assert USUAL in caught.value.hint
    assert MICROK8S.edit in caught.value.hint
    for path in (MICROK8S.config, MICROK8S.edit):
        assert runtime_engine.choose([SYSTEM, MICROK8S], "containerd", path) == MICROK8S


def test_an_editable_engine_is_preferred() -> None:
    assert runtime_engine.choose([K3S, SYSTEM], "containerd", None) == SYSTEM
    assert runtime_engine.choose([K3S, IDLE], "containerd", None) == IDLE


@pytest.mark.parametrize("config", [None, K3S.config], ids=["found", "named"])
def test_an_engine_with_a_generated_file_is_not_changed_and_advice_is_printed(
    capsys: pytest.CaptureFixture[str], config: str | None
) -> None:
    with pytest.raises(EngineError, match="containerd of k3s is not configured by its file"):
        runtime_engine.choose([K3S], "containerd", config)

    assert capsys.readouterr().err == "systemctl restart k3s\nand no more\n"


def test_the_files_are_those_that_the_engine_reads() -> None:
    options_found = runtime_engine.fitted(OPTIONS, replace(MICROK8S, pid=0), drop_in=False)

    assert (options_found.config, options_found.drop_in) == (MICROK8S.edit, "")
    own_options = replace(OPTIONS, drop_in="/etc/own.toml")
    assert runtime_engine.fitted(own_options, replace(MICROK8S, pid=0), drop_in=True).drop_in == (
        "/etc/own.toml"
    )


def test_the_version_is_that_of_the_engine_that_runs() -> None:
    assert runtime_engine.of_version(OPTIONS, IDLE).engine_version == (1, 7, 24)
    options = replace(OPTIONS, engine_version=(2, 1, 0))
    assert runtime_engine.of_version(options, replace(IDLE, version="")) == options


MALLORYS = Engine(
    engine="containerd", pid=5, binary="/home/mallory/containerd", uid=1000, config=USUAL,
    leave=True, foreign=True,
)  # fmt: skip


def test_another_users_process_never_stands_for_the_engine_of_a_file() -> None:
    # Its program would be run as root, its socket asked, and it be told instead of the engine.
    assert runtime_engine.of_file([MALLORYS], OPTIONS) is None
    assert runtime_engine.of_file([MALLORYS, SYSTEM], OPTIONS) == SYSTEM
    snap = replace(MALLORYS, platform="snap", root="/proc/5/root")
    assert runtime_engine.of_file([snap], OPTIONS) is None


@pytest.mark.parametrize("config", [None, USUAL], ids=["found", "named"])
def test_another_users_process_does_not_keep_root_from_its_own_engine(config: str | None) -> None:
    assert runtime_engine.choose([MALLORYS, SYSTEM], "containerd", config) == SYSTEM
    assert runtime_engine.choose([MALLORYS, IDLE], "containerd", config) == IDLE
    with pytest.raises(EngineError, match="is not configured by its file"):
        runtime_engine.choose([MALLORYS], "containerd", config)


def test_a_containers_engine_says_nothing_about_the_hosts_files() -> None:
    inside = replace(SYSTEM, root="/proc/8/root", leave=True)

    assert runtime_engine.choose([inside, IDLE], "containerd", None) == IDLE
    assert runtime_engine.choose([inside], "containerd", USUAL) is None
