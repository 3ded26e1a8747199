# SPDX-License-Identifier: Apache-2.0
"""config.json that runtimes and nvct could read differently, and hidden requests in it."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nvct.config.model import Config
from nvct.container.request.resolve import resolve_request
from nvct.errors import NvctError
from nvct.linux.files import read_bytes
from nvct.linux.root import Root
from nvct.oci.bundle import Bundle
from tests.unit.launcher.conftest import Lab

REPOSITORY = Path(__file__).parents[2]
ROUNDS = 200
WORDS = (
    "NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "MY_GPU", "nvidia-container-devices", "cdi.k8s.io/",
    "/var/run/nvidia-container-devices/", "x.org/gpu/of", "=", "all", "0", "void", "1.2", "/", "..",
)  # fmt: skip
ESCAPES = ("raw", "raw", "raw", "u00xx", "U00XX", "short")


@pytest.mark.parametrize(
    "text",
    [
        '{"Process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}',
        '{"process":{"ENV":["NVIDIA_VISIBLE_DEVICES=all"]}}',
        '{"proce\\u017fs":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}',
        '{"process":{"env":[]},"PROCESS":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}',
        '{"process":{"env":["NVIDIA_VISIBLE_DEVICES=0"]},"proces\\u0073":{}}',
        '{"process":{"env":[],"env":["NVIDIA_VISIBLE_DEVICES=0"]}}',
        '{"hooks":{},"Hooks":{"createContainer":[]}}',
        '{"hooks":{"createcontainer":[]}}',
        '{"linux":{"resources":{"Devices":[]}}}',
        '\ufeff{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}',
        '{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}{"process":{"env":[]}}',
        '{"linux":{"namespaces":[{"Type":"user"}]}}',
        '{"linux":{"namespaces":[{"type":"mount","TYPE":"user"}]}}',
        '{"linux":{"namespaces":[{"type":"user","PATH":"/proc/1/ns/user"}]}}',
        '{"linux":{"uidMappings":[{"ContainerId":0,"hostID":0,"size":1}]}}',
        '{"linux":{"gidMappings":[{"containerID":0,"HOSTID":0,"si\u017fe":1}]}}',
        '{"linux":{"devices":[{"path":"/dev/x","Major":195}]}}',
        '{"linux":{"resources":{"devices":[{"ALLOW":true}]}}}',
        '{"hooks":{"createContainer":[{"Path":"/x"}]}}',
        '{"hooks":{"prestart":[{"path":"/x","Env":["LD_PRELOAD=/y"]}]}}',
    ],
)  # fmt: skip
def test_what_runc_and_crun_would_read_differently_is_refused(text: str) -> None:
    with pytest.raises(NvctError):
        Bundle("config.json", text)


@pytest.mark.parametrize("key", ["Destination", "SOURCE", "de\\u017ftination", "oPtions"])
def test_a_mount_that_runc_and_crun_would_read_differently_is_refused(key: str) -> None:
    mount = f'{{"destination":"/x","source":"/y","{key}":"/z"}}'
    with pytest.raises(NvctError):
        Bundle("config.json", f'{{"mounts":[{mount}]}}')


def test_keys_of_a_map_that_differ_in_case_are_different_keys() -> None:
    text = '{"annotations":{"Team":"a","team":"b"},"linux":{"devices":[{"path":"/x","extra":1}]}}'

    assert Bundle("config.json", text).annotations == {"Team": "a", "team": "b"}


@pytest.mark.parametrize(
    "text",
    [
        '{"mounts":[{"destination":"/x","source":"/y","source":"/z"}]}',
        '{"mounts":[{"destination":"/x","destin\\u0061tion":"/z"}]}',
        '{"linux":{"devices":[{"path":"/dev/a","major":1,"major":195}]}}',
        '{"annotations":{"cdi.k8s.io/x":"a/b=c","cdi.k8s.io/x":"a/b=d"}}',
        '{"linux":{"namespaces":[{"type":"user","type":"mount"}]}}',
        '{"hooks":{"createContainer":[{"path":"/a","path":"/b"}]}}',
    ],
)
def test_an_object_with_a_duplicate_key_is_refused(text: str) -> None:
    with pytest.raises(NvctError, match="duplicate key"):
        Bundle("config.json", text)


@pytest.mark.parametrize("path", ["/a\0b", "/a\ud800"])
def test_a_string_that_cannot_be_a_path_is_an_error_message(path: str, tmp_path: Path) -> None:
    with pytest.raises(NvctError):
        Root.open(path)
    with pytest.raises(NvctError):
        read_bytes(path)
    with Root.open(str(tmp_path)) as root, pytest.raises(NvctError):
        root.lstat(path)


def written(chosen: random.Random, text: str) -> str:
    """Return a JSON string, each character in one of the ways that it may be written in."""
    parts = []
    how = chosen.choice(ESCAPES)
    for char in text:
        code = f"{ord(char):04x}"
        if how == "raw" or chosen.random() < 0.8:
            parts.append("\\/" if char == "/" and how == "short" else char)
        else:
            parts.append("\\u" + (code.upper() if how == "U00XX" else code))
    return '"' + "".join(parts) + '"'


def document(chosen: random.Random) -> str:
    """Return a config.json that may hold a request, in env, annotations or mounts."""

    def text(*first: str) -> str:
        return written(chosen, "".join([*first, *chosen.choices(WORDS, k=chosen.randint(1, 3))]))

    env = [text(chosen.choice(WORDS), "=") for _ in range(2)]
    notes = [f"{text(chosen.choice(WORDS))}:{text()}"]
    folder = "/var/run/nvidia-container-devices/"
    mounts = [f'{{"destination":{text(chosen.choice((folder, "/x")))},"source":"\\/dev/null"}}']
    return (
        f'{{"process":{{"env":[{",".join(env)}]}},"mounts":[{",".join(mounts)}],'
        f'"annotations":{{{",".join(notes)}}}}}'
    )


def test_no_request_gets_past_the_launchers_scan(lab: Lab) -> None:
    words = {"swarm_resource": ["MY_GPU"], "annotation_prefixes": ["cdi.k8s.io/", "x.org/gpu/"]}
    config = Config(accept_volume_mounts=True, **words)
    lab.keep(**words)
    chosen = random.Random(11)
    requests = 0
    for _ in range(ROUNDS):
        text = document(chosen)
        bundle = Bundle("config.json", text)
        try:
            request, _ = resolve_request(bundle.env, bundle.mounts, bundle.annotations, [], config)
            is_request = request is not None
        except NvctError:
            is_request = True
        if is_request:
            requests += 1
            path = lab.bundle(text)
            assert lab.went_to("create", "--bundle", path, "id") == "python", text
    assert requests > ROUNDS // 5


@pytest.mark.parametrize(
    "text", ['{"a":', '{"a":"b', '["a" "b"]', '{"a" 1}', '{"a":tru', '"\\ud8', "["]
)
def test_malformed_text_is_an_error_message_without_the_json_package(text: str) -> None:
    code = (
        "import sys;sys.path.append(sys.argv[1])\n"
        "from nvct.errors import DocumentError\nfrom nvct.oci import document, jsontext\n"
        "for read in (jsontext.parse, lambda t, s: document.Document(t, {'a': None}, s)):\n"
        " try: read(sys.argv[2], 'x')\n"
        " except DocumentError as error: print(error.message)"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(REPOSITORY), text],
        capture_output=True, text=True, check=False, timeout=20,
    )  # fmt: skip
    assert result.stderr == ""
    assert result.stdout.count("x is not JSON") == 2


COLLIDING = """
import sys, time
from nvct.oci.bundle import Bundle
number = 0
names = []
while len(names) < 20_000:
    number += 1
    if hash(f"k{number}") & 0xFF == 0:
        names.append(f"k{number}")
text = '{"annotations":{' + ",".join(f'"{name}":""' for name in names) + "}}"
begun = time.process_time()
assert len(Bundle("config.json", text).annotations) == len(names)
print(time.process_time() - begun)
"""


def test_colliding_names_cost_no_seconds() -> None:
    # All 20,000 begin their search at one of 128 places of a table of 32,768.
    main = (REPOSITORY / "packaging/static/main.c").read_text(encoding="utf-8")
    seed = re.search(r"config\.hash_seed = (\d+);", main)
    assert seed is not None

    result = subprocess.run(
        [sys.executable, "-c", COLLIDING], capture_output=True, text=True, check=True, timeout=60,
        env={"PYTHONHASHSEED": seed[1], "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip

    assert float(result.stdout) < 1.0
