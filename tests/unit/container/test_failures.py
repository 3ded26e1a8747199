# SPDX-License-Identifier: Apache-2.0
"""Recent failures to compile a plan: for which creates they count, and for how long."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from nvct import paths
from nvct.container.cold_process import KEPT_NS, SLOW_NS, SUFFIX, Failures
from nvct.container.plan.store import Store
from nvct.errors import NvmlError
from tests.support.launcher import script
from tests.support.shim_lab import Lab

SECOND = 10**9
GPU = "NVIDIA_VISIBLE_DEVICES=0"


def failures(lab: Lab, store: Store, config: str = "") -> Failures:
    return Failures(store, "own", config or str(lab.config_toml), f"{lab.home}/proc")


def fail() -> NoReturn:
    raise NvmlError("NVML is gone", hint="dmesg")


def remember(lab: Lab, store: Store, *, took_ns: int, ago_ns: int) -> None:
    """Let the own plan have failed a while ago."""
    with pytest.raises(NvmlError):
        failures(lab, store).watch(fail)
    record = lab.kept("own" + SUFFIX)
    record["ended"] = time.monotonic_ns() - ago_ns
    record["began"] = record["ended"] - took_ns
    lab.keep("own" + SUFFIX, record)


def failing(lab: Lab, seconds: float) -> Path:
    """Let the cold side fail after a while; return the file in which it counts."""
    calls = lab.home / "calls"
    calls.touch()
    answer = '{"error": {"class": "NvmlError", "message": "NVML hangs", "hint": "see dmesg"}}'
    body = (
        f'case $4 in config) exec {lab.cold} "$@";; esac\n'
        f"echo $4 >> {calls}; sleep {seconds}; echo '{answer}'; exit 1\n"
    )
    lab.cold = str(script(lab.home / "bin/python", body))
    return calls


def test_concurrent_creates_fail_with_the_same_message(lab: Lab) -> None:
    lab.driver()
    calls = failing(lab, 3)
    lab.asks(GPU)

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda _: lab.create(), range(6)))

    assert {result.status for result in results} == {1}
    assert {result.stderr for result in results} == {
        "nvidia-container-runtime: NVML hangs; see dmesg [nvml]\n"
    }
    assert calls.read_text().split() == ["own"]


def test_a_container_without_a_request_does_not_wait_for_nvml(lab: Lab) -> None:
    lab.driver()
    body = (
        f'case $4 in config|own-none) exec {lab.cold} "$@";; esac\n'
        "sleep 60\n"  # NVML hangs
    )
    lab.cold = str(script(lab.home / "bin/python", body))
    lab.asks("NVIDIA_VISIBLE_DEVICES=none")

    assert lab.create().status == 0


def test_a_slow_failure_counts_for_creates_shortly_after_it(lab: Lab, store: Store) -> None:
    remember(lab, store, took_ns=SLOW_NS, ago_ns=SECOND)

    with pytest.raises(NvmlError, match=r"^NVML is gone$") as caught:
        failures(lab, store).check()

    assert caught.value.hint == "dmesg"


@pytest.mark.parametrize(
    ("took_ns", "ago_ns"),
    [(SLOW_NS - 1, SECOND), (20 * SECOND, KEPT_NS), (20 * SECOND, -60 * SECOND)],
    ids=["fast", "long ago", "of another boot"],
)
def test_a_fast_or_old_failure_does_not_count(
    took_ns: int, ago_ns: int, lab: Lab, store: Store
) -> None:
    remember(lab, store, took_ns=took_ns, ago_ns=ago_ns)

    failures(lab, store).check()


def test_a_failure_counts_for_a_create_that_waited_for_it(lab: Lab, store: Store) -> None:
    early = failures(lab, store)
    with pytest.raises(NvmlError):
        failures(lab, store).watch(fail)
    late = failures(lab, store)

    late.check()
    with pytest.raises(NvmlError):
        early.check()


@pytest.mark.parametrize("change", ["config.toml", "proc/driver/nvidia/version", "proc/devices"])
def test_a_failure_ends_with_a_change_of_its_fingerprints(
    change: str, lab: Lab, store: Store
) -> None:
    lab.driver()
    early = failures(lab, store)
    remember(lab, store, took_ns=20 * SECOND, ago_ns=0)
    with pytest.raises(NvmlError):
        early.check()

    with (lab.home / change).open("a", encoding="utf-8") as file:
        file.write("\n# mended\n")

    early.check()


def test_a_failure_does_not_count_for_another_config_toml(lab: Lab, store: Store) -> None:
    early = failures(lab, store, "/another.toml")
    remember(lab, store, took_ns=20 * SECOND, ago_ns=0)

    early.check()


def test_a_success_is_not_recorded(lab: Lab, store: Store) -> None:
    assert failures(lab, store).watch(lambda: 7) == 7
    assert not (lab.run_dir / f"own{SUFFIX}").exists()


def test_concurrent_refused_creates_compile_once_more_in_total(lab: Lab) -> None:
    calls = lab.home / "calls"
    removed = lab.home / "driver/gone"
    lab.spec(
        common={
            "mounts": [{"hostPath": str(removed), "containerPath": "/gone", "options": ["bind"]}]
        }
    )
    lab.asks(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"})
    lab.create()
    body = f'echo $4 >> {calls}; sleep 3; exec {lab.cold} "$@"\n'
    lab.cold = str(script(lab.home / "bin/python", body))

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda _: lab.create(), range(6)))

    assert {result.status for result in results} == {1}
    assert all(f"{removed} is gone" in result.stderr for result in results)
    assert calls.read_text().split() == ["registry"]
    assert paths.REGISTRY_PLAN in [entry.name for entry in lab.run_dir.iterdir()]
