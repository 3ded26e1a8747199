# SPDX-License-Identifier: Apache-2.0
"""The preflight: what is found on simulated nodes, and what the engine makes of it."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.health import preflight
from nvct.agent.health.engine import HealthEngine
from nvct.agent.health.settings import resolve
from nvct.agent.health.store import NAME, Store
from nvct.agent.web import exposition
from nvct.errors import NvmlError, UsageError
from nvct.host.nvml.model import NvmlEvents
from nvct.host.nvml.sample_model import GpuPreflight, NvmlPreflight
from nvct_sim import node_changes, state, tree
from tests.support.nvml_node import CACHE
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.health.engines import engine
from tests.unit.agent.health.test_engine import GPU, SPLIT, Nvml, Task, _short
from tests.unit.agent.machines import client_of

__all__ = ["_short"]  # a fixture
DRIVER = "580.159.04"
WIDTH = "the PCIe link has 8 of 16 lanes"
NARROW = {"pcie_width": 8.0, "pcie_width_max": 16.0}
OFF = {"persistence": 0.0}


def found_on(node: tree.Node) -> dict[int, dict[str, str]]:
    """Return the findings about a node's GPUs, by index."""

    async def ask() -> NvmlPreflight:
        with client_of(node) as client:
            return await client.preflight()

    answer = asyncio.run(ask())
    assert answer.driver_version == node.installed
    judged = preflight.judge(answer.gpus)
    numbers = {tree.gpu_uuid(node.name, number): number for number in range(len(judged))}
    return {numbers[uuid]: texts for uuid, texts in judged.items() if texts}


@pytest.mark.parametrize("profile", ["h200", "h100-mig", "v100-8", "gtx1080ti-9", "vgpu", "mixed"])
def test_a_node_that_is_well_has_no_finding(profile: str, tmp_path: Path) -> None:
    node = tree.create("well", profile, tmp_path, nodes="plain", native_cache=CACHE)
    assert found_on(node) == {}


@pytest.fixture
def node(tmp_path: Path) -> tree.Node:
    return tree.create("hgx", "hgx-h100", tmp_path, nodes="plain", native_cache=CACHE)


OF_MEMORY: list[tuple[dict[str, int | str], str, str]] = [
    ({"ecc_uncorrected": 3}, "ecc-errors", "uncorrected memory errors since the start: 3"),
    ({"remap_pending": 1}, "remap-pending", "replaced at the next reset"),
    ({"eccnext": 0}, "ecc-pending", "ECC is switched off at the next reset"),
]
"""One for each GPU of a node: what is set, the check that finds it, and its text."""
OTHERS: list[tuple[dict[str, int | str], str, str]] = [
    ({"remap_failed": 1}, "remap-failed", "a row of the memory cannot be remapped"),
    ({"pciewidth": 8}, "pcie-width", WIDTH),
    ({"pciegen": 4}, "pcie-speed", "the slot is PCIe 4, the GPU PCIe 5"),
    ({"linksdown": 2}, "nvlinks", "16 NVLinks are up, and 18 on another GPU of its model"),
    ({"throttle": "idle+hw-slowdown+power-brake"}, "slowdown",
     "the clocks of the idle GPU are limited: power brake"),
    ({"throttle": "hw-slowdown"}, "slowdown", "hardware slowdown"),
    ({"persistence": 0}, "persistence", "persistence mode is off"),
]  # fmt: skip


@pytest.mark.parametrize("rows", [OF_MEMORY, OTHERS], ids=["memory", "others"])
def test_each_finding(rows: list[tuple[dict[str, int | str], str, str]], node: tree.Node) -> None:
    for index, (fields, _, _) in enumerate(rows):
        node_changes.set_gpu(node, index, **fields)
    found = found_on(node)
    assert list(found) == list(range(len(rows)))
    for texts, (_, check, text) in zip(found.values(), rows, strict=True):
        assert list(texts) == [check]
        assert text in texts[check]
    if rows is OF_MEMORY:
        for index in found:
            node_changes.reset_gpu(node, index)
        assert found_on(node) == {}


def test_no_finding(node: tree.Node) -> None:
    rows: list[dict[str, int | str]] = [
        {"util": 90, "throttle": "hw-slowdown+hw-thermal"},  # a hot GPU that works
        {"throttle": "idle+power-cap+sw-thermal"},
        {"mig": 1, "linksdown": 18},
    ]
    with state.change(node.state_file) as now:
        for index, fields in enumerate(rows):
            known = {key: state.value(key, str(value)) for key, value in fields.items()}
            now.gpu(index).fields.update(known)
    assert found_on(node) == {}


def test_what_nvml_does_not_report_is_no_finding() -> None:
    gpus = (
        GpuPreflight(uuid=GPU, name="old"),
        GpuPreflight(uuid=SPLIT, name="old", values=NARROW),
    )
    assert preflight.judge(gpus) == {GPU: {}, SPLIT: {"pcie-width": WIDTH}}
    half = GpuPreflight(uuid=GPU, name="old", values={"ecc_next": 1.0, "pcie_width": 8.0})
    assert preflight.judge((half,)) == {GPU: {}}


@pytest.mark.parametrize(
    ("text", "changed"),
    [("default", {}), ("persistence=ignore, pcie-speed=withhold",
                       {"persistence": "ignore", "pcie-speed": "withhold"})],
)  # fmt: skip
def test_the_table_can_be_changed(text: str, changed: dict[str, str]) -> None:
    usual = {name: check.effect for name, check in preflight.CHECKS.items()}
    assert resolve("auto", "", "", {}, text).preflight == {**usual, **changed}


@pytest.mark.parametrize("text", ["on", "pcie=warn", "pcie-width", "pcie-width=reset"])
def test_a_word_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--health-preflight has no"):
        resolve("auto", "", "", {}, text)


def test_it_does_not_go_with_the_incumbents_way() -> None:
    assert resolve("never", "", "", {}, "none").preflight is None
    with pytest.raises(UsageError, match="cannot be combined with --health-recovery=never"):
        resolve("never", "", "", {}, "default")


class Machine(Nvml):
    """Stands for a client that is asked for a preflight as well."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.driver, self.watch = DRIVER, 1
        self.found: dict[str, float] = {}
        self.preflights = 0
        self.failures: list[Exception] = []
        vars(self).update(more)

    async def events(self) -> NvmlEvents:
        known = await super().events()
        return NvmlEvents(watch=self.watch, events=known.events, unanswered=known.unanswered)

    async def preflight(self) -> NvmlPreflight:
        self.preflights += 1
        if self.failures:
            raise self.failures.pop()
        gpus = (
            GpuPreflight(uuid=GPU, name="H100", values=dict(self.found)),
            GpuPreflight(uuid=SPLIT, name="H100"),
        )
        answering = tuple(gpu for gpu in gpus if gpu.uuid not in self.hanging)
        return NvmlPreflight(driver_version=self.driver, gpus=answering)


@pytest.fixture(autouse=True)
def _again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "AGAIN_S", 0.05)


@contextlib.asynccontextmanager
async def watched(health: HealthEngine, nvml: Machine) -> AsyncIterator[Task]:
    """Yield a task that offers devices, as the device plugin does: it begins before."""
    task = Task(health, nvml)
    client = task.client()
    assert client
    await health.begin(client)
    async with task.running():
        yield task


async def test_a_finding_withholds_a_gpu_from_the_first_list_on_until_it_ends() -> None:
    health, nvml = engine(preflight="default"), Machine(found={**NARROW, **OFF})
    why = f"preflight: {WIDTH}, persistence mode is off; reset the GPU"
    async with watched(health, nvml) as task:
        assert health.problem(GPU) == why
        assert health.problem(SPLIT) == ""
        await until(lambda: "unhealthy" in task.states())
        assert health.problem(GPU) == why
        found = health.describe()["preflight"]
        assert found == {
            GPU: {
                "pcie-width": {"effect": "withhold", "text": WIDTH},
                "persistence": {"effect": "warn", "text": "persistence mode is off"},
            }
        }
        text = exposition.text(health.metrics())
        line = f'nvct_health_preflight{{UUID="{GPU}",check="pcie-width",effect="withhold"}} 1\n'
        assert line in text
        nvml.found = OFF
        await until(lambda: "on probation" in health.problem(GPU))
        await until(lambda: health.problem(GPU) == "")
        assert task.states()[-1] in ("healthy", "suspect")
        await until(lambda: task.states()[-1] == "suspect")
        nvml.found = {}
        await until(lambda: task.states()[-1] == "healthy")


async def test_a_warning_is_a_doubt_and_the_gpu_is_offered() -> None:
    health = engine(preflight="pcie-width=warn")
    async with watched(health, Machine(found=NARROW)) as task:
        assert health.problem(GPU) == ""
        await until(lambda: task.states() == ["suspect"])
        assert task.changes[-1].after.reason == f"preflight: {WIDTH}"
        assert health.problem(GPU) == ""


async def test_a_check_that_is_ignored_is_not_told() -> None:
    health, nvml = engine(preflight="pcie-width=ignore"), Machine(found=NARROW)
    async with watched(health, nvml) as task:
        await asyncio.sleep(0.2)
        assert (task.states(), health.problem(GPU)) == ([], "")
        assert nvml.preflights == 1, "when the list was made"


async def checks_after(change: Callable[[Machine], None]) -> tuple[str, int]:
    """Return what withholds a GPU that became slow, after something else; and the questions."""
    health, nvml = engine(preflight="default"), Machine(values={"energy": 9e6})
    async with watched(health, nvml):
        await asyncio.sleep(0.1)
        before, nvml.found = nvml.preflights, NARROW
        change(nvml)
        await asyncio.sleep(0.2)
        return health.problem(GPU), nvml.preflights - before


async def test_a_gpu_is_checked_once_for_each_driver() -> None:
    """What comes later comes from its work, and the looks at its health see it."""
    assert await checks_after(lambda _: None) == ("", 0)
    assert await checks_after(lambda nvml: setattr(nvml, "watch", 2)) == ("", 1)


def another_driver(nvml: Machine) -> None:
    nvml.watch, nvml.driver = 2, "590.48.01"


@pytest.mark.parametrize(
    "change",
    [another_driver, lambda nvml: nvml.values.update(energy=10.0)],
    ids=["driver", "reset"],
)
async def test_it_is_checked_after_a_change_of_the_driver_and_a_reset(
    change: Callable[[Machine], None],
) -> None:
    why, count = await checks_after(change)
    assert why == f"preflight: {WIDTH}; reset the GPU"
    assert count > 0


async def test_a_check_that_fails_after_a_reset_is_made_again() -> None:
    def reset(nvml: Machine) -> None:
        nvml.failures = [NvmlError("no answer within 5 s")]
        nvml.values.update(energy=10.0)

    why, count = await checks_after(reset)
    assert why == f"preflight: {WIDTH}; reset the GPU"
    assert count > 1


async def test_a_gpu_that_hangs_is_checked_when_it_answers() -> None:
    health = engine(preflight="default")
    nvml = Machine(found=NARROW, hanging={GPU: "no answer within 0.8 s"})
    async with watched(health, nvml):
        assert "does not answer" in health.problem(GPU)
        nvml.hanging = {}
        await until(lambda: WIDTH in health.problem(GPU) or health.problem(GPU) == "")
        assert WIDTH in health.problem(GPU)


async def test_the_signal_of_a_repair_has_each_gpu_checked() -> None:
    health, nvml = engine(preflight="default"), Machine()
    async with watched(health, nvml):
        await asyncio.sleep(0.05)
        nvml.found = NARROW
        health.forget()
        assert health.problem(GPU) == preflight.PENDING
        await until(lambda: WIDTH in health.problem(GPU))


async def test_the_next_process_of_a_boot_checks_no_gpu_again(tmp_path: Path) -> None:
    boot, nvml = tmp_path / "boot_id", Machine()

    def started(boot_id: str) -> HealthEngine:
        boot.write_text(boot_id)
        return engine(preflight="default", store=Store(str(tmp_path), str(boot)))

    async with watched(started("one"), nvml):
        await until((tmp_path / NAME).exists)
    nvml.found = NARROW
    later = started("one")
    async with watched(later, nvml):
        assert later.problem(GPU) == ""
    booted = started("two")
    assert booted.problem(GPU) == preflight.PENDING
    async with watched(booted, nvml):
        assert WIDTH in booted.problem(GPU)


async def test_it_is_switched_on_and_off_while_the_agent_runs() -> None:
    health, nvml = engine(), Machine(found=NARROW)
    async with watched(health, nvml) as task:
        assert nvml.preflights == 0
        health.use(resolve("auto", "0.1", "", {}, "default"))
        assert health.problem(GPU) == preflight.PENDING
        await until(lambda: "unhealthy" in task.states())
        health.use(resolve("auto", "0.1", "", {}))
        await until(lambda: health.problem(GPU) == "")
        assert "preflight" not in health.describe()


def test_where_it_is_off_its_module_is_not_loaded() -> None:
    program = """if True:
        import sys
        from nvct.agent.health import engine, settings
        from nvct.agent.core.logs import Log
        engine.HealthEngine(settings.from_environment({"HEALTH_PREFLIGHT": "none"}), Log())
        assert "nvct.agent.health.preflight" not in sys.modules
        settings.from_environment({"HEALTH_PREFLIGHT": "default"})
        assert "nvct.agent.health.preflight" in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True)
