# SPDX-License-Identifier: Apache-2.0
"""A spec in parts: together they are the whole, and each has what its capability names."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nvct.compile import plans as compiler
from nvct.compile.parts import in_parts
from nvct.container.plan import hook_command, model
from nvct.host.discover import discover
from nvct.host.discovery_options import DiscoveryOptions
from nvct.spec.generate import Options, generate
from tests.support.host_tree import HostTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from nvct.host.model import Inventory


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    host = HostTree(tmp_path).module().user_space().gpu(0).gpu(1)
    options = DiscoveryOptions(nvml=None, stat_node=host.stat_node, machine="x86_64")
    return discover(host.roots, options)


@pytest.fixture
def options(tmp_path: Path) -> Options:
    hook = tmp_path / "nvidia-cdi-hook"
    hook.touch(mode=0o755)
    return Options(hook_path=str(hook), node_numbers=True)


def plan(inventory: Inventory, options: Options) -> model.Plan:
    own = in_parts(inventory, options)
    return compiler.compile_own(own, "/run/own.json", "/c.toml", "/nonexistent")


def places(edits: list[model.Edits]) -> list[str]:
    return sorted({mount[0] for one in edits for mount in one["mounts"]})


def node_paths(edits: list[model.Edits]) -> list[str]:
    return sorted({node["path"] for one in edits for node in one["nodes"]})


def hook_words(edits: list[model.Edits]) -> list[str]:
    texts = [h for one in edits for hooks in one["hooks"].values() for h in hooks]
    texts += [hook_command.text(one["hook"]) for one in edits if "hook" in one]
    (text,) = texts
    args: list[str] = json.loads(text)["args"]
    return args


def test_all_parts_together_are_the_whole_spec(inventory: Inventory, options: Options) -> None:
    whole = compiler.compile_spec(generate(inventory, options), "/o", "/c.toml", "/nonexistent")
    names = ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]

    found = model.collect(plan(inventory, options), names)
    expected = model.collect(whole, names)

    assert places(found) == places(expected)
    assert places(found)
    assert node_paths(found) == node_paths(expected)
    assert sorted(hook_words(found)) == sorted(hook_words(expected))
    assert {e for one in found for e in one["env"]} == {e for one in expected for e in one["env"]}
    assert [g for one in found for g in one["gids"]] == [
        g for one in expected for g in one["gids"]
    ]


def test_a_capability_brings_its_own_files_links_and_nodes(
    inventory: Inventory, options: Options
) -> None:
    made = plan(inventory, options)

    utility = model.collect(made, ["nvidia.com/gpu=0"], ["utility"])

    mounts = places(utility)
    assert any("libnvidia-ml.so" in place for place in mounts)
    assert any("nvidia-smi" in place for place in mounts)
    assert not [p for p in mounts if "libcuda.so" in p or "libGLX_nvidia" in p]
    assert node_paths(utility) == ["/dev/nvidia0", "/dev/nvidiactl"]
    words = " ".join(hook_words(utility))
    assert "libnvidia-ml.so.1" in words
    assert "libcuda" not in words
    assert not any("NVIDIA_CTK_LIBCUDA_DIR" in entry for one in utility for entry in one["env"])


def test_no_capability_still_gives_the_device(inventory: Inventory, options: Options) -> None:
    found = model.collect(plan(inventory, options), ["nvidia.com/gpu=1"], [])

    assert node_paths(found) == ["/dev/nvidia1", "/dev/nvidiactl"]
    assert "--mask-params" in hook_words(found)


def test_without_hooks_there_is_none_in_any_part(inventory: Inventory) -> None:
    options = Options(disabled_hooks=("all",), node_numbers=True)

    found = model.collect(plan(inventory, options), ["nvidia.com/gpu=0"])

    assert [one for one in found if one["hooks"] or "hook" in one] == []


def test_common_edits_are_in_parts_as_well(inventory: Inventory, options: Options) -> None:
    made = plan(inventory, options)

    both = [model.common(made, "nvidia.com/gpu", names) for names in (["compute"], ["utility"])]

    compute, utility = map(places, both)
    assert any("libcuda" in place for place in compute)
    assert not any("libcuda" in place for place in utility)


def test_32_bit_libraries_come_only_to_those_who_name_them() -> None:
    edits = model.no_edits()
    edits["parts"] = {
        "compat32": {**model.no_edits(), "env": ["A=32"]},
        "compute": model.no_edits(),
    }
    made: model.Plan = compiler.empty("/c.toml")
    made["specs"].append({"path": "/o", "facts": [], "edits": edits, "refuse": ""})
    made["devices"]["nvidia.com/gpu=0"] = {"spec": 0, "edits": 0, "facts": [], "refuse": ""}
    made["edits"].append(model.no_edits())

    def env(capabilities: list[str] | None) -> list[str]:
        found = model.collect(made, ["nvidia.com/gpu=0"], capabilities)
        return [entry for one in found for entry in one["env"]]

    assert env(None) == []
    assert env(["compute", "compat32"]) == ["A=32"]


def test_video_alone_brings_what_decodes_it_even_where_nothing_is_called_video(
    tmp_path: Path, options: Options
) -> None:
    host = HostTree(tmp_path).module().user_space().gpu(0)
    found = discover(
        host.roots, DiscoveryOptions(nvml=None, stat_node=host.stat_node, machine="x86_64")
    )
    compute = tuple(file for file in found.files if file.capability == "compute")

    made = plan(replace(found, files=compute), options)

    assert any("libcuda" in place for place in places(collect(made, "video")))
    assert not any("libcuda" in place for place in places(collect(made, "utility")))
    assert "/dev/nvidia-uvm" in node_paths(collect(made, "video"))


def collect(made: model.Plan, capability: str) -> list[model.Edits]:
    return model.collect(made, ["nvidia.com/gpu=0"], [capability])
