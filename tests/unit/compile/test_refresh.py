# SPDX-License-Identifier: Apache-2.0
"""The cold side of the door: what it compiles, what it keeps, and how it answers."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

import pytest

from nvct import paths
from nvct.compile import refresh
from nvct.container.plan import model
from nvct.container.plan.store import Store
from nvct.errors import ConfigError, DriverNotFoundError
from nvct.host.model import Gpu, Inventory
from tests.support.processes import captured
from tests.support.shim_lab import REPOSITORY, Lab


def registry_plan(lab: Lab) -> model.Plan:
    return refresh.registry_plan(str(lab.config_toml), str(lab.run_dir))


def own_plan(lab: Lab) -> model.Plan:
    return refresh.own_plan(str(lab.config_toml), str(lab.run_dir))


def kept(lab: Lab, name: str) -> object:
    store = Store(str(lab.run_dir))
    stored = store.read_json(name)
    store.close()
    return stored


def test_a_plan_is_kept_as_it_is_answered_and_current(lab: Lab) -> None:
    lab.spec()
    lab.driver()

    plans = {paths.REGISTRY_PLAN: registry_plan(lab), paths.OWN_PLAN: own_plan(lab)}

    for name, plan in plans.items():
        assert kept(lab, name) == plan
        assert model.is_current(plan)


def test_where_nothing_can_be_kept_the_plan_is_answered_all_the_same(lab: Lab) -> None:
    lab.spec()
    lab.driver()
    lab.run_dir.chmod(0o755)

    assert list(registry_plan(lab)["devices"]) == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
    assert "nvidia.com/gpu=all" in own_plan(lab)["devices"]
    assert os.listdir(lab.run_dir) == []


def change_spec(lab: Lab) -> None:
    lab.spec(devices={"0": {"env": ["A=changed"]}})


def add_spec(lab: Lab) -> None:
    lab.spec("more.json", kind="acme.com/nic")


def remove_spec(lab: Lab) -> None:
    (lab.home / "cdi/gpu.json").unlink()


def appear_in_the_other_folder(lab: Lab) -> None:
    lab.spec("more.yaml", folder="cdi2", kind="acme.com/nic")


def change_config(lab: Lab) -> None:
    lab.configure(mode="csv")


@pytest.mark.parametrize(
    "change",
    [change_spec, add_spec, remove_spec, appear_in_the_other_folder,
     change_config],
)  # fmt: skip
def test_a_registry_plan_is_no_longer_current_after(change: Any, lab: Lab) -> None:
    lab.spec()
    plan = registry_plan(lab)
    assert model.is_current(plan)

    change(lab)

    assert not model.is_current(plan)


def another_driver(lab: Lab) -> None:
    path = lab.home / "proc/driver/nvidia/version"
    path.write_text(path.read_text().replace("580.159.04", "580.159.05"))


@pytest.mark.parametrize("change", [another_driver, change_config])
def test_an_own_plan_is_no_longer_current_after(change: Any, lab: Lab) -> None:
    lab.driver()
    plan = own_plan(lab)
    assert model.is_current(plan)

    change(lab)

    assert not model.is_current(plan)


def test_an_own_plan_does_not_depend_on_the_spec_folders(lab: Lab) -> None:
    lab.driver()
    plan = own_plan(lab)

    add_spec(lab)

    assert model.is_current(plan)
    assert not [fact for fact in plan["facts"] if "/cdi" in str(fact[1])]


def test_our_own_spec_lies_beside_the_plan_and_not_in_a_cdi_folder(lab: Lab) -> None:
    lab.driver()

    plan = own_plan(lab)

    spec = json.loads((lab.run_dir / paths.OWN_SPEC).read_text())
    assert spec["kind"] == "nvidia.com/gpu"
    names = {f"nvidia.com/gpu={device['name']}" for device in spec["devices"]}
    assert names == {name for name in plan["devices"] if not name.endswith(":00.0")}
    assert os.listdir(lab.home / "cdi") == []


def test_no_driver_is_an_error_and_nothing_is_kept(lab: Lab) -> None:
    (lab.home / "driver").mkdir()

    with pytest.raises(DriverNotFoundError):
        own_plan(lab)

    assert os.listdir(lab.run_dir) == []


def ask(lab: Lab, *args: str) -> tuple[int, dict[str, Any], str]:
    done = captured(
        [sys.executable, "-I", "-m", "nvct.compile", *args],
        cwd=REPOSITORY, env=lab.env, timeout=60,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, answer, done.stderr


def test_a_gpu_has_the_name_of_its_bus_id_unless_it_is_in_mig_mode(lab: Lab) -> None:
    lab.driver(gpus=2).instance(1, 1, 0, (12, 13))

    status, plan, _ = ask(lab, "own", str(lab.config_toml), str(lab.run_dir))

    assert status == 0
    devices = plan["devices"]

    assert devices["nvidia.com/gpu=0000:18:00.0"] == devices["nvidia.com/gpu=0"]
    assert [name for name in devices if name.endswith(".0")] == ["nvidia.com/gpu=0000:18:00.0"]
    spec = json.loads((lab.run_dir / paths.OWN_SPEC).read_text(encoding="utf-8"))
    assert "0000:18:00.0" not in [device["name"] for device in spec["devices"]]


def test_two_gpus_of_one_bus_id_have_none_of_it(lab: Lab) -> None:
    lab.driver()
    plan = own_plan(lab)
    names = set(plan["devices"])
    gpu = Gpu(index=0, minor=0, uuid="", bus_id="0000:00:01.0", model="", node=None)

    refresh.name_otherwise(plan, Inventory(driver_version="1", gpus=(gpu, replace(gpu, index=1))))

    assert set(plan["devices"]) == names


@pytest.mark.parametrize("word", ["0000:2a:00.0", "0000:18:00.1", "0000:19:00.0"])
def test_a_bus_id_of_no_gpu_or_of_one_in_mig_mode_says_so(word: str, lab: Lab) -> None:
    lab.driver(gpus=2).instance(1, 1, 0, (12, 13))
    lab.asks(f"NVIDIA_VISIBLE_DEVICES={word}")

    stderr = lab.create()

    assert stderr.status == 1
    assert f"nvidia.com/gpu has no device '{word}'; it has 0, all; " in stderr.stderr
    assert "of a GPU in MIG mode ask for its MIG devices [unknown-device]" in stderr.stderr


def test_an_error_is_an_answer(lab: Lab) -> None:
    lab.configure("a = ")

    status, answer, stderr = ask(lab, "config", str(lab.config_toml))

    assert (status, stderr) == (1, "")
    error = answer["error"]
    assert (error["class"], error["code"]) == (ConfigError.__name__, "bad-config")
    assert error["message"].startswith(f"{lab.config_toml} is not TOML")
    assert error["hint"] == "correct the file"


@pytest.mark.parametrize("args", [[], ["config"], ["odd", "a", "b"], ["own", "a"]])
def test_what_it_does_not_know_is_a_usage_error(args: list[str], lab: Lab) -> None:
    status, answer, _ = ask(lab, *args)

    assert status == 2
    assert answer["error"]["class"] == "UsageError"


def test_a_bug_is_an_answer_too_and_its_traceback_is_for_debugging(lab: Lab) -> None:
    lab.driver()
    lab.keys["nvct"]["proc-root"] = f"{lab.home}/\0"  # no path: nothing expects that
    lab.configure()
    args = ("own", str(lab.config_toml), str(lab.run_dir))

    status, answer, stderr = ask(lab, *args)
    lab.env["NVCT_DEBUG"] = "1"
    loud = ask(lab, *args)[2]

    assert (status, stderr) == (1, "")
    assert answer["error"]["code"] == "bug"
    assert answer["error"]["message"].startswith("unexpected ValueError: ")
    assert loud.startswith("Traceback")
