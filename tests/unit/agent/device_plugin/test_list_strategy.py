# SPDX-License-Identifier: Apache-2.0
"""The device list strategy that auto stands for, and what is known of the engine."""

import asyncio
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.device_plugin.list_strategy import Choice, Engine, choose, features, nobody
from nvct.agent.device_plugin.settings import Settings
from nvct.agent.device_plugin.spec_files import PluginFiles
from nvct.agent.nvml.client import NvmlClient
from nvct.host.roots import Roots
from nvct.oci.jsontext import Json


def chosen(*strategies: str, engine: Engine | str) -> Choice:
    async def ask(_settings: Settings) -> Engine | str:
        return engine

    return asyncio.run(choose(Settings(device_list_strategy=strategies), ask))


def answers(name: str, version: str, config: object = "") -> Json:
    text = config if isinstance(config, str) else json.dumps(config)
    return {"/run/x.sock": {"name": name, "version": version, "config": text}}


def test_auto_is_the_one_best_way_of_the_engine() -> None:
    for takes, strategy in ((True, "cdi-annotations"), (False, "envvar")):
        choice = chosen("auto", engine=Engine(takes_cdi=takes, evidence="containerd 1.7"))
        assert choice.strategies == (strategy,)
        assert "containerd 1.7" in choice.reason
    unknown = asyncio.run(choose(Settings(device_list_strategy=("auto",)), nobody))
    assert unknown.strategies == ("envvar",)
    assert unknown.reason.startswith("auto: the container engine cannot be asked")


def test_other_strategies_stay_and_nobody_is_asked() -> None:
    async def fail(_settings: Settings) -> Engine | str:
        pytest.fail("it asks")

    settings = Settings(device_list_strategy=("envvar", "cdi-cri"))
    assert asyncio.run(choose(settings, fail)).strategies == ("envvar", "cdi-cri")


@pytest.mark.parametrize(
    ("runtime", "said"),
    [
        ({"runc": {"options": {"BinaryName": ""}}}, "; pods need the RuntimeClass nvidia"),
        ({"runc": {"options": {"BinaryName": "/usr/bin/nvidia-container-runtime"}}}, ""),
        (None, "; pods need the RuntimeClass nvidia unless nvidia is the default runtime"),
    ],
)
def test_it_is_said_if_pods_need_a_runtime_class(runtime: object, said: str) -> None:
    containerd = {"defaultRuntimeName": "runc", "runtimes": runtime}
    config = {"enableCDI": False, "containerd": containerd}
    engine = features(answers("containerd", "1.7.24", config))
    evidence = "containerd 1.7.24, enable_cdi = false"

    assert chosen("auto", engine=engine) == Choice(
        ("envvar",), f"auto: the engine does not take CDI names ({evidence}){said}"
    )
    for strategy in ("envvar", "volume-mounts"):
        assert "need the RuntimeClass nvidia" in chosen(strategy, engine=engine).reason


def test_cdi_names_for_an_engine_that_ignores_them_are_a_problem() -> None:
    """Pods would start without the GPUs that they were given."""
    engine = features(answers("containerd", "1.6.20", {}))
    problem = "pods would get no GPU: the engine ignores CDI names (containerd 1.6.20 has no CDI)"

    assert chosen("cdi-cri", engine=engine).problem == problem
    assert not chosen("cdi-cri", engine="no container engine answers").problem
    assert not chosen("cdi-cri", engine=features(answers("containerd", "2.1.9", {}))).problem
    assert not chosen("cdi-cri", "envvar", engine=engine).problem
    assert not chosen("cdi-annotations", engine=engine).problem, "nvct's runtime reads them"


@pytest.mark.parametrize(
    ("name", "version", "config", "takes"),
    [
        ("containerd", "1.6.20~ds1", {"enableCDI": True}, False),  # it has no CDI
        ("containerd", "1.7.24", {"enableCDI": True}, True),
        ("containerd", "1.7.24", {}, False),
        ("containerd", "v2.1.9", {}, True),
        ("containerd", "2.1.9", {"enableCDI": False}, False),
        ("containerd", "2.1.9", {"enableCDI": True, "cdiSpecDirs": ["/etc/cdi"]}, False),
        ("containerd", "2.1.9", {"enableCDI": True, "cdiSpecDirs": ["/run/cdi"]}, True),
        ("cri-o", "1.37.0", "", True),
        ("cri-o", "1.22.1", "", False),
        ("docker", "28.5.2", "", False),
    ],
)
def test_an_engine_takes_cdi_by_its_own_word(
    name: str, version: str, config: object, *, takes: bool
) -> None:
    engine = features(answers(name, version, config))

    assert isinstance(engine, Engine)
    assert engine.takes_cdi is takes
    assert engine.evidence.startswith(f"{name} {version}")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({}, "no container engine answers"),
        ({"/a": {}, "/b": {}}, "several container engines answer: /a, /b"),
        ({"/a": "no"}, "/a gives a malformed answer"),
        (
            answers("containerd", "unknown"),
            "containerd on /run/x.sock has an unknown version",
        ),
        (answers("containerd", "1.7.1", "{"), "containerd 1.7.1 does not tell its configuration"),
        (answers("containerd", "1.7.1", "[]"), "containerd 1.7.1 does not tell its configuration"),
    ],
)
def test_nothing_is_guessed(answer: Json, reason: str) -> None:
    found = features(answer)

    assert isinstance(found, str)
    assert found.startswith(reason)
    assert chosen("auto", engine=found).strategies == ("envvar",)


def test_cdi_needs_the_folder_of_specifications_and_the_hook(tmp_path: Path) -> None:
    """The hook is the host's, also where the driver is in a container of its own."""
    driver, host = tmp_path / "host/run/nvidia/driver", tmp_path / "host"
    driver.mkdir(parents=True)
    machine: Any = SimpleNamespace(
        nvml=NvmlClient(None), roots=Roots(driver_root=str(driver)), stat_node=None
    )

    def why_not(folder: Path) -> str:
        files = PluginFiles(str(folder), Log(target=io.StringIO()), (str(host), "/none"))
        return asyncio.run(files.why_not(Settings(hook_path="/usr/bin/nvidia-ctk"), machine))

    assert why_not(tmp_path / "cdi").startswith("the host's")
    missing = f"not at {host}/usr/bin/nvidia-ctk or /none/usr/bin/nvidia-ctk"
    assert why_not(tmp_path).endswith(missing)
    (host / "usr/bin").mkdir(parents=True)
    (host / "usr/bin/nvidia-ctk").touch()
    assert why_not(tmp_path) == ""
