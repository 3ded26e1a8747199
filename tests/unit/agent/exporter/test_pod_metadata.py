# SPDX-License-Identifier: Apache-2.0
"""Labels and UIDs of pods: which become labels of metrics, and what happens without the right."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from nvct.agent.exporter import options, pod_metadata
from nvct.agent.exporter.pod_metadata import PodMetadata, label_name
from nvct.agent.exporter.pods import PodDevices
from nvct.agent.kubelet.pod_resources import Holding
from nvct.agent.kubernetes.cluster import ClusterError, Listing
from nvct.agent.logs import Log
from nvct.errors import UsageError
from nvct.host.nvml.sample_model import NvmlSamples
from tests.unit.agent.exporter.test_series import gpu

LABELS = {
    "app.kubernetes.io/name": "train", "team": "ml", "gpu": "no", "pod": "no", "1st": "a",
    "DCGM_FI_DRIVER_VERSION": "no", "hpc_job": "no",
}  # fmt: skip


class OnePod:
    """An API server that has one pod, or refuses."""

    def __init__(self, error: str = "") -> None:
        self.error, self.asked = error, 0

    async def list(self, kind: Any, *, fields: dict[str, str]) -> Listing:
        self.asked += 1
        assert (kind.plural, fields) == ("pods", {"spec.nodeName": "node-1"})
        if self.error:
            raise ClusterError(self.error)
        metadata = {"namespace": "ns", "name": "train", "uid": "u-1", "labels": LABELS}
        return Listing([{"metadata": metadata}], "1")

    async def close(self) -> None:
        pass


def made(server: OnePod, log: io.StringIO, **changes: Any) -> PodMetadata:
    wanted = {"with_labels": True, "with_uid": False, "allowed": (), **changes}
    connect: Any = lambda: server  # noqa: E731
    return PodMetadata(connect, "node-1", journal=Log(target=log), **wanted)


def of_pod(server: OnePod, log: io.StringIO, **changes: Any) -> dict[str, str]:
    metadata = made(server, log, **changes)

    async def run() -> None:
        await metadata.refresh()
        await metadata.refresh()
        await metadata.close()

    asyncio.run(run())
    return dict(metadata.of("ns", "train"))


def test_labels_have_the_incumbents_names_and_replace_none_of_the_metrics() -> None:
    server, log = OnePod(), io.StringIO()

    assert of_pod(server, log) == {"app_kubernetes_io_name": "train", "team": "ml", "_1st": "a"}
    assert server.asked == 1
    assert "--kubernetes-pod-label-allowlist-regex limits them" in log.getvalue()


def test_only_allowed_labels_are_shown() -> None:
    log = io.StringIO()

    assert of_pod(OnePod(), log, allowed=("^app", "nothing")) == {
        "app_kubernetes_io_name": "train"
    }
    assert log.getvalue() == ""


@pytest.mark.parametrize(
    ("labels", "left"),
    [
        ({f"l{n:04}": "x" for n in range(8000)}, 64),
        ({f"l{n:04}": "x" * 507 for n in range(20)}, 16),
    ],
    ids=["count", "bytes"],
)
def test_a_pod_has_a_bounded_part_of_the_metrics(
    labels: dict[str, str], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "LABELS", labels)
    log = io.StringIO()

    assert list(of_pod(OnePod(), log, allowed=("^l",))) == sorted(labels)[:left]
    assert log.getvalue().count("pod ns/train has more") == 1


def test_a_uid_needs_no_labels() -> None:
    assert of_pod(OnePod(), io.StringIO(), with_labels=False, with_uid=True) == {"pod_uid": "u-1"}


def test_a_missing_right_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_metadata, "PERIOD_S", 0.0)
    log = io.StringIO()

    assert of_pod(OnePod("may not list pods"), log, allowed=("a",)) == {}
    assert log.getvalue().count("metrics have no labels of pods: may not list pods") == 1


def test_series_have_them_after_the_pod(tmp_path: Any) -> None:
    metadata = made(OnePod(), io.StringIO(), allowed=("team",), with_uid=True)
    devices = PodDevices(
        str(tmp_path), wanted=True, names=(), old=False, virtual=False, metadata=metadata,
        journal=Log(target=io.StringIO()),
    )  # fmt: skip
    samples = NvmlSamples(gpus=(gpu(),))
    devices._holdings = (
        Holding("ns", "train", "main", "nvidia.com/gpu", (samples.gpus[0].uuid,)),
    )
    asyncio.run(metadata.refresh())

    ((pod,),) = devices.labels(samples).values()

    assert pod == {
        "container": "main", "namespace": "ns", "pod": "train", "team": "ml", "pod_uid": "u-1",
    }  # fmt: skip


def test_a_malformed_expression_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"--kubernetes-pod-label-allowlist-regex '\(' is malformed"
    ):
        options.resolve(["--kubernetes-pod-label-allowlist-regex", "("], {})


def test_names_of_labels_are_those_of_prometheus() -> None:
    assert label_name("a.b/c-d") == "a_b_c_d"
