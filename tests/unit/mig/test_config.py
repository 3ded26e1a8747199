# SPDX-License-Identifier: Apache-2.0
"""The configuration file: what it may say, and one sentence for each mistake."""

import pytest

from nvct.errors import DocumentError, UsageError
from nvct.mig import config

ONE = "version: v1\nmig-configs:\n  one:\n  - {}\n"


def spec(fields: str) -> str:
    return ONE.format("{" + fields + "}")


def wish(devices: str) -> str:
    return spec(f"devices: all, mig-enabled: true, mig-devices: {{{devices}}}")


def test_a_file_is_read() -> None:
    text = """
version: v1
mig-configs:
  a:
  - device-filter: ["0x20B210DE", "0x20B010DE:0x134F10DE"]
    devices: all
    mig-enabled: true
    mig-devices: {"1g.10gb": 7}
  - devices: [1, 2]
    mig-enabled: false
"""
    first, second = config.parse(text)["a"]

    assert first.devices is None
    assert first.wish == {"1g.10gb": 7}
    assert first.filters[0].matches(0x20B210DE, 0x1234)
    assert first.filters[1].matches(0x20B010DE, 0x134F10DE)
    assert not first.filters[1].matches(0x20B010DE, 0x134E10DE)
    assert second == config.Spec(devices=(1, 2), enabled=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mig-configs: {}", "unable to parse with missing 'version' field"),
        ("version: v2", "unknown version: v2"),
        ("", "unknown version: "),
        ("version: v1\nfoo: 1", "unexpected field: foo"),
        ("version: v1\nmig-configs: {}", "at least one entry in 'mig-configs' is required"),
        ("version: v1\nmig-configs: {a: []}", "at least one entry in 'a' is required"),
        ("version: v1\nmig-configs: {a: 1}", "'a' is not a list"),
        ("- 1", "the file is not a map of names to values"),
        ("version: [", "error converting YAML to JSON: "),
        ("version: v1\nversion: v1", "key 'version' already set in map"),
        (spec("devices: all"), "missing required field: mig-enabled"),
        (spec("mig-enabled: false"), "missing required field: devices"),
        (spec("devices: all, mig-enabled: false, foo: 1"), "unexpected field: foo"),
        (spec("devices: some, mig-enabled: false"), "invalid string input for 'devices': some"),
        (spec("devices: [a], mig-enabled: false"), "neither all nor a list of numbers"),
        (spec("devices: all, mig-enabled: 1"), "'mig-enabled' is not true or false"),
        (spec("devices: all, mig-enabled: true"),
         "missing required field 'mig-devices' when 'mig-enabled' is true"),
        (spec("devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}"),
         "MIG devices included when 'mig-enabled' is false"),
        (wish("1g.5gb: 0"),
         "error validating values in 'mig-devices' field: all counts for all MigProfiles are 0"),
        (wish("1g.5gb: -1"), "invalid count for '1g.5gb': -1"),
        (wish("1g: 1"), "invalid format for '1g': cannot parse fields of '1g'"),
        (wish("1g.5gb+: 1"), "cannot parse attributes of '1g.5gb+'"),
        (spec("devices: all, mig-enabled: false, device-filter: false"),
         "'device-filter' is neither a string nor a list of strings"),
        ("version: v1\n<<: {a: 1}\n<<: {b: 1}", "key '<<' already set in map"),
        ("version: v1\nmig-configs: " + "[" * 2000 + "]" * 2000, "it is nested too deeply"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        config.parse(text)

    assert message in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("written", "read"),
    [("on", "true"), ("7", "7"), ("1.5", "1.5"), ('"on"', "on"), ("No", "false")],
)
def test_a_name_that_yaml_takes_for_something_else_is_that_of_json(
    written: str, read: str
) -> None:
    entry = "[{devices: all, mig-enabled: false}]"
    text = f"version: v1\nmig-configs: {{other: {entry}, {written}: {entry}}}"

    assert list(config.parse(text)) == ["other", read]


@pytest.mark.parametrize("nothing", ["", "''", "[]"])
def test_an_empty_filter_is_none(nothing: str) -> None:
    configs = config.parse(spec(f"devices: all, mig-enabled: false, device-filter: {nothing}"))

    assert configs["one"][0].filters == ()


def test_entries_may_share_fields_by_an_anchor() -> None:
    text = """
version: v1
mig-configs:
  a:
  - &small {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 7}}
  - {<<: *small, devices: [1]}
  b: [*small]
"""
    configs = config.parse(text)

    assert [each.devices for each in configs["a"]] == [(0,), (1,)]
    assert configs["a"][1].wish == {"1g.10gb": 7}
    assert configs["b"] == configs["a"][:1]


def test_the_only_configuration_needs_no_name() -> None:
    configs = config.parse(spec("devices: all, mig-enabled: false"))

    assert config.select(configs, "") == config.select(configs, "one")
    with pytest.raises(UsageError, match="selected mig-config not present: two") as refused:
        config.select(configs, "two")
    assert refused.value.hint == "there are one"
    with pytest.raises(UsageError, match="missing required flag 'selected-config'"):
        config.select({**configs, "two": configs["one"]}, "")
    with pytest.raises(UsageError, match="selected mig-config not present: "):
        config.select(config.parse("version: v1"), "")
