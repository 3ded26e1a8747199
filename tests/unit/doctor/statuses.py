# SPDX-License-Identifier: Apache-2.0
"""Engines with a state, and the check of them."""

import tempfile
from pathlib import Path

from nvct.config.model import Config
from nvct.doctor import registered
from nvct.doctor.model import Part
from nvct.engine.model import Engine, State
from nvct.engine.running import Running
from nvct.engine.status import Status
from nvct.host.model import Inventory
from tests.unit.doctor.broken_nodes import gpu_of, node_of, write


def engine(
    name: str = "docker", version: str = "28.5.2", pid: int = 812, **more: object
) -> Engine:
    values: dict[str, object] = {"config": f"/etc/{name}/daemon.json", "path": "/no/bin", **more}
    return Engine(engine=name, version=version, pid=pid, **values)  # type: ignore[arg-type]


def status(
    found: Engine, runtimes: tuple[str, ...] = (), *, cdi: bool | None = None, **more: object
) -> Status:
    """Return the status of an engine with some runtimes, by its files."""
    handlers = {name: f"/usr/bin/{name}-container-runtime" for name in runtimes}
    state = State(handlers=handlers, cdi=cdi)
    values: dict[str, object] = {"state": state, "registered": runtimes, **more}
    return Status(engine=found, **values)  # type: ignore[arg-type]


def in_force(devices: tuple[str, ...], *, cdi: bool) -> Running:
    state = State(handlers={"runc": "runc"}, cdi=cdi, spec_dirs=("/etc/cdi",))
    return Running(by="GET /info", state=state, devices=devices)


def check(
    *statuses: Status, gpu: bool = True, pods: bool = False, no_cgroups: bool = False
) -> Part:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), "proc/7/comm", "kubelet\n" if pods else "bash\n")
        node = node_of(
            Path(folder), statuses=statuses, settings=Config(cli_no_cgroups=no_cgroups),
            discovery=Inventory(driver_version="1", gpus=(gpu_of(0, "GPU-0"),) * gpu),
        )  # fmt: skip
        return registered.check(node)
