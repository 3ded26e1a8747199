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
    (loop,) = re.findall(r"for operand in (.*?); do\n", section(), re.DOTALL)[:1]
    named = set(loop.replace("\\", "").split())
    assert named == (recorded - STAYS) | {"mig-manager"}  # the operator's where GPUs have MIG


def test_the_page_waits_for_the_pods_whose_files_nvct_shares() -> None:
    for app, operand in FACTS["daemonsets"].items():
        assert f"{DEPLOY}{operand}" in FACTS["labels"]
        assert app in section()


def test_the_page_gives_the_labels_back_to_the_operator() -> None:
    """The operator sets a label that is missing, and only for operands that the node needs."""
    assert f"{DEPLOY}$operand-" in section()


def test_the_stand_in_for_the_operator_has_its_labels() -> None:
    recorded = {key for key in FACTS["labels"] if key.startswith(DEPLOY)}
    assert recorded <= OPERATOR.keys()
