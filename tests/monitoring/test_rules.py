# SPDX-License-Identifier: Apache-2.0
"""The rules for Prometheus: promtool takes them, and each has a unit test."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from nvct.host.faults import APPLICATION
from tests.monitoring.prometheus import RULES, promtool, rules

TESTS = Path(__file__).with_name("rules.test.yaml")


def test_promtool_takes_the_rules() -> None:
    done = promtool("check", "rules", "--lint-fatal", str(RULES))

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_tests_of_the_rules_pass() -> None:
    done = promtool("test", "rules", str(TESTS))

    assert done.returncode == 0, done.stdout + done.stderr


def unit_tests(key: str) -> list[dict[str, Any]]:
    return [
        case for test in yaml.safe_load(TESTS.read_text())["tests"] for case in test.get(key, ())
    ]


def test_each_rule_has_a_unit_test() -> None:
    tested = {case["expr"].partition("{")[0] for case in unit_tests("promql_expr_test")}
    assert tested == {rule["record"] for rule in rules("record")}
    firing = {case["alertname"] for case in unit_tests("alert_rule_test") if case["exp_alerts"]}
    assert firing == {rule["alert"] for rule in rules("alert")}


@pytest.mark.parametrize("name", ["NvctGpuXid", "NvctApplicationXid"])
def test_xids_of_applications_are_those_of_the_device_plugin(name: str) -> None:
    (rule,) = [rule for rule in rules("alert") if rule["alert"] == name]

    assert f'"{"|".join(map(str, sorted(APPLICATION)))}"' in rule["expr"]
