# SPDX-License-Identifier: Apache-2.0
"""Options --no-hooks and --allow-builds of nvidia-ctk cdi generate and nvct publish."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from nvct.cdi.make.generate import ALLOW_BUILDS
from nvct.errors import UsageError
from nvct.host.driver.libraries import TRIPLETS
from tests.support.shim_lab import Lab
from tests.support.software_images import MACHINE

TRIPLET = TRIPLETS[MACHINE]
ENV = "NVIDIA_CTK_CDI_GENERATE_"


pytestmark = pytest.mark.usefixtures("driver")


def generate(lab: Lab, *args: str | Path, **env: str) -> dict[str, Any]:
    result = lab.invoke("nvidia-ctk", "cdi", "generate", *args, **env)
    assert result.exit_code == 0, result.output
    spec: dict[str, Any] = yaml.safe_load(result.stdout)
    return spec


def mounts(spec: dict[str, Any]) -> dict[str, str]:
    return {m["containerPath"]: m["hostPath"] for m in spec["containerEdits"]["mounts"]}


FOLDERS = {
    "debian": [f"/usr/lib/{TRIPLET}"],
    "redhat": ["/usr/lib64"],
    "both": [f"/usr/lib/{TRIPLET}", "/usr/lib64"],
}


@pytest.mark.parametrize("choice", FOLDERS)
def test_each_name_of_a_library_is_a_mount_in_the_folders(choice: str, lab: Lab) -> None:
    spec = generate(lab, f"--no-hooks={choice}")

    assert "hooks" not in str(spec)
    places = mounts(spec)
    libcuda = next(path for path in mounts(generate(lab)).values() if "/libcuda.so." in path)
    names = (Path(libcuda).name, "libcuda.so.1", "libcuda.so")
    expected = {f"{folder}/{name}" for folder in FOLDERS[choice] for name in names}
    assert {place for place, source in places.items() if source == libcuda} == expected
    assert not [path for path in places if path.startswith("/etc/ld.so")]
    assert not [word for word in spec["containerEdits"]["env"] if word.startswith("LD_")]


def test_without_the_option_or_with_off_nothing_changes(lab: Lab) -> None:
    assert generate(lab, "--no-hooks=off", **{f"{ENV}NO_HOOKS": "both"}) == generate(lab)
    assert mounts(generate(lab, **{f"{ENV}NO_HOOKS": "both"})) != mounts(generate(lab))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--no-hooks=suse"], "--no-hooks=suse is unknown"),
        (["--no-hooks=both", "--layout=farm"], "layout farm needs a hook"),
        (["--no-hooks=both", "--enable-hook=chmod"], "--enable-hook=chmod contradicts --no-hooks"),
        (["--no-hooks=both", "--mode=imex"], "does not support mode imex"),
    ],
)
def test_what_contradicts_it_is_refused(args: list[str], said: str, lab: Lab) -> None:
    lab.host.write("dev/nvidia-caps-imex-channels/channel0")
    lab.host.write("proc/devices", "Character devices:\n234 nvidia-caps-imex-channels\n")
    result = lab.invoke("nvidia-ctk", "cdi", "generate", *args)

    assert isinstance(result.exception, UsageError)
    assert said in result.exception.message


def test_check_and_diff_find_no_difference(lab: Lab) -> None:
    path = lab.home / "cdi/nvidia.yaml"
    lab.invoke(
        "nvidia-ctk",
        "cdi",
        "generate",
        "--output",
        path,
        "--allow-builds",
        "--no-hooks=redhat",
    )

    for words in (("check",), ("diff", path, "live")):
        result = lab.invoke("nvidia-ctk", "cdi", *words)
        assert result.exit_code == 0, result.output


def test_builds_are_allowed_by_the_annotation_of_buildkit(lab: Lab) -> None:
    assert ALLOW_BUILDS not in str(generate(lab))
    spec = generate(lab, "--allow-builds")
    assert spec["annotations"][ALLOW_BUILDS] == "true"
    assert spec["cdiVersion"] == "0.6.0"


def test_publish_keeps_what_was_chosen_before(lab: Lab, tmp_path: Path) -> None:
    """Its service runs it again at each change of the driver."""
    path = tmp_path / "nvidia.yaml"

    def publish(*args: str) -> tuple[bool, bool, list[str]]:
        result = lab.invoke("nvct", "publish", "--output", path, *args)
        assert result.exit_code == 0, result.output
        text = path.read_text()
        said = [line for line in result.stderr.splitlines() if "as before" in line]
        return "createContainer" not in text, ALLOW_BUILDS in text, said

    assert publish() == (False, False, [])
    assert publish("--no-hooks=both") == (True, False, [])
    hookless, allowed, said = publish("--allow-builds")
    assert (hookless, allowed, len(said)) == (True, True, 1)
    hookless, allowed, said = publish()
    assert (hookless, allowed, len(said)) == (True, True, 2)
    assert publish("--no-hooks=off")[:2] == (False, True)
    assert publish("--allow-builds=false") == (False, False, [])
    assert publish() == (False, False, [])
