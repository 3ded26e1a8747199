# SPDX-License-Identifier: Apache-2.0
"""tests/claims.toml: each rule of SECURITY.md has claims, and the tests that hold them exist."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

from nvct.config import toml
from nvct.config.load import from_toml
from nvct.config.rules import ASKS_FOR, BY, CONDITIONS, OUTCOMES, TEXTS

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")
POLICY = (REPOSITORY / "docs/policy.md").read_text(encoding="utf-8")
CLAIMS: dict[str, dict[str, list[str]]] = toml.loads(
    (REPOSITORY / "tests/claims.toml").read_text(encoding="utf-8")
)
NAMED = sorted({name for claims in CLAIMS.values() for names in claims.values() for name in names})


Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def functions(file: str) -> dict[str, Function]:
    """Return the functions of a module by their names."""
    tree = ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, Function)}


@pytest.mark.parametrize("test", NAMED, ids=lambda name: name.rpartition("::")[2])
def test_the_test_that_holds_a_claim_exists(test: str) -> None:
    file, _, name = test.partition("::")

    assert name in functions(file)
    assert name.startswith("test_")
    marks = [ast.unparse(mark) for mark in functions(file)[name].decorator_list]
    assert not [m for m in marks if m.startswith(("pytest.mark.skip(", "pytest.mark.xfail"))]


def test_every_rule_has_claims_and_each_claim_has_a_test() -> None:
    rules = re.findall(r"^- \*\*(S\d+)\*\*", TEXT, re.MULTILINE)

    assert rules == list(CLAIMS) == [f"S{number}" for number in range(1, 13)]
    assert [
        claim for claims in CLAIMS.values() for claim, names in claims.items() if not names
    ] == []


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
