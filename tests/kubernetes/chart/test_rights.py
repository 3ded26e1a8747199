# SPDX-License-Identifier: Apache-2.0
"""What the API server lets the account of the chart do."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.kubernetes import audit, programs
from tests.kubernetes.api import wait
from tests.kubernetes.chart.lab import (
    CHART,
    GPUS,
    IN_NAMESPACE,
    NAMESPACE,
    ON_ONE,
    TIMEOUT_S,
    allocatable,
    installed,
    state_of,
    taints_of,
)
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.test_chart_values import MATRIX

pytestmark = pytest.mark.slow
PAGE = CHART.parents[2] / "docs/kubernetes.md"
FOREIGN = ("ServiceMonitor", "PodMonitor", "PrometheusRule")


@ON_ONE
@pytest.mark.parametrize("values", ["defaults", "openshift", "plugin-0.20", "dra", "monitoring"])
def test_the_api_server_accepts_what_the_chart_renders(values: str, node: Cluster) -> None:
    """A dry run on the server, without the objects whose kinds other software brings."""
    given = node.box.work / "values.yaml"
    given.write_text(json.dumps(MATRIX[values]))
    text = node.helm("template", "nvct", str(CHART), "--namespace=default", f"--values={given}",
                     "--no-hooks", f"--kube-version={programs.KUBERNETES.version()}")  # fmt: skip
    objects = [each for each in yaml.safe_load_all(text) if each and each["kind"] not in FOREIGN]
    rendered = node.box.work / "rendered.yaml"
    rendered.write_text(yaml.safe_dump_all(objects))
    done = node.kubectl(
        "create", "--dry-run=server", f"--filename={rendered}", "--validate=strict"
    )
    assert done.count("(server dry run)") == len(objects), done


@ON_ONE
def test_a_label_chooses_the_config_file_and_every_right_is_used_and_no_other(
    node: Cluster,
) -> None:
    """All tasks that ask the API server do what they can, until the chart is removed."""
    began = node.audit_log.stat().st_size
    shared = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
    if node.api.find(f"/api/v1/namespaces/{NAMESPACE}") is None:  # of an earlier test
        node.kubectl("create", "namespace", NAMESPACE)
    node.kubectl("create", "configmap", "plugin", *IN_NAMESPACE, "--from-literal=whole=version: v1",
                 f"--from-literal=shared=version: v1\n{shared}")  # fmt: skip
    taint = "example.com/no-gpus-yet"
    node.kubectl("taint", "node", NODE, f"{taint}=:NoSchedule")
    words = ("--set=devicePlugin.config.name=plugin", "--set=devicePlugin.config.default=whole",
             f"--set=devicePlugin.startupTaint={taint}")  # fmt: skip
    label = "nvidia.com/device-plugin.config"
    with installed(node, *words):
        rights = audit.granted(node.helm("get", "manifest", "nvct", *IN_NAMESPACE))
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
        assert wait(lambda: taint not in taints_of(node), TIMEOUT_S), state_of(node)
        node.kubectl("label", "node", NODE, f"{label}=shared")
        assert wait(lambda: allocatable(node) == 2 * GPUS, TIMEOUT_S), state_of(node)
        node.kubectl("label", "node", NODE, f"{label}-")
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
    node.kubectl("delete", *IN_NAMESPACE, "configmap", "plugin")
    requests = audit.of_accounts(audit.requests(node.audit_log, began))
    assert {each.right for each in requests} == rights
    assert rights <= audit.documented(PAGE.read_text())
