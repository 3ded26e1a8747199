# SPDX-License-Identifier: Apache-2.0
"""helm with the tests' cluster: it installs and uninstalls a chart."""

import json

import pytest

from tests.engines.releases import of_release
from tests.kubernetes import programs
from tests.kubernetes.api import DEFAULT
from tests.kubernetes.cluster import Cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
CHART = """\
apiVersion: v2
name: greeting
version: 1.2.3
kubeVersion: ">=1.36.0 <1.37.0"
"""
TEMPLATE = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}-greeting"}
data: {text: "{{ .Values.text }}", cluster: "{{ .Capabilities.KubeVersion.Version }}"}
"""
CONFIG_MAP = f"{DEFAULT}/configmaps/first-greeting"


def test_a_chart_is_installed_and_removed(cluster: Cluster) -> None:
    chart = cluster.box.work / "greeting"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text(CHART)
    (chart / "templates/map.yaml").write_text(TEMPLATE)

    cluster.helm("install", "first", str(chart), "--set=text=hello")

    installed = cluster.api.find(CONFIG_MAP)
    assert installed is not None
    version = programs.KUBERNETES.version()
    assert installed["data"] == {"text": "hello", "cluster": version}
    releases = json.loads(cluster.helm("list", "--output=json"))
    assert [(one["name"], one["status"]) for one in releases] == [("first", "deployed")]
    cluster.helm("uninstall", "first", "--wait")
    assert cluster.api.find(CONFIG_MAP) is None
    assert cluster.helm("list", "--short") == ""


def test_helm_says_which_version_it_is(cluster: Cluster) -> None:
    assert cluster.helm("version", "--template={{.Version}}") == programs.HELM.version()
