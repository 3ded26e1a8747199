# SPDX-License-Identifier: Apache-2.0
"""Command nvct explain: its options and what it prints."""

import json
from pathlib import Path

import pytest

from nvct.errors import BundleError, UsageError
from tests.support import explained as case
from tests.support.commands import invoke
from tests.support.explained import POLICY, VISIBLE, explained, run
from tests.support.shim_lab import Lab

DENIED = (
    "nvidia-container-runtime: policy rule 'one each' denies NVIDIA_VISIBLE_DEVICES='all'; a"
    " container gets one GPU [not-permitted]"
)


def untimed(text: str) -> list[str]:
    """Return the lines of an explanation without the last one, how long its steps took."""
    *lines, took = text.splitlines()
    assert took.startswith("took         config.toml ")
    return lines


def test_a_request_is_explained_without_a_container(lab: Lab) -> None:
    lab.driver()

    told = explained(
        lab, "--env", VISIBLE + "0", "--env", "NVIDIA_REQUIRE_CUDA=cuda>=12.0",
        "--env", "NVIDIA_DRIVER_CAPABILITIES=utility",
    )  # fmt: skip

    assert told["request"] == {
        "source": "NVIDIA_VISIBLE_DEVICES",
        "ids": ["0"],
        "mode": "jit-cdi",
        "capabilities": ["utility"],
        "besides": [],
    }
    (requirement,) = told["requirements"]
    assert requirement["holds"] is True
    assert requirement["host"] == [{"driver": "580.159.04", "cuda": "13.0"}]
    assert told["asked"][0] == VISIBLE + "0"


@pytest.mark.parametrize("place", ["0", "/var/run/nvidia-container-devices/0"])
def test_a_mount_and_privilege_are_explained_without_a_container(lab: Lab, place: str) -> None:
    lab.driver()
    lab.configure(
        "accept-nvidia-visible-devices-as-volume-mounts = true\n"
        + lab.config_toml.read_text(encoding="utf-8")
    )

    told = explained(lab, "--mount", place, "--privileged")

    assert told["request"]["source"] == "volume mount"
    assert told["privileged"] is True
    assert told["asked"] == ["volume mount /var/run/nvidia-container-devices/0"]


def test_an_annotation_is_explained_without_a_container(lab: Lab) -> None:
    lab.spec(devices={"0": {"env": ["A=1"]}})

    told = explained(lab, "--annotation", "cdi.k8s.io/x=nvidia.com/gpu=0")

    assert told["request"]["ids"] == ["nvidia.com/gpu=0"]
    assert told["inject"]["env"] == ["COMMON=1", "A=1"]


def test_a_config_json_is_read_from_a_file_and_from_stdin(lab: Lab) -> None:
    case.all_gpus_of_a_spec(lab)  # no layout looks at the root, which stdin does not lead to
    one = explained(lab, lab.config_json)

    result = run(lab, "-", "--json", stdin=lab.config_json.read_bytes())

    assert result.exit_code == 0
    assert {**json.loads(result.stdout), "steps": one["steps"]} == one


def test_the_programs_name_decides_about_the_mode(lab: Lab) -> None:
    case.gpu(lab)

    told = explained(lab, lab.config_json, "--program", "nvidia-container-runtime.legacy")

    assert told["request"]["mode"] == "legacy"
    assert told["request"]["capabilities"] == ["compute", "utility"]


def test_a_config_toml_can_be_named(lab: Lab, tmp_path: Path) -> None:
    case.gpu(lab)
    other = tmp_path / "config.toml"
    other.write_text(lab.config_toml.read_text(encoding="utf-8") + POLICY, encoding="utf-8")

    result = invoke(
        "nvct", ["--config", str(other), "explain", "--json", str(lab.config_json)], env=lab.env
    )

    assert json.loads(result.stdout)["config"]["path"] == str(other)
    assert json.loads(result.stdout)["config"]["rules"] == 2


def test_the_text_says_why(lab: Lab) -> None:
    case.denied(lab)

    result = run(lab, "--bundle", lab.bundle)

    assert result.exit_code == 1
    assert untimed(result.stdout) == [
        "The create would fail.",
        f"error        {DENIED}",
        f"config       {lab.config_toml}; mode auto; layout classic; 2 policy rules",
        "asked        NVIDIA_VISIBLE_DEVICES=all",
        "policy       'plugin only' (ignore) does not hold: kubernetes: it is not a pod's container",
        "             'one each' (deny) decides: more-gpus-than: 2 asked for",
    ]


def test_the_text_counts_and_lists_what_is_injected(lab: Lab) -> None:
    case.all_gpus_of_a_spec(lab)

    short = untimed(run(lab, "--bundle", lab.bundle).stdout)
    whole = untimed(run(lab, "--bundle", lab.bundle, "--all").stdout)

    assert short[-1] == "injected     2 variables"
    assert whole == [*short, "env          COMMON=1", f"{'':13}GPU=1"]
    assert f"device       nvidia.com/gpu=0 of {lab.home}/cdi/gpu.json" in short


def test_control_characters_of_a_container_do_not_reach_the_terminal(lab: Lab) -> None:
    result = run(lab, "--env", VISIBLE + "\x1b[31m\n")

    assert "\x1b" not in result.stdout
    assert "\\x1b[31m\\n" in result.stdout


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--privileged"],
        ["x", "--bundle", "y"],
        ["x", "--env", "A=1"],
        ["--annotation", "x"],
        ["--env", "x"],
    ],
    ids=str,
)
def test_a_wrong_combination_is_refused(lab: Lab, args: list[str]) -> None:
    assert isinstance(run(lab, *args).exception, UsageError)


def test_a_bundle_that_is_none_is_an_error(lab: Lab) -> None:
    assert isinstance(run(lab, "--bundle", lab.home / "x").exception, BundleError)
    assert isinstance(run(lab, "-", stdin=b"[]").exception, BundleError)


@pytest.mark.parametrize(
    "odd",
    [
        {"process": "x"}, {"process": None}, {"linux": []}, {"hooks": "x"},
        {"linux": {"resources": 5}}, {"process": {"user": []}},
    ],
)  # fmt: skip
def test_a_config_json_of_odd_shape_is_explained_as_it_is_created(
    odd: dict[str, object], lab: Lab
) -> None:
    lab.asks()
    lab.config_json.write_text(json.dumps({**lab.document(), **odd}), encoding="utf-8")

    told = explained(lab)

    assert told["outcome"] == "untouched"
    assert lab.create().status == 0


def test_a_reason_is_explained(lab: Lab) -> None:
    said = run(lab, "DriverNotLoaded").output

    assert said.startswith("DriverNotLoaded: Is the driver's kernel module")
    assert "do: Install the driver and load it with `modprobe nvidia`." in said
    told = json.loads(run(lab, "DriverNotLoaded", "--json").output)
    assert told["reason"] == "DriverNotLoaded"


@pytest.mark.parametrize("outcome", ["deny", "ignore", "allow"])
def test_the_devices_that_an_engine_gave_are_listed(outcome: str, lab: Lab) -> None:
    rule = {"type": "c", "major": 195, "minor": 0}
    node = {**rule, "path": "/dev/nvidia0"}
    resources = {"devices": [{"allow": False}, {**rule, "allow": True, "access": "rwm"}]}
    lab.asks(linux={"cgroupsPath": "/docker/1", "devices": [node], "resources": resources})
    lab.driver(gpus=2)
    lab.configure()
    text = lab.config_toml.read_text(encoding="utf-8")
    rules = f'[nvct.policy]\n[[nvct.policy.rules]]\nby = ["engine"]\nthen = "{outcome}"\n'
    lab.configure(text + rules)
    assert explained(lab)["asked"] == []
    lab.configure(text + rules.replace("]\n", ']\nengine-devices = "checked"\n', 1))
    told = explained(lab)
    assert told["asked"] == ["engine devices 0"]
    assert told["outcome"] == {"deny": "refused", "ignore": "untouched", "allow": "GPU"}[outcome]
    assert bool(told["findings"]) == (outcome != "allow")
    output = run(lab, lab.config_json).output
    assert "asked        engine devices 0" in output
    assert ("given by the node /dev/nvidia0" in " ".join(output.split())) == (outcome != "allow")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("bad-confg", "did you mean the code bad-config?"),
        ("unknown_device", "did you mean the code unknown-device?"),
        ("DriverNotLoadd", "did you mean the reason DriverNotLoaded?"),
    ],
)
def test_a_misspelt_code_or_reason_gets_a_suggestion(word: str, hint: str, lab: Lab) -> None:
    error = run(lab, word).exception

    assert isinstance(error, UsageError)
    assert error.hint == hint
