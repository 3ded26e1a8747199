# SPDX-License-Identifier: Apache-2.0
"""The chart's rules about who gets GPUs: by which values they are installed, and what its notes say."""

from __future__ import annotations

import pytest

from nvct.agent.config_file import resolve
from nvct.agent.device_plugin.options import TABLE
from tests.kubernetes.test_chart_values import CHART, MATRIX, agent_of, env_of, notes, pod_of
from tests.kubernetes.test_chart_values import rendered as rendered_with

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

pytestmark = pytest.mark.slow
IMAGES, VARIABLES, ANNOTATIONS = (
    (CHART / f"policy/{name}.toml").read_text() for name in ("images", "variables", "annotations")
)
ALL_OF_THEM = f"{VARIABLES}\n{ANNOTATIONS}"
OPEN = "A pod that names a GPU's UUID in NVIDIA_VISIBLE_DEVICES, and the RuntimeClass nvidia, gets that"
FAILS = "A pod that names a GPU in NVIDIA_VISIBLE_DEVICES fails"


def by_env(section: str, value: str | None, name: str = "DEVICE_LIST_STRATEGY") -> dict[str, Any]:
    entry = {"valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}
    return {section: {"env": [{"name": name, **(entry if value is None else {"value": value})}]}}


BELIEVING: dict[str, Mapping[str, Any]] = {
    "without cdi": {"cdi": {"enabled": False}},
    "by value": {"deviceListStrategy": "envvar"},
    "one of two": {"deviceListStrategy": ["cdi-cri", "envvar"]},
    "chosen on the node": {"deviceListStrategy": "auto"},
    "agent.env": by_env("agent", "envvar"),
    "devicePlugin.env": by_env("devicePlugin", "cdi-cri, envvar"),
    "from elsewhere": by_env("devicePlugin", None),
    "empty": by_env("devicePlugin", ""),
    "another plugin": {"devicePlugin": {"enabled": False}},
    "other tasks": by_env("agent", "labels,exporter", name="NVCT_AGENT_TASKS"),
    "by label": {
        "dra": {"enabled": True, "unlabeledNodes": "dra"}, "deviceListStrategy": "envvar",
    },
}  # fmt: skip
"""Values with which the variable of a pod may be what a device plugin has given."""
NOT_BELIEVING: dict[str, tuple[Mapping[str, Any], str]] = {
    "defaults": ({}, ALL_OF_THEM),
    "dra": ({**MATRIX["dra"], "deviceListStrategy": "envvar"}, ALL_OF_THEM),
    "dra alone": ({**MATRIX["dra"], "devicePlugin": {"enabled": False}}, ALL_OF_THEM),
    "env last": (
        {"deviceListStrategy": "envvar", **by_env("devicePlugin", "cdi-cri")}, ALL_OF_THEM,
    ),
    "mounts": ({"deviceListStrategy": "volume-mounts"}, ALL_OF_THEM),
    "annotations": ({"deviceListStrategy": ["cdi-cri", "cdi-annotations"]}, VARIABLES),
}  # fmt: skip


def rules_of(values: Mapping[str, Any]) -> str | None:
    """Return the policy that the installer reads, None without one."""
    objects = rendered_with(values)
    (installer,) = pod_of(objects)["initContainers"]
    found = objects.get(("ConfigMap", "nvct-policy"))
    assert ("NVCT_POLICY_FILE" in env_of(installer)) is (found is not None)
    return found["data"]["policy.toml"] if found else None


@pytest.mark.parametrize("values", BELIEVING.values(), ids=BELIEVING)
def test_where_a_plugin_may_give_variables_only_those_of_images_are_ignored(
    values: Mapping[str, Any],
) -> None:
    assert rules_of(values) == IMAGES
    said = notes(values)
    assert f"{OPEN} GPU without a request, because " in said
    assert FAILS not in said


@pytest.mark.parametrize(("values", "rules"), NOT_BELIEVING.values(), ids=NOT_BELIEVING)
def test_elsewhere_a_pod_that_names_a_gpu_fails(values: Mapping[str, Any], rules: str) -> None:
    assert rules_of(values) == rules
    said = notes(values)
    assert FAILS in said
    assert OPEN not in said
    assert ("With CRI-O, a pod that names a GPU in an annotation" in said) is (rules == VARIABLES)


def test_a_config_file_cannot_change_the_strategy(tmp_path: Path) -> None:
    """Variables precede the file, and the chart always sets this one."""
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\nflags: {plugin: {deviceListStrategy: envvar}}\n")
    env = env_of(agent_of(pod_of(rendered_with(MATRIX["config"]))))
    env = {name: text for name, text in env.items() if text and name != "CONFIG_FILE"}
    resolved = resolve(TABLE, (), {**env, "CONFIG_FILE": str(config)}).values
    assert resolved["device-list-strategy"] == ("cdi-cri",)


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
    said = notes({"toolkit": {"policy": IMAGES}})
    assert (
        f"{OPEN} GPU without a request: toolkit.policy is the default of an older chart." in said
    )
    assert "toolkit.policy=auto" in said
    assert OPEN not in notes({"toolkit": {"policy": IMAGES, "enabled": False}})
