# SPDX-License-Identifier: Apache-2.0
"""Options and variables of gpu-feature-discovery: defaults, names, precedence, the output."""

import math
from pathlib import Path

import pytest

from nvct.agent.labels import settings
from nvct.agent.labels import settings as options
from nvct.agent.labels.settings import Settings
from nvct.errors import NvctError, UsageError

CONFIG = """
version: v1
flags:
  migStrategy: mixed
  useNodeFeatureAPI: false
  gfd: {oneshot: true, noTimestamp: true, sleepInterval: 9e9, outputFile: /x, machineTypeFile: /y}
sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}
"""


def test_without_anything_the_defaults_are_the_incumbents() -> None:
    assert options.resolve([], {}) == (Settings(), ())


def test_a_config_file_sets_what_variables_and_flags_do_not(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    env = {"CONFIG_FILE": f"{tmp_path}/config.yaml", "GFD_SLEEP_INTERVAL": "7s"}

    settings, warnings = options.resolve(["-o", "/z"], env)

    assert [warning.partition(": ")[2] for warning in warnings] == [
        "flags.gfd.sleepInterval has no effect: GFD_SLEEP_INTERVAL is set",
        "flags.gfd.outputFile has no effect: --output-file is set",
    ]
    assert (settings.output_file, settings.sleep_interval) == ("/z", "7s")
    assert (
        options.resolve([], {"CONFIG_FILE": env["CONFIG_FILE"]})[0].sleep_interval
        == "9000000000ns"
    )
    assert (settings.mig_strategy, settings.machine_type_file) == ("mixed", "/y")
    assert settings.oneshot
    assert settings.no_timestamp
    assert not settings.use_node_feature_api
    assert settings.sharing is not None
    assert (settings.sharing.strategy, settings.sharing.one_each) == ("mps", True)


@pytest.mark.parametrize(
    ("env", "field", "expected", "otherwise"),
    [
        ({}, "label_node", True, False),
        # It labels its Node unless another output is named.
        ({"USE_NODE_FEATURE_API": "true"}, "label_node", False, False),
        ({"GFD_OUTPUT_FILE": "/x"}, "label_node", False, False),
        ({"GFD_LABEL_NODE": "false"}, "label_node", False, False),
        ({}, "fail_on_init_error", False, True),
        ({"FAIL_ON_INIT_ERROR": "true"}, "fail_on_init_error", True, True),
        ({}, "sleep_interval", "10m", "60s"),
        ({"GFD_SLEEP_INTERVAL": "30s"}, "sleep_interval", "30s", "30s"),
    ],
)
def test_the_agent_has_other_defaults_than_the_program(
    env: dict[str, str], field: str, expected: object, otherwise: object
) -> None:
    for in_agent, value in ((True, expected), (False, otherwise)):
        assert getattr(options.resolve([], env, in_agent=in_agent)[0], field) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60s", 60.0), ("1m30s", 90.0), ("1.5h", 5400.0), ("250ms", 0.25), ("+5s", 5.0), ("0", 0.0),
        ("-0", 0.0), ("infinite", math.inf), ("2562047h", 2562047 * 3600.0),
    ],
)  # fmt: skip
def test_intervals(text: str, expected: float) -> None:
    assert settings.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "60", "s", "1m 30s", "-5s", "forever", "+", "2562048h"])
def test_an_interval_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        options.resolve([f"--sleep-interval={text}"], {})


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('"imex": {"channelIDs": ["0"]}', "imex.channelIDs"),
        ('"imex": {"channelIDs": 0}', "imex.channelIDs"),
        ('"imex": {"required": "yes"}', "imex.required"),
        ('"flags": {"plugin": {"passDeviceSpecs": 1}}', "flags.plugin.passDeviceSpecs"),
        ('"flags": {"mpsRoot": 7}', "flags.mpsRoot"),
        ('"flags": {"plugin": []}', "flags.plugin"),
    ],
)
def test_keys_of_the_device_plugin_are_checked_too(text: str, key: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f'{{"version": "v1", {text}}}')

    with pytest.raises(NvctError, match=f"^{key} in {path} must be "):
        options.resolve([f"--config-file={path}"], {})
