# SPDX-License-Identifier: Apache-2.0
"""SECURITY.md says which test holds each claim: they exist, and its table of rules is complete."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from nvct.config.load import from_toml
from nvct.config.rules import ASKS_FOR, BY, CONDITIONS, OUTCOMES, TEXTS

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")
POLICY = (REPOSITORY / "docs/policy.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))
RULES = dict(re.findall(r"^### (S\d+) [^\n]*\n(.*?)(?=^##)", TEXT, re.DOTALL | re.MULTILINE))
BULLET = re.compile(r"^- .*?(?=^- |\Z)", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda value: value.rpartition("/")[2])
def test_the_test_that_holds_a_claim_exists(file: str, name: str) -> None:
    tree = ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]

    found = {node.name: node for node in functions}

    assert name in found
    assert name.startswith("test_")
    skips = [ast.unparse(one) for one in found[name].decorator_list]
    assert not [one for one in skips if one.startswith(("pytest.mark.skip(", "pytest.mark.xfail"))]


def test_every_way_to_name_a_test_is_read() -> None:
    assert len(NAMED) == len(set(re.findall(r"`(tests/[^`]*::[^`]*)`", TEXT))) > 70


def test_every_rule_has_a_test() -> None:
    assert list(RULES) == [f"S{number}" for number in range(1, 13)]
    assert [name for name, text in RULES.items() if "::test_" not in text] == []


def test_a_claim_without_a_test_says_so() -> None:
    open_claims = (
        "*not yet*",
        "*not tested*",
        "are not signed",
        "No nosymfollow",
        "docs/policy.md",
    )

    for name, text in RULES.items():
        for claim in BULLET.findall(text):
            assert "::test_" in claim or any(word in claim for word in open_claims), (name, claim)


def test_the_example_of_a_policy_is_one() -> None:
    example, *_ = re.findall(r"```toml\n(.*?)```", POLICY, re.DOTALL)

    assert len(from_toml(example.encode(), "docs/policy.md").policy) == 4


def test_every_word_of_a_rule_is_explained() -> None:
    policy = POLICY.partition("## Conditions")[2]
    conditions = policy.partition("## Outcomes")[0]
    table = dict(re.findall(r"^- `([\w-]+)`: (.*(?:\n  .*)*)$", conditions, re.MULTILINE))

    assert set(table) == set(CONDITIONS)
    assert [word for word in BY if f"`{word}`" not in table["by"]] == []
    assert [word for word in ASKS_FOR if f"`{word}`" not in table["asks-for"]] == []
    assert [word for word in (*OUTCOMES, *TEXTS, "then") if f"`{word}`" not in policy] == []
