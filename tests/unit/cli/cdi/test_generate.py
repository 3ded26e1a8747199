# SPDX-License-Identifier: Apache-2.0
"""Command nvidia-ctk cdi generate, on hosts of plain files."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from nvct.cdi.make import generate as specgen
from nvct.cdi.make.output import Output, write
from nvct.cdi.read import load
from nvct.cli.cdi.commands import generate as command
from nvct.compile import live_host
from nvct.errors import NvctError
from nvct.host import modes
from tests.support.shim_lab import Lab

ENV = "NVIDIA_CTK_CDI_GENERATE_"


pytestmark = pytest.mark.usefixtures("driver")


def generate(lab: Lab, *args: str | Path, env: Mapping[str, str] | None = None) -> Result:
    return lab.invoke("nvidia-ctk", "cdi", "generate", *args, **(env or {}))


def spec_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output + str(result.exception)
    document: dict[str, Any] = yaml.safe_load(result.stdout)
    return document


def names(result: Result) -> list[str]:
    return [device["name"] for device in spec_of(result)["devices"]]


YAML, JSON = "# nvct: {", "{\n"
UUIDS = [f"GPU-{n:08d}-aaaa-bbbb-cccc-000000000000" for n in range(2)]


def test_a_spec_goes_to_stdout_as_yaml(lab: Lab) -> None:
    result = generate(lab)

    assert spec_of(result)["kind"] == "nvidia.com/gpu"
    assert names(result) == ["0", "1", *UUIDS, "all"]
    assert [line[:8] for line in result.stdout.splitlines()[:2]] == ["# nvct: ", "---"]


@pytest.mark.parametrize("form", ["JSON", "yaml"])
def test_the_format_of_stdout_can_be_chosen_and_says_the_same(form: str, lab: Lab) -> None:
    result = generate(lab, "--format", form)

    is_json = form.lower() == "json"
    assert result.stdout.startswith(JSON if is_json else YAML)
    assert spec_of(generate(lab)) == (json.loads(result.stdout) if is_json else spec_of(result))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--device-name-strategy", "index"], ["0", "1", "all"]),
        (["--device-name-strategy=type-index", "--device-name-strategy=index"], ["0", "1", "all", "gpu0", "gpu1"]),
        (["--device-name-strategy", "uuid, index", "--no-all-device"], ["0", "1", *UUIDS]),
        (["--device-id", "1"], ["1", UUIDS[1], "all"]),
        (["--device-ids", f"{UUIDS[0]},1", "--no-all-device"], ["0", "1", *UUIDS]),
    ],
    ids=str,
)  # fmt: skip
def test_flags_say_which_devices_there_are(
    flags: list[str], expected: list[str], lab: Lab
) -> None:
    assert names(generate(lab, *flags)) == expected


def test_variables_are_lists_and_switches_as_flags_are(lab: Lab) -> None:
    env = {
        "DEVICE_NAME_STRATEGIES": "type-index,index", "DEVICE_IDS": f"{UUIDS[0]},1",
        "NO_ALL_DEVICE": "1", "FEATURE_FLAGS": "nosuch", "DISABLED_HOOKS": "all",
        "ENABLED_HOOKS": "update-ldcache",
    }  # fmt: skip

    result = generate(lab, env={f"{ENV}{name}": value for name, value in env.items()})

    assert names(result) == ["0", "1", "gpu0", "gpu1"]
    assert "feature flag 'nosuch'" in result.stderr
    (hook,) = spec_of(result)["containerEdits"]["hooks"]
    assert "--folder" in hook["args"]
    assert "--mask-params" not in hook["args"]


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        (["--vendor", "a.com", "--class", "chip"], "a.com/chip"),
        (["--cdi-vendor", "a.com", "--cdi-class", "chip"], "a.com/chip"),
        (["--vendor", "a.com"], "a.com/c0"),
    ],
)
def test_vendor_and_class_have_two_names_and_win_over_their_variables(
    flags: list[str], kind: str, lab: Lab
) -> None:
    env = {f"{ENV}VENDOR": "b.com", f"{ENV}CLASS": "c0"}

    assert spec_of(generate(lab, *flags, env=env))["kind"] == kind


@pytest.mark.parametrize("flags", [["--nvidia-ctk-path", "/opt/hook"], []], ids=str)
def test_the_hook_program_can_be_named(flags: list[str], lab: Lab) -> None:
    (hook,) = spec_of(generate(lab, *flags))["containerEdits"]["hooks"]

    assert hook["path"] == ("/opt/hook" if flags else str(lab.hook))
    assert hook["env"]


def test_hooks_can_be_disabled(lab: Lab) -> None:
    none = generate(lab, "--disable-hook", "all")
    wrong = generate(lab, "--disable-hooks", "nosuch")

    assert "hooks" not in spec_of(none)["containerEdits"]
    assert isinstance(wrong.exception, NvctError)


def test_the_roots_of_the_driver_and_of_its_nodes_can_be_named(lab: Lab) -> None:
    driver, devices = lab.home / "elsewhere", lab.home / "devroot"
    (lab.home / "driver").rename(driver)
    devices.mkdir()
    (lab.home / "dev").rename(devices / "dev")

    result = generate(lab, f"--driver-root={driver}", f"--dev-root={devices}")

    sources = [mount["hostPath"] for mount in spec_of(result)["containerEdits"]["mounts"]]
    assert [path for path in sources if path.startswith(f"{driver}/")]
    assert not [path for path in sources if path.startswith(f"{lab.home}/driver/")]
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
        lab.invoke("nvidia-ctk", "--config", other, "cdi", "generate"),
    ):
        assert spec_of(result)["containerEdits"]["hooks"][0]["path"] == "/opt/other"
    assert isinstance(generate(lab, "--config", "/no/such.toml").exception, NvctError)


def test_the_mode_of_a_host_is_found_and_may_be_written_large(lab: Lab) -> None:
    assert generate(lab, "--mode", "NVML").stdout == generate(lab).stdout


@pytest.mark.parametrize("flags", [["--nosuch"], ["--vendor"]], ids=" ".join)
def test_unknown_names_are_usage_errors(flags: list[str], lab: Lab) -> None:
    result = generate(lab, *flags)

    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--mode", "nosuch"], "usage"),
        (["--format", "toml"], "usage"),
        (["--cdi-version-max", "0.2.0"], "usage"),
        (["--capabilities", "nosuch"], "usage"),
        (["--cdi-version-max", "0.4.0"], "bad-cdi-spec"),
        (["--device-name-strategy", "name"], "usage"),
        (["--vendor", "a b"], "usage"),
        (["--library-search-path", "relative"], "usage"),
        (["--device-id", "7"], "unknown-device"),
        (["--driver-root", "/no/such/root"], "host"),
    ],
)
def test_an_impossible_value_is_an_error(flags: list[str], code: str, lab: Lab) -> None:
    result = generate(lab, *flags)

    assert isinstance(result.exception, NvctError)
    assert result.exception.code == code
    assert result.stdout == ""


# The incumbent's flags with their other names, and their variables (v1.20), and three of nvct's.
FLAGS = {
    "--config-search-path": f"{ENV}CONFIG_SEARCH_PATHS",
    "--output": "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH",
    "--format": f"{ENV}OUTPUT_FORMAT",
    "--mode --discovery-mode": f"{ENV}MODE",
    "--dev-root": "NVIDIA_CTK_DEV_ROOT",
    "--device-name-strategy": f"{ENV}DEVICE_NAME_STRATEGIES",
    "--driver-root": "NVIDIA_CTK_DRIVER_ROOT",
    "--library-search-path": f"{ENV}LIBRARY_SEARCH_PATHS",
    "--nvidia-cdi-hook-path --nvidia-ctk-path": "NVIDIA_CTK_CDI_HOOK_PATH",
    "--ldconfig-path": f"{ENV}LDCONFIG_PATH",
    "--vendor --cdi-vendor": f"{ENV}VENDOR",
    "--class --cdi-class": f"{ENV}CLASS",
    "--csv.file": f"{ENV}CSV_FILES",
    "--csv.ignore-pattern": f"{ENV}CSV_IGNORE_PATTERNS",
    "--csv.compat-container-root": f"{ENV}CSV_CONTAINER_COMPAT_ROOT",
    "--disable-hook --disable-hooks": f"{ENV}DISABLED_HOOKS",
    "--enable-hook --enable-hooks": f"{ENV}ENABLED_HOOKS",
    "--feature-flag --feature-flags": f"{ENV}FEATURE_FLAGS",
    "--no-all-device": f"{ENV}NO_ALL_DEVICE",
    "--device-id --device-ids --device --devices": f"{ENV}DEVICE_IDS",
    "--node-numbers": f"{ENV}NODE_NUMBERS",
    "--capabilities": f"{ENV}CAPABILITIES",
    "--cdi-version-max": f"{ENV}CDI_VERSION_MAX",
}


def test_every_flag_is_there_with_its_variable() -> None:
    result = {" ".join(param.opts): param.envvar for param in command.params}

    assert {flags: result.get(flags) for flags in FLAGS} == FLAGS


# --- files ---


@pytest.mark.parametrize(
    ("name", "form", "path", "start"),
    [
        ("x.json", "", "x.json", JSON),
        ("x.yaml", "", "x.yaml", YAML),
        ("x.yml", "", "x.yml", YAML),
        ("x", "", "x.yaml", YAML),
        ("x", "json", "x.json", JSON),
        ("x.d", "json", "x.d.json", JSON),
        ("x.yaml", "json", "x.yaml", JSON),
        ("x.json", "yaml", "x.json", YAML),
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
    assert "Generated CDI spec with version 0.5.0\n" in result.stderr
    assert result.stderr.endswith(f"wrote 5 devices to {out / path}\n")
    assert len(load.load_file(str(out / path))["devices"]) == 5


def test_in_a_cdi_folder_no_link_is_followed_and_no_pipe_is_waited_for(lab: Lab) -> None:
    """A device plugin without other rights may write there; elsewhere an admin has named it."""
    (lab.home / "out").mkdir()
    for folder in ("cdi", "out"):
        (lab.home / f"of-{folder}.yaml").write_text("former")
        (lab.home / folder / "x.yaml").symlink_to(f"../of-{folder}.yaml")

        assert generate(lab, "--output", lab.home / folder / "x.yaml").exit_code == 0

    assert (lab.home / "of-cdi.yaml").read_text() == "former"
    assert (lab.home / "of-out.yaml").read_text().startswith("# nvct: ")
    os.mkfifo(lab.home / "cdi/pipe.yaml")
    refused = generate(lab, "--output", lab.home / "cdi/pipe.yaml")
    assert "is no regular file" in str(refused.exception)


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(lab: Lab) -> None:
    (lab.home / "file").touch()

    result = generate(lab, "--output", lab.home / "file" / "x.yaml")

    assert isinstance(result.exception, NvctError)
    assert result.exception.code == "host"
    assert str(lab.home / "file" / "x.yaml") in result.exception.message


def test_a_driver_without_libcuda_gets_no_spec(lab: Lab, tmp_path: Path) -> None:
    for path in lab.home.rglob("libcuda.so*"):
        path.unlink()
    output = tmp_path / "nvidia.yaml"

    result = generate(lab, "--output", output)

    assert (result.exit_code, output.exists()) == (1, False), result.output
    assert "has no libcuda.so" in str(result.exception) + result.stderr
    graphics = generate(lab, "--output", output, "--capabilities", "utility,graphics")
    assert (graphics.exit_code, output.exists()) == (0, True), graphics.output


def test_warnings_go_to_stderr_and_cost_only_what_they_name(lab: Lab) -> None:
    (lab.home / "dev/nvidia1").unlink()

    result = generate(lab)

    assert names(result) == ["0", UUIDS[0], "all"]
    assert "warning: " in result.stderr
    assert "nvidia1" in result.stderr


def test_quiet_says_nothing_but_errors(lab: Lab, tmp_path: Path) -> None:
    output = tmp_path / "x.yaml"

    completed = lab.invoke("nvidia-ctk", "--quiet", "cdi", "generate", "--output", output)

    assert (completed.exit_code, completed.output) == (0, "")


# --- what is said beside the result ---


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--ldconfig-path", "/sbin/ldconfig"],
         "--ldconfig-path has no effect: the hook writes ld.so.cache itself"),
        (["--device-id", "none"], "none: no GPU is in the specification, and no device all"),
        (["--nvidia-cdi-hook-path", "no-such-hook"],
         "no-such-hook is not on PATH: the spec names /usr/bin/nvidia-cdi-hook"),
    ],
)  # fmt: skip
def test_options_without_effect_are_reported_and_ignored(
    flags: list[str], text: str, lab: Lab
) -> None:
    result = generate(lab, *flags)

    assert result.exit_code == 0
    assert f"warning: {text}" in result.stderr.splitlines()


def test_an_unknown_feature_flag_is_named(lab: Lab) -> None:
    result = generate(lab, "--feature-flag", "nosuch,disable-ipc-discoverer")

    assert result.exit_code == 0
    (line,) = [line for line in result.stderr.splitlines() if "feature flag" in line]
    assert "'nosuch'" in line


@pytest.mark.parametrize(
    ("name", "form", "text"),
    [
        ("x.json", "yaml", "{path} is written as yaml, as --format says"),
        ("x.yaml", "json", "{path} is written as json, as --format says"),
        ("x.yml", "", "{path}: engines read .yaml and .json only"),
        ("x.json", "json", ""),
        ("x.yaml", "", ""),
    ],
)
def test_a_misleading_file_name_is_reported(name: str, form: str, text: str, lab: Lab) -> None:
    path = lab.home / name

    result = generate(lab, "--output", path, *(["--format", form] if form else []))

    about = [line for line in result.stderr.splitlines() if f"warning: {path}" in line]
    assert about == ([f"warning: {text.format(path=path)}"] if text else [])


# --- more options ---


def test_a_hook_program_without_a_folder_is_looked_for_on_path(lab: Lab) -> None:
    result = generate(
        lab, "--nvidia-cdi-hook-path", "nvidia-cdi-hook", env={"PATH": f"{lab.home}/bin"}
    )
    ctk = generate(lab, "--nvidia-ctk-path", "nvidia-ctk", env={"PATH": f"{lab.home}/bin"})

    assert spec_of(result)["containerEdits"]["hooks"][0]["path"] == str(lab.hook)
    (hook,) = spec_of(ctk)["containerEdits"]["hooks"]
    assert hook["path"] == "/usr/bin/nvidia-ctk"
    assert hook["args"][:3] == ["nvidia-ctk", "hook", "apply"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: real device nodes")
def test_node_numbers_can_be_asked_for(lab: Lab) -> None:
    # Of nodes that are plain files the spec has numbers anyway: nobody could look them up.
    lab.keys["nvct"]["plain-nodes"] = False
    lab.configure()
    for name, numbers in (
        ("nvidiactl", (195, 255)),
        ("nvidia-uvm", (508, 0)),
        ("nvidia0", (195, 0)),
    ):
        (lab.home / "dev" / name).unlink()
        os.mknod(lab.home / "dev" / name, 0o020666, os.makedev(*numbers))

    def majors(result: Result) -> set[int | None]:
        return {
            node.get("major")
            for edits in [spec_of(result), *spec_of(result)["devices"]]
            for node in edits["containerEdits"].get("deviceNodes", [])
        }

    assert majors(generate(lab)) == {None}
    assert majors(generate(lab, "--node-numbers")) == {195, 508}


def test_capabilities_leave_out_what_they_do_not_need(lab: Lab) -> None:
    def sources(result: Result) -> set[str]:
        mounts = spec_of(result)["containerEdits"]["mounts"]
        return {os.path.basename(mount["containerPath"]).split(".so")[0] for mount in mounts}

    everything = sources(generate(lab))
    utility = sources(generate(lab, "--capabilities", "utility"))

    assert {"libcuda", "libnvidia-ml", "libGLX_nvidia"} <= everything
    assert "libnvidia-ml" in utility
    assert not {"libcuda", "libGLX_nvidia"} & utility
    assert sources(generate(lab, "--capabilities", "all")) == everything


def test_configuration_files_can_be_looked_for_elsewhere(lab: Lab) -> None:
    icd = lab.home / "my/vulkan/icd.d/nvidia_icd.json"
    icd.parent.mkdir(parents=True)
    icd.write_text("{}")

    result = generate(lab, "--config-search-path", lab.home / "my")

    mounts = spec_of(result)["containerEdits"]["mounts"]
    assert str(icd) in [mount["hostPath"] for mount in mounts]


@pytest.mark.parametrize(
    ("value", "directories"),
    [
        ("", ["driver/usr/share"]),
        ("relative", ["driver/usr/share"]),
        ("/my/share", ["driver/my/share"]),
        ("/my/share:/usr/share", ["driver/my/share"]),
        ("/elsewhere", []),
    ],
)
def test_data_directories_are_those_of_their_variable(
    value: str, directories: list[str], lab: Lab
) -> None:
    for folder in ("my/share", "usr/share"):
        icd = lab.home / "driver" / folder / "vulkan/icd.d/nvidia_icd.json"
        icd.parent.mkdir(parents=True, exist_ok=True)
        icd.write_text("{}")

    spec = spec_of(generate(lab, env={"XDG_DATA_DIRS": value}))

    mounts = [mount["hostPath"] for mount in spec["containerEdits"]["mounts"]]
    suffix = "/vulkan/icd.d/nvidia_icd.json"
    icds = [path.removesuffix(suffix) for path in mounts if path.endswith(suffix)]
    assert icds == [f"{lab.home}/{folder}" for folder in directories]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a node of another group")
def test_groups_can_be_left_out_by_a_flag_or_for_old_engines(lab: Lab) -> None:
    node = lab.home / "dev/nvidia0"
    os.chown(node, 0, 44)
    node.chmod(0o660)

    whole = generate(lab)
    flag = generate(lab, "--feature-flag", "no-additional-gids-for-device-nodes")
    old = generate(lab, "--cdi-version-max", "0.5.0")

    assert spec_of(whole)["cdiVersion"] == "0.7.0"
    assert "annotations" in spec_of(whole)
    assert "additionalGids" in whole.stdout
    for result in (flag, old):
        assert spec_of(result)["cdiVersion"] == "0.5.0"
        assert "additionalGids" not in result.stdout
        assert "annotations" not in spec_of(result)
    assert "warning: CDI 0.5.0: containers do not get the groups 44" in old.stderr
    assert "groups" not in flag.stderr


def several(lab: Lab, output: str, form: str | None = None) -> list[str]:
    """Write a spec as two."""
    settings = lab.host.options()
    inventory = modes.discover("nvml", lab.host.roots, settings)
    spec = specgen.generate(inventory, specgen.Options(all_device=False))
    coherent = specgen.generate(
        inventory, specgen.Options(cls="gpu.coherent", device_ids=["1"], all_device=False)
    )
    request = Output(output=output, form=form)
    specs, lines = {"": spec, "coherent": coherent}, list[str]()
    sys.stdout.writelines(write(specs, inventory, request, lines.append))
    return [spec["kind"], coherent["kind"]]


@pytest.mark.parametrize(
    ("name", "form", "files"),
    [
        ("x.yaml", None, ["x.coherent.yaml", "x.yaml"]),
        ("x.json", None, ["x.coherent.json", "x.json"]),
        ("x", "json", ["x.coherent.json", "x.json"]),
        ("x.d", None, ["x.coherent.d.yaml", "x.d.yaml"]),
    ],
)
def test_several_specs_go_to_files_beside_each_other(
    name: str, form: str | None, files: list[str], lab: Lab
) -> None:
    out = lab.home / "out"

    kinds = several(lab, str(out / name), form)

    assert sorted(os.listdir(out)) == files
    assert [load.load_file(str(out / file))["kind"] for file in files] == kinds[::-1]


def test_several_specs_go_to_stdout_as_documents(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = several(lab, "-")

    documents = list(yaml.safe_load_all(capsys.readouterr().out))

    assert [document["kind"] for document in documents] == kinds
    assert documents[1]["cdiVersion"] == "0.6.0"
    assert any(key.startswith("nvct/") for key in documents[1]["annotations"])


# --- modes ---


def test_a_mode_has_a_kind_of_its_own(lab: Lab) -> None:
    lab.host.write("dev/gdrdrv", mode=0o666)
    devices = lab.home / "proc/devices"
    devices.write_text(devices.read_text().replace("195 nvidia\n", "195 nvidia\n240 gdrdrv\n"))

    plain_spec = spec_of(generate(lab, "--mode", "gdrcopy"))
    renamed_spec = spec_of(
        generate(lab, "--mode", "gdrcopy", "--vendor", "a.com", "--class", "b0")
    )

    assert plain_spec["kind"] == "nvidia.com/gdrcopy"
    assert renamed_spec["kind"] == "a.com/b0"
    assert [device["name"] for device in plain_spec["devices"]] == ["all"]


def test_the_options_of_a_tegra_reach_it(lab: Lab) -> None:
    lab.host.write("driver/usr/lib/a.so", "x")
    lab.host.write("driver/usr/lib/b.so", "x")
    lab.host.link("driver/usr/lib/c.so", "b.so")
    table = lab.host.write("my.csv", "dev, /dev/nvidia0\nlib, /usr/lib/a.so\nsym, /usr/lib/c.so\n")

    result = generate(
        lab, "--mode", "csv", "--csv.file", table, "--csv.ignore-pattern", "**/c.*",
        "--csv.compat-container-root", "/opt/compat",
    )  # fmt: skip

    mounts = spec_of(result)["containerEdits"].get("mounts", [])
    mounts += spec_of(result)["devices"][0]["containerEdits"].get("mounts", [])
    assert "/usr/lib/a.so" in [mount["containerPath"] for mount in mounts]
    assert "/usr/lib/b.so" not in [mount["containerPath"] for mount in mounts]


# the hook program


def no_hook(monkeypatch: pytest.MonkeyPatch, lab: Lab, path: Path) -> None:
    lab.keys["nvct"].pop("hook-path", None)
    lab.configure()
    monkeypatch.setattr(live_host, "hook_path", lambda _settings: str(path))


def test_a_spec_does_not_name_a_hook_that_does_not_exist(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_hook(monkeypatch, lab, tmp_path / "none")

    result = generate(lab, "--output", tmp_path / "out.yaml")

    assert isinstance(result.exception, NvctError)
    assert f"{tmp_path}/none is not installed" in str(result.exception)
    assert "nvct launchers install --bin-dir=" in result.exception.hint
    assert not (tmp_path / "out.yaml").exists()
    assert generate(lab, "--disable-hook=all").exit_code == 0


def test_a_hook_that_is_named_may_be_another_hosts(lab: Lab, tmp_path: Path) -> None:
    result = generate(lab, f"--nvidia-cdi-hook-path={tmp_path}/none")

    assert result.exit_code == 0
    assert f"warning: {tmp_path}/none is no program here" in result.stderr


def test_a_hook_in_a_checkout_is_warned_of(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hook = Path(live_host.__file__).parents[2] / ".venv/bin/nvidia-cdi-hook"
    if not hook.exists():
        pytest.skip("no hook in .venv: it takes a C compiler and make setup")
    no_hook(monkeypatch, lab, hook)

    assert f"warning: {hook} is in a checkout" in generate(lab).stderr
    assert "checkout" not in generate(lab, f"--nvidia-cdi-hook-path={hook}").stderr
    elsewhere = tmp_path / "hook"
    elsewhere.write_text("")
    elsewhere.chmod(0o755)
    monkeypatch.setattr(live_host, "hook_path", lambda _settings: str(elsewhere))
    assert "checkout" not in generate(lab).stderr
