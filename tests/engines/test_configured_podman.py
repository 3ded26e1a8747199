# SPDX-License-Identifier: Apache-2.0
"""Podman 4 and 5 as `nvct runtime configure` leaves them, and the hooks.d contract for real."""

import json
from collections.abc import Callable

import pytest

from tests.engines import configured, crash, releases
from tests.engines.box import PROGRAMS, Box
from tests.engines.daemons import Podman

pytestmark = pytest.mark.slow
HOOKS = "/etc/containers/oci/hooks.d"


@pytest.fixture(scope="module", params=releases.ALL)
def podman(request: pytest.FixtureRequest, machine_of: Callable[[str], Box]) -> Podman:
    """Podman, with nothing of ours."""
    return configured.started(lambda: Podman(machine_of(request.param)))


@pytest.fixture
def bare(podman: Podman) -> Podman:
    """The same, whatever another test left."""
    return configured.cleaned(podman)


def test_every_runtime_gives_gpus(bare: Podman) -> None:
    before = bare.run("true", "--runtime=nvidia")
    assert before.returncode, before
    bare.configure()
    for name, asks in configured.HANDLERS.items():
        completed = bare.run("nvidia-smi -L", f"--runtime={name}", f"--env={asks}")
        configured.has_one_gpu(completed)
    configured.has_no_gpu(bare.run(configured.NODES, "--runtime=nvidia"))
    configured.has_no_gpu(bare.run(configured.NODES, f"--env={configured.ONE}"))


def test_a_cdi_device_gives_a_gpu_with_and_without_the_shim(bare: Podman) -> None:
    bare.configure()
    device = f"--device={configured.DEVICE}"
    configured.has_one_gpu(bare.run("nvidia-smi -L", device))
    configured.has_one_gpu(bare.run("nvidia-smi -L", device, "--runtime=nvidia"))


def test_the_default_runtime_gives_gpus(bare: Podman) -> None:
    bare.configure("--set-as-default")
    configured.has_one_gpu(bare.run("nvidia-smi -L", f"--env={configured.ONE}"))
    configured.has_no_gpu(bare.run(configured.NODES))


def test_the_hook_file_that_is_written_gives_gpus(bare: Podman) -> None:
    """What CRI-O reads by the same rules; there is no CRI-O to be had here."""
    path = f"{HOOKS}/oci-nvidia-hook.json"
    hook = f"{PROGRAMS}/nvidia-container-runtime-hook"
    written = bare.configure(
        "--config-mode=oci-hook", f"--oci-hook-path={path}", f"--nvidia-runtime-hook-path={hook}"
    )
    assert f"Wrote {path}" in written.stderr, written
    assert json.loads(bare.box.read(path))["hook"]["path"] == hook
    arguments = ("nvidia-smi -L", f"--env={configured.ONE}")
    without = bare.run(*arguments)  # Podman looks for hooks in /usr/share alone
    assert without.returncode == 127, without
    bare.configure(f"--hooks-dir={HOOKS}")
    configured.has_one_gpu(bare.run(*arguments))
    configured.has_no_gpu(bare.run(configured.NODES))
    refused = bare.run("true", "--env=NVIDIA_VISIBLE_DEVICES=9")
    assert "no device '9'" in refused.stderr, refused
    bare.undo()
    assert bare.run(*arguments).returncode == 127


def test_configuring_twice_changes_nothing(bare: Podman) -> None:
    configured.is_idempotent(bare, "--set-as-default")


def test_configure_does_what_plan_prints(bare: Podman) -> None:
    configured.does_as_planned(bare)


def test_undo_restores_the_bytes_and_podman_works(bare: Podman) -> None:
    configured.is_undone(bare, "--set-as-default")
    after_undo = bare.run("true", "--runtime=nvidia")
    assert after_undo.returncode, after_undo


@pytest.mark.parametrize("podman", [releases.of_release("trixie")], indirect=True)
def test_a_kill_at_any_point_leaves_a_podman_that_starts(bare: Podman) -> None:
    crash.leaves_an_engine_that_starts(bare, "--set-as-default")
