# SPDX-License-Identifier: Apache-2.0
"""Command nvidia-ctk cdi generate, on hosts of plain files."""

from __future__ import annotations

import json
import os

import pytest
import yaml
from click.testing import CliRunner

from nvct.cdi import load
from nvct.cli.main import program
from nvct.errors import NvctError
from nvct.paths import CONFIG_ENV
from tests.support.shim_lab import Lab

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path
    from typing import Any

    from click.testing import Result

ENV = "NVIDIA_CTK_CDI_GENERATE_"


@pytest.fixture
def lab() -> Generator[Lab]:
    made = Lab()
    made.driver(gpus=2)
    yield made
    made.remove()


def run(*args: str | Path, env: Mapping[str, str] | None = None) -> Result:
    runner = CliRunner()
    return runner.invoke(
        program("nvidia-ctk"), [str(arg) for arg in args], prog_name="nvidia-ctk", env=env
    )


def generate(lab: Lab, *args: str | Path, env: Mapping[str, str] | None = None) -> Result:
    return run("cdi", "generate", *args, env={CONFIG_ENV: str(lab.config_toml), **(env or {})})


def spec_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output + str(result.exception)
    found: dict[str, Any] = yaml.safe_load(result.stdout)
    return found


def names(result: Result) -> list[str]:
    return [device["name"] for device in spec_of(result)["devices"]]


UUIDS = [f"GPU-{n:08d}-aaaa-bbbb-cccc-000000000000" for n in range(2)]


def test_a_spec_goes_to_stdout_as_yaml(lab: Lab) -> None:
    result = generate(lab)

    assert spec_of(result)["kind"] == "nvidia.com/gpu"
    assert names(result) == ["0", "1", *UUIDS, "all"]
    assert result.stdout.startswith("---\n")


@pytest.mark.parametrize("form", ["json", "JSON", "yaml", "YAML"])
def test_the_format_of_stdout_can_be_chosen(form: str, lab: Lab) -> None:
    result = generate(lab, "--format", form)

    assert result.stdout.startswith("{" if form.lower() == "json" else "---")


OPTIONS: list[tuple[list[str], dict[str, str], list[str]]] = [
    (["--device-name-strategy", "index"], {f"{ENV}DEVICE_NAME_STRATEGIES": "index"}, ["0", "1", "all"]),
    (
        ["--device-name-strategy", "type-index, index"],
        {f"{ENV}DEVICE_NAME_STRATEGIES": "type-index,index"},
        ["0", "1", "all", "gpu0", "gpu1"],
    ),
    (["--no-all-device"], {f"{ENV}NO_ALL_DEVICE": "true"}, ["0", "1", *UUIDS]),
    (["--device-id", "1"], {f"{ENV}DEVICE_IDS": "1"}, ["1", UUIDS[1], "all"]),
    (
        ["--device-ids", f"{UUIDS[0]},1", "--no-all-device"],
        {f"{ENV}DEVICE_IDS": f"{UUIDS[0]},1", f"{ENV}NO_ALL_DEVICE": "1"},
        ["0", "1", *UUIDS],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "env", "expected"), OPTIONS, ids=lambda o: str(o)[:30])
def test_flags_and_their_variables_say_which_devices_there_are(
    flags: list[str], env: dict[str, str], expected: list[str], lab: Lab
) -> None:
    assert names(generate(lab, *flags)) == expected
    assert names(generate(lab, env=env)) == expected


def test_an_option_may_be_given_more_than_once_or_with_commas(lab: Lab) -> None:
    once = generate(lab, "--device-name-strategy", "index,uuid")
    twice = generate(lab, "--device-name-strategy=index", "--device-name-strategy=uuid")

    assert once.stdout == twice.stdout


def test_a_flag_wins_over_its_variable(lab: Lab) -> None:
    result = generate(lab, "--vendor", "a.com", env={f"{ENV}VENDOR": "b.com", f"{ENV}CLASS": "c0"})

    assert spec_of(result)["kind"] == "a.com/c0"


@pytest.mark.parametrize(("flags", "kind"), [
    (["--vendor", "acme.com", "--class", "chip"], "acme.com/chip"),
    (["--cdi-vendor", "acme.com", "--cdi-class", "chip"], "acme.com/chip"),
])  # fmt: skip
def test_vendor_and_class_have_two_names(flags: list[str], kind: str, lab: Lab) -> None:
    assert spec_of(generate(lab, *flags))["kind"] == kind


@pytest.mark.parametrize("flag", ["--nvidia-cdi-hook-path", "--nvidia-ctk-path", "env", "config"])
def test_the_hook_program_can_be_named(flag: str, lab: Lab) -> None:
    if flag == "env":
        result = generate(lab, env={"NVIDIA_CTK_CDI_HOOK_PATH": "/opt/hook"})
    elif flag == "config":
        result = generate(lab)
    else:
        result = generate(lab, flag, "/opt/hook")

    (hook,) = spec_of(result)["containerEdits"]["hooks"]
    assert hook["path"] == (str(lab.hook) if flag == "config" else "/opt/hook")
    assert hook["env"]


def test_hooks_can_be_disabled_and_enabled(lab: Lab) -> None:
    none = generate(lab, "--disable-hook", "all")
    some = generate(
        lab, env={f"{ENV}DISABLED_HOOKS": "all", f"{ENV}ENABLED_HOOKS": "update-ldcache"}
    )
    wrong = generate(lab, "--disable-hooks", "nosuch")

    assert "hooks" not in spec_of(none)["containerEdits"]
    args = spec_of(some)["containerEdits"]["hooks"][0]["args"]
    assert "--folder" in args
    assert "--mask-params" not in args
    assert isinstance(wrong.exception, NvctError)


def test_the_driver_root_can_be_named(lab: Lab) -> None:
    moved = lab.home / "elsewhere"
    (lab.home / "driver").rename(moved)

    for result in (
        generate(lab, "--driver-root", moved),
        generate(lab, env={"NVIDIA_CTK_DRIVER_ROOT": str(moved)}),
    ):
        sources = [mount["hostPath"] for mount in spec_of(result)["containerEdits"]["mounts"]]
        assert [path for path in sources if path.startswith(f"{moved}/")]
        assert not [path for path in sources if path.startswith(f"{lab.home}/driver/")]


def test_the_dev_root_can_be_named(lab: Lab) -> None:
    (lab.home / "devroot").mkdir()
    (lab.home / "dev").rename(lab.home / "devroot/dev")

    for result in (
        generate(lab, "--dev-root", lab.home / "devroot"),
        generate(lab, env={"NVIDIA_CTK_DEV_ROOT": str(lab.home / "devroot")}),
    ):
        assert names(result)[:2] == ["0", "1"]


def test_another_config_toml_can_be_named(lab: Lab) -> None:
    lab.keys["nvct"]["hook-path"] = "/opt/other"
    other = lab.home / "other.toml"
    first = lab.config_toml.read_bytes()
    lab.configure()
    lab.config_toml.rename(other)
    lab.config_toml.write_bytes(first)

    for result in (
        generate(lab, "--config", other),
        generate(lab, env={"NVIDIA_CTK_CONFIG": str(other)}),
        run("--config", other, "cdi", "generate", env={CONFIG_ENV: str(lab.config_toml)}),
    ):
        assert spec_of(result)["containerEdits"]["hooks"][0]["path"] == "/opt/other"
    assert isinstance(generate(lab, "--config", "/no/such.toml").exception, NvctError)


@pytest.mark.parametrize("mode", ["auto", "nvml", "NVML"])
def test_modes_that_are_there_are_one(mode: str, lab: Lab) -> None:
    assert generate(lab, "--mode", mode).stdout == generate(lab).stdout


@pytest.mark.parametrize(
    "flags",
    [["--mode", "csv"], ["--format", "toml"], ["--nosuch"], ["odd"], ["--vendor"]],
    ids=" ".join,
)
def test_what_does_not_exist_is_a_usage_error(flags: list[str], lab: Lab) -> None:
    result = generate(lab, *flags)

    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--device-name-strategy", "name"], "usage"),
        (["--vendor", "a b"], "usage"),
        (["--library-search-path", "relative"], "usage"),
        (["--device-id", "7"], "unknown-device"),
        (["--driver-root", "/no/such/root"], "host"),
    ],
)
def test_a_value_that_cannot_be_is_an_error(flags: list[str], code: str, lab: Lab) -> None:
    result = generate(lab, *flags)

    assert isinstance(result.exception, NvctError)
    assert result.exception.code == code
    assert result.stdout == ""


# --- files ---


@pytest.mark.parametrize(
    ("name", "form", "path", "start"),
    [
        ("x.json", "", "x.json", "{"),
        ("x.yaml", "", "x.yaml", "---"),
        ("x.yml", "", "x.yml", "---"),
        ("x", "", "x.yaml", "---"),
        ("x", "json", "x.json", "{"),
        ("x.d", "json", "x.d.json", "{"),
        ("x.yaml", "json", "x.yaml", "{"),
        ("x.json", "yaml", "x.json", "---"),
    ],
)
def test_the_file_that_is_written_is_the_one_that_is_named(
    name: str, form: str, path: str, start: str, lab: Lab
) -> None:
    out = lab.home / "out"

    result = generate(lab, "--output", out / name, *(["--format", form] if form else []))

    assert result.exit_code == 0, result.output
    assert os.listdir(out) == [path]
    assert (out / path).read_text().startswith(start)
    assert (out / path).stat().st_mode & 0o777 == 0o644
    assert result.stdout == ""
    assert result.stderr.endswith(f"wrote 5 devices to {out / path}\n")
    if (path, form) != ("x.json", "yaml"):  # who wants that gets it: engines could not read it
        assert len(load.load_file(str(out / path))["devices"]) == 5


def test_output_and_format_have_variables(lab: Lab) -> None:
    env = {"NVIDIA_CTK_CDI_OUTPUT_FILE_PATH": f"{lab.home}/out/x", f"{ENV}OUTPUT_FORMAT": "json"}

    generate(lab, env=env)

    assert os.listdir(lab.home / "out") == ["x.json"]


@pytest.mark.parametrize("name", ["x.json", "x.yaml"])
def test_generating_again_gives_the_same_bytes(name: str, lab: Lab) -> None:
    path = lab.home / "out" / name
    generate(lab, "--output", path)
    first = path.read_bytes()

    generate(lab, "--output", path)

    assert path.read_bytes() == first


def test_json_and_yaml_say_the_same(lab: Lab) -> None:
    assert json.loads(generate(lab, "--format=json").stdout) == spec_of(generate(lab))


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(lab: Lab) -> None:
    (lab.home / "file").touch()

    result = generate(lab, "--output", lab.home / "file" / "x.yaml")

    assert isinstance(result.exception, NvctError)
    assert result.exception.code == "host"
    assert str(lab.home / "file" / "x.yaml") in result.exception.message


def test_warnings_go_to_stderr_and_cost_only_what_they_name(lab: Lab) -> None:
    (lab.home / "dev/nvidia1").unlink()

    result = generate(lab)

    assert names(result) == ["0", UUIDS[0], "all"]
    assert "warning: " in result.stderr
    assert "nvidia1" in result.stderr


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_quiet_says_nothing_but_errors(how: str, lab: Lab, tmp_path: Path) -> None:
    flags = ["--quiet"] if how == "flag" else []
    env = {CONFIG_ENV: str(lab.config_toml), "NVIDIA_CTK_QUIET": str(how == "variable")}

    done = run(*flags, "cdi", "generate", "--output", tmp_path / "x.yaml", env=env)

    assert (done.exit_code, done.output) == (0, "")
