# SPDX-License-Identifier: Apache-2.0
"""A claim's configuration: what nvct can do is accepted, the rest refused."""

from typing import Any

import pytest

from nvct.agent.dra import sharing
from nvct.agent.dra.devices import DRIVER, Place
from nvct.agent.dra.journal import Entry
from nvct.agent.dra.sharing import Limits
from nvct.agent.kubernetes.cluster import Object
from nvct.agent.mps.daemons import Daemon
from nvct.errors import RequestError

UUIDS = [f"GPU-00000000-1111-5222-8333-{n:012x}" for n in range(3)]
MIG = "MIG-00000000-1111-5222-8333-000000000000"


def entry(uuid: str, place: Place | None = None) -> Entry:
    return Entry(device="gpu-0", uuid=uuid, gpu=uuid, requests=(), place=place)


def daemon(
    used: list[tuple[str, Entry]], parameters: object, requests: list[str] | None = None
) -> Daemon | None:
    """Return the daemon of a claim with one configuration."""
    names = {name for name, _ in used}
    return sharing.daemon(
        sharing.configs(claim(parameters, requests=requests), names), "uid-1", used
    )


def claim(parameters: object, driver: str = DRIVER, requests: list[str] | None = None) -> Any:
    entry: Any = {"opaque": {"driver": driver, "parameters": parameters}}
    if requests is not None:
        entry["requests"] = requests
    return {"status": {"allocation": {"devices": {"config": [entry]}}}}


def config(kind: str = "GpuConfig", **sharing: object) -> dict[str, object]:
    found: dict[str, object] = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
    return {**found, "sharing": sharing} if sharing else found


def by_mps(**limits: object) -> list[Object]:
    """Return the configurations of a claim that shares by MPS."""
    parameters = config(strategy="MPS", mpsConfig=limits)
    return [{"opaque": {"driver": DRIVER, "parameters": parameters}}]


@pytest.mark.parametrize(
    "parameters",
    [
        config(), config("MigDeviceConfig"), config(strategy="TimeSlicing"),
        config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Default"}),
        config(strategy="TimeSlicing", timeSlicingConfig=None),
    ],
)  # fmt: skip
def test_time_slicing_is_what_the_driver_does_anyway(parameters: object) -> None:
    (config,) = sharing.configs(claim(parameters), ["gpu"])

    assert config.limits is None


@pytest.mark.parametrize(("interval", "number"), [("Short", 1), ("Medium", 2), ("Long", 3)])
def test_another_interval_is_a_time_slice_of_whole_gpus(interval: str, number: int) -> None:
    asked = config(strategy="TimeSlicing", timeSlicingConfig={"interval": interval})

    (found,) = sharing.configs(claim(asked), ["gpu"])

    # Also before Volta, where MPS has no limits.
    made = sharing.daemon([found], "uid-1", [("gpu", entry(UUIDS[0]))], {UUIDS[0]: (6, 1)})
    assert made == Daemon(
        resource="gpu.nvidia.com/uid-1", uuids=(UUIDS[0],), limits={}, time_slice=number
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (None, "is not an object"), ([], "is not an object"), ({}, "the unknown kind /None"),
        ({"apiVersion": "other.example.com/v1", "kind": "GpuConfig"}, "other.example.com"),
        (config(strategy="Magic"), "unknown sharing strategy"),
        (config(strategy="TimeSlicing", timeSlicingConfig={"interval": "x"}), "unknown interval"),
        (config(strategy="TimeSlicing", timeSlicingConfig=5), "is not an object"),
        ({**config(), "sharing": "x"}, "sharing of the claim's"),
        ({**config(), "apiVersion": "resource.nvidia.com/v9"}, "v9/GpuConfig"),
        ({**config(), "metadata": {}}, "has no field metadata"),
        (
            config(strategy="TimeSlicing", timeSlicingConfig={"period": "Long"}),
            "sharing.timeSlicingConfig of the claim's configuration has no field period",
        ),
        (
            config("MigDeviceConfig", strategy="TimeSlicing", timeSlicingConfig={}),
            "has no field timeSlicingConfig",
        ),
        (config(strategy="TimeSlicing", mpsConfig={}), "mpsConfig .* strategy TimeSlicing"),
        (config(strategy="MPS", timeSlicingConfig={}), "timeSlicingConfig .* strategy MPS"),
        ({**config(), "sharing": {}}, "unknown sharing strategy ''"),
        (config(strategy=["MPS"]), "unknown sharing strategy"),
        ({**config(), "kind": []}, r"/\[\]"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(parameters: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        sharing.configs(claim(parameters), ["gpu"])


def test_configurations_of_others_do_not_matter() -> None:
    wrong = config(strategy="Magic")

    assert sharing.configs(claim(wrong, driver="other.example.com"), ["gpu"]) == []
    assert sharing.configs(claim(wrong, requests=["nic"]), ["gpu"]) == []
    assert sharing.configs({"status": {}}, ["gpu"]) == []
    with pytest.raises(RequestError):
        sharing.configs(claim(wrong, requests=["gpu/large"]), ["gpu"])


EACH = {"1": 2147483648, UUIDS[2]: "700M"}


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        ({}, {}),
        ({"mpsConfig": None}, {}),
        ({"mpsConfig": {"multiUser": None}}, {}),
        ({"mpsConfig": {"multiUser": False}}, {}),
        ({"mpsConfig": {"multiUser": True}}, {"multi_user": True}),
        ({"mpsConfig": {"defaultActiveThreadPercentage": 40}}, {"percentage": 40}),
        ({"mpsConfig": {"defaultPinnedDeviceMemoryLimit": "10Gi",
                        "defaultPerDevicePinnedMemoryLimit": EACH}},
         {"limits": {"0": 10240, "1": 2048, "2": 667}}),
    ],
)  # fmt: skip
def test_devices_of_a_claim_have_one_daemon_with_the_limits_that_it_asks_for(
    asked: dict[str, Any], more: dict[str, Any]
) -> None:
    used = [(f"r{n}", entry(uuid)) for n, uuid in enumerate(reversed(UUIDS))]

    made = daemon(used, config(strategy="MPS", **asked))

    assert made == Daemon(resource="gpu.nvidia.com/uid-1", uuids=tuple(UUIDS), **more)


def test_devices_with_different_configurations_are_refused() -> None:
    used = [("a", entry(UUIDS[0])), ("b", entry(UUIDS[1]))]
    configs = [
        sharing.Config("GpuConfig", (name,), Limits(percentage, 0, {}))
        for name, percentage in (("a", 50), ("b", 25))
    ]

    with pytest.raises(RequestError, match="has different configurations of MPS or time slices"):
        sharing.daemon(configs, "uid-1", used)
    assert sharing.daemon([configs[0], configs[0]._replace(requests=("b",))], "uid-1", used)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"defaultActiveThreadPercentage": 0}, "from 1 to 100, not 0"),
        ({"defaultActiveThreadPercentage": 101}, "from 1 to 100, not 101"),
        ({"defaultActiveThreadPercentage": True}, "from 1 to 100, not True"),
        ({"defaultPinnedDeviceMemoryLimit": "10 GB"}, "is not a quantity: '10 GB'"),
        ({"defaultPinnedDeviceMemoryLimit": ["1Gi"]}, "is not a quantity"),
        ({"defaultPinnedDeviceMemoryLimit": "1000k"}, "must be from 1Mi to 1Pi, not 1000k"),
        ({"defaultPerDevicePinnedMemoryLimit": {"0": "5"}}, "Limit.0 must be from 1Mi to 1Pi"),
        ({"defaultPinnedDeviceMemoryLimit": "1e30"}, "1Mi to 1Pi, not 1e30"),
        ({"defaultPerDevicePinnedMemoryLimit": {"1": "5Gi"}}, "names '1', which is not a device"),
        ({"defaultPerDevicePinnedMemoryLimit": []}, "is not an object"),
        ({"activeThreadPercentage": 5}, "has no field activeThreadPercentage"),
        ({"multiUser": "yes"}, "multiUser must be true or false, not 'yes'"),
        ([], "sharing.mpsConfig of the claim's configuration is not an object"),
    ],
)
def test_wrong_limits_are_refused(limits: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        daemon([("gpu", entry(UUIDS[0]))], config(strategy="MPS", mpsConfig=limits))


def test_the_last_configuration_of_a_request_counts_and_the_claims_before_its_classs() -> None:
    mps = {"driver": DRIVER, "parameters": config(strategy="MPS")}
    sliced = {"driver": DRIVER, "parameters": config(strategy="TimeSlicing")}
    used = [("a/large", entry(UUIDS[0])), ("b", entry(UUIDS[1]))]

    def shared(*entries: object) -> tuple[str, ...]:
        status = {"allocation": {"devices": {"config": list(entries)}}}
        made = sharing.daemon(sharing.configs({"status": status}, ["a", "b"]), "uid-1", used)
        return made.uuids if made else ()

    assert shared({"opaque": mps}) == (UUIDS[0], UUIDS[1])
    assert shared({"opaque": mps}, {"opaque": sliced}) == ()
    assert shared({"opaque": mps}, {"opaque": sliced, "requests": ["b"]}) == (UUIDS[0],)
    assert shared({"opaque": mps, "requests": ["a/large"]}) == (UUIDS[0],)
    assert shared({"opaque": mps, "requests": ["a"]}) == (UUIDS[0],)
    assert shared({"opaque": mps, "requests": ["a/small"]}) == ()
    of_claim, of_class = {"source": "FromClaim"}, {"source": "FromClass"}
    assert shared({"opaque": mps, **of_claim}, {"opaque": sliced, **of_class}) == tuple(UUIDS[:2])


@pytest.mark.parametrize(
    ("used", "kind", "message"),
    [
        ([entry("", place=Place(19, 0, 1, 0))], "MigDeviceConfig", "made for the claim"),
        ([entry(MIG), entry(MIG.replace("0", "1"))], "MigDeviceConfig", "either one MIG device"),
        ([entry("GPU-of-another-form")], "GpuConfig", "cannot serve gpu.nvidia.com/uid-1"),
    ],
)
def test_what_mps_cannot_serve_is_refused(used: list[Entry], kind: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        daemon([("gpu", one) for one in used], config(kind, strategy="MPS"))


def test_a_configuration_is_for_devices_of_its_kind() -> None:
    asked = config("MigDeviceConfig", strategy="MPS")

    made = daemon([("gpu", entry(UUIDS[0])), ("mig", entry(MIG))], asked)
    assert made
    assert made.uuids == (MIG,)
    with pytest.raises(RequestError, match="is a MigDeviceConfig, but gpu-0 needs a GpuConfig"):
        daemon([("gpu", entry(UUIDS[0]))], asked, requests=["gpu"])


def test_limits_need_a_gpu_since_volta() -> None:
    old, new = UUIDS[:2]

    def asked(uuid: str, **limits: object) -> Daemon | None:
        parameters = config(strategy="MPS", mpsConfig=limits)
        found = sharing.configs(claim(parameters), {"gpu"})
        return sharing.daemon(found, "uid-1", [("gpu", entry(uuid))], {old: (6, 1), new: (7, 0)})

    for limits in ({"defaultActiveThreadPercentage": 50},
                   {"defaultPinnedDeviceMemoryLimit": "1Gi"},
                   {"defaultPerDevicePinnedMemoryLimit": {"0": "1Gi"}}):  # fmt: skip
        assert asked(new, **limits)
        with pytest.raises(RequestError, match=f"{old} .*compute capability 6.1"):
            asked(old, **limits)
    assert asked(old)
