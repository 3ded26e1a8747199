# SPDX-License-Identifier: Apache-2.0
"""The chart's rules about who gets GPUs; values that the rules and the device plugin's strategy need."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.core.config_file import resolve
from nvct.agent.device_plugin.settings import PROGRAM
from nvct.config.load import from_toml
from tests.kubernetes.rendering import CHART, agent_with, helm, installer_with, notes, rendered
from tests.kubernetes.test_chart_values import MATRIX

pytestmark = pytest.mark.slow
RULES = (CHART / "policy/pods.toml").read_text()
OLDER = """[[nvct.policy.rules]]
name = "images do not ask for GPUs in pods"
kubernetes = true
by = ["image-env"]
then = "ignore"
"""
OPEN = "may get that GPU without a request"
FAILS = "A pod that names a GPU in NVIDIA_VISIBLE_DEVICES fails"
BY_CLASS = "and runtimeClassName: nvidia"
DEFAULT, MOUNTS, ENV = (
    "NVIDIA_RUNTIME_SET_AS_DEFAULT", "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS",
    "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED",
)  # fmt: skip


def by_env(section: str, value: str | None, name: str = "DEVICE_LIST_STRATEGY") -> dict[str, Any]:
    entry = {"valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}
    return {section: {"env": [{"name": name, **(entry if value is None else {"value": value})}]}}


BY_RUNTIME: dict[str, Mapping[str, Any]] = {
    "without cdi": {"cdi": {"enabled": False}},
    "by value": {"deviceListStrategy": "envvar"},
    "index": {"deviceListStrategy": "envvar", "deviceIDStrategy": "index"},
    "mounts": {"deviceListStrategy": ["volume-mounts", "envvar"]},
    "chosen on the node": {"deviceListStrategy": "auto"},
    "agent.env": by_env("agent", "envvar"),
    "devicePlugin.env": by_env("devicePlugin", "volume-mounts, envvar"),
    "from elsewhere": by_env("devicePlugin", None),
    "empty": by_env("devicePlugin", ""),
    "by label": {
        "dra": {"enabled": True, "unlabeledNodes": "dra"}, "deviceListStrategy": "envvar",
    },
}  # fmt: skip
"""Values with which a pod may have its GPUs from nvct's runtime alone."""
BY_ENGINE: dict[str, Mapping[str, Any]] = {
    "defaults": {},
    "dra": {**MATRIX["dra"], "deviceListStrategy": "envvar"},
    "another plugin": {"devicePlugin": {"enabled": False}},
    "env last": {"deviceListStrategy": "envvar", **by_env("devicePlugin", "cdi-cri")},
    "one of two": {"deviceListStrategy": ["cdi-cri", "envvar"]},
    "annotations": {"deviceListStrategy": "cdi-annotations"},
}


def rules_of(values: Mapping[str, Any]) -> str | None:
    """Return the policy that the installer reads, None without one."""
    found = rendered(values).get(("ConfigMap", "nvct-policy"))
    assert ("NVCT_POLICY_FILE" in installer_with(values)) is (found is not None)
    return found["data"]["policy.toml"] if found else None


@pytest.mark.parametrize("values", BY_RUNTIME.values(), ids=BY_RUNTIME)
def test_the_runtime_that_gives_gpus_is_the_default_one(values: Mapping[str, Any]) -> None:
    """Else a pod without a RuntimeClass would have none of the GPUs that it requested."""
    assert installer_with(values)[DEFAULT] == "true"
    assert BY_CLASS not in notes(values)
    for toolkit in ({"setAsDefault": False}, {"policy": ""}):
        changed = {**values, "toolkit": toolkit}
        assert installer_with(changed)[DEFAULT] == "false"
        assert BY_CLASS in notes(changed)


@pytest.mark.parametrize("values", BY_ENGINE.values(), ids=BY_ENGINE)
def test_where_the_engine_gives_gpus_its_default_runtime_stays(values: Mapping[str, Any]) -> None:
    assert installer_with(values)[DEFAULT] == "false"
    assert BY_CLASS not in notes(values)


@pytest.mark.parametrize("name", ["by value", "defaults", "dra"])
def test_the_rules_are_the_same_for_each_strategy(name: str) -> None:
    values = {**BY_RUNTIME, **BY_ENGINE}[name]
    kubelet = values.get("hostPaths", {}).get("kubelet", "/var/lib/kubelet")
    assert rules_of(values) == RULES.replace("/var/lib/kubelet", kubelet)
    said = notes(values)
    assert (FAILS in said, OPEN in said) == (True, False)


def test_the_rules_are_ones_that_the_runtime_reads() -> None:
    rules = from_toml(RULES.encode(), "/c").policy
    outcomes = [rule.partition('"then": "')[2].partition('"')[0] for rule in rules]
    assert outcomes == ["allow", "ignore", "ignore", "deny"]


def test_the_runtime_accepts_what_the_strategy_gives() -> None:
    assert installer_with({"deviceListStrategy": "volume-mounts"})[MOUNTS] == "true"
    assert MOUNTS not in installer_with({"deviceListStrategy": "envvar"})
    refused = {("envvar", ENV), ("auto", ENV), ("volume-mounts", MOUNTS)}
    for strategy, variable in [*refused, ("volume-mounts", ENV), ("cdi-cri", ENV)]:
        toolkit = {"env": [{"name": variable, "value": "false"}]}
        done = helm(
            "template", str(CHART), values={"deviceListStrategy": strategy, "toolkit": toolkit}
        )
        sentence = f"toolkit.env: {variable}=false keeps from pods what the device list strategy"
        assert (f"{sentence} {strategy} gives them" in done.stderr) is (
            (strategy, variable) in refused
        ), done.stderr


def test_a_config_file_cannot_change_the_strategy(tmp_path: Path) -> None:
    """Variables precede the file, and the chart always sets this one."""
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\nflags: {plugin: {deviceListStrategy: envvar}}\n")
    env = agent_with(MATRIX["config"])
    env = {name: text for name, text in env.items() if text and name != "CONFIG_FILE"}
    resolved, _ = resolve(PROGRAM, (), {**env, "CONFIG_FILE": str(config)})
    assert resolved["device_list_strategy"] == ("cdi-cri",)


def test_a_policy_of_ones_own_stays_as_it_is() -> None:
    own = '[nvct.policy]\ndefault = "deny"\n'
    assert rules_of({"toolkit": {"policy": own}}) == own
    assert rules_of({"toolkit": {"policy": ""}}) is None
    for policy in (own, ""):
        said = notes({"toolkit": {"policy": policy}})
        assert OPEN not in said
        assert FAILS not in said


def test_the_notes_name_the_rule_of_an_older_chart() -> None:
    """`helm upgrade --reuse-values` keeps it."""
    said = notes({"toolkit": {"policy": OLDER}})
    assert OPEN in said
    assert "toolkit.policy is the default of an older chart" in said
    assert "toolkit.policy=auto" in said
    assert OPEN not in notes({"toolkit": {"policy": OLDER, "enabled": False}})
