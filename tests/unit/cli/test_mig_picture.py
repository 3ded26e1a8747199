# SPDX-License-Identifier: Apache-2.0
"""GPUs as pictures: they fit on a terminal of 80 columns, and no name is cut in the middle."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from rich.console import Console

from nvct.cli.mig import picture
from nvct.mig import tables
from nvct.mig.search import layout_for

WISHES = (
    ("A100-80GB", "1g.10gb 1g.10gb 2g.20gb 3g.40gb", "|    2g.20gb    |1g.10gb|1g.10gb|"),
    ("A100-80GB", "1g.10gb+me 1g.20gb", "| 1g+me |"),
    ("A100-80GB", "1c.3g.40gb 1c.3g.40gb", "1c+1c.3g.40gb"),
    ("A30", "1g.6gb 2g.12gb", "| 1g.6gb|   .   |"),
    ("B200", "1g.23gb+me", "| 1g+me |"),
)


@pytest.mark.parametrize(("model", "wish", "shown"), WISHES)
def test_a_picture_fits_on_a_narrow_terminal(model: str, wish: str, shown: str) -> None:
    gpu = tables.gpu_of(tables.of_name(model))
    layout = layout_for(gpu, Counter(wish.split()), ())
    width = picture.slice_width(Console(file=io.StringIO(), width=80))
    line = picture.layout_line(gpu, layout, width).plain
    assert shown in line
    assert len(f"  then    {line}") <= 80
    wide = picture.layout_line(gpu, layout).plain
    assert len(f"  then    {wide}") <= picture.LINE
