# SPDX-License-Identifier: Apache-2.0
"""Print measurements, as milliseconds over the bare runtime and as ratios to the incumbent."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from tests.bench import measure
from tests.bench.measure import Subject


def print_group(title: str, subjects: Sequence[Subject], peers: Sequence[Subject] = ()) -> None:
    """Print one group; the others are compared with the first subject, the bare runtime.

    Args:
        title: of the group.
        subjects: bare first.
        peers: the incumbent's subjects, for the columns of ratios.
    """
    bare = subjects[0]
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("", "CPU min", "median", "95 %", "wall min", "median", "CPU over bare"):
        table.add_column(name, justify="left" if not name else "right")
    for peer in peers:
        table.add_column(f"x {peer.name}", justify="right")
    for subject in subjects:
        first, last = measure.spread(subject.cpu)
        over = measure.mid(subject.cpu) - measure.mid(bare.cpu)
        row = [
            subject.name,
            f"{measure.low(subject.cpu):.2f}",
            f"{measure.mid(subject.cpu):.2f}",
            f"{first:.2f}-{last:.2f}",
            f"{measure.low(subject.wall):.2f}",
            f"{measure.mid(subject.wall):.2f}",
            "-" if subject is bare else f"{over:.2f}",
        ]
        for peer in peers:
            peer_over = measure.mid(peer.cpu) - measure.mid(bare.cpu)
            row.append("-" if subject is bare or peer_over <= 0 else f"{over / peer_over:.2f}")
        table.add_row(*row)
    console = Console(highlight=False)
    console.width = max(console.width, 130)
    console.print(table)
