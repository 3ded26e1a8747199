# SPDX-License-Identifier: Apache-2.0
"""The wrapper nvidia-docker: docker's own words, and the runtime behind run and create."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.launcher import PRINT_ARGS, script

WRAPPER = Path(__file__).parents[3] / "packaging/files/nvidia-docker"
RUNTIME = "--runtime=nvidia"


def called(tmp_path: Path, arguments: list[str], **env: str) -> tuple[str, list[str]]:
    """Return the output of the wrapper, and the arguments of docker."""
    script(tmp_path / "docker", 'printf "\\001"\n' + PRINT_ARGS)
    completed = subprocess.run(
        ["sh", WRAPPER, *arguments], env={"PATH": f"{tmp_path}:/usr/bin:/bin", **env},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    output, _, remaining = completed.stdout.partition("\1")
    return output, remaining.split("\0")[1:-1]


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (["run", "--rm", "-it", "image", "a b", "*"], ["run", RUNTIME, "--rm", "-it", "image", "a b", "*"]),
        (["create", "image", "run"], ["create", RUNTIME, "image", "run"]),
        (["--debug", "container", "run", "image"], ["--debug", "container", "run", RUNTIME, "image"]),
        (["ps", "-a", ""], ["ps", "-a", ""]),
        (["exec", "x", "--", "run"], ["exec", "x", "--", "run"]),
        ([], []),
    ],
)  # fmt: skip
def test_run_and_create_get_the_runtime(
    tmp_path: Path, arguments: list[str], passed: list[str]
) -> None:
    assert called(tmp_path, arguments) == ("", passed)


@pytest.mark.parametrize("gpus", ["0,1", "0 1"])
def test_nv_gpu_names_the_gpus(tmp_path: Path, gpus: str) -> None:
    _, passed = called(tmp_path, ["run", "image"], NV_GPU=gpus)

    assert passed == ["run", RUNTIME, "-e", "NVIDIA_VISIBLE_DEVICES=0,1", "image"]


def test_another_docker_may_be_several_words(tmp_path: Path) -> None:
    script(tmp_path / "sudo", 'exec "$@"\n')

    assert called(tmp_path, ["run", "x"], NV_DOCKER="sudo docker")[1] == ["run", RUNTIME, "x"]


def test_version_includes_our_own(tmp_path: Path) -> None:
    message, passed = called(tmp_path, ["version"])

    assert message.startswith("NVIDIA Docker: 2.14.0 ")
    assert passed == ["version"]
