# SPDX-License-Identifier: Apache-2.0
import pytest

from nvct.config.model import Config
from nvct.container.request.besides_gpus import channels
from nvct.errors import RequestError

ROOT = "/var/run/nvidia-container-devices"


def configured(*, mounts: bool = False, ignore: bool = False, env: bool = True) -> Config:
    return Config(
        accept_volume_mounts=mounts, ignore_imex=ignore, accept_envvar_when_unprivileged=env
    )


def requested(value: str, config: Config | None = None, *, privileged: bool = False) -> list[int]:
    variables = {"NVIDIA_IMEX_CHANNELS": value}
    return channels(variables, [], config or Config(), [], privileged=privileged)


def mount(*words: str) -> list[dict[str, object]]:
    return [{"source": "/dev/null", "destination": f"{ROOT}/imex/{word}"} for word in words]


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        ("0", [0]),
        ("channel5", [5]),
        ("1, channel1,0", [1, 0]),
        ("1048575", [1048575]),
        ("", []),
        ("0,none", []),
        ("0,all", []),
    ],
)
def test_the_variable_names_channels(value: str, numbers: list[int]) -> None:
    assert requested(value) == numbers


@pytest.mark.parametrize(
    "value", ["1048576", "-1", "x", "channel", "channel0x1", "all,x", "0:1", "01"]
)
def test_a_malformed_channel_is_refused(value: str) -> None:
    with pytest.raises(RequestError, match="is not an IMEX channel"):
        requested(value)


@pytest.mark.parametrize(("accepted", "numbers"), [(True, [3, 4]), (False, [0])])
def test_mounts_win_over_the_variable_where_they_are_accepted(
    *, accepted: bool, numbers: list[int]
) -> None:
    variables, config = {"NVIDIA_IMEX_CHANNELS": "0"}, configured(mounts=accepted)

    mounts = mount("3", "channel3", "4")
    assert channels(variables, mounts, config, [], privileged=False) == numbers


def test_the_variable_of_an_unprivileged_container_can_be_refused() -> None:
    notes: list[str] = []
    variables = {"NVIDIA_IMEX_CHANNELS": "0"}
    config = configured(env=False)

    assert channels(variables, [], config, notes, privileged=False) == []
    assert notes == ["NVIDIA_IMEX_CHANNELS is ignored: the container is unprivileged"]
    assert channels(variables, [], config, [], privileged=True) == [0]


@pytest.mark.parametrize("word", ["all", "none", "x", "3/4"])
def test_a_mount_must_name_a_channel(word: str) -> None:
    with pytest.raises(RequestError, match=r"^volume mount"):
        channels({}, mount(word), configured(mounts=True), [], privileged=False)
