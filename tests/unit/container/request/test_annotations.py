# SPDX-License-Identifier: Apache-2.0
"""Requests in annotations and in mounts of /dev/null; capabilities; what their readers import."""

import os
import posixpath
import sys

import pytest

import nvct
from nvct.config.model import DRIVER_CAPABILITIES, Config
from nvct.container.request.annotations import requested
from nvct.container.request.capabilities import parse, resolve
from nvct.container.request.volume_mounts import devices, imex_channels
from nvct.errors import ConfigError, NotPermittedError, RequestError, line
from nvct.oci.bundle import clean
from tests.support.processes import captured


def configured(mode: str = "auto", *prefixes: str) -> Config:
    config = Config(mode=mode)
    return config.replaced(annotation_prefixes=prefixes) if prefixes else config


def test_keys_are_read_in_order_and_values_split_and_trimmed() -> None:
    annotations = {
        "cdi.k8s.io/b": "v.com/gpu=2, v.com/gpu=1,",
        "cdi.k8s.io/a": "v.com/gpu=0",
        "x.cdi.k8s.io/c": "v.com/gpu=3",
    }

    words = requested(annotations, configured(), [])

    assert words == (
        "annotation cdi.k8s.io/a, cdi.k8s.io/b",
        ["v.com/gpu=0", "v.com/gpu=2", "v.com/gpu=1"],
    )


def test_prefixes_are_configured() -> None:
    annotations = {
        "cdi.k8s.io/a": "v.com/gpu=0",
        "mine/a": "v.com/gpu=1",
        "yours/a": "v.com/gpu=2",
    }

    assert requested(annotations, configured("auto", "mine/", "yours/"), []) == (
        "annotation mine/a, yours/a",
        ["v.com/gpu=1", "v.com/gpu=2"],
    )


@pytest.mark.parametrize("mode", ["jit-cdi", "legacy", "csv"])
def test_other_modes_ignore_annotations_with_a_note(mode: str) -> None:
    notes: list[str] = []

    assert requested({"cdi.k8s.io/a": "v.com/gpu=0"}, configured(mode), notes) is None
    assert notes == [f"annotation cdi.k8s.io/a is ignored: mode {mode} reads no annotations"]


@pytest.mark.parametrize("word", ["0", "all", "void", "v.com/gpu"])
def test_mode_auto_takes_cdi_names_only(word: str) -> None:
    with pytest.raises(RequestError, match=r"^annotation cdi.k8s.io/a asks for"):
        requested({"cdi.k8s.io/a": word}, configured(), [])


def test_mode_cdi_takes_plain_words_too() -> None:
    assert requested({"cdi.k8s.io/a": "0,all"}, configured("cdi"), []) == (
        "annotation cdi.k8s.io/a",
        ["0", "all"],
    )


def test_a_huge_annotation_is_refused() -> None:
    with pytest.raises(RequestError, match="characters long"):
        requested({"cdi.k8s.io/a": "x" * 70000}, configured(), [])


ROOT = "/var/run/nvidia-container-devices"


def mounts(*destinations: str, source: object = "/dev/null") -> list[dict[str, object]]:
    return [{"source": source, "destination": path, "type": "bind"} for path in destinations]


@pytest.mark.parametrize(
    ("destination", "words"),
    [
        (f"{ROOT}/0", ["0"]),
        (f"{ROOT}/GPU-1/", ["GPU-1"]),
        ("//var/run/./nvidia-container-devices//x/../0", ["0"]),
        (f"{ROOT}/MIG-GPU-1/2/3", ["MIG-GPU-1/2/3"]),
        (f"{ROOT}/cdi/nvidia.com/gpu/0", ["nvidia.com/gpu=0"]),
        (f"{ROOT}/cdi/nvidia.com/gpu=0", ["nvidia.com/gpu=0"]),
        (f"{ROOT}/imex/3", []),
        (ROOT, []),
        (f"{ROOT}/../0", []),
        (f"{ROOT}-x/0", []),
        ("/run/nvidia-container-devices/0", []),
        ("var/run/nvidia-container-devices/0", []),
        (f"/x{ROOT}/0", []),
    ],
)  # fmt: skip
def test_a_destination_names_a_device(destination: str, words: list[str]) -> None:
    assert devices(mounts(destination)) == words


def test_order_is_kept_duplicates_fold_and_incomplete_mounts_are_skipped() -> None:
    assert devices(mounts(f"{ROOT}/1", f"{ROOT}/0", f"{ROOT}//1", f"{ROOT}/2")) == ["1", "0", "2"]
    assert devices([{}, {"source": "/dev/null"}, {"destination": f"{ROOT}/0"}]) == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        *((source, []) for source in ("/dev/zero", "/dev/null/x", "dev/null", "", None, 5)),
        *((source, ["0"]) for source in ("/dev//null", "/dev/null/", "/x/../dev/./null")),
    ],
)
def test_only_dev_null_counts_however_it_is_written(source: object, words: list[str]) -> None:
    assert devices(mounts(f"{ROOT}/0", source=source)) == words


@pytest.mark.parametrize(
    "name", ["nvidia.com", "nvidia.com/gpu", "nvidia.com/gpu/0/1", "a/b/c", "x=0", "n v/gpu/0"]
)
def test_a_malformed_cdi_name_is_an_error(name: str) -> None:
    with pytest.raises(RequestError, match=r"^volume mount"):
        devices(mounts(f"{ROOT}/0", f"{ROOT}/cdi/{name}"))


def test_channels_are_not_devices() -> None:
    assert imex_channels(mounts(f"{ROOT}/imex/3", f"{ROOT}/0", f"{ROOT}/imex/4/5")) == ["3", "4/5"]


@pytest.mark.parametrize(
    "path",
    ["", ".", "/", "//", "/..", "/../a", "a/..", "../a", "a/../../b", "/a//b/./c/../d/", "../..", "./a"],
)  # fmt: skip
def test_paths_are_cleaned_as_text(path: str) -> None:
    # normpath keeps two leading slashes, as POSIX allows; Go doesn't.
    assert clean(path) == posixpath.normpath(path).replace("//", "/")


ALL = list(DRIVER_CAPABILITIES)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("", []),
        ("all,compute", ["all"]),
        ("utility, compute,utility", ["compute", "utility"]),
        (",".join(reversed(ALL)), ALL),
    ],
)
def test_a_value_is_a_list_of_capabilities(value: str, names: list[str]) -> None:
    assert parse(value) == names


@pytest.mark.parametrize(
    "value", ["none", "void", "Compute", "compute;utility", "all,foo", "foo,all"]
)
def test_an_unknown_capability_is_refused(value: str) -> None:
    with pytest.raises(RequestError, match=r"^NVIDIA_DRIVER_CAPABILITIES has .* unknown"):
        parse(value)


@pytest.mark.parametrize(
    ("value", "supported", "legacy_image", "names"),
    [
        (None, ALL, False, ["compute", "utility"]),
        ("", ALL, False, ["compute", "utility"]),
        (None, ["utility", "video"], False, ["utility"]),
        (None, ALL, True, ALL),
        (None, ["video"], True, ["video"]),
        ("", ALL, True, ["compute", "utility"]),
        ("all", ["video", "compute"], False, ["compute", "video"]),
        ("all", ["all"], False, ALL),
    ],
    ids=str,
)
def test_a_container_gets_what_it_asks_for_within_the_bound(
    value: str | None, supported: list[str], *, legacy_image: bool, names: list[str]
) -> None:
    assert resolve(value, supported, legacy_image=legacy_image) == names


def test_a_capability_beyond_the_bound_is_not_permitted() -> None:
    with pytest.raises(NotPermittedError) as caught:
        resolve("compute,video", ["compute", "utility"], legacy_image=False)

    assert line("p", caught.value) == (
        "p: NVIDIA_DRIVER_CAPABILITIES has video, which this node does not allow;"
        " see supported-driver-capabilities in config.toml [not-permitted]"
    )


def test_an_unknown_supported_capability_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="supported-driver-capabilities has 'foo'"):
        resolve(None, ["compute", "foo"], legacy_image=False)


PROGRAM = """
import sys
before = set(sys.modules)
sys.path.append(sys.argv[1])
from nvct.config.model import Config, check, path_from
from nvct.container.request.resolve import resolve_request
config = Config(mode=sys.argv[2], accept_volume_mounts=True)
env = ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12", "NVIDIA_IMEX_CHANNELS=1"]
assert resolve_request(env, [], {"cdi.k8s.io/a": ""}, [], config)[0].ids == ["0"]
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def modules(mode: str) -> set[str]:
    root = os.path.dirname(next(iter(nvct.__path__)))
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, root, mode]
    result = captured(command, check=True)
    return set(result.stdout.split())
