# SPDX-License-Identifier: Apache-2.0
"""Options and variables of gpu-feature-discovery: defaults, names, precedence, the output."""

import math
from pathlib import Path

import pytest

from nvct.agent.core.settings import Option
from nvct.agent.labels import settings
from nvct.agent.labels import settings as options
from nvct.agent.labels.settings import Settings
from nvct.errors import NvctError, UsageError

CONFIG = """
version: v1
flags:
  migStrategy: mixed
  useNodeFeatureAPI: false
  gfd: {oneshot: true, noTimestamp: true, sleepInterval: 5s, outputFile: /x, machineTypeFile: /y}
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
    assert (settings.mig_strategy, settings.machine_type_file) == ("mixed", "/y")
    assert settings.oneshot
    assert settings.no_timestamp
    assert not settings.use_node_feature_api
    assert settings.sharing is not None
    assert (settings.sharing.strategy, settings.sharing.one_each) == ("mps", True)


@pytest.mark.parametrize(
    "option",
    [each for each in options.PROGRAM.options if each.field != "config_file"],
    ids=lambda option: option.flags[0],
)
def test_every_name_of_an_option_sets_it(option: Option) -> None:
    value = "true" if option.kind == "switch" else (option.choices or ("5s",))[-1]
    values = [
        getattr(options.resolve([f"{dashes}{flag}={value}"], {})[0], option.field)
        for flag in option.flags
        for dashes in ("-", "--")
    ]
    values += [getattr(options.resolve([], {name: value})[0], option.field) for name in option.env]

    expected = True if option.kind == "switch" else value
    assert set(values) == {(value,) if option.kind == "words" else expected}


@pytest.mark.parametrize(
    ("env", "labels_node"),
    [
        ({}, True),
        ({"USE_NODE_FEATURE_API": "true"}, False),
        ({"GFD_OUTPUT_FILE": "/x"}, False),
        ({"GFD_LABEL_NODE": "false"}, False),
    ],
)
def test_the_agent_labels_its_node_unless_another_output_is_named(
    env: dict[str, str],
    labels_node: bool,  # noqa: FBT001
) -> None:
    assert options.resolve([], env, in_agent=True)[0].label_node is labels_node
    assert not options.resolve([], {})[0].label_node


def test_the_agent_waits_for_a_driver_unless_it_is_to_fail() -> None:
    assert not options.resolve([], {}, in_agent=True)[0].fail_on_init_error
    env = {"FAIL_ON_INIT_ERROR": "true"}
    assert options.resolve([], env, in_agent=True)[0].fail_on_init_error


def test_the_agent_looks_at_its_labels_less_often_unless_an_interval_is_given() -> None:
    env = {"GFD_SLEEP_INTERVAL": "30s"}
    assert options.resolve([], {}, in_agent=True)[0].sleep_interval == "10m"
    assert options.resolve([], env, in_agent=True)[0].sleep_interval == "30s"
    assert options.resolve([], {})[0].sleep_interval == "60s"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60s", 60.0),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("infinite", math.inf),
        ("+5s", 5.0),
        ("0", 0.0),
        ("-0", 0.0),
        ("0s", 0.0),
        ("2562047h", 2562047 * 3600.0),
    ],
)
def test_intervals(text: str, expected: float) -> None:
    assert settings.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "60", "s", "1m 30s", "-5s", "forever", "+", "2562048h"])
def test_an_interval_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no duration"):
        options.resolve([f"--sleep-interval={text}"], {})


@pytest.mark.parametrize(("number", "text"), [("0", "0ns"), ("5", "5ns"), ("9e9", "9000000000ns")])
def test_an_interval_in_the_file_may_be_a_number_of_nanoseconds(
    number: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f'{{"version": "v1", "flags": {{"gfd": {{"sleepInterval": {number}}}}}}}')

    settings, _ = options.resolve([f"--config-file={path}"], {})

    assert settings.sleep_interval == text


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


def test_unknown_groups_of_labels_are_refused() -> None:
    with pytest.raises(NvctError, match="invalid --extra-labels option: 'all'"):
        options.resolve(["--extra-labels=all"], {})


def test_help_names_all_options() -> None:
    text = options.PROGRAM.help_text()

    assert all(f"--{flag}" in text for option in options.PROGRAM.options for flag in option.flags)
