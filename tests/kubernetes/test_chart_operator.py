# SPDX-License-Identifier: Apache-2.0
"""Values as people have them in files for the GPU operator's chart and the device plugin's.

The forms are those of public repositories: Argo CD, Flux, HelmChart of k3s and RKE2.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvct.agent.mig_manager.node_labels import CONFIG, DEPLOY, REASON, STATE
from tests.kubernetes.rendering import (
    CHART,
    WORKER,
    agent_of,
    env_of,
    helm,
    installer_with,
    notes,
    pod_of,
    rendered,
    volume_of,
)
from tests.kubernetes.test_chart_values import MATRIX

pytestmark = pytest.mark.slow
RECORDED = Path(__file__).parents[1] / "peer/recorded"
SHARED = (
    "version: v1\nsharing:\n  timeSlicing:\n    resources: [{name: nvidia.com/gpu, replicas: 4}]\n"
)
CONTAINERD = {
    "CONTAINERD_CONFIG": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "CONTAINERD_SOCKET": "/run/k3s/containerd/containerd.sock",
    "CONTAINERD_RUNTIME_CLASS": "nvidia",
    "CONTAINERD_SET_AS_DEFAULT": "true",
}


def env(**variables: object) -> list[dict[str, object]]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def test_the_engines_variables_of_k3s_and_rke2_take_the_place_of_the_charts() -> None:
    values = {"toolkit": {"env": env(**CONTAINERD)}, "driver": {"enabled": False}}
    variables = installer_with(values)
    assert CONTAINERD.items() <= variables.items()
    assert variables["NVIDIA_RUNTIME_SET_AS_DEFAULT"] == "true"
    (undone, *_) = (
        each
        for each in pod_of(rendered(values), "nvct-uninstall")["initContainers"]
        if each["name"] == "toolkit"
    )
    assert env_of(undone) == variables


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "false"),
        ({"cdi": {"enabled": False}}, "true"),
        ({"cdi": {"enabled": False}, "toolkit": {"policy": ""}}, "false"),
        ({"cdi": {"enabled": False}, "toolkit": {"setAsDefault": False}}, "false"),
        ({"toolkit": {"setAsDefault": True}}, "true"),
    ],
)
def test_without_cdi_pods_need_no_runtime_class_as_with_the_operator(
    values: Mapping[str, Any], expected: str
) -> None:
    """The operator's default was cdi.enabled=false up to 25.3, with nvidia as the default runtime."""
    assert installer_with(values)["NVIDIA_RUNTIME_SET_AS_DEFAULT"] == expected
    without = not values.get("cdi", {}).get("enabled", True) and expected == "false"
    assert ("runtimeClassName: nvidia" in notes(values)) is without


def test_a_variable_stands_once_and_is_a_text() -> None:
    values = {
        "devicePlugin": {"env": env(DEVICE_LIST_STRATEGY="volume-mounts", PASS_DEVICE_SPECS=True)},
        "dcgmExporter": {
            "env": env(NVIDIA_VISIBLE_DEVICES="all", DCGM_EXPORTER_INTERVAL=15000, X=0.5)
        },
        "toolkit": {"env": env(RUNTIME_ENABLE_CDI=False)},
    }
    objects = rendered(values)
    variables = env_of(agent_of(pod_of(objects)))
    expected = {
        "DEVICE_LIST_STRATEGY": "volume-mounts", "PASS_DEVICE_SPECS": "true", "X": "0.5",
        "DCGM_EXPORTER_INTERVAL": "15000", "NVIDIA_VISIBLE_DEVICES": "void",
    }  # fmt: skip
    assert expected.items() <= variables.items()
    (installer,) = pod_of(objects, WORKER)["initContainers"]
    assert env_of(installer)["RUNTIME_ENABLE_CDI"] == "false"


@pytest.mark.parametrize("name", ["time-slicing-config", ""])
def test_config_files_that_values_of_the_operator_create(name: str) -> None:
    config = {"create": True, "name": name, "default": "any", "data": {"any": SHARED}}
    objects = rendered({"devicePlugin": {"config": config}})
    created = name or "nvct-configs"
    assert objects["ConfigMap", created]["data"] == {"any": SHARED}
    pod = pod_of(objects)
    assert volume_of(pod, "available-configs")["configMap"] == {"name": created}
    assert env_of(agent_of(pod))["DEFAULT_CONFIG"] == "any"


def test_mig_configurations_that_values_of_the_operator_create() -> None:
    data = {"config.yaml": "version: v1\nmig-configs: {}"}
    config = {"create": True, "name": "custom-mig", "data": data, "default": "all-disabled"}
    objects = rendered({"migManager": {"enabled": True, "config": config}})
    assert objects["ConfigMap", "custom-mig"]["data"] == data
    assert volume_of(pod_of(objects), "mig-config")["configMap"] == {"name": "custom-mig"}


def test_extra_objects_are_created() -> None:
    extra = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-x"},
        "data": {"any": SHARED},
    }  # fmt: skip
    text = yaml.safe_dump({**extra, "metadata": {"name": "y"}})
    objects = rendered({"extraObjects": [extra, text]})
    assert (
        objects["ConfigMap", "nvct-x"]["data"]
        == objects["ConfigMap", "y"]["data"]
        == {"any": SHARED}
    )


def test_paths_and_labels_of_pods_by_the_operators_names() -> None:
    values = {
        "hostPaths": {"rootFS": "/", "kubeletRootDir": "/var/lib/k0s/kubelet"},
        "devicePlugin": {"mps": {"root": "/run/mps"}},
        "dcgmExporter": {
            "enablePodLabels": True, "enablePodUID": True, "podLabelAllowlistRegex": ["^app$", "x"]
        },
    }  # fmt: skip
    objects = rendered(values)
    pod = pod_of(objects)
    volumes = [*pod["volumes"], *pod_of(objects, WORKER)["volumes"]]
    paths = {each["name"]: each.get("hostPath", {}).get("path") for each in volumes}
    assert (paths["device-plugins"], paths["mps"]) == (
        "/var/lib/k0s/kubelet/device-plugins", "/run/mps"
    )  # fmt: skip
    (worker,) = pod_of(objects, WORKER)["containers"]
    assert env_of(worker)["NVCT_KUBELET_DIR"] == "/var/lib/k0s/kubelet"
    prefix = "DCGM_EXPORTER_KUBERNETES"
    variables = env_of(agent_of(pod))
    assert variables[f"{prefix}_ENABLE_POD_LABELS"] == "true"
    assert variables[f"{prefix}_ENABLE_POD_UID"] == "true"
    assert variables[f"{prefix}_POD_LABEL_ALLOWLIST_REGEX"] == "^app$,x"
    rules = objects["ClusterRole", "nvct-agent"]["rules"]
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]} in rules


@pytest.mark.parametrize(
    ("kind", "name", "endpoints"),
    [
        ("ServiceMonitor", "serviceMonitor", "endpoints"),
        ("PodMonitor", "podMonitor", "podMetricsEndpoints"),
    ],
)
def test_monitors_have_the_fields_of_the_operators_and_the_exporters_chart(
    kind: str, name: str, endpoints: str
) -> None:
    """The default values of the operator's chart 26.7 have a scrapeTimeout."""
    dropped = [{"action": "labeldrop", "regex": "pod_uid"}]
    monitor = {"enabled": True, "scrapeTimeout": "10s", "metricRelabelings": dropped}
    objects = rendered({"dcgmExporter": {name: monitor}})
    for endpoint in objects[kind, "nvct-metrics"]["spec"][endpoints]:
        assert endpoint["scrapeTimeout"] == "10s"
        assert endpoint["metricRelabelings"] == dropped
    (first, *_) = rendered({"dcgmExporter": {name: {"enabled": True}}})[kind, "nvct-metrics"][
        "spec"
    ][endpoints]
    assert not {"scrapeTimeout", "metricRelabelings"} & first.keys()


def test_an_empty_tag_is_the_default_one() -> None:
    assert agent_of(pod_of(rendered({"image": {"tag": ""}})))["image"] == "nvct:agent"


SWITCHES = (
    "toolkit.enabled", "devicePlugin.enabled", "gfd.enabled", "dcgmExporter.enabled",
    "dcgmExporter.serviceMonitor.enabled", "migManager.enabled", "cdi.enabled", "driver.enabled",
    "sandboxWorkloads.enabled", "vgpuManager.enabled", "devicePlugin.config.create",
    "migManager.config.create", "dcgmExporter.config.create", "platform.openshift",
    "compatWithCPUManager", "gdsEnabled", "gfd.noTimestamp",
)  # fmt: skip


NUMBERS = ("dcgmExporter.port", "agent.port", "uninstall.timeoutSeconds")


def nested(values: Mapping[str, object]) -> dict[str, Any]:
    """Return values by sections, of values by dotted paths."""
    made: dict[str, Any] = {}
    for path, value in values.items():
        section = made
        *sections, key = path.split(".")
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value
    return made


@pytest.mark.parametrize("text", ["true", "false"])
def test_quoted_booleans_and_numbers_are_refused_with_their_paths(text: str) -> None:
    """A text is true for templates, also "false"."""
    quoted = {**dict.fromkeys(SWITCHES, text), **dict.fromkeys(NUMBERS, "9400")}
    said = helm("template", "nvct", str(CHART), values=nested(quoted)).stderr
    for path in quoted:
        kind = "integer" if path in NUMBERS else "(null or )?boolean"
        where = re.escape(f"at '/{path.replace('.', '/')}': got string, want ")
        assert re.search(where + kind, said), (path, said)


OWN = yaml.safe_load((CHART / "values.yaml").read_text())
MAY_BE_EMPTY = [key for key, value in OWN.items() if value == {} or key == "nodeSelector"]


def test_empty_sections_of_the_chart_are_refused_with_their_names() -> None:
    """`toolkit:` with nothing below is null for helm, which takes the defaults away."""
    sections = {key for key, value in OWN.items() if isinstance(value, dict)} - {*MAY_BE_EMPTY}
    said = helm("template", "nvct", str(CHART), values=dict.fromkeys(sections)).stderr
    missing = re.search(r"at '': missing (?:property|properties) (.*)", said)
    assert missing, said
    assert set(re.findall(r"'(\w+)'", missing[1])) == sections
    done = helm("template", "nvct", str(CHART), values=dict.fromkeys(MAY_BE_EMPTY))
    assert "nil pointer" not in done.stderr


def test_an_empty_section_of_another_chart_has_no_effect() -> None:
    sections = ("driver", "operator", "validator", "nfd", "dcgm", "psp", "vgpuManager", "config")
    assert rendered(dict.fromkeys(sections)).keys() == rendered({}).keys()
    own = ("agent", "toolkit", "devicePlugin", "gfd", "dcgmExporter", "migManager", "dra")
    assert rendered({name: {"env": None} for name in own}).keys() == rendered({}).keys()


def allowed(values: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Return the keys of labels that the policy allows, what they may begin with, and must not."""
    policy = rendered(values)["ValidatingAdmissionPolicy", "nvct-agent"]
    by_name = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    keys, prefixes, switches = (
        yaml.safe_load(by_name[name]) for name in ("keys", "prefixes", "switches")
    )
    return keys, prefixes, switches


def may_change(key: str, values: Mapping[str, Any]) -> bool:
    keys, prefixes, switches = allowed(values)
    return key in keys or (key.startswith(tuple(prefixes)) and not key.startswith(tuple(switches)))


def test_the_policy_allows_all_labels_of_gfd() -> None:
    keys = {
        line.partition("=")[0]
        for file in RECORDED.rglob("*.labels")
        for line in file.read_text().splitlines()
        if line and not line.startswith("#")
    }
    extra = {"nvidia.com/gpu.ecc", "nvidia.com/gpu-memory", "nvidia.com/gpu.present"}
    keys |= {*extra, "nvidia.com/gpu.product.Tesla-T4.count", "nvidia.com/gfd.timestamp"}
    assert len(keys) > 30
    assert not [key for key in sorted(keys) if not may_change(key, {})]


def test_the_policy_allows_switches_of_the_operator_if_a_task_needs_them() -> None:
    driver, pci = "nvidia.com/gpu.deploy.driver", "feature.node.kubernetes.io/pci-10de.present"
    groups = {"gfd": {"env": env(GFD_EXTRA_LABELS="ecc,pci,operator")}}
    assert not may_change(driver, {})
    assert not may_change(pci, {})
    assert may_change(driver, groups)
    assert may_change(pci, groups)
    keys = {STATE, *DEPLOY}
    without = {"migManager": {"enabled": False}}
    assert not [key for key in keys if may_change(key, without)]
    assert all(may_change(key, MATRIX["mig"]) for key in keys)
    assert not may_change(CONFIG, {**groups, **MATRIX["mig"]})
    assert may_change("example.com/pool", {"gfd": {"allowedLabels": ["example.com/pool"]}})
    assert allowed({**MATRIX["without-labels"], **without})[:2] == ([], [])
    assert REASON in str(rendered(MATRIX["mig"])["ValidatingAdmissionPolicy", "nvct-agent"])
    assert REASON not in str(rendered(without)["ValidatingAdmissionPolicy", "nvct-agent"])
