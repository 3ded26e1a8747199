# SPDX-License-Identifier: Apache-2.0
"""Labels and UIDs of pods: which become labels of metrics, and what happens without the right."""

import asyncio
import io
import re
from typing import Any

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.exporter import go_regexp, pod_metadata
from nvct.agent.exporter import settings as options
from nvct.agent.exporter.pod_metadata import PodMetadata, SliceDevices, label_name
from nvct.agent.exporter.pods import PodDevices
from nvct.agent.exporter.settings import Settings
from nvct.agent.kubelet.pod_resources import Claim, Holding
from nvct.agent.kubernetes.cluster import ClusterError, Listing
from nvct.host.nvml.sample_model import NvmlSamples
from tests.unit.agent.exporter.test_series import MIG_UUID, gpu, mig

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
    wanted = Settings(**{"pod_labels": True, **changes})
    connect: Any = lambda: server  # noqa: E731
    return PodMetadata(connect, "node-1", Log(target=log), wanted)


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
    assert "limit them by --kubernetes-pod-label-allowlist-regex" in log.getvalue()


def test_only_allowed_labels_are_shown() -> None:
    log = io.StringIO()

    assert of_pod(OnePod(), log, pod_label_patterns=("^app", "nothing")) == {
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

    assert list(of_pod(OnePod(), log, pod_label_patterns=("^l",))) == sorted(labels)[:left]
    assert log.getvalue().count("pod ns/train has more") == 1


def test_a_uid_needs_no_labels() -> None:
    assert of_pod(OnePod(), io.StringIO(), pod_labels=False, pod_uid=True) == {"pod_uid": "u-1"}


def test_a_missing_right_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_metadata, "PERIOD_S", 0.0)
    log = io.StringIO()

    assert of_pod(OnePod("may not list pods"), log, pod_label_patterns=("a",)) == {}
    assert log.getvalue().count("metrics have no labels of pods: may not list pods") == 1


def test_series_have_them_after_the_pod(tmp_path: Any) -> None:
    metadata = made(OnePod(), io.StringIO(), pod_label_patterns=("team",), pod_uid=True)
    devices = PodDevices(
        Settings(socket=str(tmp_path)), Log(target=io.StringIO()), metadata=metadata
    )
    samples = NvmlSamples(gpus=(gpu(),))
    devices._holdings = (
        Holding("ns", "train", "main", "nvidia.com/gpu", (samples.gpus[0].uuid,)),
    )
    asyncio.run(metadata.refresh())

    ((pod,),) = devices.labels(samples).values()

    assert pod == {
        "container": "main", "namespace": "ns", "pod": "train", "team": "ml", "pod_uid": "u-1",
    }  # fmt: skip


class Slices(OnePod):
    """A server before Kubernetes 1.34."""

    async def list(self, kind: Any, *, fields: dict[str, str]) -> Listing:
        assert (kind.plural, fields) == ("resourceslices", {"spec.nodeName": "node-1"})
        self.asked += 1
        if kind.version != "v1beta1":
            raise ClusterError("no such version", status=404)
        device = {
            "name": "gpu-0-mig-9-4-4",
            "basic": {"attributes": {"type": {"string": "mig"}, "uuid": {"string": MIG_UUID}}},
        }
        return Listing([{"spec": {"pool": {"name": "node-1"}, "devices": [device]}}], "1")


def test_a_mig_device_of_another_driver_is_known_by_its_slice() -> None:
    server = Slices()
    connect: Any = lambda: server  # noqa: E731
    devices = PodDevices(
        Settings(socket="/none/pod-resources/kubelet.sock", claims=True),
        Log(target=io.StringIO()),
        slices=SliceDevices(connect, "node-1", Log(target=io.StringIO())),
    )  # fmt: skip
    claim = Claim("a-mig", "ns", "node-1")
    holding = Holding("ns", "train", "main", "gpu.nvidia.com", ("gpu-0-mig-9-4-4",), claim)

    async def ask() -> tuple[tuple[Holding, ...], str]:
        return (holding,), ""

    devices._ask = ask  # type: ignore[method-assign]
    asyncio.run(devices.refresh())
    (((_, gi), (pod,)),) = devices.labels(NvmlSamples(gpus=(gpu(mig=(mig(),)),))).items()

    assert gi == 7
    assert pod["pod"] == "train"
    assert pod["dra_mig_device_uuid"] == MIG_UUID


def test_a_malformed_expression_is_left_out_alone() -> None:
    words = ["--kubernetes-pod-label-allowlist-regex", "(,^team,a(?=b),[[:alfa:]]"]

    settings, warnings = options.resolve(words, {})

    assert settings.pod_label_patterns == ("^team",)
    assert len(warnings) == 3
    assert "--kubernetes-pod-label-allowlist-regex '(' is malformed" in warnings[0]


@pytest.mark.parametrize(
    ("expression", "found", "missed"),
    [
        (r"^[[:alpha:]]+$", "app", "app1"),
        (r"^[[:^alpha:][:space:]_]+$", "1._", "a1"),
        (r"^\pL+\z", "app", "a-b"),
        (r"^\p{Lu}\P{L}$", "A1", "ab"),
        (r"^[\pN\p{^L}]+$", "1.", "a"),
        (r"\p{Greek}", "", "alpha"),
        (r"^\Qa.b\E$", "a.b", "axb"),
        (r"a(?i)B|c$", "xC", "AB"),
        (r"^(?U)x(?P<n>y)(?<m>z)$", "xyz", "xy"),
        (r"^(?:[]a]|[^]b])$", "]", "b"),
        (r"^\x{61}[\x{62}-c]$", "ac", "ad"),
        (r"^app\.kubernetes\.io/", "app.kubernetes.io/name", "app-kubernetes"),
    ],
)
def test_expressions_are_gos(expression: str, found: str, missed: str) -> None:
    pattern = go_regexp.compiled(expression)

    assert pattern.search(found) or not found
    assert not pattern.search(missed)


@pytest.mark.parametrize("text", ["(", ")", "(?=a)", r"(a)\1", "a++", r"a\Z", "[[:x:]]", "["])
def test_what_go_refuses_is_refused(text: str) -> None:
    with pytest.raises(re.error):
        go_regexp.compiled(text)


def test_names_of_labels_are_those_of_prometheus() -> None:
    assert label_name("a.b/c-d") == "a_b_c_d"
