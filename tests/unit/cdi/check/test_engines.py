# SPDX-License-Identifier: Apache-2.0
"""Which engines read which specs. Versions are those of the releases' own go.mod files."""

import pytest

from nvct.cdi import versions
from nvct.cdi.check import engines
from nvct.cdi.types import ContainerEdits, Spec
from nvct.errors import UsageError


def spec(version: str, name: str = "0", **edits: object) -> Spec:
    common: ContainerEdits = {"env": ["A=b"], **edits}  # type: ignore[typeddict-item]
    return {
        "cdiVersion": version,
        "kind": "acme.com/chip",
        "devices": [{"name": name, "containerEdits": {"env": ["A=b"]}}],
        "containerEdits": common,
    }


GIDS = spec("0.7.0", additionalGids=[44])


@pytest.mark.parametrize(
    ("word", "version"),
    [
        # What NVIDIA's release notes and moby's, containerd's, Podman's and CRI-O's own files say.
        ("docker=24.0.9", ""),
        ("docker=25", "0.6.0"),
        ("docker=25.0.16", "0.6.0"),
        ("docker=25.0.17", "0.8.0"),
        ("docker=26.0.2", "0.6.0"),
        ("docker=26.1.0", "0.7.0"),
        ("docker=v26.1.5+dfsg1", "0.7.0"),
        ("docker=28.5.2", "1.0.0"),
        ("moby=29.2.0-rc.1", "1.1.0"),
        ("containerd=1.6.39", ""),
        ("containerd=1.7.15", "0.6.0"),
        ("containerd=1.7.16", "0.7.0"),
        ("containerd=1.7.34", "0.8.0"),
        ("containerd=2.0.4", "0.8.0"),
        ("containerd=2.2.0", "1.0.0"),
        ("crio=1.29.9", "0.6.0"),
        ("cri-o=1.30", "0.7.0"),
        ("CRI-O=1.24.6", "0.3.0"),
        ("podman=4.3.1", "0.5.0"),
        ("podman=5.0.3", "0.6.0"),
        ("podman=5.1.0", "0.7.0"),
        ("podman=99", "1.1.0"),
        ("buildah=1.35.0", ""),
        ("buildah=1.36.0", "0.7.0"),
    ],
)
def test_a_release_reads_what_the_library_it_is_built_with_knows(word: str, version: str) -> None:
    assert engines.highest(*engines.parse(word)) == version


@pytest.mark.parametrize("engine", list(engines.ENGINES))
def test_rows_are_in_order_and_name_versions_that_exist(engine: str) -> None:
    _name, rows = engines.ENGINES[engine]
    releases = [tuple(map(int, since.split("."))) for since, _version, _library in rows]

    assert releases == sorted(set(releases))
    for _since, version, library in rows:
        assert versions.is_known(version)
        # The library is numbered as the newest document that it knows, but for corrections.
        assert library.rpartition(".")[0] == version.rpartition(".")[0]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lxc=1.0", "engine 'lxc' is unknown"),
        ("docker", "engine 'docker' has no release"),
        ("docker=", "engine 'docker=' has no release"),
        ("docker=new", "engine 'docker=new' has no release"),
        ("podman=4.3x", "engine 'podman=4.3x' has no release"),
    ],
)
def test_an_engine_that_cannot_be_is_a_usage_error(word: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        engines.parse(word)

    assert caught.value.message == message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("docker=26.0", "Docker 26.0 will refuse it: 0.7.0 because of additionalGids"),
        ("docker=26.1", ""),
        ("podman=4.3.1", "Podman 4.3.1 will refuse it: 0.7.0 because of additionalGids"),
        ("docker=20.10.24", "Docker 20.10.24 cannot use it: it does not support CDI"),
    ],
)
def test_one_release_refuses_a_spec_or_not(word: str, sentence: str) -> None:
    assert engines.refusal(GIDS, *engines.parse(word)) == sentence


def test_every_engine_that_refuses_has_a_sentence_with_its_releases() -> None:
    reason = "will refuse it: 0.7.0 because of additionalGids"

    assert engines.refusals(GIDS) == [
        f"Docker before 25.0.17 and from 26.0.0 before 26.1.0 {reason}",
        f"containerd before 1.7.16 {reason}",
        f"CRI-O before 1.30.0 {reason}",
        f"Podman before 5.1.0 {reason}",
    ]


def test_a_spec_that_all_read_has_no_sentence() -> None:
    assert engines.refusals(spec("0.3.0", name="x")) == []


def test_a_version_that_is_higher_than_needed_is_named_with_the_one_that_is() -> None:
    sentences = engines.refusal(spec("1.0.0"), "docker", "27.0")

    assert sentences == (
        "Docker 27.0 will refuse it: it declares 1.0.0, though it needs only 0.5.0"
    )


def test_what_a_later_library_dropped_is_refused_from_there_on() -> None:
    sentences = engines.refusals(spec("0.7.0", intelRdt={"closID": "a", "enableCMT": True}))

    assert (
        "Docker from 29.2.0 on will refuse it: CDI 1.1.0 has no enableCMT and enableMBM"
        in sentences
    )
    assert "Podman before 5.1.0 will refuse it: 0.7.0 because of intelRdt" in sentences


def test_what_no_release_knows_yet_is_refused_by_all() -> None:
    nodes = [{"path": "/dev/x", "permissions": "none"}]

    sentences = engines.refusals(spec("0.3.0", name="x", deviceNodes=nodes))

    assert [text.partition(" will")[0] for text in sentences] == [
        f"{name} in every release" for name, _rows in engines.ENGINES.values()
    ]


def test_a_range_goes_to_the_end_where_the_newest_release_refuses_too() -> None:
    device = {"hostInterfaceName": "a", "name": "b"}
    sentences = engines.refusals(spec("1.1.0", netDevices=[device]))

    assert "Docker before 29.2.0 will refuse it: 1.1.0 because of netDevices" in sentences
