# SPDX-License-Identifier: Apache-2.0
"""Who has which GPU, since when, as the plugin records it for ps, log and metrics."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from nvct.doctor import decisions
from nvct.host import gpu_record
from nvct.nri import nri_pb2 as api
from nvct.nri.accounts import CREATED, CREATING
from nvct.nri.plugin import POST_CREATED, POST_STARTED, REMOVED, STOPPED, Plugin
from tests.support.kubelet_records import UID
from tests.unit.nri.fake_engine import FakeEngine, RefusedError, connected
from tests.unit.nri.test_plugin import CGROUP, GPU, POD, Case, case, device, lab

__all__ = ["case", "lab"]  # fixtures
SANDBOX = api.PodSandbox(id="sandbox", name="pod", namespace="team", uid=UID)


def container(id_: str = "1" * 64, minors: tuple[int, ...] = (1,), **more: Any) -> api.Container:
    """Return a container as an engine shows it after its create."""
    linux = api.LinuxContainer(cgroups_path=CGROUP)
    for minor in minors:
        linux.devices.extend(device(minor)["devices"])
    return api.Container(id=id_, pod_sandbox_id="sandbox", name="main", linux=linux, **more)


def tell(engine: FakeEngine, event: int, about: api.Container) -> None:
    change = api.StateChangeEvent(event=event, pod=SANDBOX, container=about)
    engine.ask("StateChange", change, api.Empty)


def start(engine: FakeEngine, about: api.Container) -> None:
    for event in (POST_CREATED, POST_STARTED):
        tell(engine, event, about)


def record_of(case: Case, *, of_the_past: bool = False) -> gpu_record.Record:
    record = gpu_record.read(case.record_folder, of_the_past=of_the_past)
    assert record is not None
    return record


def held(case: Case) -> dict[str, tuple[str, ...]]:
    return {each.id[:1]: each.devices for each in record_of(case).holdings}


def uuid(case: Case, minor: int) -> str:
    information = case.lab.home / "proc/driver/nvidia/gpus"
    for path in information.glob("*/information"):
        fields = dict(
            line.split(":", 1) for line in path.read_text(encoding="utf-8").splitlines() if line
        )
        if int(fields["Device Minor"]) == minor:
            return fields["GPU UUID"].strip()
    raise AssertionError(minor)


def kill(plugin: Plugin) -> None:
    """Take its locks from a plugin, as the end of its process does."""
    accounts = plugin._accounts
    for id_ in [*accounts._claims]:
        accounts._drop(id_)
    os.close(accounts._lock)
    accounts._lock = -1


def test_a_container_has_its_gpus_from_its_create_to_its_end(case: Case) -> None:
    began = time.time()
    with connected(case.plugin()) as engine:
        engine.start()
        start(engine, container())
        start(engine, container("2" * 64, (0, 2)))
        start(engine, container("3" * 64, ()))
        assert held(case) == {"1": (uuid(case, 1),), "2": (uuid(case, 0), uuid(case, 2))}
        (first, second) = record_of(case).holdings
        assert first.labels == {"container": "main", "namespace": "team", "pod": "pod"}
        assert began - 1 < first.since <= second.since < time.time() + 1
        assert second.numbers == ((195, 0), (195, 2))
        engine.ask("StopContainer", api.CreateContainerRequest(container=container()), api.Empty)
        assert list(held(case)) == ["2"]
        tell(engine, REMOVED, container("2" * 64))
        tell(engine, STOPPED, container("2" * 64))
        assert held(case) == {}


def test_what_ran_before_the_plugin_is_recorded_when_it_connects(case: Case) -> None:
    running = container(created_at=7_000_000_000)
    ended = container("2" * 64, state=4)
    with connected(case.plugin()) as engine:
        engine.start(pods=[SANDBOX], containers=[running, ended])
        assert held(case) == {"1": (uuid(case, 1),)}
        start(engine, container("3" * 64))
    since = {each.id[:1]: each.since for each in record_of(case, of_the_past=True).holdings}
    assert since["1"] == 7.0
    with connected(case.plugin()) as engine:  # the next one, without what ended meanwhile
        engine.start(pods=[SANDBOX], containers=[container("3" * 64)])
        (left,) = record_of(case).holdings
        assert (left.id[:1], left.since) == ("3", since["3"])


def test_without_a_plugin_the_record_is_of_the_past(case: Case) -> None:
    plugin = case.plugin()
    assert gpu_record.read(case.record_folder) is not None
    kill(plugin)
    assert gpu_record.read(case.record_folder) is None


def records(case: Case) -> list[dict[str, str]]:
    return decisions.look([case.record_folder]).records


def test_the_log_has_creates_and_refusals(case: Case) -> None:
    asks = api.PodSandbox(
        id="sandbox", name="pod", namespace="team", uid=UID, annotations={POD: GPU[1]}
    )
    bare = container(minors=())
    with connected(case.plugin()) as engine:
        engine.start()
        create = api.CreateContainerRequest(pod=asks, container=bare)
        engine.ask("CreateContainer", create, api.CreateContainerResponse)
        start(engine, container())
        create.pod.annotations[POD] = "nvidia.com/gpu=7"
        for _ in range(3):  # the kubelet tries again
            with pytest.raises(RefusedError):
                engine.ask("CreateContainer", create, api.CreateContainerResponse)
    given, refused = records(case)
    assert (given["outcome"], given["about"], given["program"], given["result"]) == (
        "given", "team/pod/main", "nvct-nri", uuid(case, 1),
    )  # fmt: skip
    assert given["asked"] == f"annotation {POD}: {GPU[1]}"
    assert (refused["outcome"], refused["code"]) == ("refused", "unknown-device")
    counts = record_of(case, of_the_past=True).decisions
    assert counts == {"given": 1, "refused": 3, "audited": 0}


def test_an_audit_is_counted_and_is_in_the_log(case: Case) -> None:
    case.options = {"rule": "audit"}
    (case.lab.home / "kubelet/device-plugins").mkdir(parents=True)
    with connected(case.plugin()) as engine:
        engine.start(version="1.7.24")
        create = api.CreateContainerRequest(pod=SANDBOX, container=container())
        verdict = api.ValidateContainerAdjustmentRequest(pod=SANDBOX, container=container())
        engine.ask("CreateContainer", create, api.CreateContainerResponse)
        engine.ask("ValidateContainerAdjustment", verdict, api.ValidateContainerAdjustmentResponse)
        start(engine, container())
    (given,) = records(case)
    assert given["notes"].startswith(
        "audit: policy rule 'pods have what the kubelet gives' denies"
    )
    assert record_of(case, of_the_past=True).decisions["audited"] == 1


def test_a_record_that_cannot_be_written_fails_no_create(case: Case) -> None:
    Path(case.record_folder).write_text("a file", encoding="utf-8")
    assert case.create(annotations={POD: GPU[1]}).CDI_devices
    (told,) = [line for line in case.said if case.record_folder in line]
    assert "nvct ps" in told


@pytest.mark.parametrize("is_emptied", [False, True])
def test_a_folder_that_is_replaced_is_noticed(case: Case, *, is_emptied: bool) -> None:
    folder = Path(case.record_folder)
    with connected(case.plugin()) as engine:
        engine.start()
        start(engine, container())
        if is_emptied:
            for path in folder.iterdir():
                path.unlink()
        else:
            folder.rename(folder.with_name("former"))
        start(engine, container("2" * 64, (0,)))
        assert held(case) == {"1": (uuid(case, 1),), "2": (uuid(case, 0),)}
        assert [record["result"] for record in records(case)] == [uuid(case, 0)]
    (told,) = [line for line in case.said if "replaced" in line]
    assert case.record_folder in told


HELD = """{"decisions": {}, "holdings": [{"id": "1", "namespace": "", "pod": "", "container": "",
 "since": %s, "devices": [], "numbers": []}]}"""


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"holdings": 1}', "[" * 100_000, '{"holdings": [], "decisions": {}, "x": 1}',
     *(HELD % since for since in ("1e300", "-1.0", "NaN", "Infinity"))],
)  # fmt: skip
def test_a_damaged_record_counts_as_missing(content: str, case: Case) -> None:
    plugin = case.plugin()
    path = Path(case.record_folder) / gpu_record.NAME
    path.write_text(HELD % "1.0", encoding="utf-8")
    assert gpu_record.read(case.record_folder)
    path.write_text(content, encoding="utf-8")
    assert gpu_record.read(case.record_folder) is None
    kill(plugin)
    kill(case.plugin())
    assert gpu_record.read(case.record_folder, of_the_past=True) == gpu_record.Record(
        decisions={"given": 0, "refused": 0, "audited": 0}
    )


def test_of_two_plugins_one_gives_the_devices(case: Case) -> None:
    """An engine refuses a create for which both name a device: while one replaces the other."""
    older, newer = case.plugin(), case.plugin()
    asks = api.PodSandbox(name="pod", namespace="team", uid=UID, annotations={POD: GPU[1]})

    def given(plugin: Plugin, id_: str) -> list[str]:
        bare = container(id_, minors=())
        request = api.CreateContainerRequest(pod=asks, container=bare).SerializeToString()
        answer = api.CreateContainerResponse.FromString(plugin.create(request))
        return [each.name for each in answer.adjust.CDI_devices]

    for plugin in (older, newer):
        configure = api.ConfigureRequest(runtime_name="containerd", runtime_version="2.2.2")
        plugin.configure(configure.SerializeToString())
    assert [given(older, "1" * 64), given(newer, "1" * 64)] == [GPU[1:2], []]
    assert [given(newer, "2" * 64), given(older, "2" * 64)] == [GPU[1:2], []]
    assert given(older, "3" * 64)
    kill(older)
    assert given(newer, "3" * 64) == GPU[1:2]
    made = api.CreateContainerRequest(pod=asks, container=container("2" * 64))
    newer.methods["PostCreateContainer"](made.SerializeToString())
    newer.methods["PostStartContainer"](made.SerializeToString())
    gone = api.CreateContainerRequest(container=container("3" * 64))
    newer.methods["StopContainer"](gone.SerializeToString())
    assert not list(Path(case.record_folder).glob("creating-*"))


@pytest.mark.parametrize("minors", [(1,), (0, 2)])
def test_of_two_plugins_one_logs_a_container(minors: tuple[int, ...], case: Case) -> None:
    plugins = [case.plugin(), case.plugin()]
    about = container("2" * 64, minors)
    made = api.CreateContainerRequest(pod=SANDBOX, container=about).SerializeToString()
    for plugin in plugins:
        plugin.methods["PostCreateContainer"](made)
    for plugin in plugins:
        plugin.methods["PostStartContainer"](made)
    assert len(records(case)) == 1
    assert list(held(case)) == ["2"]
    assert not list(Path(case.record_folder).glob("creating-*"))


def test_a_container_whose_start_failed_has_nothing(case: Case) -> None:
    with connected(case.plugin()) as engine:
        engine.start()
        tell(engine, POST_CREATED, container())
        start(engine, container("2" * 64, (2,)))
        assert list(held(case)) == ["2"]
        tell(engine, REMOVED, container())
        assert list(held(case)) == ["2"]


@pytest.mark.parametrize("is_new", [False, True])
def test_a_plugin_that_connects_between_create_and_start(case: Case, *, is_new: bool) -> None:
    """A container that has been made and not started holds nothing; its start may still fail."""
    plugin = case.plugin()
    with connected(plugin) as engine:
        engine.start()
        for id_ in "12345":
            tell(engine, POST_CREATED, container(id_ * 64))
    if is_new:
        kill(plugin)
        plugin = case.plugin()
    made = [container(id_ * 64, state=CREATED) for id_ in "123"]
    runs = container("4" * 64, state=3)  # started meanwhile; the fifth one's start failed
    with connected(plugin) as engine:
        engine.start(pods=[SANDBOX], containers=[*made, runs])
        assert list(held(case)) == ["4"]
        tell(engine, POST_STARTED, made[0])
        tell(engine, REMOVED, made[1])
        assert list(held(case)) == ["4", "1"]
        assert record_of(case).holdings[1].since > time.time() - 60
    assert len(records(case)) == 5
    claims = [each.name[-1] for each in Path(case.record_folder).glob("creating-*")]
    assert claims == ([] if is_new else ["3"])


def test_claims_of_creates_that_never_end_are_bounded(case: Case) -> None:
    plugin = case.plugin()
    for number in range(CREATING + 20):
        assert plugin._accounts.claim(api.Container(id=f"{number:064x}"))
    assert len(list(Path(case.record_folder).glob("creating-*"))) == CREATING
    kill(plugin)


def test_a_killed_plugin_leaves_no_claims(case: Case) -> None:
    killed, runs = case.plugin(), case.plugin()
    for plugin, id_ in ((killed, "1"), (runs, "2")):
        assert plugin._accounts.claim(api.Container(id=id_))
    os.close(killed._accounts._claims.pop("1"))
    case.plugin()
    assert [each.name for each in Path(case.record_folder).glob("creating-*")] == ["creating-2"]
