# SPDX-License-Identifier: Apache-2.0
"""GPUs as pictures: they fit on a terminal of 80 columns, and no name is cut in the middle."""

import io
from collections import Counter

import pytest
from rich.console import Console

from nvct.cli.mig import picture
from nvct.mig import tables
from nvct.mig.search import layout_for
from tests.support.commands import invoke

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


def test_the_tables_say_where_an_instance_can_begin() -> None:
    (header, *rows) = picture.profiles_rows([tables.gpu_of(tables.of_name("A100-80GB"))])
    assert header == ("GPU", "PROFILE", "INSTANCES", "COMPUTE", "MEMORY", "STARTS AT")
    assert ("A100 80GB", "1g.20gb", "4", "1", "2", "0, 2, 4, 6") in rows
    assert ("A100 80GB", "1g.10gb", "7", "1", "1", "0-6") in rows


def test_nothing_is_bold_or_dim_without_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert picture.console().color_system is None


def test_equal_gpus_are_one_picture() -> None:
    words = ["mig", "plan", "-c", "all-balanced", "--gpu", "A100-80GB", "--count", "4"]
    done = invoke("nvct", words)
    assert done.exit_code == 0, done.output
    assert [line for line in done.stdout.splitlines() if line.startswith("GPU")] == [
        "GPU 0-3  A100 80GB"
    ]
