# SPDX-License-Identifier: Apache-2.0
"""Documents: no line is too wide for a terminal, and no link leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
COLUMNS = 120
DOCUMENTS = sorted(
    str(path.relative_to(REPOSITORY))
    for pattern in ("*.md", "docs/*.md", "cdi/*.md", "packaging/**/*.md", "tests/**/*.md")
    for path in REPOSITORY.glob(pattern)
)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_line_is_too_wide(name: str) -> None:
    lines = (REPOSITORY / name).read_text(encoding="utf-8").splitlines()

    # The name of a test or an address has no place to break at.
    words = [(line, len(line.strip(" -").split())) for line in lines]
    assert [line for line, number in words if len(line) > COLUMNS and number > 1] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_to_a_file_leads_to_one(name: str) -> None:
    document = REPOSITORY / name
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))

    files = [link for link in links if "://" not in link]
    assert [link for link in files if not (document.parent / link).exists()] == []
