# SPDX-License-Identifier: Apache-2.0
"""Programs of the command line, run in this process."""

from collections.abc import Sequence
from typing import Any

from click.testing import CliRunner, Result

from nvct.cli.main import program


def invoke(name: str, words: Sequence[str], **options: Any) -> Result:
    """Run a program of nvct's with some arguments; its exception is in the result."""
    return CliRunner().invoke(program(name), words, prog_name=name, **options)
