# SPDX-License-Identifier: Apache-2.0
"""The layout of CDI specifications: a mount of a view, or a mount per file."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from nvct import paths
from nvct.errors import HostError
from tests.support.commands import invoke
from tests.support.shim_lab import Lab
from tests.unit.compile.test_farm_plan import own_plan


def generated_layout(node: Lab, *words: str) -> tuple[Result, int]:
    """Return the result of `cdi generate` for engines, and how many libraries it mounts."""
    path = f"{node.home}/cdi/nvidia.json"
    done = invoke(
        "nvidia-ctk",
        ["cdi", "generate", "--output", path, *words],
        env={paths.CONFIG_ENV: str(node.config_toml)},
    )
    if done.exit_code:
        return done, 0
    mounts = json.loads(Path(path).read_text())["containerEdits"]["mounts"]
    return done, len([m for m in mounts if ".so." in m["containerPath"]])


def test_engines_get_the_farm_in_their_folders(node: Lab) -> None:
    assert generated_layout(node)[1] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--layout", "classic"),
        ("--disable-hook", "update-ldcache"),
        ("--disable-hook", "create-symlinks"),
        ("--output", "nvidia.json"),
    ],
)
def test_engines_get_a_mount_per_file_where_a_view_is_not_kept_or_not_possible(
    node: Lab, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if words[0] != "--output":
        assert generated_layout(node, *words)[1] > 5
        return
    done = invoke(
        "nvidia-ctk", ["cdi", "generate", *words], env={paths.CONFIG_ENV: str(node.config_toml)}
    )
    assert done.exit_code == 0, done.output
    assert "/.nvct/driver" not in (tmp_path / "nvidia.json").read_text()


def test_who_demands_the_farm_is_told_why_it_cannot_be(node: Lab) -> None:
    done, _ = generated_layout(node, "--layout", "farm", "--disable-hook", "update-ldcache")

    assert isinstance(done.exception, HostError)
    assert done.exception.message == "layout farm: the hook update-ldcache is disabled"


def test_a_specification_names_only_what_its_capabilities_need(node: Lab) -> None:
    generated_layout(node, "--capabilities", "utility")

    common = json.loads(Path(f"{node.home}/cdi/nvidia.json").read_text())["containerEdits"]
    words = common["hooks"][0]["args"]
    assert "--view-library=lib64/libnvidia-ml.so.1" in words
    assert not [word for word in words if "libcuda.so" in word or "libGLX" in word]
    assert [entry for entry in common["env"] if "LIBCUDA" in entry] == []


def test_all_capabilities_name_one_view(node: Lab) -> None:
    sources = set()
    for words in ((), ("--capabilities", "utility"), ("--capabilities", "all,compat32")):
        generated_layout(node, *words)
        spec = json.loads(Path(f"{node.home}/cdi/nvidia.json").read_text())
        sources.add(spec["containerEdits"]["mounts"][0]["hostPath"])
    own_plan(node)

    assert len(sources) == 1
    assert sources == {own_plan(node)["farm"]["view"]}
