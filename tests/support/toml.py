# SPDX-License-Identifier: Apache-2.0
"""Edits of a TOML text in tests."""

from collections.abc import Iterable

from nvct.config import toml_file
from nvct.config.tables import Path
from nvct.engine.model import data_of, text_of


def edit(text: str, changes: Iterable[tuple[Path, str, object]], path: str = "the file") -> str:
    """Return a text with keys changed: table, name, value."""
    edits = [((*table, name), value) for table, name, value in changes]
    return text_of(toml_file.edit(data_of(text), edits, path))
