# SPDX-License-Identifier: Apache-2.0
"""Verbs topology and events, with the real nvidia-ml-py and a library with the real NVML ABI."""

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from nvct.errors import ContainerNotPossibleError, NvmlError
from nvct.host.nvml import events
from nvct.host.nvml.calls import Calls
from nvct.host.nvml.model import (
    GpuAttributes,
    GpuProperties,
    NvmlEvents,
    NvmlReport,
    NvmlTopology,
    XidEvent,
)
from nvct.host.nvml.session import NvmlSession
from nvct_sim import node_changes, tree
from tests.support.cpu import Limit
from tests.support.memory import in_memory
from tests.support.nvml_node import CACHE
from tests.unit.host.nvml.library import PythonNvml

TIMEOUT_S = 10.0


@pytest.fixture
def node(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tree.Node]:
    """A node whose GPUs are connected by NVLinks without a switch."""
    try:
        with in_memory(tmp_path_factory.mktemp("nodes")) as folder:
            created = tree.create("v100-8", "v100-8", folder, native_cache=CACHE)
            monkeypatch.setenv("NVCT_SIM_DEV", str(created.dev))
            yield created
            tree.destroy(created)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)


@pytest.fixture
def session(node: tree.Node) -> Iterator[NvmlSession]:
    library = f"{node.library_dir}/libnvidia-ml.so.{node.installed}"
    with contextlib.closing(NvmlSession(library)) as opened:
        yield opened


def test_the_links_of_each_pair_are_those_of_the_profile(
    node: tree.Node, session: NvmlSession
) -> None:
    uuids = [tree.gpu_uuid(node.name, index) for index in range(8)]

    topology = session.ask("topology", NvmlTopology)

    links = {link.gpus: (link.ancestor, link.nvlinks) for link in topology.links}
    assert len(links) == 8 * 7 / 2
    assert links[uuids[0], uuids[3]] == (30, 2)  # one host bridge; two NVLinks
    assert links[uuids[0], uuids[1]] == (10, 1)  # one switch; one NVLink
    assert links[uuids[0], uuids[7]] == (50, 0)  # another processor; none


def test_an_xid_is_reported_once_and_after_the_start_of_the_watch(
    node: tree.Node, session: NvmlSession
) -> None:
    node_changes.add_xid(node, 1, 48, {})
    first = session.ask("events", NvmlEvents)
    assert (first.events, first.unwatched) == ((), {})

    node_changes.add_xid(node, 2, 79, {})

    assert wait_for_events(session).events == (XidEvent(uuid=tree.gpu_uuid(node.name, 2), xid=79),)
    time.sleep(0.1)
    assert session.ask("events", NvmlEvents).events == ()


def test_a_gpu_that_is_lost_is_still_named(node: tree.Node, session: NvmlSession) -> None:
    session.ask("events", object)

    node_changes.lose_gpu(node, 3)

    assert wait_for_events(session).events == (XidEvent(uuid=tree.gpu_uuid(node.name, 3), xid=79),)


def test_the_question_for_events_hangs_with_the_driver(
    node: tree.Node, session: NvmlSession
) -> None:
    session.ask("events", object)
    node_changes.set_fault(node, "hang", 600)
    session.limit_s = 1

    with pytest.raises(NvmlError, match="NVML does not answer within 1 s"):
        session.ask("events", object)
    node_changes.set_fault(node, "hang", 0)
    session.limit_s = 60
    assert session.ask("events", NvmlEvents).events == ()


def test_a_gpu_that_hangs_is_named_and_the_others_are_watched(
    node: tree.Node, session: NvmlSession
) -> None:
    uuids = [tree.gpu_uuid(node.name, index) for index in range(8)]
    session.ask("report", NvmlReport)
    node_changes.apply(node, "gpu", ["2", "hang=600"])  # before the watch has begun

    began = time.monotonic()
    found = session.ask("events", NvmlEvents)
    assert time.monotonic() - began < 20  # the fault lasts ten minutes
    assert found.unanswered == {"2": "no answer within 0.8 s"}
    node_changes.add_xid(node, 3, 79, {})
    assert wait_for_events(session).events == (XidEvent(uuid=uuids[3], xid=79),)
    report = session.ask("report", NvmlReport)
    assert [gpu.index for gpu in report.gpus] == [0, 1, 3, 4, 5, 6, 7]
    assert list(report.unanswered) == ["2"]
    links = session.ask("topology", NvmlTopology).links
    assert {uuid for link in links for uuid in link.gpus} == {*uuids} - {uuids[2]}
    assert session.ask("attributes", dict[str, GpuAttributes]).keys() == {*uuids} - {uuids[2]}
    assert session.ask("properties", dict[str, GpuProperties]).keys() == {*uuids} - {uuids[2]}
    with pytest.raises(NvmlError, match="NVML does not answer for GPU 2: no answer within"):
        session.mig()

    node_changes.apply(node, "gpu", ["2", "hang=0"])
    until(lambda: not session.ask("events", NvmlEvents).unanswered)
    node_changes.add_xid(node, 2, 48, {})
    assert wait_for_events(session).events == (XidEvent(uuid=uuids[2], xid=48),)
    assert len(session.ask("report", NvmlReport).gpus) == 8


def test_the_report_of_a_whole_machine_fails_with_the_gpu_that_hangs(
    node: tree.Node, session: NvmlSession
) -> None:
    """Who writes a specification does not want one without that GPU."""
    session.report()
    node_changes.apply(node, "gpu", ["5", "hang=600"])

    with pytest.raises(NvmlError, match=r"NVML does not answer for GPU 5: no answer within 0.8 s"):
        session.report()
    assert session.pid is None
    node_changes.apply(node, "gpu", ["5", "hang=0"])
    assert len(session.report().gpus) == 8


def test_a_machine_without_events_says_so_and_is_watched_for_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Library(PythonNvml):
        def nvmlEventSetCreate(self) -> None:  # noqa: N802
            raise self.NVMLError_NotSupported

        def nvmlDeviceGetMemoryInfo(self, gpu: dict[str, object]) -> None:  # noqa: N802
            self.journal.append(f"probe {gpu['uuid']}")

    library = Library({"uuid": "GPU-0"}, {"uuid": "GPU-1"})
    monkeypatch.setattr(events, "_watch", None)

    found = events.events(Calls(library))

    assert found.unwatched == dict.fromkeys(
        ["GPU-0", "GPU-1"], "nvmlEventSetCreate: not supported"
    )
    assert library.journal == ["probe GPU-0", "probe GPU-1"]


def until(holds: Callable[[], object]) -> None:
    limit = Limit(TIMEOUT_S)
    while not holds():
        assert not limit.is_over
        time.sleep(0.02)


def wait_for_events(session: NvmlSession) -> NvmlEvents:
    limit = Limit(TIMEOUT_S)
    while not limit.is_over:
        found = session.ask("events", NvmlEvents)
        if found.events:
            return found
        time.sleep(0.02)
    pytest.fail("there is no event")
