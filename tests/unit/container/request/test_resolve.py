# SPDX-License-Identifier: Apache-2.0
import pytest

from nvct.config.model import Config
from nvct.container.request.model import Request
from nvct.container.request.resolve import resolve_request
from nvct.errors import ConfigError, NotPermittedError, RequestError

PRIVILEGED = ["CAP_CHOWN", "CAP_SYS_ADMIN"]
CDI = "cdi.k8s.io/plugin_1"


def configured(**values: object) -> Config:
    return Config(**values)


def mount(*ids: str) -> list[dict[str, object]]:
    root = "/var/run/nvidia-container-devices"
    return [{"source": "/dev/null", "destination": f"{root}/{word}"} for word in ids]


def requested(
    *env: str,
    mounts: list[dict[str, object]] | None = None,
    annotations: dict[str, object] | None = None,
    bounding: list[str] | None = None,
    config: Config | None = None,
) -> Request | None:
    request, _ = resolve_request(
        env, mounts or [], annotations or {}, bounding or [], config or Config()
    )
    return request


def must(request: Request | None) -> Request:
    assert request is not None
    return request


@pytest.mark.parametrize(
    "env",
    [
        [],
        ["NVIDIA_VISIBLE_DEVICES="],
        ["NVIDIA_VISIBLE_DEVICES=void"],
        ["NVIDIA_VISIBLE_DEVICES=0,void"],
        ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"],
        ["NVIDIA_VISIBLE_DEVICES"],
        ["nvidia_visible_devices=all"],
        ["NVIDIA_VISIBLE_DEVICES=", "CUDA_VERSION=10.1"],
        ["CUDA_VERSION=10.1", "NVIDIA_REQUIRE_CUDA=cuda>=10.1"],
        ["NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=foo", "NVIDIA_MIG_CONFIG_DEVICES=all"],
    ],
    ids=str,
)
def test_a_container_without_a_request_is_not_changed(env: list[str]) -> None:
    assert requested(*env) is None


def test_entries_that_are_not_variables_are_skipped_and_a_later_variable_wins() -> None:
    env = ["x", "NVIDIA_VISIBLE_DEVICES=all", 5, None, "NVIDIA_VISIBLE_DEVICES=0"]

    assert must(resolve_request(env, [], {}, [None], Config())[0]).ids == ["0"]


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("all", ["all"]),
        ("0,all", ["all"]),
        (" 0 , 1 ", ["0", "1"]),
        ("0,1,0", ["0", "1"]),
        ("none", []),  # driver files without a GPU
    ],
)
def test_the_environment_names_devices(value: str, ids: list[str]) -> None:
    request = must(requested(f"NVIDIA_VISIBLE_DEVICES={value}"))

    assert request.ids == ids
    assert request.none == (value == "none")
    assert not request.qualified
    assert request.mode == "jit-cdi"
    assert request.source == "NVIDIA_VISIBLE_DEVICES"
    assert request.notes == []


def test_a_typo_fails_and_does_not_fall_through_to_the_next_source() -> None:
    with pytest.raises(RequestError, match=r"^NVIDIA_VISIBLE_DEVICES asks for 'gpu0'"):
        requested("NVIDIA_VISIBLE_DEVICES=0,gpu0")
    with pytest.raises(RequestError, match=r"^annotation .*'gpu1', which is not a CDI name"):
        requested("NVIDIA_VISIBLE_DEVICES=all", annotations={CDI: "nvidia.com/gpu=0,gpu1"})


def test_a_legacy_image_gets_all_devices() -> None:
    request = must(requested("CUDA_VERSION=10.1"))

    assert request.ids == ["all"]
    assert request.source == "CUDA_VERSION"
    assert "CUDA_VERSION is set" in request.notes[0]


def test_swarm_variables_win_over_the_plain_one_in_configured_order() -> None:
    config = configured(swarm_resource=["A", "B", "C"])

    request = must(requested("NVIDIA_VISIBLE_DEVICES=all", "C=2,1", "A=1", config=config))

    assert request.ids == ["1", "2"]
    assert request.source == "A, C"


@pytest.mark.parametrize("value", ["", "void", ","])
def test_a_swarm_variable_overrides_the_plain_one_if_it_is_set(value: str) -> None:
    config = configured(swarm_resource=["A"])

    assert requested("NVIDIA_VISIBLE_DEVICES=all", f"A={value}", config=config) is None
    assert requested("CUDA_VERSION=10.1", f"A={value}", config=config) is None
    assert must(requested("NVIDIA_VISIBLE_DEVICES=1", config=config)).ids == ["1"]


@pytest.mark.parametrize(
    ("accepted", "bounding", "ids"),
    [
        (True, [], ["0"]),
        (True, PRIVILEGED, ["0"]),
        (False, [], None),
        (False, ["CAP_SYS_ADMINX", "cap_sys_admin", "SYS_ADMIN"], None),
        (False, PRIVILEGED, ["0"]),
    ],
    ids=str,
)
def test_the_environment_of_an_unprivileged_container_can_be_refused(
    *, accepted: bool, bounding: list[str], ids: list[str] | None
) -> None:
    config = configured(accept_envvar_when_unprivileged=accepted)

    request = requested("NVIDIA_VISIBLE_DEVICES=0", bounding=bounding, config=config)

    assert (request and request.ids) == ids


@pytest.mark.parametrize(
    "env",
    ["NVIDIA_VISIBLE_DEVICES=foo", "CUDA_VERSION=9", "NVIDIA_VISIBLE_DEVICES=" + "0," * 9999],
)
def test_an_ignored_request_leaves_a_note_and_is_not_read(env: str) -> None:
    config = configured(accept_envvar_when_unprivileged=False)

    request, notes = resolve_request([env], [], {}, [], config)

    assert request is None
    assert "is ignored: the container is unprivileged" in notes[0]


@pytest.mark.parametrize(
    ("mounts", "ids", "source"),
    [
        (mount("1", "0"), ["1", "0"], "volume mount"),
        (mount("void"), [], ""),
        (mount("imex/0"), ["3"], "NVIDIA_VISIBLE_DEVICES"),  # no device
    ],
    ids=["devices", "void", "channel"],
)
def test_volume_mounts_of_devices_win_over_the_environment_and_need_no_privilege(
    mounts: list[dict[str, object]], ids: list[str], source: str
) -> None:
    config = configured(
        accept_volume_mounts=True, accept_envvar_when_unprivileged=source.startswith("NVIDIA")
    )

    request = requested("NVIDIA_VISIBLE_DEVICES=3", mounts=mounts, config=config)

    assert (request.ids if request else []) == ids
    assert (request.source if request else "") == source
    assert requested(mounts=mounts) is None


def test_volume_mounts_that_are_not_accepted_leave_a_note() -> None:
    key = "accept-nvidia-visible-devices-as-volume-mounts"

    assert resolve_request([], mount("0", "1"), {}, [], Config()) == (
        None, [f"volume mount '0' is ignored: {key} is false in config.toml"],
    )  # fmt: skip
    malformed: list[dict[str, object]] = [
        {"source": "/x", "destination": "/var/run/nvidia-container-devices/0"},
        {"source": "/dev/null", "destination": "/x/nvidia-container-devices/0"},
        {"source": 1, "destination": None},
    ]
    assert resolve_request([], malformed, {}, [], Config()) == (None, [])


def test_annotations_win_over_everything() -> None:
    config = configured(accept_volume_mounts=True)

    request = must(
        requested(
            "NVIDIA_VISIBLE_DEVICES=all",
            mounts=mount("0"),
            annotations={CDI: "nvidia.com/gpu=1", "other": "nvidia.com/gpu=2"},
            config=config,
        )
    )

    assert request.ids == ["nvidia.com/gpu=1"]
    assert request.source == f"annotation {CDI}"
    assert request.qualified
    assert request.mode == "cdi"


@pytest.mark.parametrize(
    ("configured_mode", "value", "mode"),
    [
        ("auto", "0", "jit-cdi"),
        ("auto", "nvidia.com/gpu=0", "cdi"),
        ("auto", "nvidia.com/gpu=0,vendor.org/net=eth0", "cdi"),
        ("jit-cdi", "nvidia.com/gpu=0", "cdi"),
        ("cdi", "0", "cdi"),
        ("cdi", "nvidia.com/gpu=0,1", "cdi"),
        ("legacy", "0", "legacy"),
        ("legacy", "nvidia.com/gpu=0", "legacy"),
        ("csv", "0", "csv"),
    ],
)
def test_the_mode_follows_configuration_and_names(
    configured_mode: str, value: str, mode: str
) -> None:
    config = configured(mode=configured_mode)

    assert must(requested(f"NVIDIA_VISIBLE_DEVICES={value}", config=config)).mode == mode


def test_an_unknown_mode_fails_only_where_there_is_a_request() -> None:
    config = configured(mode="foo", path="/c.toml")

    assert requested(config=config) is None
    with pytest.raises(ConfigError, match=r"^/c.toml: .*mode cannot be 'foo'"):
        requested("NVIDIA_VISIBLE_DEVICES=0", config=config)


@pytest.mark.parametrize("mode", ["auto", "jit-cdi", "legacy", "csv"])
def test_pci_bus_ids_are_in_the_form_of_our_plans(mode: str) -> None:
    config = configured(mode=mode, accept_volume_mounts=True)
    value = "NVIDIA_VISIBLE_DEVICES=00000000:AF:00.0,1,0000:af:00.0,0:18:0"

    assert must(requested(value, config=config)).ids == ["0000:af:00.0", "1", "0000:18:00.0"]
    by_mount = must(requested(mounts=mount("00000000:AF:00.0"), config=config))
    assert by_mount.ids == ["0000:af:00.0"]
    jit_value = "NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=0000:AF:00.0"
    assert must(requested(jit_value, config=config)).ids == ["0000:af:00.0"]
    others = requested("NVIDIA_VISIBLE_DEVICES=0000:AF:00.0", config=configured(mode="cdi"))
    assert must(others).ids == ["0000:AF:00.0"]  # names of other vendors' specs are unchanged


@pytest.mark.parametrize(
    ("mode", "value", "name"),
    [
        *((mode, value, " 'nvidia.com/gpu=0'") for mode in ("auto", "jit-cdi", "legacy", "csv")
          for value in ("nvidia.com/gpu=0,1", "1,nvidia.com/gpu=0")),
        *((mode, f"runtime.nvidia.com/gpu=0,{other}", "") for mode in ("auto", "jit-cdi", "cdi", "legacy")
          for other in ("nvidia.com/gpu=0", "1")),
    ],
)  # fmt: skip
def test_cdi_names_do_not_mix_with_others(mode: str, value: str, name: str) -> None:
    with pytest.raises(RequestError, match=f"mixes the CDI name{name}"):
        requested(f"NVIDIA_VISIBLE_DEVICES={value}", config=configured(mode=mode))


@pytest.mark.parametrize("mode", ["auto", "jit-cdi", "cdi"])
@pytest.mark.parametrize(
    ("names", "ids"), [("0 1 0", ["0", "1"]), ("all", ["all"]), ("0 all", ["all"]), ("none", [])]
)
def test_names_of_the_in_memory_kind_are_plain_names(
    mode: str, names: str, ids: list[str]
) -> None:
    value = ",".join(f"runtime.nvidia.com/gpu={name}" for name in names.split())

    request = must(requested(f"NVIDIA_VISIBLE_DEVICES={value}", config=configured(mode=mode)))

    assert request.ids == ids
    assert request.none == (not ids)
    assert not request.qualified
    assert request.mode == "jit-cdi"


@pytest.mark.parametrize(
    ("value", "enabled", "imex"),
    [("0", (True, False, False, True), [3]), ("nvidia.com/gpu=0", (False,) * 4, [])],
    ids=["plain", "cdi"],
)
def test_features_are_enabled_by_the_exact_word_and_not_in_mode_cdi(
    value: str, enabled: tuple[bool, ...], imex: list[int]
) -> None:
    features = ["NVIDIA_GDS=enabled", "NVIDIA_MOFED=1", "NVIDIA_GDRCOPY=Enabled",
                "NVIDIA_NVSWITCH=enabled", "NVIDIA_IMEX_CHANNELS=3"]  # fmt: skip

    extras = must(requested(f"NVIDIA_VISIBLE_DEVICES={value}", *features)).extras

    assert (extras.gds, extras.mofed, extras.gdrcopy, extras.nvswitch) == enabled
    assert extras.imex == imex


@pytest.mark.parametrize(
    ("settings", "env", "capabilities"),
    [
        ({}, ["NVIDIA_VISIBLE_DEVICES=0"], None),
        ({"mode": "legacy"}, ["NVIDIA_VISIBLE_DEVICES=0"], ["compute", "utility"]),
        ({"supported_driver_capabilities": ["compute", "utility"]}, ["NVIDIA_VISIBLE_DEVICES=0"],
         ["compute", "utility"]),
        ({}, ["NVIDIA_VISIBLE_DEVICES=acme.com/gpu=0", "NVIDIA_DRIVER_CAPABILITIES=foo"], None),
    ],
    ids=["everything", "legacy", "not allowed by the node", "of another vendor"],
)  # fmt: skip
def test_capabilities_that_are_not_named_are_those_of_mode_node_and_vendor(
    settings: dict[str, object], env: list[str], capabilities: list[str] | None
) -> None:
    assert must(requested(*env, config=configured(**settings))).capabilities == capabilities


@pytest.mark.parametrize("mode", ["auto", "legacy", "csv", "cdi"])
def test_requirements_are_gathered_in_every_mode(mode: str) -> None:
    env = ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12"]

    expected = [("NVIDIA_REQUIRE_CUDA", "cuda>=12")]
    assert must(requested(*env, config=configured(mode=mode))).requirements == expected
    disabled = configured(mode=mode, disable_require=True)
    assert must(requested(*env, config=disabled)).requirements == []


def test_access_to_mig_capabilities_needs_privilege() -> None:
    config = configured(mode="legacy")
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all"]

    with pytest.raises(NotPermittedError):
        requested(*env, config=config)

    extras = must(requested(*env, config=config, bounding=PRIVILEGED)).extras
    assert extras.mig_monitor
    assert not extras.mig_config


@pytest.mark.parametrize("mode", ["auto", "jit-cdi", "csv"])
def test_other_modes_ignore_mig_capabilities_without_privilege(mode: str) -> None:
    config = configured(mode=mode)
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all"]

    request = must(requested(*env, config=config))
    assert not request.extras
    assert any("NVIDIA_MIG_MONITOR_DEVICES is ignored" in note for note in request.notes)
    assert must(requested(*env, config=config, bounding=PRIVILEGED)).extras.mig_monitor
    with pytest.raises(RequestError):
        requested(*env[:1], "NVIDIA_MIG_MONITOR_DEVICES=0", config=config, bounding=PRIVILEGED)
