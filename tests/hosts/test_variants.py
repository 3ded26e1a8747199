# SPDX-License-Identifier: Apache-2.0
"""Hosts with one thing that is not usual: what containers get then, and why not more, is golden.

A golden file has the lines that the usual host has not, after "+", and those that are gone, after
"-"; tests/golden/hosts/variants/usual_BASE.txt has all lines of the usual host.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import feature_changes, other_changes, server_changes  # noqa: F401 - for CHANGES
from tests.hosts.variants import BASES, CHANGES, Lab

USUAL: dict[Callable[[Path], Lab], set[str]] = {}


def usual(base: Callable[[Path], Lab], folder: Path) -> set[str]:
    if base not in USUAL:
        USUAL[base] = base(folder).lines()
    return USUAL[base]


@pytest.mark.skipif(os.geteuid() != 0, reason="the folder of MPS has to be root's")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_usual_host(
    name: str, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    base, change = CHANGES[name]
    before, lab = usual(base, tmp_path / "usual"), base(tmp_path / "changed")

    change(lab)

    after = lab.lines()
    lines = [f"+ {text}\n" for text in sorted(after - before)]
    lines += [f"- {text}\n" for text in sorted(before - after)]
    golden(f"hosts/variants/{name}.txt", "".join(lines))


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_a_usual_host(
    base: Callable[[Path], Lab], tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    lines = sorted(usual(base, tmp_path / "usual"))
    golden(f"hosts/variants/usual_{base.__name__}.txt", "".join(f"{text}\n" for text in lines))
