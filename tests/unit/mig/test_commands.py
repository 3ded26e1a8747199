# SPDX-License-Identifier: Apache-2.0
"""nvct mig and nvidia-mig-parted: options, variables, messages, exit statuses, pictures."""

import json
import os
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from nvct.cli.mig import parted
from nvct.cli.mig.commands import COMMANDS
from nvct.cli.mig.group import mig
from nvct.errors import HostError, UsageError
from nvct.mig.apply import Machine, apply
from tests.unit.mig.test_apply import BALANCED, exported, layouts, resolve, spec

OWN = "ignore_holders"
"""The only option that NVIDIA's program does not have."""
ONE = "version: v1\nmig-configs:\n  "
CONFIGS = """
version: v1
mig-configs:
  balanced:
  - devices: all
    mig-enabled: true
    mig-devices: {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
  none:
  - devices: all
    mig-enabled: false
  wrong:
  - devices: [3]
    mig-enabled: true
    mig-devices: {"9g.99gb": 1}
"""


def written(folder: Path, text: str) -> str:
    path = folder / "configs.yaml"
    path.write_text(text)
    return str(path)


@pytest.fixture
def configs(tmp_path: Path) -> str:
    return written(tmp_path, CONFIGS)


def invoke(machine: Machine | None, *words: str, **env: str) -> str:
    """Return the output of nvct mig; an error is raised as itself."""
    result = CliRunner().invoke(
        mig, words, obj=machine, env=env, standalone_mode=False, catch_exceptions=False
    )
    return result.output


def test_a_configuration_is_planned_applied_and_asserted(machine: Machine, configs: str) -> None:
    options = ("-f", configs, "-c", "balanced")
    planned = invoke(machine, "plan", *options)
    assert planned.count("create  3g.40gb at slice 4") == 1  # one picture for equal GPUs
    assert planned.startswith("GPU 0-7  NVIDIA A100-SXM4-80GB\n")
    assert exported(machine)[0]["mig-enabled"] is False
    with pytest.raises(HostError, match="selected configuration not currently applied"):
        invoke(machine, "assert", *options)

    assert invoke(machine, "apply", *options) == "MIG configuration applied successfully\n"

    assert invoke(machine, "assert", *options) == "Selected MIG configuration currently applied\n"
    assert "mode settings" in invoke(machine, "assert", *options, "--mode-only")
    assert exported(machine)[0]["mig-devices"] == BALANCED
    assert invoke(machine, "plan", *options).count("does not change") == 1


def test_without_a_file_names_are_those_of_the_hardware_and_the_tables(machine: Machine) -> None:
    for words, message in (
        (["-c", "all-9g.99gb"], "there is no MIG configuration 'all-9g.99gb'"),
        ([], "missing required flags 'selected-config'"),
    ):
        for command in ("plan", "apply", "assert"):
            with pytest.raises(UsageError, match=message):
                invoke(machine, command, *words)
    invoke(machine, "apply", "-c", "all-balanced")
    assert exported(machine)[0]["mig-devices"] == BALANCED
    assert "currently applied" in invoke(machine, "assert", "-c", "all-balanced")
    planned = invoke(None, "plan", "-c", "all-3g.40gb", "--gpu", "H100-80GB", "--count", "2")
    assert planned.startswith("GPU 0-1  ")
    assert planned.count("create  3g.40gb") == 2
    shown = invoke(None, "plan", "-c", "all-3g.40gb", "--gpu", "H100-80GB", "--json")
    with pytest.raises(UsageError, match="--count needs --gpu MODEL"):
        invoke(machine, "plan", "-c", "all-3g.40gb", "--count", "2")
    with pytest.raises(UsageError, match="--count 0 is not a number of GPUs"):
        invoke(None, "plan", "-c", "all-3g.40gb", "--gpu", "H100-80GB", "--count", "0")
    (gpu,) = json.loads(shown)
    assert gpu["now"] == {"enabled": False, "devices": {}}
    assert gpu["then"] == {"enabled": True, "devices": {"3g.40gb": 2}}
    assert gpu["changes"][1:] == ["create  3g.40gb at slice 0", "create  3g.40gb at slice 4"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("apiVersion: v1\nkind: ConfigMap\ndata: {config.yaml: x}\n", "missing 'version'",
         "take the text of its key config.yaml"),
        ("version: v1\nflags: {}\nmig-configs: {}\n", "unexpected field: flags", ""),
        (f"{ONE}all: [{{devices: all, mig-enabled: false}}, {{devices: all, migenabled: true}}]",
         "missing required field: mig-enabled", "see entry 2 of 'all'"),
        (f"{ONE}all: [{{device-filter: ['1-3'], devices: all, mig-enabled: false}}]",
         "unable to create DeviceID from string '1-3'", "see entry 1 of 'all'"),
        (f"{ONE}all: [{{device-filter: ['0x12345678'], devices: all, mig-enabled: false}}]",
         "no GPU of this machine is in the configuration", "its GPUs are 0x20B210DE"),
    ],
)  # fmt: skip
def test_what_people_write_by_mistake_is_named(
    machine: Machine, tmp_path: Path, text: str, message: str, hint: str
) -> None:
    with pytest.raises((HostError, UsageError), match=message) as caught:
        invoke(machine, "plan", "-f", written(tmp_path, text), "-c", "all")
    assert hint in caught.value.hint


def test_a_filter_that_is_no_id_concerns_its_configuration_alone(
    machine: Machine, tmp_path: Path
) -> None:
    path = written(
        tmp_path,
        f"{ONE}7: [{{devices: all, mig-enabled: false}}]\n"
        "  typo: [{device-filter: A100, devices: all, mig-enabled: false}]\n",
    )
    assert "applied successfully" in invoke(machine, "apply", "-f", path, "-c", "7")
    with pytest.raises(UsageError, match="unable to create DeviceID from string 'A100'"):
        invoke(machine, "plan", "-f", path, "-c", "typo")


def test_assert_tells_which_gpus_differ(machine: Machine, tmp_path: Path) -> None:
    entry = "{devices: [0], mig-enabled: true, mig-devices: {7g.80gb: 1}}"
    path = written(tmp_path, f"{ONE}one: [{entry}]")
    for hint in ("GPU 0 has another layout", "no entry of the configuration is for GPU 1, 2, 3, "):
        with pytest.raises(HostError, match="not currently applied") as caught:
            invoke(machine, "assert", "-f", path)
        assert hint in caught.value.hint
        invoke(machine, "apply", "-f", path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["apply"], "Missing required flags 'config-file'"),
        (["apply", "-c", "all-balanced"], "Missing required flags 'config-file'"),
        (["apply", "-f", "/nowhere"], "Error parsing config file: read error: /nowhere: No such"),
        (["assert", "-f", "{folder}/wrong.yaml"],
         ("Error parsing config file: unmarshal error: error unmarshaling JSON: while decoding "
          'JSON: unknown version: v2"')),
        (["export", "-o", "xml"], "Unrecognized 'output-format': xml"),
        (["restore"], "Missing required flags 'checkpoint-file'"),
        (["frobnicate"], "No such command 'frobnicate'"),
    ],
)  # fmt: skip
def test_errors_of_the_program_are_log_lines(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.yaml").write_text("version: v2\n")
    assert parted.run([word.format(folder=tmp_path) for word in words]) == 1
    line = capsys.readouterr().err
    assert line.startswith('time="')
    assert f'level=fatal msg="{message}' in line
    assert line.count("\n") == 1


def test_a_plan_shows_what_stays(machine: Machine, configs: str) -> None:
    apply(machine, resolve(spec({"1g.10gb": 7})))
    planned = invoke(machine, "plan", "-f", configs, "-c", "balanced")

    assert planned.startswith("GPU 0-7  ")
    assert planned.count("keep    1g.10gb") == 2
    assert planned.count("destroy 1g.10gb") == 5
    assert "|      2g.20gb      | 1g.10gb | 1g.10gb |                3g.40gb" in planned


def test_a_mistake_in_one_entry_touches_no_gpu(machine: Machine, configs: str) -> None:
    before = layouts(machine)
    with pytest.raises(HostError, match=r"GPU 3 \(.*\) has no MIG profile 9g.99gb"):
        invoke(machine, "apply", "-f", configs, "-c", "wrong")
    assert layouts(machine) == before
    assert invoke(machine, "holders") == "no process has a GPU open\n"


def test_variables_are_nvidias(machine: Machine, configs: str) -> None:
    env = {"MIG_PARTED_CONFIG_FILE": configs, "MIG_PARTED_SELECTED_CONFIG": "none"}

    assert "currently applied" in invoke(machine, "assert", **env)
    assert "is valid" in invoke(machine, "assert", **env, MIG_PARTED_VALID_CONFIG="true")
    assert json.loads(invoke(machine, "export", MIG_PARTED_OUTPUT_FORMAT="json"))


def apply_with_hooks(machine: Machine, configs: str, text: str) -> str:
    path = Path(configs).with_name("hooks.yaml")
    path.write_text(text)
    return invoke(machine, "apply", "-f", configs, "-c", "balanced", "-k", str(path))


def test_hooks_get_the_variables_of_the_command(
    machine: Machine, configs: str, tmp_path: Path
) -> None:
    hook = {"command": "/bin/sh", "args": ["-c", f"env > {tmp_path}/env"], "envs": {"MINE": "1"}}
    hooks = {"version": "v1", "hooks": {"apply-start": [hook]}}
    apply_with_hooks(machine, configs, json.dumps(hooks))
    found = {*(tmp_path / "env").read_text().splitlines()}
    given = {"MINE=1", "MIG_PARTED_SELECTED_CONFIG=balanced", "MIG_PARTED_SKIP_RESET=false"}
    assert given <= found
    assert not any(line.startswith("HOME=") for line in found)


HOOKS = {
    "version: v2": "unknown version: v2",
    "hooks: {aply-start: []}": "unexpected field of hooks: aply-start",
    "hook: {}": "unexpected field of the file: hook",
    "hooks: {apply-start: [{command: x, arg: []}]}": "unexpected field of a hook: arg",
    "hooks: {apply-start: [], apply-start: []}": "already set in map",
    "[]": "it is not a map",
    "hooks: {apply-start: [null]}": "it is not a map",
    'hooks: {apply-start: [{command: "a\\0"}]}': "error running apply-start hook: a",
    "hooks: {apply-start: [{command: x, envs: {A=: b}}]}": "error running apply-start hook",
    "hooks: {pre-apply-mode: [{command: /bin/false}]}": "running pre-apply-mode hook: /bin/false",
}


def test_a_hook_that_fails_or_has_a_mistake_stops_before_anything_changes(
    machine: Machine, configs: str
) -> None:
    before = layouts(machine)
    for text, message in HOOKS.items():
        with pytest.raises(HostError) as caught:
            apply_with_hooks(machine, configs, text)
        assert message in caught.value.message
        assert layouts(machine) == before


def test_a_checkpoint_is_restored(machine: Machine, configs: str, tmp_path: Path) -> None:
    link, file = tmp_path / "link", str(tmp_path / "checkpoint.json")
    link.symlink_to("checkpoint.json")
    invoke(machine, "checkpoint", "-f", str(link))
    assert link.is_symlink()
    invoke(machine, "apply", "-f", configs, "-c", "balanced")
    assert "restored" in invoke(machine, "restore", "-f", file)
    assert exported(machine)[0]["mig-enabled"] is False


def test_a_checkpoint_of_other_gpus_is_refused(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    gpu = {"UUID": "GPU-other", "MigMode": 1, "GpuInstances": None}
    path.write_text(json.dumps({"Version": "v1", "MigState": {"Devices": [gpu]}}))
    with pytest.raises(HostError, match="no GPU GPU-other with a MIG mode on this machine"):
        invoke(machine, "restore", "-f", str(path))
    path.write_text('{"Version":"v1","MigState":{"Devices":[{}]}}')
    with pytest.raises(HostError, match="a checkpoint is malformed"):
        invoke(machine, "restore", "-f", str(path))


def test_plans_and_profiles_need_no_gpu(configs: str) -> None:
    planned = invoke(None, "plan", "-f", configs, "-c", "balanced", "--gpu", "h100-80gb")
    assert "create  2g.20gb at slice 0" in planned
    assert "2g.12gb+me" in invoke(None, "profiles", "--gpu", "A30")
    assert len(json.loads(invoke(None, "profiles", "--all", "--json"))) == 13
    with pytest.raises(UsageError, match="no MIG table for a GPU 'V100'"):
        invoke(None, "profiles", "--gpu", "V100")


def test_names_of_all_layers_are_listed(machine: Machine, configs: str) -> None:
    rows = json.loads(invoke(machine, "configs", "-f", configs, "--format", "json"))
    by_name = {row["name"]: (row["layer"], row["fits"]) for row in rows}
    assert by_name["balanced"] == ("file", True)
    assert by_name["wrong"] == ("file", False)
    assert by_name["all-7g.80gb"] == ("hardware", True)
    assert by_name["all-1g.5gb"] == ("table", False)
    table = invoke(machine, "configs").splitlines()
    assert ["all-balanced", "hardware", "yes"] in [line.split() for line in table]


def test_generated_configurations_can_all_be_applied(machine: Machine, tmp_path: Path) -> None:
    path = str(tmp_path / "generated.yaml")
    invoke(machine, "generate-config", "-f", path)
    for name in ("all-balanced", "all-1g.10gb.me", "all-disabled"):
        invoke(machine, "apply", "-f", path, "-c", name)
        assert "currently applied" in invoke(machine, "assert", "-f", path, "-c", name)


def test_every_option_of_the_program_has_nvidias_variable() -> None:
    for command in COMMANDS:
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden and option.name != OWN:
                assert str(option.envvar).startswith("MIG_PARTED_"), (command.name, option.name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("all-3g.40bg", "did you mean all-3g.40gb or "),
        ("x", "there are all-1g.10gb, all-1g.10gb.me, "),
    ],
)
def test_the_names_that_there_are_are_those_of_the_model(name: str, hint: str) -> None:
    """`nvct mig configs` prints those of this machine, which may have no GPU."""
    with pytest.raises(UsageError, match="there is no MIG configuration") as caught:
        invoke(None, "plan", "-c", name, "--gpu", "H100-80GB")
    assert caught.value.hint.startswith(hint)


def test_a_written_configuration_is_not_for_everybody_to_change(
    machine: Machine, tmp_path: Path
) -> None:
    path = tmp_path / "configs.yaml"
    before = os.umask(0)
    try:
        invoke(machine, "generate-config", "-f", str(path))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
