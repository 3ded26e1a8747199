# SPDX-License-Identifier: Apache-2.0
"""The ways in which Docker's containers ask for a GPU, and what each gives: the table in docs.

Every cell is tested with a real dockerd, by tests.engines.test_docker_today and
test_docker_rootless.
"""

from dataclasses import dataclass

CDI_DEVICE = "--device=nvidia.com/gpu=1"
UTILITY = '--gpus="device=1","capabilities=utility"'
COMPOSE = """\
services:
  asks:
    image: plain:test
    pull_policy: never
    network_mode: none
    command: ["/bin/sh", "/script"]
    volumes: ["/run/script:/script"]
"""
GPUS = '    gpus:\n      - device_ids: ["1"]\n        capabilities: [gpu, utility]\n'
RESERVED = """\
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: ["1"]
              capabilities: [gpu, utility]
"""
EVERY = "0 1 2 3 4 5 6 7"


@dataclass(frozen=True, kw_only=True)
class Way:
    """A row of the table.

    Attributes:
        asks: what is written in a command line, a file of Compose or a service.
        flags: of `docker run`.
        compose: the end of a file of Compose, "" if there is none.
        is_debians: whether it is Debian's Compose, of version 2.
        is_service: whether Swarm starts it.
        by_hook: whether dockerd finds no nvidia-cdi-hook.
        runtime: that starts it.
        gpus: their numbers if there is no policy.
        capabilities: whether a request for `utility` alone is obeyed; "" if there is no driver.
        unchecked, checked: whether it gets a GPU under a policy that denies everything.
    """

    asks: str
    flags: tuple[str, ...] = ()
    compose: str = ""
    is_debians: bool = False
    is_service: bool = False
    by_hook: bool = False
    runtime: str = "nvidia"
    gpus: str = "1"
    capabilities: str = "ignored"
    unchecked: str = "given"
    checked: str = "refused"

    def row(self) -> str:
        """Return the row as Markdown."""
        devices = "all" if self.gpus == EVERY else "as chosen"
        cells = (self.asks, self.runtime, devices, self.capabilities or "no driver files")
        return f"| {' | '.join([*cells, self.unchecked, self.checked])} |"


ENV = "-e NVIDIA_VISIBLE_DEVICES=1"
WAYS = (
    Way(asks=f"`{ENV}`", flags=(ENV.replace(" ", ""), "-eNVIDIA_DRIVER_CAPABILITIES=utility"),
        capabilities="obeyed", unchecked="refused"),
    Way(asks="`--gpus`, by CDI", flags=(UTILITY,)),
    Way(asks="`--gpus`, by CDI", flags=(UTILITY,), runtime="runc", checked="given"),
    Way(asks="`--gpus`, by the hook", flags=(UTILITY,), by_hook=True, capabilities="obeyed",
        unchecked="refused"),
    Way(asks="`--gpus`, by the hook", flags=(UTILITY,), by_hook=True, capabilities="obeyed",
        runtime="runc", unchecked="refused"),
    Way(asks="`--device nvidia.com/gpu=1`", flags=(CDI_DEVICE,)),
    Way(asks="`--device nvidia.com/gpu=1`", flags=(CDI_DEVICE,), runtime="runc", checked="given"),
    Way(asks="`--device /dev/nvidia1`", flags=("--device=/dev/nvidia1",), capabilities=""),
    Way(asks="`--device-cgroup-rule 'c 195:* rw'`", flags=("--device-cgroup-rule=c 195:* rw",),
        gpus=EVERY, capabilities=""),
    Way(asks="`--privileged`", flags=("--privileged",), gpus=EVERY, capabilities=""),
    Way(asks="Compose, `gpus`", compose=GPUS),
    Way(asks="Compose, `reservations`", compose=RESERVED),
    Way(asks="Compose 2, `gpus`", compose=GPUS, is_debians=True),
    Way(asks="Compose 2, `reservations`", compose=RESERVED, is_debians=True),
    Way(asks="Swarm, `--generic-resource`", is_service=True, capabilities="obeyed",
        unchecked="refused"),
)  # fmt: skip
ROOTLESS_WAYS = (
    Way(asks=f"rootless, `{ENV}`", flags=WAYS[0].flags, capabilities="obeyed",
        unchecked="refused"),
    Way(asks="rootless, `--gpus`, by CDI", flags=(UTILITY,)),
    Way(asks="rootless, `--gpus`, by CDI", flags=(UTILITY,), runtime="runc", checked="given"),
    Way(asks="rootless, `--device nvidia.com/gpu=1`", flags=(CDI_DEVICE,)),
    Way(asks="rootless, `--device /dev/nvidia1`", flags=("--device=/dev/nvidia1",),
        capabilities=""),
    Way(asks="rootless, `--volume /dev:/x`", flags=("--volume=/dev:/x",), gpus=EVERY,
        capabilities=""),
    Way(asks="rootless, `--privileged`", flags=("--privileged",), gpus=EVERY, capabilities=""),
)  # fmt: skip
HEAD = (
    "| asks by | runtime | devices | capabilities | `unchecked` | `checked` |\n"
    "|---|---|---|---|---|---|\n"
)
TABLE = HEAD + "\n".join(dict.fromkeys(way.row() for way in (*WAYS, *ROOTLESS_WAYS)))
