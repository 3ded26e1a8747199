# SPDX-License-Identifier: Apache-2.0
"""The launcher's look at config.json: no request may slip through, however it is written."""

import json
import os

import pytest

from nvct.container import settings
from tests.unit.launcher.conftest import Lab

PLAIN = {"ociVersion": "1.0.2", "process": {"env": ["PATH=/bin"], "args": ["sh"]}, "mounts": []}
HARMLESS = [
    "{}",
    json.dumps(PLAIN, indent=2),
    "NVIDIA",  # a word cut off by the end
    "\\",
    "\\u004",
    "nvidia_visible_devices",
    "NNVIDIANVIDI",
    '{"args":["a \\u003c b \\u003E c \\u0026 d"]}',  # as Go writes <, > and &
    '{"a":"\\u2028 \\u0123 \\ud83d\\ude00 \\n \\" \\\\ \\/ \\t"}',
    '{"a":"/usr/bin/nvidia-container-cli nvidia-container-toolki"}',
    '{"a":"cdi.k8s.i/o"}',
    '"\x00\xff\x80"',
]


@pytest.mark.parametrize("text", HARMLESS)
@pytest.mark.parametrize("command", ["create", "run"])
def test_a_bundle_without_a_word_is_handed_over(lab: Lab, command: str, text: str) -> None:
    lab.keep()
    path = lab.bundle(text.encode("latin-1", "replace"))
    answer = lab.run(command, "--bundle", path, "id")
    assert answer.words == [bytes(lab.runc), command.encode(), b"--bundle", path.encode(), b"id"]


@pytest.mark.parametrize(
    "text",
    [
        '{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}',
        '{"process":{"env":["CUDA_VERSION=12"]}}',
        '{"mounts":[{"destination":"\\/var\\/run\\/nvidia-container-devices\\/0"}]}',
        '{"hooks":{"prestart":[{"path":"/usr/bin/nvidia-container-runtime-hook"}]}}',
        '{"annotations":{"cdi.k8s.io\\/x":"v/c=n"}}',
        "NVIDIA_",
        "NNVIDIA_",
        "CUDACUDA_VERSION",
        "nvidia-nvidia-container-devices",
        "\\NVIDIA_",
        "\x00NVIDIA_\x00",
        '{"a":"\\u004eVIDIA_VISIBLE_DEVICES=all"}',
        '{"a":"N\\u0056IDIA"}',
        '{"a":"NVIDIA\\u005f"}',
        '{"a":"cdi\\u002ek8s.io"}',
        '{"a":"\\u003d"}',
        '{"a":"\\u0027"}',
        '{"a":"\\u003c\\u004e"}',
        '{"a":"\\\\u004e"}',  # a false alarm, which is cheap
        "\\u0041",
    ],
)
@pytest.mark.parametrize("command", ["create", "run"])
def test_a_bundle_with_a_word_or_an_escape_that_may_hide_one_goes_to_python(
    lab: Lab, command: str, text: str
) -> None:
    lab.keep()
    for padded in (text, f"{text}{' ' * 5000}", f"{'x' * 4095}{text}", f"{'N' * 300}{text}"):
        path = lab.bundle(padded)
        assert lab.went_to(command, "--bundle", path, "id") == "python", padded[:50]


def test_every_word_of_the_shim_is_found_at_the_very_end_and_not_when_cut(lab: Lab) -> None:
    lab.keep()
    for word in settings.LAUNCHER_WORDS:
        for size in (len(word), 4096, 8192):  # ends at a page's end
            path = lab.bundle(word.rjust(size))
            assert lab.went_to("create", "-b", path, "id") == "python"
            path = lab.bundle(word[:-1].rjust(size))
            assert lab.went_to("create", "-b", path, "id") == "bin/runc"


def test_configured_names_are_words(lab: Lab) -> None:
    text = '{"env":["DOCKER_RESOURCE_GPU=0"],"annotations":{"x.org\\/gpu\\/of":"v\\/c=n"}}'
    path = lab.bundle(text)
    lab.keep()
    assert lab.went_to("create", "-b", path, "id") == "bin/runc"
    lab.keep(swarm_resource=["DOCKER_RESOURCE_GPU"])
    assert lab.went_to("create", "-b", path, "id") == "python"
    lab.keep(annotation_prefixes=["x.org/gpu/"])
    assert lab.went_to("create", "-b", path, "id") == "python"
    lab.keep(annotation_prefixes=["y.org/gpu/", 'é"<\\x&'])
    assert lab.went_to("create", "-b", path, "id") == "python"  # by its piece "x"


@pytest.mark.parametrize(
    ("args", "where"),
    [
        (["create", "id"], "config.json"),
        (["create", "-b", "bundle", "id"], "bundle/config.json"),
        (["create", "-bbundle", "id"], "bundle/config.json"),
        (["create", "id", "--bundle", "bundle"], "bundle/config.json"),
        (["run", "-b", "a", "-b", "bundle", "id"], "bundle/config.json"),
        (["create", "-b", "bundle", "-f", "c.json", "id"], "c.json"),
        (["create", "-b", "bundle", "-f", "config.json", "id"], "bundle/config.json"),
        (["create", "-b", "bundle", "--config=", "id"], "bundle/config.json"),
    ],
)
def test_the_file_that_is_looked_at_is_the_one_the_runtime_reads(
    lab: Lab, args: list[str], where: str
) -> None:
    lab.keep()
    (lab.home / "a").mkdir()
    for name in ("config.json", "bundle/config.json", "a/config.json", "c.json"):
        (lab.home / name).write_text("{}" if name == where else "NVIDIA_")
    assert lab.went_to(*args) == "bin/runc"
    for name in ("config.json", "bundle/config.json", "a/config.json", "c.json"):
        (lab.home / name).write_text("NVIDIA_" if name == where else "{}")
    assert lab.went_to(*args) == "python"


def test_a_file_that_cannot_be_looked_at_goes_to_python(lab: Lab) -> None:
    lab.keep()
    path = lab.home / "bundle" / "config.json"
    args = ("create", "-b", str(path.parent), "id")
    assert lab.went_to(*args) == "python"  # missing
    path.touch()
    assert lab.went_to(*args) == "python"  # empty
    path.unlink()
    os.mkfifo(path)
    assert lab.went_to(*args) == "python"
    path.unlink()
    path.mkdir()
    assert lab.went_to(*args) == "python"
    path.rmdir()
    path.touch()
    os.truncate(path, (64 << 20) + 1)
    assert lab.went_to(*args) == "python"
    assert lab.went_to("create", "-b", "b" * 5000, "id") == "python"


def test_a_large_bundle_is_read_to_its_end(lab: Lab) -> None:
    lab.keep()
    path = lab.bundle(b" " * (5 << 20) + b"{}")
    assert lab.went_to("create", "-b", path, "id") == "bin/runc"
    path = lab.bundle(b" " * (5 << 20) + b"NVIDIA_")
    assert lab.went_to("create", "-b", path, "id") == "python"
