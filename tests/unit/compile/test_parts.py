# SPDX-License-Identifier: Apache-2.0
"""A spec in parts: together they are the whole, and each has what its capability names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.cdi.make.generate import Options, generate
from nvct.compile import plans as compiler
from nvct.compile.plans import in_parts
from nvct.container.plan import hook_command, model
from nvct.host.discover import discover
from nvct.host.model import Inventory
from nvct.host.roots import Roots
from tests.support.host_tree import HostTree

NO_DRIVER = Roots(proc="/nonexistent", sys="/nonexistent")


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    host = HostTree(tmp_path).module().user_space().gpu(0).gpu(1)
    options = host.options()
    return discover(host.roots, options)


@pytest.fixture
def options(tmp_path: Path) -> Options:
    hook = tmp_path / "nvidia-cdi-hook"
    hook.touch(mode=0o755)
    return Options(hook_path=str(hook), node_numbers=True)


def plan(inventory: Inventory, options: Options) -> model.Plan:
    own = in_parts(inventory, options)
    return compiler.compile_own(own, "/run/own.json", "/c.toml", NO_DRIVER)


def places(edits: list[model.Edits]) -> list[str]:
    return sorted({mount[0] for edit in edits for mount in edit["mounts"]})


def node_paths(edits: list[model.Edits]) -> list[str]:
    return sorted({node["path"] for edit in edits for node in edit["nodes"]})


def hook_words(edits: list[model.Edits]) -> list[str]:
    texts = [h for edit in edits for hooks in edit["hooks"].values() for h in hooks]
    texts += [hook_command.text(edit["hook"]) for edit in edits if "hook" in edit]
    (text,) = texts
    args: list[str] = json.loads(text)["args"]
    return args


def test_all_parts_together_are_the_whole_spec(inventory: Inventory, options: Options) -> None:
    whole = compiler.compile_spec(generate(inventory, options), "/o", "/c.toml", NO_DRIVER)
    names = ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]

    collected = model.collect(plan(inventory, options), names)
    expected = model.collect(whole, names)

    assert places(collected) == places(expected)
    assert places(collected)
    assert node_paths(collected) == node_paths(expected)
    assert sorted(hook_words(collected)) == sorted(hook_words(expected))
    assert {e for edit in collected for e in edit["env"]} == {
        e for edit in expected for e in edit["env"]
    }
    assert [g for edit in collected for g in edit["gids"]] == [
        g for edit in expected for g in edit["gids"]
    ]


def test_a_capability_brings_its_own_files_links_and_nodes(
    inventory: Inventory, options: Options
) -> None:
    whole_plan = plan(inventory, options)

    utility = model.collect(whole_plan, ["nvidia.com/gpu=0"], ["utility"])

    mounts = places(utility)
    assert any("libnvidia-ml.so" in path for path in mounts)
    assert any("nvidia-smi" in path for path in mounts)
    assert not [p for p in mounts if "libcuda.so" in p or "libGLX_nvidia" in p]
    assert node_paths(utility) == ["/dev/nvidia0", "/dev/nvidiactl"]
    words = " ".join(hook_words(utility))
    assert "libnvidia-ml.so.1" in words
    assert "libcuda" not in words
    assert not any("NVIDIA_CTK_LIBCUDA_DIR" in entry for edit in utility for entry in edit["env"])


def test_without_hooks_there_is_none_in_any_part(inventory: Inventory) -> None:
    options = Options(disabled_hooks=("all",), node_numbers=True)

    collected = model.collect(plan(inventory, options), ["nvidia.com/gpu=0"])

    assert [edit for edit in collected if edit["hooks"] or "hook" in edit] == []


def test_32_bit_libraries_come_only_to_those_who_name_them() -> None:
    edits = model.no_edits()
    edits["parts"] = {
        "compat32": {**model.no_edits(), "env": ["A=32"]},
        "compute": model.no_edits(),
    }
    whole_plan: model.Plan = compiler.empty("/c.toml")
    whole_plan["specs"].append({"path": "/o", "facts": [], "edits": edits, "refuse": ""})
    whole_plan["devices"]["nvidia.com/gpu=0"] = {"spec": 0, "edits": 0, "facts": [], "refuse": ""}
    whole_plan["edits"].append(model.no_edits())

    def env(capabilities: list[str] | None) -> list[str]:
        collected = model.collect(whole_plan, ["nvidia.com/gpu=0"], capabilities)
        return [entry for edit in collected for entry in edit["env"]]

    assert env(None) == []
    assert env(["compute", "compat32"]) == ["A=32"]


def test_video_alone_brings_what_decodes_it_even_where_nothing_is_called_video(
    tmp_path: Path, options: Options
) -> None:
    host = HostTree(tmp_path).module().user_space().gpu(0)
    inventory = discover(host.roots, host.options())
    compute = tuple(file for file in inventory.files if file.capability == "compute")

    whole_plan = plan(replace(inventory, files=compute), options)

    assert any("libcuda" in path for path in places(collect(whole_plan, "video")))
    assert not any("libcuda" in path for path in places(collect(whole_plan, "utility")))
    assert "/dev/nvidia-uvm" in node_paths(collect(whole_plan, "video"))


def collect(whole_plan: model.Plan, capability: str) -> list[model.Edits]:
    return model.collect(whole_plan, ["nvidia.com/gpu=0"], [capability])
