# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets of documents: config.json, CDI specs, the state that a hook reads."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from pathlib import Path

from nvct import typed
from nvct.agent.mps.daemons import Daemon, Wanted
from nvct.agent.nvml import supervisor
from nvct.cdi.make import store
from nvct.cdi.read import load
from nvct.config.model import Config
from nvct.container.cdi_hook.context import Context
from nvct.container.plan import inject
from nvct.container.plan.hook_command import Options
from nvct.container.plan.model import no_edits
from nvct.container.prestart import main as prestart
from nvct.container.request.resolve import resolve_request
from nvct.errors import HostError, NvctError
from nvct.host.nvml import messages
from nvct.linux.root import Root
from nvct.oci.bundle import Bundle
from nvct.typed import MalformedError
from tests.fuzz import go_json, requests
from tests.fuzz.outcome import written_by_us

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.container.plan.model import Edits

ENGINE_CONFIG = {
    "ociVersion": "1.0.2",
    "process": {
        "user": {"uid": 0, "gid": 0, "additionalGids": [10]},
        "args": ["sh"],
        "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0,1"],
        "capabilities": {"bounding": ["CAP_CHOWN"]},
    },
    "root": {"path": "rootfs", "readonly": True},
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": requests.FOLDER + "0", "type": "bind", "source": "/dev/null"},
    ],
    "hooks": {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]},
    "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"},
    "linux": {
        "devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}],
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        "namespaces": [{"type": "mount"}],
    },
}
SMALL_CONFIG = {
    "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]},
    "root": {"path": "r"},
    "annotations": None,
    "mounts": None,
}
WORKER_WORDS = (
    *(f'"{verb}"' for verb in supervisor.CALLS), '"call":', '"limit_s":', '"daemons":', '"gpus":',
    '"instances":', '"uuid":', '"owner":', "[{}]", "true", "null", "1e999", "9" * 5000, "\\ud800",
)  # fmt: skip
CONFIG_WORDS = (
    '"process":', '"Process":', '"env":', '"ENV":', '"mounts":', '"destination":', '"Destination":',
    '"source":', '"annotations":', '"hooks":', '"linux":', '"root":', '"path":', '"null":', "null", "{}",
    "[]", "{", "}", "[", "]", ",", ":", '"', '"NVIDIA_VISIBLE_DEVICES=all",', '"NVIDIA_VISIBLE_DEVICES=",',
    '"CUDA_VERSION=1",', '{"destination":"/var/run/nvidia-container-devices/all","source":"/dev/null"},',
    '"cdi.k8s.io/a":"nvidia.com/gpu=all",', "\\u0061ll", "\\/", "proce\u017f\u017f", "\\u212a", "1e999", "-0",
    "1.5", "true", "NaN", "\\ud834\\udd1e", "\\udd1e", '"capabilities":', '"bounding":', '"CAP_SYS_ADMIN",',
)  # fmt: skip
SPEC = {
    "cdiVersion": "1.1.0",
    "kind": "nvidia.com/gpu",
    "annotations": {"a.b/c": "d"},
    "devices": [
        {
            "name": "0",
            "containerEdits": {
                "deviceNodes": [
                    {"path": "/dev/nvidia0", "major": 195, "fileMode": 438, "permissions": "rw"}
                ]
            },
        },
        {"name": "all", "containerEdits": {"env": ["A=b"], "additionalGids": [44]}},
    ],
    "containerEdits": {
        "mounts": [{"hostPath": "/l/libcuda.so.1", "containerPath": "/l", "options": ["ro"]}],
        "hooks": [{"hookName": "createContainer", "path": "/h", "args": ["h"], "env": ["A=b"]}],
        "netDevices": [{"hostInterfaceName": "eth0", "name": "e"}],
        "intelRdt": {"closID": "x"},
    },
}
YAML_SPEC = b"""\
# a comment
cdiVersion: 0.5.0
kind: acme.org/net
containerEdits: &common
  env: [A=b, "C=d"]
devices:
  - name: eth0
    containerEdits:
      <<: *common
      deviceNodes:
        - {path: /dev/x, type: c, major: 0x1F, minor: 007, fileMode: 0660}
  - name: '1'
    containerEdits: *common
"""
SPEC_WORDS = (
    "&a ", "*a", "*common", "<<: ", "- ", "  - ", "\n  ", ": ", "name: ", "name: on", "0.5.0", "0x1", "0o7", "~",
    "null", "yes", "!!str ", "!!binary ", "!!python/object:os.system ", "! ", "|\n", ">-\n", "? ", "---\n", "...\n",
    "%YAML 1.1\n", "[", "]", "{", "}", ",", '"', "'", "#", "\t", "\\x00", "1e3", ".5", "1_0", "1:30", "2001-01-01",
    '"name":', '"NAME":', '"devices":', '"containerEdits":', '"annotations":', '"kind":', '"hooks":', "9" * 30,
)  # fmt: skip
STATE_WORDS = (
    '"bundle":', '"bundlePath":', '"root":', '"pid":', '"/', "{", "}", "[", "]", ",", ":", '"', "null", "1", "-1",
    "4194304", "99999999999999999999", "true", "1.0", "\\u0000", "\\ud800", "..", '""', "{}",
)  # fmt: skip


def _given() -> list[Edits]:
    made = no_edits()
    node = {
        "path": "/dev/nvidia0",
        "node": '{"path":"/dev/nvidia0","type":"c","major":195,"minor":0}',
        "rule": '{"allow":true,"type":"c","major":195,"minor":0,"access":"rw"}',
    }
    made["env"] = ["NVIDIA_VISIBLE_DEVICES=void"]
    made["nodes"] = [node]  # type: ignore[list-item]  # a TypedDict's literal
    made["mounts"] = [["/usr/lib/libcuda.so.1", '{"destination":"/usr/lib/libcuda.so.1"}']]
    made["hooks"] = {"createContainer": ['{"path":"/h","env":["A=b"]}']}
    made["gids"] = [44]
    return [made]


EDITS = _given()


def config_seeds() -> list[bytes]:
    """Return config.json as engines write it, with and without white space."""
    return [
        json.dumps(ENGINE_CONFIG).encode(),
        json.dumps(SMALL_CONFIG).encode(),
        json.dumps(SMALL_CONFIG, indent=1).encode(),
    ]


def run_config(data: bytes) -> bool:
    """Read a config.json, compare with Go's reading, resolve its request, edit it."""
    bundle = Bundle("config.json", data.decode("utf-8", "surrogateescape"))
    env, mounts, annotations = bundle.env, bundle.mounts, bundle.annotations
    bounding = bundle.bounding
    try:
        theirs = go_json.Reading(data)
    except go_json.GoRefusesError:
        theirs = None  # then no container comes of it
    if theirs is not None:
        text = go_json.text
        assert [text(e) for e in env] == [e for e in theirs.env if e or "" in env]
        notes = {text(k): text(v) for k, v in annotations.items()}
        assert notes == {k: v for k, v in theirs.annotations.items() if k in notes or v}
        assert [text(b) for b in bounding] == [b for b in theirs.bounding if b or "" in bounding]
        ours = [(_said(m, "destination"), _said(m, "source")) for m in mounts]
        assert ours == [m for m in theirs.mounts if m != ("", "") or m in ours]
        assert _said({"path": bundle.document.value(("root", "path"))}, "path") == theirs.root
    config = Config(accept_volume_mounts=True)
    request, _ = resolve_request(env, mounts, annotations, bounding, config)
    if request is not None and theirs is not None:
        requests.check(request, env, mounts, annotations, bounding=bounding, config=config)
    inject.remove_nvidia_hooks(bundle)
    inject.apply(bundle, EDITS)
    text_again = bundle.document.render()  # refuses where "process" is no object, say
    with written_by_us():
        again = Bundle("config.json", text_again)
    assert [e for e in again.env if e.startswith("NVIDIA_VISIBLE_DEVICES=")] == EDITS[0]["env"]
    return True


def _said(mount: Mapping[str, object], key: str) -> str:
    """Return a member as Go has it: "" where it is missing or null."""
    found = mount.get(key)
    return go_json.text(found) if isinstance(found, str) else ""


def spec_seeds() -> list[bytes]:
    """Return specs in both forms."""
    spec = load.loads(json.dumps(SPEC).encode(), source="seed")
    return [json.dumps(SPEC).encode(), YAML_SPEC, store.dumps(spec, "yaml")]


def run_spec(data: bytes) -> bool:
    """Load a spec; what is accepted reads the same when it is written and read again."""
    spec = load.loads(data, source="s")
    spec["cdiVersion"] = ""  # a spec is written for the lowest version that it needs
    for form in ("json", "yaml") if data[:1] != b"{" else ("json",):
        with written_by_us():
            again = load.loads(store.dumps(spec, form), source=form)
        again["cdiVersion"] = ""
        assert again == spec
    for device in spec["devices"]:
        assert device["name"].isascii()
    return True


@functools.cache
def _bundle() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="nvct-fuzz-"))
    (folder / "rootfs").mkdir()
    (folder / "config.json").write_text('{"root":{"path":"rootfs"}}', encoding="utf-8")
    return folder


def state_seeds() -> list[bytes]:
    """Return states as runc, crun and an old Docker write them."""
    bundle = str(_bundle())
    states: tuple[dict[str, object], ...] = (
        {"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": 77, "bundle": bundle},
        {"id": "c", "pid": 77, "root": f"{bundle}/rootfs", "bundle": bundle},
        {"id": "c", "pid": 4000000, "root": "rootfs", "bundle": bundle, "annotations": {}},
        {"id": "c", "pid": 77, "bundlePath": bundle, "root": f"{bundle}/rootfs"},
    )
    return [json.dumps(state).encode() for state in states]


def run_state(data: bytes) -> bool:
    """Read a state as hooks do; the root that it names is opened and no more."""
    fd = os.memfd_create("state")
    try:
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        accepted = True
        try:
            pid, folder = prestart.read_state(fd)
            assert pid > 1
            assert folder.startswith("/")
        except NvctError:
            accepted = False
        os.lseek(fd, 0, os.SEEK_SET)
        context = Context(Options(), fd, _ignore)
        path = context._root_path()
        assert path.startswith("/")
        try:
            Root.open(path).close()
        except HostError:
            return accepted
    finally:
        os.close(fd)
    return True


def _ignore(sentence: str) -> None:
    del sentence


def worker_seeds() -> list[bytes]:
    """Return requests of the agent to NVML's worker."""
    instance = {"gpus": ["GPU-1"], "instances": [["GPU-1", 1, 0]]}
    daemon = Daemon(resource="nvidia.com/gpu", uuids=(f"GPU-{'0' * 36}",), limits={"0": 5})
    calls = {
        "report": {}, "mig_holders": instance, "mig_set_mode": {"uuid": "GPU-1", "enabled": True},
        "mps": typed.dump(Wanted(daemons=(daemon,), owner="dra")),
    }  # fmt: skip
    return [
        json.dumps(
            {
                "id": 1,
                "verb": verb,
                "arguments": {"library": "", "limit_s": 5, "call": call},
            }
        ).encode()
        for verb, call in calls.items()
    ]


def run_worker(data: bytes) -> bool:
    """Parse a request to NVML's worker, and carry nothing out."""
    try:
        _, verb, arguments = messages.request_of(messages.decode(data))
        given, call = supervisor.call_of(verb, arguments)
    except MalformedError:
        return False
    assert type(given.limit_s) is int
    assert type(call) is supervisor.CALLS[verb]
    assert typed.load(type(call), typed.dump(call)) == call
    return True
