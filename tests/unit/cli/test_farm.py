# SPDX-License-Identifier: Apache-2.0
"""Commands nvct farm build, list, gc, verify, on hosts of plain files."""

import json
import os

import pytest
from click.testing import Result

from tests.support.host_tree import VERSION
from tests.support.shim_lab import Lab


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.keys["nvct"]["farm-dir"] = f"{lab.home}/farm"
    lab.configure()
    return lab


def run(lab: Lab, *args: str) -> Result:
    return lab.invoke("nvct", "farm", *args)


def test_build_prints_the_view_and_builds_it_once(lab: Lab) -> None:
    lab.driver()

    first, second = run(lab, "build"), run(lab, "build")

    view = first.stdout.strip()
    assert (first.exit_code, second.stdout) == (0, first.stdout)
    assert os.path.isfile(f"{view}/lib64/libcuda.so.{VERSION}")
    assert f"driver {VERSION}, " in first.stderr
    assert "files by links" in first.stderr


def test_list_says_what_there_is_and_why_it_stays(lab: Lab) -> None:
    lab.driver()
    view = run(lab, "build").stdout.strip()

    assert run(lab, "list").stdout == f"{view}  links  0 MiB  good  (it is the loaded driver's)\n"
    (row,) = json.loads(run(lab, "list", "--format", "json").stdout)
    assert (row["path"], row["version"], row["state"], row["users"]) == (view, VERSION, "good", 0)


def test_gc_prints_what_it_removes(lab: Lab) -> None:
    lab.driver()
    view = run(lab, "build").stdout.strip()
    assert run(lab, "gc").stdout == ""
    os.unlink(f"{view}/lib64/libcuda.so.1")

    dry = run(lab, "gc", "--dry-run")
    assert (dry.stdout, dry.stderr) == (f"{view}\n", "1 view would be removed\n")
    assert os.path.isdir(view)
    assert run(lab, "gc").stdout == f"{view}\n"
    assert not os.path.exists(view)


def test_verify_reports_differences_by_status_1(lab: Lab) -> None:
    lab.driver()
    view = run(lab, "build").stdout.strip()
    name = os.path.basename(view)

    good = run(lab, "verify", name)
    os.unlink(f"{view}/lib64/libcuda.so.1")
    bad = run(lab, "verify")
    shown = run(lab, "verify", "--json")

    problem = f"{view}/lib64/libcuda.so.1: the link is missing"
    assert json.loads(shown.stdout) == [{"name": name, "state": "differs", "problems": [problem]}]
    assert shown.exit_code == 1
    assert (good.exit_code, good.stdout) == (0, f"{name}: unchanged\n")
    assert (bad.exit_code, bad.stdout) == (1, f"{problem}\n")
