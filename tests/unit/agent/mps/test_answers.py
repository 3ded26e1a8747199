# SPDX-License-Identifier: Apache-2.0
"""What pods that share a GPU by MPS get, as NVIDIA's device plugin 0.20 gives it."""

from __future__ import annotations

import pytest
from google.protobuf import json_format

from nvct.agent.device_plugin import allocate
from nvct.agent.device_plugin import settings as options
from nvct.agent.device_plugin.resources import Device, Node, Resource
from nvct.agent.device_plugin.settings import Settings
from nvct.errors import RequestError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

NAME = "nvidia.com/gpu.shared"
UUID = "GPU-00000000-1111-5222-8333-000000000000"
PLAIN = "GPU-00000000-1111-5222-8333-000000000001"
DEVICES = [
    Device(id=f"{UUID}::0", uuid=UUID, index="0", gpu=UUID, is_replica=True),
    Device(id=f"{UUID}::1", uuid=UUID, index="0", gpu=UUID, is_replica=True),
    Device(id=PLAIN, uuid=PLAIN, index="1", gpu=PLAIN),
]
SHARED = Resource(name=NAME, devices={device.id: device for device in DEVICES})
SETTINGS = Settings(mps=True, mps_root="/run/nvidia/mps", one_each=True)


def answered(*ids: str, settings: Settings = SETTINGS) -> dict[str, object]:
    answer = allocate.answer(SHARED, ids, settings, Node(), "unique")
    return dict(json_format.MessageToDict(answer, preserving_proto_field_name=True))


def test_a_replica_comes_with_pipes_and_shared_memory() -> None:
    assert answered(f"{UUID}::1") == {
        "envs": {
            "CUDA_MPS_PIPE_DIRECTORY": f"/mps/{NAME}/pipe",
            "NVIDIA_VISIBLE_DEVICES": UUID,
        },
        "mounts": [
            {
                "host_path": f"/run/nvidia/mps/{NAME}/pipe",
                "container_path": f"/mps/{NAME}/pipe",
                "read_only": True,
            },
            {"host_path": "/run/nvidia/mps/shm", "container_path": "/dev/shm"},
        ],
    }


def test_a_device_that_is_not_shared_comes_without() -> None:
    assert answered(PLAIN) == {"envs": {"NVIDIA_VISIBLE_DEVICES": PLAIN}}


def test_a_container_gets_one_replica_unless_the_file_says_else(tmp_path: Path) -> None:
    both = [f"{UUID}::0", f"{UUID}::1"]
    allowed = resolved(
        tmp_path, "--mps-root=/run/nvidia/mps", more=", failRequestsGreaterThanOne: false"
    )
    allocate.check(SHARED, both, allowed)
    for more in ("", ", failRequestsGreaterThanOne: true"):
        settings = resolved(tmp_path, "--mps-root=/run/nvidia/mps", more=more)
        with pytest.raises(RequestError, match="maximum request size for shared resources is 1"):
            allocate.check(SHARED, both, settings)


def resolved(folder: Path, *words: str, more: str = "") -> Settings:
    path = folder / "config.yaml"
    path.write_text(f"sharing: {{mps: {{resources: [{{name: gpu, replicas: 2}}]{more}}}}}")
    return options.resolve([*words, f"--config-file={path}"], {})[0]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "using MPS requires --mps-root to be specified"),
        (
            ["--mps-root=/run/nvidia/mps", "--mig-strategy=mixed"],
            "using --mig-strategy=mixed is not supported with MPS",
        ),
    ],
)
def test_what_the_incumbent_refuses_is_refused(
    words: list[str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        resolved(tmp_path, *words)
    assert caught.value.message == sentence


def test_an_answer_for_no_device_is_empty() -> None:
    settings = Settings(
        device_list_strategy=("envvar", "cdi-annotations", "volume-mounts"), mofed_enabled=True,
        pass_device_specs=True,
    )  # fmt: skip

    answer = allocate.answer(SHARED, (), settings, Node(imex_channels=(0,)), "unique")

    assert answer.ByteSize() == 0
