# SPDX-License-Identifier: Apache-2.0
"""A real API server accepts what the chart renders."""

import json

import pytest
import yaml

from tests.kubernetes import programs
from tests.kubernetes.chart.lab import CHART, ON_ONE
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.test_chart_values import MATRIX

pytestmark = pytest.mark.slow
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
