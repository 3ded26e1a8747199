# SPDX-License-Identifier: Apache-2.0
"""Options written as the incumbent takes them, and as other programs do."""

import click
import pytest
from click.testing import CliRunner

from nvct.cli.gostyle import GoStyle


@click.command(cls=GoStyle)
@click.option("--mode", "-m", default="auto")
@click.option("--dry-run", is_flag=True)
@click.argument("files", nargs=-1)
def command(mode: str, *, dry_run: bool, files: tuple[str, ...]) -> None:
    click.echo(f"{mode} {dry_run} {' '.join(files)}".strip())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--mode", "nvml"], "nvml False"),
        (["--mode=nvml"], "nvml False"),
        (["-mode=nvml"], "nvml False"),
        (["-mode", "nvml"], "nvml False"),
        (["-m", "nvml"], "nvml False"),
        (["--dry-run"], "auto True"),
        (["-dry-run"], "auto True"),
        (["--dry-run=true"], "auto True"),
        (["--dry-run=1", "a"], "auto True a"),
        (["--dry-run=false", "a"], "auto False a"),
        (["-dry-run=F"], "auto False"),
        (["--", "--dry-run", "-mode"], "auto False --dry-run -mode"),
        (["-"], "auto False -"),
        (["--mode=a=b"], "a=b False"),
    ],
)
def test_options_are_taken_in_both_styles(args: list[str], message: str) -> None:
    result = CliRunner().invoke(command, args)

    assert (result.exit_code, result.output.strip()) == (0, message)


@pytest.mark.parametrize("args", [["--dry-run=maybe"], ["--dry-run="], ["-other=1"], ["--other"]])
def test_options_of_neither_style_are_refused(args: list[str]) -> None:
    assert CliRunner().invoke(command, args).exit_code == 2
