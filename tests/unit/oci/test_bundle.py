# SPDX-License-Identifier: Apache-2.0
import json
import os
from pathlib import Path

import pytest

from nvct.errors import BundleError, line
from nvct.linux.kernel import KERNEL
from nvct.oci import bundle as bundles
from nvct.oci.bundle import Bundle, config_path


def bundle_of(document: object) -> Bundle:
    return Bundle("b/config.json", json.dumps(document))


def test_the_members_for_a_request_are_read() -> None:
    bundle = bundle_of(
        {
            "process": {
                "env": ["A=1", "B"],
                "user": {"uid": 5, "gid": 6},
                "capabilities": {"bounding": ["CAP_SYS_ADMIN"], "effective": []},
            },
            "mounts": [{"destination": "/x", "source": "/y"}],
            "annotations": {"cdi.k8s.io/x": "vendor/class=name"},
        }
    )
    assert bundle.env == ["A=1", "B"]
    assert bundle.mounts == [{"destination": "/x", "source": "/y"}]
    assert bundle.annotations == {"cdi.k8s.io/x": "vendor/class=name"}
    assert bundle.bounding == ["CAP_SYS_ADMIN"]
    assert (bundle.process_id("uid"), bundle.process_id("gid")) == (5, 6)


@pytest.mark.parametrize("document", [
    {},
    {"process": None, "annotations": None, "mounts": None, "linux": None, "hooks": None},
    {"process": {"env": [], "user": {"uid": None}, "capabilities": {"bounding": None}}},
    {"process": {"env": [None, 1, {}, []], "user": {"uid": "5"}}, "mounts": [None, 1, "x", []]},
    {"process": {"user": {"uid": True, "gid": 1.5}, "capabilities": {"bounding": [1, None]}}},
    {"process": {"user": [], "capabilities": "x"}, "annotations": ["x"]},
    {"process": 5, "annotations": {"k": 1, "l": None, "m": ["x"]}},
])  # fmt: skip
def test_missing_null_or_malformed_members_request_nothing(document: object) -> None:
    bundle = bundle_of(document)
    members = (bundle.env, bundle.mounts, bundle.annotations, bundle.bounding)
    assert members == ([], [], {}, [])
    assert (bundle.process_id("uid"), bundle.process_id("gid")) == (0, 0)


def test_the_flat_list_of_capabilities_of_old_runtimes_is_read() -> None:
    assert bundle_of({"process": {"capabilities": ["CAP_A", 1]}}).bounding == ["CAP_A"]


@pytest.mark.parametrize("value", [{}, 1, "x", True, {"a": []}])
def test_arrays_of_another_type_are_refused(value: object) -> None:
    with pytest.raises(BundleError, match=r"^b/config.json: process.env is not an array$"):
        _ = bundle_of({"process": {"env": value}}).env
    with pytest.raises(BundleError, match=r"^b/config.json: mounts is not an array$"):
        _ = bundle_of({"mounts": value}).mounts


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"mounts":[}', '{"mounts":[],"mounts":[]}', "NaN"]
)
def test_a_malformed_config_is_a_bundle_error_with_a_hint(text: str) -> None:
    with pytest.raises(BundleError, match=r"^b/config.json is ") as caught:
        Bundle("b/config.json", text)
    assert caught.value.hint
    assert len(line("nvidia-container-runtime", caught.value)) <= 200


@pytest.mark.parametrize(
    ("bundle", "config", "expected"),
    [
        ("", "", "config.json"),
        ("/b", "", "/b/config.json"),
        ("/b", "/c.json", "/c.json"),
        ("/b", "./config.json", "./config.json"),
        ("/b", "config.json", "/b/config.json"),
        ("", "config.json", "config.json"),
    ],
)
def test_the_config_is_found_where_crun_and_runc_find_it(
    bundle: str, config: str, expected: str
) -> None:
    assert config_path(bundle, config) == expected


def test_a_missing_config_is_a_bundle_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"^cannot read .*: No such file or directory$"):
        bundles.load(f"{tmp_path}/config.json")


def test_a_directory_or_a_fifo_is_a_bundle_error_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(BundleError, match="is not a regular file"):
            bundles.load(str(path))


def test_a_config_that_is_too_large_is_a_bundle_error(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.touch()
    os.truncate(path, bundles.LIMIT + 1)
    with pytest.raises(BundleError, match="is larger than"):
        bundles.load(str(path))


def test_an_unchanged_document_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"mounts":[1,2]}')
    before = path.stat()
    bundle = bundles.load(str(path))
    assert bundle.save(KERNEL) is False
    bundle.document.append(("mounts",), [])
    assert bundle.save(KERNEL) is False
    bundle.document.rewrite(("mounts",), ["1", "2"])
    assert bundle.save(KERNEL) is False
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_an_edit_is_written_in_one_step_and_keeps_bytes_mode_and_links(tmp_path: Path) -> None:
    real, path = tmp_path / "real.json", tmp_path / "config.json"
    data = b'{"x":"\xff\\ud800",\n"mounts":[1 ]}\n'
    real.write_bytes(data)
    real.chmod(0o640)
    path.symlink_to("real.json")
    bundle = bundles.load(str(path))
    bundle.document.append(("mounts",), ["2"])
    assert bundle.save(KERNEL) is True
    assert real.read_bytes() == data.replace(b"1 ]", b"1,2 ]")
    assert real.stat().st_mode & 0o7777 == 0o640
    assert path.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["config.json", "real.json"]


def test_a_config_that_cannot_be_written_is_a_bundle_error(tmp_path: Path) -> None:
    bundle = Bundle(f"{tmp_path}/gone/config.json", "{}")
    bundle.document.append(("mounts",), ["1"])
    with pytest.raises(BundleError, match=r"^cannot write .*/gone/config.json: No such file"):
        bundle.save(KERNEL)
