# SPDX-License-Identifier: Apache-2.0
"""Command: nvct demo."""

from __future__ import annotations

import sys

import click

from nvct_sim.demo import main


@click.command()
def demo() -> None:
    """Build a simulated 8-GPU node and run real containers on it."""
    sys.exit(main.demonstrate())
