# SPDX-License-Identifier: Apache-2.0
"""Command nvct publish: the spec comes, stays, changes and goes as the driver does."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from nvct.agent.core import instance
from nvct.agent.nvml import release
from nvct.cdi.make.generate import ALLOW_BUILDS
from nvct.cli import refresh
from nvct.cli.cdi import generate
from nvct.compile import live_host, published_spec
from nvct.config import load
from nvct.doctor import parts
from nvct.doctor.node import Node
from nvct.errors import DocumentError, HostError, UsageError
from tests.support.shim_lab import Lab

INCUMBENTS = Path(__file__).with_name("incumbent") / "nvidia.yaml"
DEVICES = "NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS"
FOREIGN = """\
cdiVersion: 0.5.0
kind: acme.com/card
devices: [{name: a, containerEdits: {env: [A=B]}}]
"""


pytestmark = pytest.mark.usefixtures("driver")


def publish(lab: Lab, output: Path, *args: str, **env: str) -> Result:
    variables = {"NVIDIA_CTK_CDI_OUTPUT_FILE_PATH": str(output), **env}
    return lab.invoke("nvct", "publish", *args, **variables)


def names(output: Path) -> list[str]:
    spec = yaml.safe_load(output.read_text(encoding="utf-8"))
    return [device["name"] for device in spec["devices"] if not device["name"].startswith("GPU-")]


@pytest.mark.parametrize(
    ("args", "env", "listed"),
    [
        ((), {}, ["0", "1", "all"]),
        (("--device-id=1",), {DEVICES: "0"}, ["1", "all"]),
        ((), {DEVICES: "0"}, ["0", "all"]),
        (("--devices=none",), {}, ["none"]),
    ],
)
def test_only_chosen_devices_are_published(
    args: tuple[str, ...], env: dict[str, str], listed: list[str], lab: Lab, tmp_path: Path
) -> None:
    output = tmp_path / "nvidia.yaml"
    done = publish(lab, output, *args, **env)
    assert done.exit_code == 0, done.output
    assert names(output) == listed
    spec = yaml.safe_load(output.read_text(encoding="utf-8"))
    nodes = [
        e["path"] for d in spec["devices"] for e in d["containerEdits"].get("deviceNodes", ())
    ]
    gpus = {path[11:] for path in nodes if path[11:].isdigit()}
    assert gpus == {name for name in listed if name.isdigit()}


def test_status_names_the_devices_that_are_held_back(lab: Lab) -> None:
    publish(lab, lab.home / "cdi/nvidia.yaml", "--devices", "1")

    part = parts.specs(node(lab))

    assert part.health == "ok"
    assert part.lines[1] == "held back by `nvct publish --devices`: GPU 0"
    publish(lab, lab.home / "cdi/nvidia.yaml", "--devices", "all")
    assert len(parts.specs(node(lab)).lines) == 1


def node(lab: Lab) -> Node:
    return Node(settings=load.load(str(lab.config_toml)), env=lab.env)


@pytest.mark.parametrize("is_released", [False, True])
def test_while_the_driver_is_replaced_nobody_is_told_to_load_it(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_released: bool
) -> None:
    folder = tmp_path / "agent"
    if is_released:
        release.request(60, str(folder))
    monkeypatch.setattr(instance, "FOLDER", str(folder))
    shutil.rmtree(lab.home / "proc/driver")

    published = publish(lab, tmp_path / "nvidia.yaml")
    explained = lab.invoke("nvct", "explain", "--env", "NVIDIA_VISIBLE_DEVICES=0")

    assert isinstance(published.exception, HostError)
    assert explained.exit_code == 1
    for text in (f"{published.stderr} {published.exception.hint}", explained.stdout):
        assert ("modprobe nvidia" in text) is not is_released, text
        assert ("wait: the driver is being replaced, as `nvct" in text) is is_released, text
    warned = "warning: the kernel module nvidia is not loaded: the driver is being replaced, as"
    assert (warned in published.stderr) is is_released


def test_an_unknown_device_changes_nothing(lab: Lab, tmp_path: Path) -> None:
    output = tmp_path / "nvidia.yaml"
    publish(lab, output, "--devices=1")
    before = output.read_bytes()
    assert publish(lab, output, "--devices=7").exit_code != 0
    assert output.read_bytes() == before


def test_a_call_by_hand_publishes_no_more_than_the_service(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service reads a file of variables; doctor --fix and people call the program alone."""
    file, output = tmp_path / "refresh.env", tmp_path / "nvidia.yaml"
    file.write_text(f'# a comment\n#{DEVICES}=0\n {DEVICES}="1"\nPATH=/x\n', encoding="utf-8")
    monkeypatch.setattr(published_spec, "REFRESH_ENV", str(file))
    assert publish(lab, output).exit_code == 0
    assert names(output) == ["1", "all"]
    publish(lab, output, "--devices=0")
    assert names(output) == ["0", "all"]
    publish(lab, output, **{DEVICES: "all"})
    assert names(output) == ["0", "1", "all"]
    file.write_text(f"{DEVICES}=0,1\n{DEVICES}=\n", encoding="utf-8")
    assert published_spec.choices_of_service(str(file)) == {}
    with pytest.raises(DocumentError, match="is not a regular file"):
        published_spec.choices_of_service(str(tmp_path))


NO_HOOKS, BUILDS = (f"NVIDIA_CTK_CDI_GENERATE_{word}" for word in ("NO_HOOKS", "ALLOW_BUILDS"))


def test_only_the_services_variables_outlive_the_file_and_a_call_by_hand_says_so(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file goes at a reboot, or while no driver is installed."""
    file, output = tmp_path / "refresh.env", tmp_path / "nvidia.yaml"
    monkeypatch.setattr(published_spec, "REFRESH_ENV", str(file))

    def said(*args: str) -> list[str]:
        done = publish(lab, output, *args)
        assert done.exit_code == 0, done.output
        return [line for line in done.stderr.splitlines() if line.startswith("--")]

    def said_of(option: str, variable: str) -> str:
        return (
            f"--{option} applies until {output} is removed; to keep it, set {variable} in {file}"
        )

    assert said("--no-hooks=both", "--allow-builds", "--devices=1") == [
        said_of("device-id=1", f"{DEVICES}=1"),
        said_of("no-hooks=both", f"{NO_HOOKS}=both"),
        said_of("allow-builds=true", f"{BUILDS}=true"),
    ]
    file.write_text(f"{NO_HOOKS}=both\n{BUILDS}=1\n", encoding="utf-8")
    output.unlink()
    assert said() == []
    text = output.read_text(encoding="utf-8")
    assert "createContainer" not in text
    assert ALLOW_BUILDS in text
    assert said("--no-hooks=both", "--allow-builds") == []
    assert said("--no-hooks=off") == [said_of("no-hooks=off", f"{NO_HOOKS}=off")]
    assert said("--devices=all") == []


def test_status_says_what_a_specification_was_made_with(lab: Lab) -> None:
    path = lab.home / "cdi/nvidia.yaml"

    def lines(*args: str) -> tuple[str, ...]:
        publish(lab, path, *args)
        return parts.specs(node(lab)).lines[1:]

    assert lines("--no-hooks=both", "--allow-builds") == (
        f"{path}: no hooks, as `nvct publish --no-hooks=both` says",
        f"{path}: every BuildKit build can use the devices, as --allow-builds says",
    )
    assert lines("--no-hooks=off", "--allow-builds=false") == ()


def test_allowed_builds_need_a_version_with_annotations(lab: Lab, tmp_path: Path) -> None:
    variable = {"NVIDIA_CTK_CDI_GENERATE_CDI_VERSION_MAX": "0.5.0"}
    done = publish(lab, tmp_path / "nvidia.yaml", "--allow-builds", **variable)
    assert "CDI 0.5.0: --allow-builds has no effect: it is an annotation" in done.stderr
    done = publish(lab, tmp_path / "nvidia.yaml", "--allow-builds=false", **variable)
    assert "allow-builds" not in done.stderr


def test_an_equal_spec_is_not_rewritten(lab: Lab, tmp_path: Path) -> None:
    output = tmp_path / "nvidia.yaml"
    publish(lab, output)
    inode = output.stat().st_ino
    publish(lab, output)
    assert output.stat().st_ino == inode


def changed_config(lab: Lab) -> None:
    lab.config_toml.write_text(lab.config_toml.read_text() + "\n# changed\n")


def added(path: str) -> Callable[[Lab], None]:
    """Return what adds a file below the directory of nodes, or of /etc."""

    def add(lab: Lab) -> None:
        roots = live_host.roots_of(load.load(str(lab.config_toml)))
        file = Path(path.format(dev=roots.dev, etc=roots.etc))
        file.parent.mkdir(exist_ok=True, parents=True)
        file.touch()

    return add


@pytest.mark.parametrize(
    "change",
    [
        changed_config, added("{dev}/nvidia9"), added("{dev}/nvidia-caps/nvidia-cap9"),
        added("{etc}/ld.so.cache"),
    ],
    ids=["config.toml", "node", "MIG", "libraries"],
)  # fmt: skip
def test_what_changes_while_it_runs_is_published(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Lab], None]
) -> None:
    """The path unit that starts it sees no change until it has ended."""
    roots_of, etc = live_host.roots_of, str(lab.home / "etc")  # not the host's
    monkeypatch.setattr(live_host, "roots_of", lambda config: replace(roots_of(config), etc=etc))
    written: list[int] = []

    def write(*args: Any, **values: Any) -> None:
        generate.write(*args, **values)
        if not written:
            change(lab)
        written.append(1)

    monkeypatch.setattr(refresh, "write", write)
    monkeypatch.setattr(refresh, "PAUSE_S", 0)

    assert publish(lab, tmp_path / "nvidia.yaml").exit_code == 0

    assert len(written) == 2


def test_the_spec_is_removed_with_the_driver(lab: Lab, tmp_path: Path) -> None:
    output = tmp_path / "nvidia.yaml"
    publish(lab, output)
    shutil.rmtree(lab.home / "proc/driver")
    shutil.rmtree(lab.home / "driver/usr")
    result = publish(lab, output)
    assert result.exit_code == 0
    assert f"removed {output}" in result.stderr
    assert not output.exists()
    assert "nothing to publish" in publish(lab, output).stderr


def test_withdraw_leaves_what_nvidia_ctk_wrote(lab: Lab, tmp_path: Path) -> None:
    """It is there again after `nvct migrate back`, before the packages are removed."""
    output = tmp_path / "nvidia.yaml"
    text = INCUMBENTS.read_text(encoding="utf-8")
    output.write_text(text, encoding="utf-8")
    said = publish(lab, output, "--withdraw").stderr
    assert said == f"{output} stays: nvct did not write it\n"
    assert output.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "text", ["\n", 'cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: "0', '{"kind": "nvidia.com/gpu", "dev'],
    ids=["blank", "yaml", "json"],
)  # fmt: skip
def test_an_incomplete_spec_is_rewritten(lab: Lab, tmp_path: Path, text: str) -> None:
    output = tmp_path / "nvidia.yaml"
    output.write_text(text, encoding="utf-8")
    assert publish(lab, output).exit_code == 0
    assert yaml.safe_load(output.read_text(encoding="utf-8"))["kind"] == "nvidia.com/gpu"


def test_a_name_without_an_ending_does_not_hide_whose_file_is_replaced(
    lab: Lab, tmp_path: Path
) -> None:
    output = tmp_path / "nvidia.yaml"
    output.write_text(FOREIGN, encoding="utf-8")
    assert isinstance(publish(lab, tmp_path / "nvidia").exception, HostError)
    assert output.read_text(encoding="utf-8") == FOREIGN
    output.unlink()
    publish(lab, tmp_path / "nvidia")
    assert publish(lab, tmp_path / "nvidia", "--withdraw").stderr == f"removed {output}\n"
    assert publish(lab, output, "--withdraw").stderr == f"{output} does not exist\n"


def test_no_name_is_refused(lab: Lab, tmp_path: Path) -> None:
    assert isinstance(publish(lab, tmp_path / "x", "--output", "").exception, UsageError)
    assert isinstance(publish(lab, tmp_path).exception, UsageError)  # a folder's


@pytest.mark.parametrize("text", ["\nnotes\n", FOREIGN])
@pytest.mark.parametrize("args", [(), ("--withdraw",)])
def test_a_file_of_somebody_else_stays(
    lab: Lab, tmp_path: Path, text: str, args: tuple[str, ...]
) -> None:
    output = tmp_path / "nvidia.yaml"
    output.write_text(text, encoding="utf-8")
    result = publish(lab, output, *args)
    assert isinstance(result.exception, HostError)
    assert "is not replaced" in str(result.exception)
    assert output.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", ["nvidia.yaml", "of-0.6.yaml"])
def test_a_choice_of_devices_stays_until_another_is_made(
    name: str, lab: Lab, tmp_path: Path
) -> None:
    """In a comment, or in annotations where the spec's version has them."""
    output = tmp_path / name
    env = {"NVIDIA_CTK_CDI_GENERATE_CLASS": "a.b"} if "0.6" in name else {}
    publish(lab, output, "--devices=1", **env)

    done = publish(lab, output, **env)

    assert names(output) == ["1", "all"]
    assert "devices 1, as before; --devices all publishes all" in done.output
    publish(lab, output, "--devices=none", **env)
    publish(lab, output, **env)
    assert names(output) == ["none"]
    publish(lab, output, "--devices=all", **env)
    publish(lab, output, **env)
    assert names(output) == ["0", "1", "all"]
