# SPDX-License-Identifier: Apache-2.0
"""packaging/helm/nvct with values: what is rendered, ignored with a line, and refused with a sentence."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvct.agent.heal import brakes
from nvct.agent.heal import node as heal_node
from nvct.agent.heal import settings as heal_settings
from nvct.agent.mig_manager.settings import resolve
from nvct.cli.install import install
from nvct.version import __version__
from tests.kubernetes import audit, chart_values, reach
from tests.kubernetes.rendering import (
    CHART,
    WORKER,
    agent_of,
    agent_with,
    env_of,
    find_helm,
    helm,
    ignored_with,
    installer_with,
    manifest,
    notes,
    pod_of,
    rendered,
    volume_of,
)

pytestmark = pytest.mark.slow
PAGE = CHART.parents[2] / "docs/kubernetes.md"
MANIFESTS = CHART.parents[1] / "kubernetes"
OPERATOR: dict[str, Any] = {
    "cdi": {"enabled": True, "default": True},
    "dcgmExporter": {
        "enabled": True,
        "config": {"name": "counters"},
        "env": [{"name": "DCGM_EXPORTER_INTERVAL", "value": "15000"}],
        "hostNetwork": False,
        "service": {"internalTrafficPolicy": "Local"},
        "serviceMonitor": {"enabled": True, "interval": "15s", "honorLabels": False},
    },
    "driver": {"enabled": False, "version": "580"},
    "gfd": {"enabled": False},
    "imagePullSecrets": ["registry"],
    "mig": {"strategy": "mixed"},
    "operator": {"defaultRuntime": "crio", "cleanupCRD": True},
    "psp": {"enabled": False},
    "toolkit": {"version": "v1.17", "env": [{"name": "NVCT_STATE_DIR", "value": "/state"}]},
}
"""Values of the GPU operator's chart, as guides give them."""
PLUGIN: dict[str, Any] = {
    "compatWithCPUManager": True,
    "deviceListStrategy": ["cdi-annotations", "cdi-cri"],
    "failOnInitError": True,
    "migStrategy": "single",
    "runtimeClassName": "nvidia",
}
"""Values of the device plugin's chart, 0.9 and 0.20."""
PLUGIN_CONFIG: dict[str, Any] = {"config": {"name": "plugin"}}
NO_MIG: Mapping[str, Any] = {"migManager": {"enabled": False}}
TAINT: dict[str, Any] = {"devicePlugin": {"startupTaint": "example.com/starting"}}
ENABLE_POD = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD"
MATRIX: dict[str, Mapping[str, Any]] = {
    "defaults": {},
    "plugin-0.9": chart_values.PLUGIN_0_9,
    "plugin-0.20": chart_values.PLUGIN_0_20,
    "plugins-configs": {"config": {"map": {"a": "version: v1", "b": ""}, "default": "a"}},
    "gfd": chart_values.GFD,
    "operator": OPERATOR,
    "plugin": PLUGIN,
    "crio": {"toolkit": {"runtime": "crio"}},
    "without-toolkit": {"toolkit": {"enabled": False}},
    "dra": {"dra": {"enabled": True}, "hostPaths": {"kubelet": "/data/kubelet"}},
    "without-labels": {"gfd": {"enabled": False}},
    "without-cdi": {"cdi": {"enabled": False}},
    "without-policy": {"toolkit": {"policy": ""}},
    "without-classes": {"runtimeClasses": {"create": False}, "serviceAccount": {"create": False}},
    "named": {"fullnameOverride": "gpus", "imagePullSecrets": [{"name": "registry"}]},
    "digest": {"image": {"repository": "r.example/nvct", "digest": f"sha256:{'0' * 64}"}},
    "config-alone": {
        "devicePlugin": {"config": {"name": "plugin"}},
        "gfd": {"enabled": False},
    },
    "mig": {
        "migManager": {
            "enabled": True,
            "config": {"name": "mig-parted", "default": "all-disabled"},
            "gpuClientsConfig": {"name": "gpu-clients"},
            "evictPods": True,
            "env": [{"name": "WITH_REBOOT", "value": "true"}],
        }
    },
    "config": {"devicePlugin": {"config": {"name": "plugin", "default": "shared.yaml"}}},
    "monitoring": {
        "prometheusRule": {"enabled": True, "labels": {"release": "kps"}},
        "grafanaDashboard": {"enabled": True},
    },
    "exporter-alone": {"devicePlugin": {"enabled": False}, "gfd": {"enabled": False}},
    "without-exporter": {"dcgmExporter": {"enabled": False}},
    "without-ports": {"dcgmExporter": {"enabled": False}, "agent": {"port": 0}},
    "counters": {
        "dcgmExporter": {"config": {"create": True, "data": "DCGM_FI_DEV_GPU_TEMP, gauge, x"}}
    },
    "pod-labels": {"dcgmExporter": {"podLabels": True}, "gfd": {"enabled": False}},
    "pod-monitor": {"dcgmExporter": {"podMonitor": {"enabled": True}}},
    "privileged": {"agent": {"privileged": True}},
    "older": {"agent": {"hiddenHostPaths": ["/proc"]}, "nvmlWorker": {"resources": None}},
    "taint": TAINT,
    "nri": {"nri": {"enabled": True, "givenByKubelet": "enforce", "exemptNamespaces": ["a", "b"]}},
    "openshift": {"platform": {"openshift": True}},
    "volumes": {
        "agent": {
            "extraVolumes": [{"name": "labels", "configMap": {"name": "labels"}}],
            "extraVolumeMounts": [{"name": "labels", "mountPath": "/etc/nvct/labels"}],
        },
    },
    "remediation": {"health": {"remediation": "reset", "remediationNodes": 3}},
    "pods": {
        "daemonsets": {"labels": {"team": "ml"}, "annotations": {"a": "b"}, "tolerations": []},
        "nodeSelector": {"gpus": "true"},
        "affinity": {"nodeAffinity": {}},
        "toolkit": {"resources": None},
    },
}


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_the_chart_is_well_formed_with(values: Mapping[str, Any]) -> None:
    objects = rendered(values)
    for (kind, name), each in objects.items():
        if kind != "DaemonSet":
            continue
        template = each["spec"]["template"]
        selector = each["spec"]["selector"]["matchLabels"]
        assert selector.items() <= template["metadata"]["labels"].items(), name
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        spec = template["spec"]
        containers = [*spec.get("initContainers", ()), *spec["containers"]]
        mounts = [mount for one in containers for mount in one.get("volumeMounts", ())]
        assert {mount["name"] for mount in mounts} == volumes, name
    placed = [*reach.containers(objects.values())]
    assert {one.owner.partition(" ")[0] for one in placed} == {"DaemonSet", "Job", "Pod"}
    for one in placed:  # also of hooks and of `helm test`
        if not one.context.get("privileged"):
            assert one.context["seccompProfile"] == {"type": "RuntimeDefault"}, one.owner


def test_the_chart_passes_helms_own_check() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_manifests_are_those_of_the_chart(tmp_path: Path) -> None:
    """`make manifests` renders them again."""
    program = find_helm()
    command = [sys.executable, str(MANIFESTS / "render.py"), f"--helm={program}"]
    done = subprocess.run(
        [*command, f"--out={tmp_path}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["nvct.yaml", "uninstall.yaml"]
    for name in names:
        assert (tmp_path / name).read_text() == (MANIFESTS / name).read_text(), "make manifests"
        assert "helm" not in (tmp_path / name).read_text().partition("---")[2]


def test_no_two_daemon_sets_select_the_same_pods() -> None:
    objects = rendered({})
    selectors = [
        tuple(sorted(each["spec"]["selector"]["matchLabels"].items()))
        for (kind, _), each in objects.items()
        if kind == "DaemonSet"
    ]
    assert len(set(selectors)) == len(selectors) > 0


def test_the_pods_do_not_change_with_the_version_of_the_chart() -> None:
    labels = rendered({})["DaemonSet", "nvct"]["spec"]["template"]["metadata"]["labels"]
    assert not [value for value in labels.values() if __version__ in value]


def test_the_chart_has_the_version_of_nvct() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__


def test_each_variable_of_the_installer_is_one_that_it_reads() -> None:
    known: set[str] = set()
    for option in install.params:
        names = option.envvar or ()
        known |= {names} if isinstance(names, str) else set(names)
    (installer,) = pod_of(rendered({}), WORKER)["initContainers"]
    assert env_of(installer).keys() - {"NVIDIA_VISIBLE_DEVICES"} <= known
    flags = {name for option in install.params for name in option.opts}
    assert set(installer["command"][2:]) <= flags


def test_values_of_the_operator_are_understood() -> None:
    installer = installer_with(OPERATOR)
    assert (installer["RUNTIME"], installer["NVCT_STATE_DIR"]) == ("auto", "/state")
    for name in ("nvct", WORKER):
        assert pod_of(rendered(OPERATOR), name)["imagePullSecrets"] == [{"name": "registry"}]


FILES = {"mixed": "version: v1\nflags: {migStrategy: mixed}"}
WITH_FILES: Mapping[str, Any] = {"config": {"map": FILES}}
PREFLIGHT = "pcie-width=warn, persistence=ignore"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (OPERATOR, {
            "MIG_STRATEGY": "mixed", "DCGM_EXPORTER_LISTEN": ":9400",
            "DCGM_EXPORTER_INTERVAL": "15000",
            "DCGM_EXPORTER_COLLECTORS": "/etc/dcgm-exporter/dcgm-metrics.csv",
        }),
        (PLUGIN, {
            "DEVICE_LIST_STRATEGY": "cdi-annotations,cdi-cri", "MIG_STRATEGY": "single",
            "PASS_DEVICE_SPECS": "true",
        }),
        # A variable takes precedence over the file, as in NVIDIA's plugin.
        (WITH_FILES, {"MIG_STRATEGY": None}),
        ({**WITH_FILES, "migStrategy": "none"}, {"MIG_STRATEGY": "none"}),
        ({**WITH_FILES, "mig": {"strategy": "single"}}, {"MIG_STRATEGY": None}),  # the default
        ({**WITH_FILES, "mig": {"strategy": "mixed"}}, {"MIG_STRATEGY": "mixed"}),
        ({"gdrcopyEnabled": True, "gdsEnabled": False, "mofedEnabled": None,
          "deviceDiscoveryStrategy": "nvml", "gfd": {"noTimestamp": True}, "sleepInterval": "30s"},
         {"GDRCOPY_ENABLED": "true", "GDS_ENABLED": "false", "MOFED_ENABLED": None,
          "DEVICE_DISCOVERY_STRATEGY": "nvml", "GFD_NO_TIMESTAMP": "true",
          "GFD_SLEEP_INTERVAL": "30s"}),
        # The operator's guide: a ConfigMap with a key for each model, no default, and nodes labeled.
        ({"devicePlugin": {"config": {"name": "a"}}},
         {"FALLBACK_STRATEGIES": "named,single,empty"}),
        ({"config": {"name": "a"}}, {"FALLBACK_STRATEGIES": "named,single"}),
        ({"config": {"map": {"a": "", "b": ""}, "fallbackStrategies": ["empty"]}},
         {"FALLBACK_STRATEGIES": "empty"}),
        ({"health": {"preflight": PREFLIGHT}}, {"HEALTH_PREFLIGHT": PREFLIGHT}),
        ({}, {"HEALTH_PREFLIGHT": None, "MEMORY_SHARES": None, "NVCT_AGENT_LISTEN": ":9402"}),
        (TAINT, {"STARTUP_TAINT": "example.com/starting"}),
        *(({"dra": {"enabled": True, "shares": shares}}, {"MEMORY_SHARES": shares})
          for shares in ("uniform", "mixed")),
        ({"dra": {"enabled": True, "unlabeledNodes": "classic"}},
         {"NVCT_AGENT_TASKS": "condition,device-plugin,dra,exporter,labels",
          "NVCT_RESOURCES": "classic"}),
        ({"dra": {"enabled": True, "unlabeledNodes": "classic"},
          "devicePlugin": {"enabled": False}}, {"NVCT_RESOURCES": None}),
        (MATRIX["dra"], {"NVCT_AGENT_TASKS": "condition,dra,exporter,labels"}),
    ],
)  # fmt: skip
def test_values_are_variables_of_the_agent(
    values: Mapping[str, Any], expected: Mapping[str, str | None]
) -> None:
    env = agent_with(values)
    assert {name: env.get(name) for name in expected} == expected


def test_the_agent_has_volumes_of_the_users_own() -> None:
    """test_the_chart_is_well_formed_with shows that each volume is mounted."""
    pod = pod_of(rendered(MATRIX["volumes"]))
    mounts = {mount["name"]: mount["mountPath"] for mount in agent_of(pod)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert mounts["labels"] == "/etc/nvct/labels"
    assert volumes["labels"]["configMap"] == {"name": "labels"}


def test_mps_has_its_folder_on_the_host() -> None:
    objects = rendered({"mps": {"root": "/run/mps", "enableHostPID": True}})
    pod, agent = pod_of(objects, WORKER), agent_of(pod_of(objects))
    (worker,) = pod["containers"]
    folders = {v["name"]: v.get("hostPath", {}).get("path") for v in pod["volumes"]}
    (mounted,) = (m["name"] for m in worker["volumeMounts"] if m["mountPath"] == "/mps")
    assert (env_of(agent)["MPS_ROOT"], folders[mounted]) == ("/run/mps", "/run/mps")


def test_rules_and_dashboard_are_rendered_as_they_are() -> None:
    objects = rendered(MATRIX["monitoring"])
    rule, dashboard = objects["PrometheusRule", "nvct"], objects["ConfigMap", "nvct-dashboard"]

    assert rule["spec"] == yaml.safe_load((CHART / "monitoring/rules.yaml").read_text())
    assert rule["metadata"]["labels"]["release"] == "kps"
    assert dashboard["data"]["nvct-gpus.json"] == (CHART / "monitoring/dashboard.json").read_text()
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert "PrometheusRule" not in {kind for kind, _ in rendered({})}


def test_the_agent_has_no_privileges_and_nvmls_worker_no_token() -> None:
    objects = rendered({})
    pod, of_worker = pod_of(objects), pod_of(objects, WORKER)
    (agent,), (worker,) = pod["containers"], of_worker["containers"]
    assert worker["securityContext"]["privileged"] is True
    context = agent["securityContext"]
    assert not context.get("privileged")
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert "initContainers" not in pod
    assert ("hostPID" in pod, of_worker["hostPID"]) == (False, True)
    paths = {mount["mountPath"] for mount in agent["volumeMounts"]}
    assert "/dev" not in paths
    assert not [path for path in paths if path == "/host" or path.startswith("/host/")]
    assert "token" not in {mount["name"] for mount in worker["volumeMounts"]}
    assert of_worker["automountServiceAccountToken"] is False
    (socket,) = (word[9:] for word in worker["command"] if word.startswith("--socket="))
    assert f"--worker={socket}" in agent["command"]
    folders = {
        one["name"]: [
            mount.get("readOnly", False)
            for mount in one["volumeMounts"]
            if mount["mountPath"] == os.path.dirname(socket)
        ]
        for one in (agent, worker)
    }
    assert folders == {"agent": [True], "nvml-worker": [False]}
    (leaves, *_) = pod_of(objects, "nvct-uninstall")["initContainers"]
    assert leaves["securityContext"] == context


@pytest.mark.parametrize(
    "values",
    [{}, {"gfd": {"enabled": False}}, {"toolkit": {"policy": ""}}, {"cdi": {"enabled": False}},
     {"image": {"tag": "newer"}}, {"toolkit": {"env": [{"name": "NVCT_STATE_DIR", "value": "/a"}]}},
     {"toolkit": {"enabled": False}}],
)  # fmt: skip
def test_the_agent_waits_for_the_worker_of_the_same_values(values: Mapping[str, Any]) -> None:
    """Whatever changes one of the two pods changes both: an agent of another mark never starts."""
    objects = rendered(values)
    (worker,) = pod_of(objects, WORKER)["containers"]
    marks = {env_of(one)["NVCT_RELEASE"] for one in (agent_of(pod_of(objects)), worker)}
    assert len(marks) == 1
    plain = env_of(agent_of(pod_of(rendered({}))))["NVCT_RELEASE"]
    assert (marks == {plain}) is (values == {})


def test_values_of_pods_are_of_both() -> None:
    given = {
        **MATRIX["pods"], "podAnnotations": {"c": "d"}, "priorityClassName": "high",
        "tolerations": [{"operator": "Exists"}], "imagePullSecrets": ["registry"],
    }  # fmt: skip
    objects = rendered(given)
    for name in ("nvct", WORKER):
        daemon_set = objects["DaemonSet", name]["spec"]
        metadata, pod = daemon_set["template"]["metadata"], daemon_set["template"]["spec"]
        assert metadata["labels"]["team"] == "ml"
        assert {"a": "b", "c": "d"}.items() <= metadata["annotations"].items()
        assert pod["nodeSelector"]["gpus"] == "true"
        assert (pod["priorityClassName"], pod["tolerations"]) == ("high", [{"operator": "Exists"}])
        assert pod["affinity"] == {"nodeAffinity": {}}
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert daemon_set["updateStrategy"]["rollingUpdate"] == {
            "maxSurge": 1,
            "maxUnavailable": 0,
        }


@pytest.mark.parametrize("name", ["privileged", "mig"])
def test_an_agent_with_its_own_nvml_is_privileged_and_alone(name: str) -> None:
    objects = rendered(MATRIX[name])
    assert ("DaemonSet", WORKER) not in objects
    pod = pod_of(objects)
    (agent,) = pod["containers"]
    assert (agent["securityContext"]["privileged"], pod["hostPID"]) == (True, True)
    assert [one["name"] for one in pod["initContainers"]] == ["toolkit"]
    assert "NVCT_RELEASE" not in env_of(agent)
    assert "/dev" in {mount["mountPath"] for mount in agent["volumeMounts"]}
    assert agent["command"] == ["/usr/bin/nvct", "agent"]


def test_the_exporter_has_the_values_of_the_operators() -> None:
    objects = rendered(OPERATOR)
    agent = agent_of(pod_of(objects))
    assert "exporter" in env_of(agent)["NVCT_AGENT_TASKS"].split(",")
    assert volume_of(pod_of(objects), "counters")["configMap"] == {"name": "counters"}
    assert objects["Service", "nvct-metrics"]["spec"]["internalTrafficPolicy"] == "Local"
    endpoints = objects["ServiceMonitor", "nvct-metrics"]["spec"]["endpoints"]
    assert [(each["port"], each["honorLabels"]) for each in endpoints] == [
        ("gpu-metrics", False), ("agent", False)
    ]  # fmt: skip
    assert ("PodMonitor", "nvct-metrics") not in objects


def test_labels_of_pods_are_kept_by_prometheus() -> None:
    objects = rendered(MATRIX["pod-monitor"])
    endpoints = objects["PodMonitor", "nvct-metrics"]["spec"]["podMetricsEndpoints"]
    assert all(each["honorLabels"] for each in endpoints)
    assert ("ServiceMonitor", "nvct-metrics") not in objects


def test_monitors_and_the_service_find_the_agents_pods() -> None:
    monitored = {"enabled": True}
    exporter = {"serviceMonitor": monitored, "podMonitor": monitored}
    objects = rendered({"dcgmExporter": exporter})
    labels = objects["DaemonSet", "nvct"]["spec"]["template"]["metadata"]["labels"]
    service = objects["Service", "nvct-metrics"]
    assert service["metadata"]["labels"]["app"] == "nvidia-dcgm-exporter"
    ports = {port["name"] for port in agent_of(pod_of(objects))["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == ports
    assert service["spec"]["selector"].items() <= labels.items()
    selectors = {
        kind: objects[kind, name]["spec"]["selector"]["matchLabels"].items()
        for kind, name in (("PodMonitor", "nvct-metrics"), ("ServiceMonitor", "nvct-metrics"))
    }
    assert selectors["PodMonitor"] <= labels.items()
    assert selectors["ServiceMonitor"] <= service["metadata"]["labels"].items()
    policy = objects["NetworkPolicy", "nvct"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert [{port["port"] for port in rule["ports"]} for rule in policy["ingress"]] == [ports]


def test_who_may_connect_is_a_value() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    rules = rendered({"networkPolicy": {"from": peers}})["NetworkPolicy", "nvct"]["spec"]
    assert [rule["from"] for rule in rules["ingress"]] == [peers]
    none = rendered(MATRIX["without-ports"])
    assert "ingress" not in none["NetworkPolicy", "nvct"]["spec"]
    assert ("Service", "nvct-metrics") not in none
    assert ("NetworkPolicy", "nvct") not in rendered({"networkPolicy": {"enabled": False}})


def test_where_the_pods_may_connect_to_is_a_value() -> None:
    name = ("NetworkPolicy", "nvct-egress")
    assert name not in rendered({})
    egress = {"enabled": True, "apiServer": ["10.96.0.1/32", "2001:db8::1/128"], "ports": [6443]}
    objects = rendered({"networkPolicy": {"egress": egress}})
    spec = objects[name]["spec"]
    assert spec["policyTypes"] == ["Egress"]
    blocks = [{"ipBlock": {"cidr": cidr}} for cidr in ("10.96.0.1/32", "2001:db8::1/128")]
    assert spec["egress"] == [{"to": blocks, "ports": [{"port": 6443}]}]
    selected = spec["podSelector"]["matchLabels"].items()
    for (kind, _), each in objects.items():
        if kind in ("DaemonSet", "Job"):
            assert selected <= each["spec"]["template"]["metadata"]["labels"].items()
    quiet = {task: {"enabled": False} for task in ("gfd", "condition", "migManager", "uninstall")}
    objects = rendered({**quiet, "networkPolicy": {"egress": {"enabled": True}}})
    assert "egress" not in objects[name]["spec"], "nothing asks the API server"


def test_the_kubelet_asks_by_http_or_by_a_command() -> None:
    agent = agent_of(pod_of(rendered({})))
    assert agent["readinessProbe"]["httpGet"] == {"port": "agent", "path": "/readyz"}
    assert agent["livenessProbe"]["httpGet"] == {"port": "agent", "path": "/livez"}
    agent = agent_of(pod_of(rendered(MATRIX["without-ports"])))
    assert agent["readinessProbe"]["exec"]["command"][-1] == "--ready"
    assert not {"livenessProbe", "ports"} & agent.keys()


def test_only_the_agent_has_a_token_and_only_if_it_asks_the_api_server() -> None:
    objects = rendered({})
    pods = [pod_of(objects), pod_of(objects, WORKER)]
    assert [pod["automountServiceAccountToken"] for pod in pods] == [False, False]
    holders = [
        container["name"]
        for pod in pods
        for container in [*pod.get("initContainers", ()), *pod["containers"]]
        if any(mount["name"] == "token" for mount in container["volumeMounts"])
    ]
    assert holders == ["agent"]
    without = rendered({task: {"enabled": False} for task in ("gfd", "condition", "migManager")})
    assert not [kind for kind, _ in without if kind.startswith(("ClusterRole", "Validating"))]
    assert "token" not in [volume["name"] for volume in pod_of(without)["volumes"]]


def test_values_of_the_mig_manager_are_its_variables() -> None:
    objects = rendered(MATRIX["mig"])
    (agent,) = pod_of(objects)["containers"]
    env = env_of(agent)
    settings, _ = resolve((), {name: text for name, text in env.items() if text})
    paths = [mount["mountPath"] for mount in agent["volumeMounts"]]
    files = (settings.config_file, settings.clients_file)
    assert {os.path.dirname(path) for path in files} <= {*paths}
    assert settings.default == "all-disabled"
    assert settings.evicts_pods
    assert settings.reboots
    assert env["NVCT_AGENT_TASKS"] == "condition,device-plugin,exporter,labels,mig-manager"
    rules = objects["ClusterRole", "nvct-agent"]["rules"]
    assert [rule["resources"] for rule in rules[-2:]] == [["pods"], ["pods/eviction"]]
    env = env_of(pod_of(rendered({**MATRIX["dra"], **MATRIX["mig"]}))["containers"][0])
    assert "NVCT_MIG_CONFIG_FILE" not in env


HEALS: dict[str, Any] = {"health": {"remediation": "reboot-request", "remediationGroup": True}}


def test_healing_is_a_task_with_rights_of_its_own_and_off_it_is_nothing() -> None:
    def rights(**health: Any) -> set[audit.Right]:
        return set(audit.granted(manifest({"health": health, **NO_MIG})))

    def env(**health: Any) -> dict[str, str]:
        return env_of(agent_of(pod_of(rendered({"health": health}))))

    assert manifest({"health": {"remediation": "none"}}) == manifest({})
    for name in ("evict", "reset", "reboot-request"):
        added = rights(remediation=name) - rights()
        nodes = {("nvct", "create", "rebootnodes")} if name == "reboot-request" else set()
        evicts = {("nvct", "get", "pods"), ("nvct", "create", "pods/eviction")}
        assert {each for each in added if each[2] != "leases"} == evicts | nodes
    assert not {each for each in rights(remediation="quarantine") - rights() if "pods" in each[2]}
    given = env(**HEALS["health"])
    assert "heal" in given["NVCT_AGENT_TASKS"].split(",")
    known, _ = heal_settings.resolve((), given)
    assert (known.level, known.group) == ("reboot-request", True)
    pod = pod_of(rendered(HEALS))
    assert {"key": heal_node.TAINT, "operator": "Exists"} in pod["tolerations"]


def test_healing_has_its_brakes() -> None:
    objects = rendered(MATRIX["remediation"])
    leases = [name for kind, name in objects if kind == "Lease"]
    assert sorted(leases) == ["nvct-heal-0", "nvct-heal-1", "nvct-heal-2", brakes.STOP]
    (rule,) = objects["Role", "nvct-heal"]["rules"]
    assert (sorted(rule["resourceNames"]), rule["verbs"]) == (sorted(leases), ["get", "patch"])
    env = env_of(agent_of(pod_of(objects)))
    assert brakes.limits(env) == brakes.Limits(nodes=3)
    assert set(brakes.VARIABLES.values()) <= env.keys()


def test_the_dra_driver_takes_the_place_of_the_device_plugin() -> None:
    objects = rendered(MATRIX["dra"])
    agent = agent_of(pod_of(objects))
    env = env_of(agent)
    paths = [mount["mountPath"] for mount in agent["volumeMounts"]]
    assert env["KUBELET_PLUGINS_DIRECTORY_PATH"] in paths
    assert env["KUBELET_REGISTRAR_DIRECTORY_PATH"] in paths
    classes = [name for kind, name in objects if kind == "DeviceClass"]
    assert classes == ["gpu.nvidia.com", "mig.nvidia.com"]
    assert ("ValidatingAdmissionPolicy", "nvct-agent-slices") in objects
    assert not [kind for kind, _ in rendered({}) if kind == "DeviceClass"]


def test_on_openshift_the_agents_account_may_use_the_privileged_scc() -> None:
    by_value = rendered(MATRIX["openshift"])["RoleBinding", "nvct-scc"]
    assert by_value["roleRef"]["name"] == "system:openshift:scc:privileged"
    assert by_value["subjects"] == [
        {"kind": "ServiceAccount", "name": "nvct", "namespace": "gpus"}
    ]
    there = helm("template", "nvct", str(CHART), "--api-versions=security.openshift.io/v1").stdout
    assert "name: nvct-scc" in there
    assert ("RoleBinding", "nvct-scc") not in rendered({})


NO_GFD: Mapping[str, Any] = {**NO_MIG, "gfd": {"enabled": False}}


def metrics_with(name: str, value: str) -> dict[str, Any]:
    return {"dcgmExporter": {"env": [{"name": name, "value": value}]}}


@pytest.mark.parametrize(
    ("values", "resource", "verbs"),
    [
        ({}, "nodes", "get patch watch"),
        (NO_MIG, "nodes", "get patch"),
        ({**NO_MIG, **MATRIX["config"]}, "nodes", "get patch watch"),
        ({**NO_MIG, **MATRIX["config-alone"]}, "nodes", "get watch"),
        (NO_GFD, "nodes", "get"),
        ({**NO_GFD, **TAINT}, "nodes", "get patch"),
        (MATRIX["dra"], "nodes", "get patch"),
        ({"dra": {"enabled": True, "unlabeledNodes": "classic"}}, "nodes", "get patch watch"),
        ({}, "nodes/status", "patch"),
        ({}, "events", "create"),
        ({"health": {"remediation": "none"}}, "leases", ""),
        ({"health": {"remediation": "quarantine"}}, "leases", ""),
        ({"health": {"remediation": "reset"}}, "leases", "get patch"),
        ({}, "pods", ""),
        ({"condition": {"podEvents": True}}, "pods", "get"),
        ({"condition": {"podEvents": True, "enabled": False}}, "pods", ""),
        ({"dcgmExporter": {"podLabels": True}}, "pods", "list"),
        ({"dcgmExporter": {"podLabels": True, "enabled": False}}, "pods", ""),
        (metrics_with(f"{ENABLE_POD}_LABELS", "true"), "pods", "list"),
        (metrics_with(f"{ENABLE_POD}_UID", "1"), "pods", "list"),
        (metrics_with(f"{ENABLE_POD}_UID", "false"), "pods", ""),
        (metrics_with("DCGM_EXPORTER_INTERVAL", "1"), "pods", ""),
        (metrics_with("KUBERNETES_ENABLE_DRA", "true"), "resourceslices", "list"),
        (metrics_with("KUBERNETES_ENABLE_DRA", "false"), "resourceslices", ""),
    ],
)
def test_the_account_has_the_rights_that_tasks_need(
    values: Mapping[str, Any], resource: str, verbs: str
) -> None:
    granted = audit.granted(manifest(values))
    assert sorted(verb for who, verb, of in granted if (who, of) == ("nvct", resource)) == (
        verbs.split()
    )
    assert not verbs or ("ValidatingAdmissionPolicy", "nvct-agent") in rendered(values)


def test_events_of_pods_are_off_without_their_right() -> None:
    assert "NVCT_POD_EVENTS" in manifest({})  # an account may get pods for evictions
    assert "NVCT_POD_EVENTS" not in manifest({"condition": {"podEvents": True}})


def test_the_page_has_the_rights_of_all_tasks() -> None:
    """A test of chart/test_sharing.py compares them with the requests of the device plugin's agent."""
    granted = {
        right
        for values in ({**MATRIX["config"], "devicePlugin": {"startupTaint": "a", **PLUGIN_CONFIG}},
                       {"migManager": {"evictPods": True}}, MATRIX["dra"],
                       {"health": {"remediation": "reboot-request"}},
                       MATRIX["pod-labels"])
        for right in audit.granted(manifest(values))
    }  # fmt: skip
    assert audit.documented(PAGE.read_text()) == granted


def test_the_agent_tolerates_the_startup_taint_and_removes_it() -> None:
    pod = pod_of(rendered(TAINT))
    assert {"key": "example.com/starting", "operator": "Exists"} in pod["tolerations"]


def test_each_ignored_value_is_one_line_of_the_notes() -> None:
    ignored = [line.partition(":")[0] for line in ignored_with({**OPERATOR, **PLUGIN})]
    assert sorted(ignored) == [
        "cdi.default", "dcgmExporter.hostNetwork", "driver.version", "failOnInitError",
        "operator.cleanupCRD", "runtimeClassName", "toolkit.version",
    ]  # fmt: skip
    assert "Values without effect" not in notes({})
    in_sections = {
        "clusterPolicy": {"deployCR": True},
        "daemonsets": {"affinity": {}, "rollingUpdate": {"maxUnavailable": "1"}},
        "dcgmExporter": {"serviceMonitor": {"labels": {"a": "b"}}},
        "devicePlugin": {"config": {"fallbackStrategies": ["empty"]}},
        "mps": {"enableHostPID": True},
    }
    nothing = "nvct has no value of that name"
    assert sorted(ignored_with(in_sections)) == [
        "clusterPolicy: nvct has no custom resource", f"daemonsets.rollingUpdate: {nothing}",
        f"dcgmExporter.serviceMonitor.labels: {nothing}",
        f"devicePlugin.config.fallbackStrategies: {nothing}", f"mps.enableHostPID: {nothing}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"driver": {"enabled": True}}, "driver.enabled=true: nvct installs no driver"),
        ({"sandboxWorkloads": {"enabled": True}}, "nvct prepares no GPUs for virtual machines"),
        ({"vgpuManager": {"enabled": True}}, "vgpuManager.enabled=true: nvct installs no vGPU"),
        (
            {name: {"enabled": False} for name in ("devicePlugin", "gfd", "dcgmExporter")},
            "The agent has nothing to do: enable devicePlugin, gfd or dcgmExporter.",
        ),
        (
            {"dcgmExporter": {"service": {"enabled": False}, "serviceMonitor": {"enabled": True}}},
            "dcgmExporter.serviceMonitor.enabled=true needs dcgmExporter.service.enabled=true.",
        ),
        (
            {"networkPolicy": {"egress": {"enabled": True}}},
            "networkPolicy.egress.enabled=true without networkPolicy.egress.apiServer would cut",
        ),
        (
            {"networkPolicy": {"egress": {"enabled": True, "apiServer": ["10.0.0.1"]}}},
            "at '/networkPolicy/egress/apiServer/0': '10.0.0.1' does not match",
        ),
        ({"toolkit": {"runtime": "podman"}}, "at '/toolkit/runtime': value must be one of"),
        ({"mig": {"strategy": "double"}}, "at '/mig/strategy': value must be one of"),
        ({"toolkit": {"installDir": "opt"}}, "at '/toolkit/installDir': 'opt' does not match"),
        ({"dcgmExporter": {"port": 0}}, "at '/dcgmExporter/port': minimum"),
        ({"logLevel": "loud"}, "at '/logLevel': value must be one of"),
        ({"agent": {"hiddenHostPaths": ["/"]}}, "at '/agent/hiddenHostPaths/0': '/' does not"),
        ({"image": {"digest": "abc"}}, "at '/image/digest': 'abc' does not match"),
        (
            {"image": {"registry": "x"}},
            "at '/image': additional properties 'registry' not allowed",
        ),
        (
            {"config": {"name": "a", "map": {"b": "c"}}},
            "config.map and the name of a ConfigMap are both given",
        ),
        ({"config": {"fallbackStrategies": ["first"]}}, "at '/config/fallbackStrategies/0'"),
        ({"sleepInterval": 60}, "at '/sleepInterval': got number, want"),
        (
            {"condition": {"enable": False}},
            "at '/condition': additional properties 'enable' not allowed",
        ),
        (
            {"health": {"preflight": "pcie-width=reset"}},
            "at '/health/preflight': 'pcie-width=reset' does not match",
        ),
        ({"tolkit": {}}, "at '': additional properties 'tolkit' not allowed"),
        ({"toolkit": {"env": [{"name": "A B", "value": ""}]}}, "at '/toolkit/env/0/name'"),
        # The NRI plugin, where it has no effect.
        ({"deviceListStrategy": "envvar", "nri": {"enabled": True}}, "deviceListStrategy=cdi-cri"),
        ({"cdi": {"enabled": False}, "nri": {"enabled": True}}, "deviceListStrategy=cdi-cri"),
        ({"nri": {"enabled": True, "env": True}},
         "toolkit.policy=auto, which lets no pod ask by a variable"),
        # What would be lost.
        ({"tlsServerConfig": {"enabled": True}}, "tlsServerConfig.enabled=true: metrics would be"),
        ({"basicAuth": {"users": {"a": "b"}}}, "basicAuth.users: metrics would be served without"),
        ({"config": {"enabled": True, "name": "x"}}, "config.enabled=true: nvct reads no YAML"),
        ({"devicePlugin": {"config": {"create": True}}},
         "devicePlugin.config.create=true needs config files"),
        # Images of NVIDIA's.
        ({"image": {"tag": "4.6.0-4.8.3-distroless"}}, "is a tag of NVIDIA's images"),
        *(({"image": {"repository": image, "tag": ""}},
           f"image.repository={image} is an image of NVIDIA's and has no nvct")
          for image in ("nvcr.io/nvidia/k8s-device-plugin", "r.example/gpu-operator",
                        "registry.k8s.io/x/dra-driver-nvidia-gpu")),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_a_sentence(
    values: Mapping[str, Any], sentence: str
) -> None:
    done = helm("template", "nvct", str(CHART), values=values)
    assert done.returncode != 0
    assert sentence in done.stderr
    assert done.stdout == ""


def test_pods_go_with_the_label_on_which_the_driver_manager_waits() -> None:
    """And no task of theirs pauses that label, nor may it."""
    client = "nvidia.com/gpu.deploy.client"
    bare: dict[str, Any] = {
        "dra": {"enabled": False}, "gfd": {"enabled": False}, "condition": {"enabled": False},
        "migManager": {"enabled": False},
    }  # fmt: skip
    changing = {**bare, "migManager": {"enabled": True}}
    for values in (bare, changing):
        before, after = rendered(values), rendered({**values, "driverUpgrades": True})
        for name in ("nvct", WORKER):
            assert pod_of(before, name)["nodeSelector"] == {"kubernetes.io/os": "linux"}
            selector = {"kubernetes.io/os": "linux", client: "true"}
            assert pod_of(after, name)["nodeSelector"] == selector
        env = env_of(agent_of(pod_of(after)))
        assert env["NVCT_DRIVER_UPGRADES"] == "true"
        assert "watch" in after["ClusterRole", "nvct-agent"]["rules"][0]["verbs"]
        allows = [
            f"'{client}'" in json.dumps(objects.get(("ValidatingAdmissionPolicy", "nvct-agent")))
            for objects in (before, after)
        ]
        assert allows == [values is changing, False]
    claims = rendered({"dra": {"enabled": True}, "driverUpgrades": True})
    for name in ("nvct", WORKER):  # a pod that has a claim could not end without them
        assert client not in pod_of(claims, name)["nodeSelector"]
    assert env_of(agent_of(pod_of(claims)))["NVCT_DRIVER_UPGRADES"] == "true"


@pytest.mark.parametrize(
    "values", [MATRIX["nri"], {"cdi": {"enabled": True, "nriPluginEnabled": True}}]
)
def test_with_the_nri_plugin_no_file_of_the_engine_changes(values: Mapping[str, Any]) -> None:
    objects = rendered(values)

    assert not [name for kind, name in objects if kind == "RuntimeClass"]
    installer = installer_with(values)
    assert installer["NVCT_UNDO_RUNTIME_CONFIG"] == "true"
    assert installer["NVIDIA_RUNTIME_SET_AS_DEFAULT"] == "false"
    (plugin,) = pod_of(objects, "nvct-nri")["containers"]
    given = values.get("nri", {}).get("givenByKubelet", "off")
    assert env_of(plugin)["NRI_GIVEN_BY_KUBELET"] == given
    mounts = plugin["volumeMounts"]
    assert [each["mountPath"] for each in mounts if not each.get("readOnly")] == ["/run/nvct-nri"]
    assert plugin["securityContext"]["capabilities"] == {"drop": ["ALL"]}
