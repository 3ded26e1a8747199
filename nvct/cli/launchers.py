# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct launchers install."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from nvct.launch import install as launch


@click.group()
def launchers() -> None:
    """Install the runtime shim's launchers."""


@launchers.command()
@click.option("--bin-dir", type=click.Path(path_type=Path), required=True, help="Where they go.")
@click.option("--form", type=click.Choice(launch.FORMS), default="auto", show_default=True,
              help="A static C program, or a shell script.")  # fmt: skip
@click.option("--python", help="Interpreter of the hot side.  [default: this one's base]")
@click.option("--cold", help="Interpreter of the cold side.  [default: this one]")
@click.option("--archive", default="", help="Compiled hot side.  [default: in __pycache__]")
def install(bin_dir: Path, form: str, python: str | None, cold: str | None, archive: str) -> None:
    """Install nvidia-container-runtime, .cdi, .legacy, nvidia-cdi-hook and the prestart hook.

    Example: nvct launchers install --bin-dir /usr/local/bin
    """
    built = launch.default_built()
    built = replace(built, python=python or built.python, cold=cold or built.cold)
    built = replace(built, archive=archive)
    compiler = os.environ.get("CC") or "cc"
    used, made = launch.install(bin_dir.resolve(), form, built, compiler)
    programs = ", ".join(path.name for path in made if path.parent == bin_dir.resolve())
    click.echo(f"installed in {bin_dir} (form {used}): {programs}", err=True)
