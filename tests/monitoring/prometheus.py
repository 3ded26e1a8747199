# SPDX-License-Identifier: Apache-2.0
"""Debian's prometheus and promtool, and what nvct has for them."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

MONITORING = Path(__file__).parents[2] / "packaging/helm/nvct/monitoring"
RULES = MONITORING / "rules.yaml"


def program(name: str) -> str:
    """Return the path of a program of the package prometheus; skip if it is missing."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is missing: install the package prometheus")
    return path


def promtool(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("promtool"), *words], input=text, capture_output=True, text=True, check=False
    )


def rules(kind: str) -> list[dict[str, Any]]:
    """Return the recording rules (`record`) or the alerts (`alert`)."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]
