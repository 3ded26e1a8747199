# SPDX-License-Identifier: Apache-2.0
"""Values of the charts of dcgm-exporter and of NVIDIA's DRA driver: in nvct's chart, and by `nvct convert values`.

A chart that depends on nvct's once for each case renders all cases in one run of helm.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvct.agent.manifests import convert_values
from nvct.version import __version__
from tests.kubernetes.rendering import (
    CHART,
    WORKER,
    agent_of,
    env_of,
    helm,
    ignored_with,
    notes,
    objects_of,
    pod_of,
    rendered,
)

pytestmark = pytest.mark.slow
Values = Mapping[str, Any]
GPU = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
COUNTERS = "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature (in C).\n"
TERMS = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}}
CASES: dict[str, Values] = {
    "own": {},
    "exporter": {
        "arguments": ["-f", "/etc/dcgm-exporter/dcp-metrics-included.csv"],
        "customMetrics": COUNTERS,
        "extraEnv": [{"name": "DCGM_EXPORTER_INTERVAL", "value": "1000"}],
        "image": {"pullPolicy": "Always"},
        "kubernetes": {"enablePodUID": True, "rbac": {"create": True}},
        "podLabels": {"team": "ml"},
        "resources": {"limits": {"cpu": "200m", "memory": "512Mi"}},
        "runtimeClassName": "nvidia",
        "service": {"enable": True, "type": "ClusterIP", "port": 9401},
        "serviceMonitor": {"enabled": True, "interval": "30s", "additionalLabels": {"a": "b"}},
        "tolerations": GPU,
    },
    "exporter-without-service": {"service": {"enable": False}, "customMetrics": ""},
    "claims": {
        "controller": {"affinity": None, "nodeSelector": None},
        "featureGates": {"MPSSupport": True},
        "gpuResourcesEnabledOverride": True,
        "kubeletPlugin": {
            "affinity": AFFINITY, "nodeSelector": {"pool": "gpu"}, "priorityClassName": "",
            "tolerations": GPU, "metrics": {"enabled": True},
            "containers": {"gpus": {"resources": {"limits": {"memory": "512Mi"}}}},
        },
        "nvidiaDriverRoot": "/",
        "resources": {"gpus": {"enabled": True}, "computeDomains": {"enabled": True}},
    },
    "domains-alone": {
        "gpuResourcesEnabledOverride": True, "kubeletPlugin": {"affinity": None},
        "resources": {"gpus": {"enabled": False}, "computeDomains": {"enabled": False}},
    },
    "off": {"enabled": False},
}  # fmt: skip


def umbrella(folder: Path, cases: Mapping[str, Values]) -> dict[str, dict[tuple[str, str], Any]]:
    """Return the objects of each case by kind and name, of a chart that depends on nvct's."""
    shutil.copytree(CHART, folder / "charts/nvct")
    one = {"name": "nvct", "version": __version__}
    needs = [{**one, "alias": name, "condition": f"{name}.enabled"} for name in cases]
    chart = {"apiVersion": "v2", "name": "all", "version": "1.0.0", "dependencies": needs}
    (folder / "Chart.yaml").write_text(yaml.safe_dump(chart))
    done = helm("template", "r", str(folder), values=cases)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[tuple[str, str], Any]] = {name: {} for name in cases}
    for source, text in re.findall(
        r"# Source: all/charts/([^/]+)/\S+\n(.*?)(?=\n---|\Z)", done.stdout, re.S
    ):
        for each in objects_of(text):
            found[source][each["kind"], each["metadata"]["name"]] = each
    return found


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return umbrella(tmp_path_factory.mktemp("given"), CASES)


def test_a_dependency_has_its_alias_as_name_and_can_be_off(objects: dict[str, Any]) -> None:
    assert {name for name, found in objects.items() if not found} == {"off"}
    assert ("DaemonSet", "r-own") in objects["own"]


def test_values_of_the_exporters_chart_have_their_effect(objects: dict[str, Any]) -> None:
    found = objects["exporter"]
    agent = agent_of(pod_of(found, "r-exporter"))
    expected = {
        "DCGM_EXPORTER_INTERVAL": "1000", "DCGM_EXPORTER_LISTEN": ":9401",
        "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": "true",
    }  # fmt: skip
    assert expected.items() <= env_of(agent).items()
    assert agent["resources"] == {"limits": {"cpu": "200m", "memory": "512Mi"}}
    monitor = found["ServiceMonitor", "r-exporter-metrics"]
    assert (monitor["spec"]["endpoints"][0]["interval"], monitor["metadata"]["labels"]["a"]) == (
        "30s",
        "b",
    )
    assert found["Service", "r-exporter-metrics"]["spec"]["ports"][0]["port"] == 9401
    assert found["ConfigMap", "r-exporter-counters"]["data"] == {"dcgm-metrics.csv": COUNTERS}
    metadata = found["DaemonSet", "r-exporter"]["spec"]["template"]["metadata"]
    assert metadata["labels"]["team"] == "ml"
    without = objects["exporter-without-service"]
    assert not {("Service", "r-exporter-without-service-metrics"),
                ("ConfigMap", "r-exporter-without-service-counters")} & without.keys()  # fmt: skip


def test_values_of_the_dra_drivers_chart_have_their_effect(objects: dict[str, Any]) -> None:
    pod = pod_of(objects["claims"], "r-claims")
    agent = agent_of(pod)
    assert "dra" in env_of(agent)["NVCT_AGENT_TASKS"].split(",")
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "gpu"}
    assert (pod["affinity"], pod["tolerations"]) == (AFFINITY, GPU)
    assert "priorityClassName" not in pod
    assert agent["resources"]["limits"] == {"memory": "512Mi"}
    plugin = agent_of(pod_of(objects["domains-alone"], "r-domains-alone"))
    assert "device-plugin" in env_of(plugin)["NVCT_AGENT_TASKS"].split(",")
    assert "gpus" not in plugin["resources"]


def test_converted_values_render_the_same(objects: dict[str, Any], tmp_path: Path) -> None:
    converted = {name: convert_values.convert(values, name)[0] for name, values in CASES.items()}
    assert umbrella(tmp_path, converted) == objects
    renamed = {"serviceMonitor", "extraEnv", "kubeletPlugin", "gpuResourcesEnabledOverride"}
    assert not renamed & {key for values in converted.values() for key in values}


def test_the_page_has_the_values_for_the_exporter_alone() -> None:
    text = (CHART.parents[2] / "docs/migrate.md").read_text()
    found = rendered(yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0]))
    assert env_of(agent_of(pod_of(found)))["NVCT_AGENT_TASKS"] == "exporter"
    assert "initContainers" not in pod_of(found, WORKER)
    assert ("ServiceMonitor", "nvct-metrics") in found
    assert not {kind for kind, _ in found} & {"RuntimeClass", "DeviceClass"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exporter", ["arguments", "kubernetes.rbac", "runtimeClassName", "service.type"]),
        ("claims", ["controller", "featureGates", "kubeletPlugin.metrics", "nvidiaDriverRoot",
                    "resources.computeDomains"]),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_named(name: str, expected: list[str]) -> None:
    ignored = ignored_with(CASES[name])
    assert sorted(line.partition(":")[0] for line in ignored) == expected
    assert {*ignored} <= {*convert_values.convert(CASES[name], name)[1]}


def test_misspelled_fields_of_pods_do_not_reach_the_api_server() -> None:
    """One run names all."""
    wrong = {
        "affinity": {"nodeAfinity": {}},
        "agent": {"resources": {"gpus": {"enabled": True}}},
        "kubeletPlugin": {"tolerations": [{"keyy": "a"}]},
        "resources": {"limit": {}},
        "tolerations": [{"key": "a", "operator": "Exist"}],
        "toolkit": {"resources": {"limits": {"cpu": {}}}},
        "nodeSelector": {"a": True},
    }
    said = helm("template", "nvct", str(CHART), values=wrong).stderr
    for path, problem in {
        "/affinity": "'nodeAfinity' not allowed", "/agent/resources": "'gpus' not allowed",
        "/kubeletPlugin/tolerations/0": "'keyy' not allowed", "/resources": "'limit' not allowed",
        "/tolerations/0/operator": "value must be one of", "/nodeSelector/a": "got boolean",
        "/toolkit/resources/limits/cpu": "got object",
    }.items():  # fmt: skip
        assert re.search(f"at '{path}':.*{problem}", said), (path, said)


LACKING: Values = {
    "condition": {"enabled": False, "podEvents": True},
    "config": {"default": "a"},
    "dcgmExporter": {
        "enabled": False, "podLabels": True, "podMonitor": {"enabled": True},
        "serviceMonitor": {"enabled": True}, "config": {"name": "a", "data": "b"},
    },
    "devicePlugin": {"config": {"default": "a", "data": {"a": "b"}}},
    "dra": {"unlabeledNodes": "dra", "shares": "uniform"},
    "gfd": {"enabled": False, "allowedLabels": ["a"]},
    "migManager": {
        "enabled": False, "evictPods": True, "gpuClientsConfig": {"name": "a"},
        "config": {"default": "a", "data": {"a": "b"}},
    },
    "networkPolicy": {"enabled": False, "from": [{}]},
    "nri": {"env": True, "givenByKubelet": "enforce", "managementNamespaces": ["a"]},
    "toolkit": {"enabled": False, "env": [{"name": "A", "value": "b"}]},
}  # fmt: skip


def test_a_value_without_the_one_that_it_needs_has_a_sentence() -> None:
    text = (CHART / "templates/_operator.tpl").read_text()
    table = yaml.safe_load(text.partition('define "nvct.needs" -}}')[2].partition("{{-")[0])
    lines = re.findall(r"^(\S+?)(?:=.*)? has no effect without", notes(LACKING), re.M)
    assert {*table} - {*lines} == {"dcgmExporter.config.create"}
    assert "config.default=a has no effect without config.map or config.name" in notes(LACKING)
    assert "has no effect without" not in notes({})


def test_each_template_gives_values_their_names_first() -> None:
    """helm renders templates in an order of its own."""
    templates = [*(CHART / "templates").rglob("*.yaml"), CHART / "templates/NOTES.txt"]
    first = '{{- include "nvct.translate" . -}}'
    assert not [each for each in templates if each.read_text().splitlines()[0] != first]


def test_the_charts_tables_are_the_commands() -> None:
    """`make manifests` copies them."""
    assert (CHART / "chart_values.yaml").read_bytes() == convert_values.TABLES.read_bytes()
