# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct launchers install."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from nvct.cli.gostyle import GoGroup
from nvct.launcher import install as launch


@click.group(cls=GoGroup)
def launchers() -> None:
    """Install the runtime shim's launchers."""


PYTHON = click.option("--python", help="Interpreter of the hot side.  [default: this one's base]")
PACKAGES = click.option("--packages", help="Folder that holds nvct.  [default: this one's]")


@launchers.command()
@click.option("--bin-dir", type=click.Path(path_type=Path), required=True,
              help="Folder for the programs.")  # fmt: skip
@click.option("--form", type=click.Choice(launch.FORMS), default="auto", show_default=True,
              help="A static C program, a shell script (runtimes only), or nvct-hot.")  # fmt: skip
@PYTHON
@PACKAGES
@click.option("--cold", help="Interpreter of the cold side.  [default: this one]")
@click.option("--archive", default="", help="Compiled hot side.  [default: in __pycache__]")
@click.option("--hot", default="", help="nvct-hot: to start if it exists, or to install.")
@click.option("--no-archive", is_flag=True, help="Leave the archive to nvct launchers archive.")
def install(
    *,
    bin_dir: Path,
    form: str,
    python: str | None,
    packages: str | None,
    cold: str | None,
    archive: str,
    hot: str,
    no_archive: bool,
) -> None:
    """Install nvidia-container-runtime and the programs that engines start as hooks.

    nvidia-cdi-hook, the prestart hook, nvidia-ctk and nvct must be static programs, because an
    engine can start them with an image's environment. Without a C compiler they are left out.

    Example: nvct launchers install --bin-dir /usr/local/bin
    """
    built = _built(python, packages, archive)
    built = replace(built, cold=cold or built.cold, hot=hot)
    compiler = os.environ.get("CC") or "cc"
    used_form, written = launch.install(
        bin_dir.resolve(), form, built, compiler, archive=not no_archive
    )
    programs = ", ".join(path.name for path in written if path.parent == bin_dir.resolve())
    click.echo(f"installed in {bin_dir} (form {used_form}): {programs}", err=True)
    left_out = [name for name in launch.HOOKS if bin_dir.resolve() / name not in written]
    if left_out:
        click.echo(
            f"not installed: {', '.join(left_out)}: hooks need a static program; install gcc and"
            " libc6-dev (glibc-static), or set --hot to nvct-hot, and run this again",
            err=True,
        )


@launchers.command("archive")
@PYTHON
@PACKAGES
@click.option("--archive", default="", help="The file.  [default: in __pycache__]")
def make_archive(*, python: str | None, packages: str | None, archive: str) -> None:
    """Compile the hot side into its archive, as is needed after each change of the interpreter.

    Example: nvct launchers archive --python /usr/bin/python3 --archive /usr/lib/nvct/hot.bin
    """
    click.echo(launch.make_archive(_built(python, packages, archive)))


def _built(python: str | None, packages: str | None, archive: str) -> launch.Built:
    built = launch.default_built()
    return replace(
        built, python=python or built.python, packages=packages or built.packages, archive=archive
    )
