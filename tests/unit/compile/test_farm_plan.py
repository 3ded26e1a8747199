# SPDX-License-Identifier: Apache-2.0
"""The own plan with layout = "farm": its table, and how it outlives an upgrade of the driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from click.testing import Result

from nvct import paths
from nvct.compile import refresh
from nvct.container.plan import fingerprints, model
from tests.support import memory
from tests.support.commands import invoke
from tests.support.host_tree import VERSION, WORKING_NVML
from tests.support.processes import captured
from tests.support.shim_lab import REPOSITORY, Lab
from tests.unit.farm.lab import NEWER, FarmLab


@pytest.fixture
def elsewhere(node: Lab) -> Generator[Path]:
    """A folder on another file system than the driver's."""
    other = memory.DISK if memory.ROOT == memory.SHM else memory.SHM
    path = Path(tempfile.mkdtemp(prefix="nvct-", dir=other))
    if path.stat().st_dev == node.home.stat().st_dev:
        pytest.skip("/dev/shm and /tmp are one file system")
    yield path
    shutil.rmtree(path)


def generated(node: Lab, *args: str) -> Result:
    return invoke(
        "nvidia-ctk",
        ["cdi", "generate", "--format", "json", *args],
        env={paths.CONFIG_ENV: str(node.config_toml)},
    )


def ask(node: Lab, *argv: str) -> subprocess.CompletedProcess[str]:
    code = f"{WORKING_NVML}from nvct.cli.container.main import nvidia_container_cli as f; f()"
    return captured([sys.executable, "-c", code, *argv], env=node.env, cwd=REPOSITORY, timeout=60)


def own_plan(node: Lab) -> model.Plan:
    return refresh.own_plan(str(node.config_toml), str(node.run_dir))


def driver(node: Lab) -> FarmLab:
    made = FarmLab.__new__(FarmLab)
    made.host, made.path = node.host, node.home / "farm"
    return made


def mounts(plan: model.Plan) -> set[str]:
    edits = plan["specs"][0]["edits"]
    return {m[1] for part in (edits, *edits["parts"].values()) for m in part["mounts"]}


def test_with_the_classic_layout_there_is_no_table_and_no_farm(node: Lab) -> None:
    node.keys["nvct"]["layout"] = "classic"
    node.configure()

    plan = own_plan(node)

    assert "farm" not in plan
    assert not (node.home / "farm").exists()


def test_the_plan_names_the_view_and_its_facts_hold_until_it_goes(node: Lab) -> None:
    plan = own_plan(node)

    farm = plan["farm"]
    assert farm["why"] == ""
    assert farm["view"].startswith(f"{node.home}/farm/{VERSION}-")
    assert fingerprints.broken(farm["facts"]) is None
    assert model.is_current(plan)
    assert plan["specs"][0]["edits"]["work"]["compat"] == {"driver": VERSION}
    shutil.rmtree(farm["view"])
    assert fingerprints.broken(farm["facts"]) is not None
    assert fingerprints.broken(own_plan(node)["farm"]["facts"]) is None


def test_where_no_view_can_be_made_the_plan_says_why_and_stands(node: Lab) -> None:
    (node.home / "farm").mkdir()
    (node.home / "farm").chmod(0o777)

    plan = own_plan(node)

    assert plan["farm"]["view"] == ""
    assert "other users can write to it" in plan["farm"]["why"]
    assert "nvidia.com/gpu=0" in plan["devices"]


def test_by_default_there_is_no_view_where_every_file_would_be_a_mount(
    node: Lab, elsewhere: Path
) -> None:
    node.keys["nvct"] |= {"layout": "auto", "farm-dir": f"{elsewhere}/farm"}
    node.configure()

    plan = own_plan(node)

    assert plan["farm"]["view"] == ""
    assert "invalid cross-device link" in plan["farm"]["why"]
    assert not [name for name in os.listdir(f"{elsewhere}/farm") if name != ".lock"]
    assert "nvidia.com/gpu=0" in plan["devices"]


@pytest.mark.parametrize("hook", ["update-ldcache", "create-symlinks", "all"])
def test_who_disables_the_hooks_whose_work_a_view_needs_gets_none(node: Lab, hook: str) -> None:
    node.keys["nvidia-container-runtime.modes.jit-cdi"] = {"nvcdi-disable-hooks": [hook]}
    node.configure()

    farm = own_plan(node)["farm"]

    assert farm["view"] == ""
    assert farm["why"].startswith("config.toml disables the hook ")


@pytest.mark.parametrize(
    ("hook", "work", "before", "after"),
    [
        ("enable-cuda-compat", "compat", {"driver": VERSION}, {}),
        ("update-application-profile", "profile", True, False),
    ],
)
def test_what_a_disabled_hook_would_do_is_not_done(
    node: Lab, hook: str, work: str, before: object, after: object
) -> None:
    assert own_plan(node)["specs"][0]["edits"]["work"][work] == before  # type: ignore[literal-required]
    node.keys["nvidia-container-runtime.modes.jit-cdi"] = {"nvcdi-disable-hooks": [hook]}
    node.configure()

    plan = own_plan(node)

    assert plan["farm"]["view"]
    assert plan["specs"][0]["edits"]["work"][work] == after  # type: ignore[literal-required]


@pytest.mark.parametrize("layout", ["by rename", "in place"])
def test_an_upgrade_on_the_disk_leaves_both_layouts_with_the_loaded_driver(
    node: Lab, layout: str
) -> None:
    before = own_plan(node)
    driver(node).install(NEWER, in_place=layout == "in place")
    assert not model.is_current(before)

    plan = own_plan(node)

    assert plan["host"]["driver"] == VERSION
    assert plan["farm"]["version"] == VERSION
    assert fingerprints.broken(plan["farm"]["facts"]) is None
    assert plan["specs"][0]["refuse"] == ""
    assert [d["refuse"] for d in plan["devices"].values() if d["refuse"]] == []
    # The classic layout mounts the view's files at the driver's old places.
    libcuda = [text for text in mounts(plan) if f"libcuda.so.{VERSION}" in text]
    assert len(libcuda) == 1
    assert f'"source":"{node.home}/farm/' in libcuda[0]
    assert f'"destination":"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"' in libcuda[0]
    assert model.is_current(plan)
    assert {**own_plan(node), "made": plan["made"]} == plan


@pytest.mark.parametrize("layout", ["auto", "farm", "classic"])
def test_a_spec_is_made_of_the_loaded_drivers_view_where_the_disk_has_another(
    node: Lab, layout: str
) -> None:
    own_plan(node)
    driver(node).install(NEWER)
    node.keys["nvct"]["layout"] = layout
    node.configure()

    done = generated(node)

    if layout == "classic":
        assert done.exit_code == 1
        return
    assert done.exit_code == 0, done.output
    assert f"warning: driver {VERSION} is loaded, but another one is on the disk" in done.stderr
    mounted = json.loads(done.stdout)["containerEdits"]["mounts"]
    (libcuda,) = [one for one in mounted if f"libcuda.so.{VERSION}" in one["hostPath"]]
    assert libcuda["hostPath"].startswith(f"{node.home}/farm/{VERSION}-")
    assert libcuda["containerPath"] == f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    assert NEWER not in done.stdout


def test_what_is_listed_is_what_containers_get_where_the_disk_has_another(node: Lab) -> None:
    own_plan(node)
    driver(node).install(NEWER)

    done = invoke(
        "nvct", ["list", "--format", "bind"], env={paths.CONFIG_ENV: str(node.config_toml)}
    )

    assert done.exit_code == 0, done.output
    assert f"warning: driver {VERSION} is loaded, but another one is on the disk" in done.stderr
    libcuda = [line for line in done.stdout.splitlines() if f"/libcuda.so.{VERSION}:" in line]
    assert libcuda
    assert [line for line in libcuda if not line.startswith(f"{node.home}/farm/{VERSION}-")] == []
    assert NEWER not in done.stdout


def test_nvidia_container_cli_tells_of_what_containers_get(node: Lab) -> None:
    own_plan(node)
    driver(node).install(NEWER)

    info, listed = ask(node, "info"), ask(node, "list", "-l")

    assert f"NVRM version:   {VERSION}\n" in info.stdout, info
    assert f"/libcuda.so.{VERSION}\n" in listed.stdout, listed
    assert NEWER not in listed.stdout
    assert [path for path in listed.stdout.splitlines() if not os.path.exists(path)] == []


@pytest.mark.parametrize("layout", ["classic", "farm"])
def test_cdi_check_says_that_the_disk_has_another_driver(node: Lab, layout: str) -> None:
    def run(*args: str) -> tuple[int, str]:
        done = invoke("nvidia-ctk", ["cdi", *args], env={paths.CONFIG_ENV: str(node.config_toml)})
        return done.exit_code, done.output

    words = ["--layout", layout, "--output", f"{node.home}/cdi/nvidia.yaml"]
    assert run("generate", *words)[0] == 0
    own_plan(node)
    driver(node).install(NEWER)
    own_plan(node)

    status, output = run("check")

    assert status == (1 if layout == "classic" else 0)
    assert f"kernel module is {VERSION}" in output
    assert f"libraries of {NEWER}" in output
    assert f"containers get the view {node.home}/farm/{VERSION}-" in output
    assert (" files are gone: " in output) is (layout == "classic")


def test_the_refresh_command_prints_what_a_view_lacks(node: Lab) -> None:
    env = {paths.CONFIG_ENV: str(node.config_toml), paths.RUN_DIR_ENV: str(node.run_dir)}
    first = own_plan(node)["farm"]["view"]
    os.unlink(f"{first}/lib64/libcuda.so.1")

    done = invoke("nvct", ["refresh", "own"], env=env)

    assert done.exit_code == 0, done.output
    assert f"warning: {first}/lib64/libcuda.so.1: the link is missing" in done.output
    assert os.path.islink(f"{first}/lib64/libcuda.so.1")
