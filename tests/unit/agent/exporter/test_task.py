# SPDX-License-Identifier: Apache-2.0
"""The exporter on a simulated node, as a scraper sees it."""

import asyncio
import contextlib
import io
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from nvct.agent.core.context import Context
from nvct.agent.core.logs import Log
from nvct.agent.exporter import task
from nvct.agent.exporter.task import Exporter
from nvct.agent.nvml.client import NvmlClient
from nvct.errors import HostError
from nvct_sim import node_changes, tree
from tests.support.cpu import Limit
from tests.support.nvml_node import CACHE
from tests.unit.agent.machines import client_of

TIMEOUT_S = 60.0
SETTINGS = ("--address", "127.0.0.1:0", "--collect-interval", "1000", "--kubernetes=false")


@pytest.fixture
def node(tmp_path: Path) -> tree.Node:
    return tree.create("exporter", "hgx-h100", tmp_path, nodes="plain", native_cache=CACHE)


@contextlib.asynccontextmanager
async def serving(
    node: tree.Node,
    *words: str,
    library: str | None = None,
    log: io.StringIO | None = None,
    seen: list[NvmlClient] | None = None,
) -> AsyncIterator[Exporter]:
    """Run an exporter, and add its client to a list."""
    journal = Log(target=log or io.StringIO())
    with client_of(node) as client:
        client.library = client.library if library is None else library
        if seen is not None:
            seen.append(client)
        exporter = task.make(
            Context(words=(*SETTINGS, *words), env={}, client=client, journal=journal)
        )
        running = asyncio.create_task(exporter.run())
        try:
            yield exporter
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    limit = Limit(TIMEOUT_S)
    while not holds():
        assert not limit.is_over
        await asyncio.sleep(0.05)


def values(exporter: Exporter, name: str) -> dict[str, float]:
    """Return the values of a metric by label gpu."""
    return {
        sample.labels.get("gpu", ""): sample.value
        for family in parse(exporter.text())
        for sample in family.samples
        if sample.name == name
    }


async def test_a_scrape_over_http_has_all_gpus_and_the_age(node: tree.Node) -> None:
    async with serving(node) as exporter:
        await until(lambda: len(values(exporter, "DCGM_FI_PROF_GR_ENGINE_ACTIVE")) == 8)
        url = f"http://127.0.0.1:{exporter.port}"

        def fetch(path: str) -> tuple[int, str, str]:
            with urllib.request.urlopen(url + path) as answer:  # noqa: S310
                is_health = path == "/health"
                assert (answer.headers["X-Registry-Available"] == "true") is is_health
                return answer.status, answer.headers["Content-Type"], answer.read().decode()

        status, kind, body = await asyncio.to_thread(fetch, "/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert body.count("\nDCGM_FI_DEV_GPU_TEMP{") == 8
        assert "\nnvct_exporter_sample_age_seconds{" in body
        assert await asyncio.to_thread(fetch, "/health") == (
            200, "text/plain; charset=utf-8", "OK",
        )  # fmt: skip
        assert "metrics" in (await asyncio.to_thread(fetch, "/"))[2]


async def test_a_gpu_that_hangs_is_skipped_and_counted_and_comes_back(node: tree.Node) -> None:
    log = io.StringIO()

    async with serving(node, log=log) as exporter:
        await until(lambda: len(values(exporter, "DCGM_FI_DEV_GPU_TEMP")) == 8)
        node_changes.apply(node, "gpu", ["2", "hang=3600"])
        await until(lambda: set(values(exporter, "DCGM_FI_DEV_GPU_TEMP")) == set("0134567"))
        assert values(exporter, "nvct_exporter_gpu_skipped_total")["2"] >= 1
        node_changes.apply(node, "gpu", ["2", "hang=0"])
        await until(lambda: len(values(exporter, "DCGM_FI_DEV_GPU_TEMP")) == 8)
    said = log.getvalue()
    assert "warning: GPU 2: no answer within 2 s" in said
    assert "all GPUs answer" in said


async def test_it_serves_without_gpus_while_the_driver_is_replaced(node: tree.Node) -> None:
    clients: list[NvmlClient] = []
    log = io.StringIO()
    words = ("--driver-root-ctr-path", str(node.driver_root))

    async with serving(node, *words, library="", seen=clients, log=log) as exporter:
        await until(lambda: len(values(exporter, "DCGM_FI_DEV_GPU_TEMP")) == 8)
        await clients[0].let_go("the driver is being replaced: a test says so")
        node_changes.unload_module(node)
        await until(lambda: not values(exporter, "DCGM_FI_DEV_GPU_TEMP"))
        assert values(exporter, "nvct_exporter_collections_total")
        node_changes.reload_module(node_changes.upgrade(node, "581.1.2"))
        clients[0].refusal = ""
        await until(lambda: len(values(exporter, "DCGM_FI_DEV_GPU_TEMP")) == 8)
    assert "the driver is being replaced: a test says so" in log.getvalue()


async def test_a_changed_counter_file_is_read_at_a_signal(node: tree.Node, tmp_path: Path) -> None:
    path, log = tmp_path / "counters.csv", io.StringIO()
    path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, T\n")
    async with serving(node, "-f", str(path), log=log) as exporter:
        await until(lambda: len(values(exporter, "DCGM_FI_DEV_GPU_TEMP")) == 8)
        path.write_text("DCGM_FI_DEV_SM_CLOCK, gauge, C\nDCGM_FI_DEV_HEAT, gauge, H\n")
        exporter.reload.set()
        await until(lambda: len(values(exporter, "DCGM_FI_DEV_SM_CLOCK")) == 8)
    warning = f"line 2 of {path}: DCGM_FI_DEV_HEAT has no series: nvct does not read it"
    assert warning in log.getvalue()


async def test_a_counter_file_that_is_replaced_is_read_without_a_signal(
    node: tree.Node, tmp_path: Path
) -> None:
    """So a ConfigMap's volume changes its files: by a link to another folder."""
    link = tmp_path / "..data"

    def put(version: str, line: str) -> None:
        folder = tmp_path / version
        folder.mkdir()
        (folder / "counters.csv").write_text(f"{line}\n")
        (tmp_path / "next").symlink_to(version)
        (tmp_path / "next").rename(link)

    log = io.StringIO()
    put("first", "DCGM_FI_DEV_GPU_TEMP, gauge, T")

    async with serving(node, "-f", str(link / "counters.csv"), log=log) as exporter:
        await until(lambda: len(values(exporter, "DCGM_FI_DEV_GPU_TEMP")) == 8)
        put("second", "nonsense")
        await until(lambda: "stay in force" in log.getvalue())
        assert len(values(exporter, "DCGM_FI_DEV_GPU_TEMP")) == 8
        link.unlink()
        await until(lambda: "No such file" in log.getvalue())
        put("third", "DCGM_FI_DEV_SM_CLOCK, gauge, C")
        await until(lambda: len(values(exporter, "DCGM_FI_DEV_SM_CLOCK")) == 8)
        assert not values(exporter, "DCGM_FI_DEV_GPU_TEMP")
    assert log.getvalue().count("stay in force") == 2


async def test_the_textfile_has_no_old_values_while_nvml_fails(
    node: tree.Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dcgm.prom"
    seen: list[NvmlClient] = []
    log = io.StringIO()

    async def fail() -> None:
        raise HostError("NVML does not answer")

    async with serving(node, "--textfile", str(path), seen=seen, log=log) as exporter:
        await until(lambda: path.exists() and "DCGM_FI_DEV_GPU_TEMP" in path.read_text())
        monkeypatch.setattr(task, "STALE_S", -1e9)
        monkeypatch.setattr(seen[0], "samples", fail)
        await until(lambda: "DCGM_FI_DEV_GPU_TEMP" not in path.read_text())
        await until(lambda: 'result="failed"} 0' not in path.read_text())
        assert values(exporter, "DCGM_FI_DEV_GPU_TEMP") == {}
        assert values(exporter, "nvct_exporter_sample_age_seconds")
    assert "NVML does not answer" in log.getvalue()


async def test_the_textfile_is_not_written_through_a_link(node: tree.Node, tmp_path: Path) -> None:
    """The folder may be that of the program that reads it, which could name any file."""
    precious, path = tmp_path / "precious", tmp_path / "dcgm.prom"
    precious.write_text("root's")
    path.symlink_to(precious)

    async with serving(node, "--textfile", str(path)):
        await until(lambda: not path.is_symlink())
        assert "DCGM_FI_DEV_GPU_TEMP" in {family.name for family in parse(path.read_text())}
    assert precious.read_text() == "root's"
    assert not path.exists(), "old values would be taken for new ones"


async def test_a_textfile_that_cannot_be_written_is_told_once(
    node: tree.Node, tmp_path: Path
) -> None:
    log = io.StringIO()

    async with serving(node, "--textfile", str(tmp_path), log=log) as exporter:
        await until(lambda: len(values(exporter, "DCGM_FI_DEV_GPU_TEMP")) == 8)
        exporter.reload.set()
        await until(lambda: not exporter.reload.is_set())
        await asyncio.sleep(task.FIRST_S)
    said = log.getvalue()
    assert said.count("is not a regular file") == 1
    assert "all GPUs answer" not in said


async def test_processes_of_containers_are_shown(node: tree.Node, tmp_path: Path) -> None:
    container = "0123456789ab" + "c" * 52
    (tmp_path / "proc/4711").mkdir(parents=True)
    (tmp_path / "proc/4711/cgroup").write_text(f"0::/system.slice/docker-{container}.scope\n")
    node_changes.apply(node, "process", ["3", "4711", "memory=1000", "sm=60"])

    async with serving(node, "--processes", "--host-root", str(tmp_path)) as exporter:
        await until(lambda: values(exporter, "nvct_container_gpu_utilization_ratio") == {"3": 0.6})
        assert values(exporter, "nvct_container_gpu_memory_used_bytes") == {"3": 1000}
        assert 'container="0123456789ab"} 1\n' in exporter.text()


async def test_an_address_in_use_is_named(node: tree.Node) -> None:
    async with serving(node) as exporter:
        await until(lambda: exporter.port != 0)
        with client_of(node) as client:
            words = ("--address", f"127.0.0.1:{exporter.port}", "--kubernetes=false")
            second = task.make(
                Context(words=words, env={}, client=client, journal=Log(target=io.StringIO()))
            )
            with pytest.raises(HostError, match="cannot serve") as raised:
                await second.run()
            assert str(exporter.port) in raised.value.message


async def test_the_driver_is_found_and_one_that_comes_later(
    node: tree.Node, tmp_path: Path
) -> None:
    root = tmp_path / "driver-root"
    root.mkdir()
    log = io.StringIO()

    async with serving(node, "--driver-root-ctr-path", str(root), library="", log=log) as exporter:
        failed = 'result="failed"} '
        await until(lambda: f"{failed}0" not in exporter.text())
        root.rmdir()
        root.symlink_to(node.driver_root)
        await until(lambda: len(values(exporter, "DCGM_FI_DEV_GPU_TEMP")) == 8)
    said = log.getvalue()
    assert f"no libnvidia-ml.so.1 in {root} or /" in said


async def test_nvml_that_crashes_is_counted_and_the_other_tasks_keep_their_library(
    node: tree.Node,
) -> None:
    clients: list[NvmlClient] = []
    log = io.StringIO()

    async with serving(
        node, "--driver-root-ctr-path", str(node.driver_root), log=log, seen=clients
    ) as exporter:
        await until(lambda: len(values(exporter, "DCGM_FI_DEV_GPU_TEMP")) == 8)
        node_changes.apply(node, "nvml-crash", ["3600"])
        failed = 'result="failed"} '
        await until(lambda: f"{failed}0" not in exporter.text())
        assert clients[0].library.endswith(node.installed)
        node_changes.apply(node, "nvml-crash", ["0"])
        await until(lambda: "all GPUs answer" in log.getvalue())
    assert "NVML crashed with SIGSEGV" in log.getvalue()
