# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's GPU operator leaves on a cluster (recorded/operator.json), and what nvct makes of it."""

import json
import re

from tests.kubernetes.driver_manager import OPERATOR
from tests.peer.__main__ import OPERATOR_FACTS, REPOSITORY

FACTS = json.loads(OPERATOR_FACTS.read_text(encoding="utf-8"))
SECTION = "### From the GPU operator, with its driver\n"
DEPLOY = "nvidia.com/gpu.deploy."
STAYS = {"client", "driver"}
"""The driver is kept; what has the label `client` is moved aside by the operator alone."""


def section() -> str:
    page = (REPOSITORY / "docs/migrate.md").read_text(encoding="utf-8")
    return page.partition(SECTION)[2].partition("\n### ")[0]


def test_the_page_takes_each_operand_but_the_driver_off_a_node() -> None:
    recorded = {key.removeprefix(DEPLOY) for key in FACTS["labels"] if key.startswith(DEPLOY)}
    loops = re.findall(r"for operand in (.*?); do\n", section(), re.DOTALL)
    there, back = (set(loop.replace("\\", "").split()) for loop in loops)
    assert there == back == (recorded - STAYS) | {"mig-manager"}  # set where GPUs have MIG


def test_the_page_waits_for_the_pods_whose_files_nvct_shares() -> None:
    for app, operand in FACTS["daemonsets"].items():
        assert f"{DEPLOY}{operand}" in FACTS["labels"]
        assert app in section()


def test_the_page_sets_no_label_that_a_node_did_not_have() -> None:
    """mig-manager's is only where GPUs have MIG; one that is added would stay after the way back."""
    key = f"{DEPLOY}$operand"
    assert f"--selector={key}=true {key}=false" in section()
    assert f"--selector={key}=false {key}=true" in section()


def test_the_stand_in_for_the_operator_has_its_labels() -> None:
    recorded = {key for key in FACTS["labels"] if key.startswith(DEPLOY)}
    assert recorded <= OPERATOR.keys()
