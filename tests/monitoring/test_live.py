# SPDX-License-Identifier: Apache-2.0
"""Prometheus answers every query of the rules and of the dashboard, from a live scrape."""

import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.live import TIMEOUT_S, Live, live
from tests.monitoring.prometheus import MONITORING, rules
from tests.support.cpu import Limit

pytestmark = pytest.mark.slow
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
VARIABLES = {
    variable["name"]: variable["query"]
    for variable in DASHBOARD["templating"]["list"]
    if variable["type"] == "query"
}
ALERTS = {rule["alert"]: rule["expr"] for rule in rules("alert")}
FIRING = {"NvctGpuXid", "NvctGpuDoesNotAnswer", "NvctDevicesUnhealthy", "NvctGpuUnhealthy"}
"""The alerts that the node of the test gives a reason for, besides those that need more time."""


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Live]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, live(Path(folder)) as running:
        yield running


def expanded(query: str) -> str:
    """Return a query with Grafana's variables replaced as for all nodes and GPUs."""
    query = query.replace("$__rate_interval", "1m")
    for name in VARIABLES:
        query = query.replace(f"${name}", ".*")
    assert "$" not in query
    return query


def test_all_rules_are_evaluated(prometheus: Live) -> None:
    for rule in rules("record"):
        assert prometheus.query(rule["record"]), rule["record"]
        assert prometheus.query(rule["expr"]), rule["record"]
    firing = {name for name, query in ALERTS.items() if prometheus.query(query)}
    assert firing == FIRING


def test_each_panel_has_an_answer(prometheus: Live) -> None:
    empty = [
        title
        for title, panel in PANELS.items()
        for target in panel["targets"]
        if not prometheus.query(expanded(target["expr"]))
    ]
    assert empty == []


def test_variables_have_values(prometheus: Live) -> None:
    for name, query in VARIABLES.items():
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert match, name
        assert prometheus.query(f"group by ({match[2]}) ({expanded(match[1])})"), name


def number(prometheus: Live, title: str) -> float:
    (answer,) = prometheus.query(expanded(PANELS[title]["targets"][0]["expr"]))
    return float(answer["value"][1])


def test_numbers_count_gpus_and_not_series(prometheus: Live) -> None:
    """GPU 0 is two MIG instances, two pods share GPU 2, and GPU 7 does not answer."""
    power = "sum(max by (gpu) (DCGM_FI_DEV_POWER_USAGE))"
    expected = {"GPUs": 7, "Nodes": 1, "Devices with a pod": 3, "Mean utilization": 60.833}
    limit = Limit(TIMEOUT_S)
    while True:  # on a busy machine another GPU may miss a sample, too
        found = {title: round(number(prometheus, title), 3) for title in expected}
        watts = float(prometheus.query(power)[0]["value"][1])
        if found == expected and number(prometheus, "Total power") == watts:
            break
        assert not limit.is_over, (found, watts)
        time.sleep(0.5)
    assert 0 < number(prometheus, "Memory in use, share") < 1


def test_pods_have_their_series(prometheus: Live) -> None:
    query = expanded(PANELS["Memory of GPUs in use by pod"]["targets"][0]["expr"])
    assert {row["metric"]["pod"] for row in prometheus.query(query)} == {"train", "infer"}
