# SPDX-License-Identifier: Apache-2.0
"""Any sequence of events: the kubelet has the right list soon, and no device is offered twice."""

import asyncio
import contextlib
import io
import os
import tempfile
from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nvct.agent.core import task as core_task
from nvct.agent.core.config_file import Replicas, Sharing
from nvct.agent.core.logs import Log
from nvct.agent.device_plugin import registration, task
from nvct.agent.device_plugin.resources import GPU, resources
from nvct.agent.device_plugin.settings import Settings
from nvct.agent.health import engine
from nvct.agent.machine import folder_watch
from nvct.agent.machine.inventory import Inventory
from nvct.errors import DriverNotFoundError
from nvct.host.model import Gpu, MigDevice
from nvct.host.nvml.model import NvmlEvents, XidEvent
from nvct.host.nvml.sample_model import GpuCondition, MigInstance, NvmlConditions
from nvct.host.roots import Roots
from tests.unit.agent.device_plugin.fake_kubelet import FakeKubelet, until
from tests.unit.agent.health import engines

GPUS = st.integers(0, 2)
PROFILES = st.lists(st.sampled_from(["1g.10gb", "3g.40gb"]), max_size=2)
LIMIT_S = 10.0
"""Of a busy machine; the intervals below are a tenth of the real ones, or less."""
FATAL, APPLICATION = 79, 31


class Machine:
    """Stands for a discovery and its NVML: three GPUs, any of which may have MIG devices."""

    roots = Roots()
    host = None
    busy_s = 0

    def __init__(self) -> None:
        self.nvml = self
        self.mig: list[tuple[str, ...]] = [(), (), ()]
        self.made = 0
        self.first: list[int] = [0, 0, 0]
        self.has_loaded_driver = True
        self.answers = asyncio.Event()
        self.answers.set()
        self.xids: list[XidEvent] = []

    async def signature(self) -> tuple[object, ...]:
        return (self.has_loaded_driver, *self.mig, *self.first)

    def stat_node(self, _path: str) -> None:
        return None

    def has_driver(self) -> bool:
        return self.has_loaded_driver

    def check(self) -> None:
        pass

    async def inventory(self) -> Inventory:
        await self.answers.wait()
        if not self.has_loaded_driver:
            raise DriverNotFoundError("no driver")
        return self.now()

    async def events(self) -> NvmlEvents:
        await self.answers.wait()
        taken, self.xids = tuple(self.xids), []
        return NvmlEvents(watch=1, events=taken, unwatched={})

    async def conditions(self) -> NvmlConditions:
        await self.answers.wait()
        return NvmlConditions(
            gpus=tuple(
                GpuCondition(
                    uuid=gpu.uuid,
                    mig=tuple(MigInstance(uuid=m.uuid, gi=m.gi, ci=m.ci) for m in gpu.mig),
                )
                for gpu in self.now().gpus
            )
        )

    def now(self) -> Inventory:
        return Inventory(gpus=tuple(self._gpu(index) for index in range(3)))

    def set_mig(self, index: int, profiles: list[str]) -> None:
        self.mig[index] = tuple(profiles)
        self.first[index] = self.made
        self.made += len(profiles)

    def _gpu(self, index: int) -> Gpu:
        mig = tuple(
            MigDevice(
                index=n, uuid=f"MIG-{self.first[index] + n}", gi=n, ci=0, profile=profile,
                cap_minors=(1, 2),
            )
            for n, profile in enumerate(self.mig[index])
        )  # fmt: skip
        return Gpu(
            index=index, minor=index, uuid=f"GPU-{index}", bus_id="", model="NVIDIA H100",
            node=None, mig_enabled=bool(mig), mig=mig,
        )  # fmt: skip


class Plugin(RuleBasedStateMachine):
    """The task, the fake kubelet and the machine; the rules are what may happen to them.

    All examples have one event loop: gRPC loses events where one of several is closed.
    """

    loop: ClassVar[asyncio.AbstractEventLoop]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir="/tmp")
        self.sick: set[str] = set()
        self.replicas = 0
        self.loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self.kubelet = FakeKubelet(self.folder.name)
        await self.kubelet.start()
        self.machine = Machine()
        self.log = io.StringIO()
        discovery: Any = self.machine
        log = Log(target=self.log)
        health = engines.engine(log=log)
        self.plugin = task.DevicePlugin(self.load, lambda _: discovery, lambda _: health, log)
        self.runs = asyncio.ensure_future(self.plugin.run())

    def load(self) -> Settings:
        rules = (Replicas(name=GPU, replicas=self.replicas),) if self.replicas else ()
        return Settings(
            kubelet_socket=f"{self.folder.name}/kubelet.sock",
            mig_strategy="mixed",
            fail_on_init_error=False,
            sharing=Sharing(replicas=rules),
        )

    def teardown(self) -> None:
        self.machine.answers.set()
        self.loop.run_until_complete(self._end())
        self.folder.cleanup()

    async def _end(self) -> None:
        self.runs.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(self.runs, LIMIT_S)
        await self.kubelet.stop()

    @rule()
    def the_kubelet_restarts(self) -> None:
        async def restart() -> None:
            await self.kubelet.stop()
            await self.kubelet.start()

        self.loop.run_until_complete(restart())

    @rule(name=st.integers(0, 5))
    def the_kubelet_drops_a_resource(self, name: int) -> None:
        names = sorted(self.kubelet.lists)
        if names:
            self.loop.run_until_complete(self.kubelet.drop(names[name % len(names)]))

    @rule(name=st.integers(0, 5))
    def a_socket_is_removed(self, name: int) -> None:
        paths = [entry.endpoint.path for entry in self.plugin.registrations.values()]
        if paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(paths[name % len(paths)])

    @rule(replicas=st.sampled_from([0, 2]))
    def the_settings_are_read_again(self, replicas: int) -> None:
        self.replicas = replicas
        self.sick.clear()
        self.plugin.reload.set()

    @rule(index=GPUS, profiles=PROFILES)
    def mig_devices_change(self, index: int, profiles: list[str]) -> None:
        self.machine.set_mig(index, profiles)

    @precondition(lambda self: self.machine.has_loaded_driver and self.machine.answers.is_set())
    @rule(index=GPUS, xid=st.sampled_from([FATAL, APPLICATION]))
    def a_gpu_has_an_xid(self, index: int, xid: int) -> None:
        self.machine.xids.append(XidEvent(uuid=f"GPU-{index}", xid=xid))
        self.loop.run_until_complete(self._is_noted())
        if xid == FATAL:
            self.sick.add(f"GPU-{index}")

    async def _is_noted(self) -> None:
        """Wait, so that no error comes after the settings are read again."""
        if self.plugin.registrations:
            await until(lambda: not self.machine.xids, LIMIT_S)
            await asyncio.sleep(0.02)

    @rule()
    def nvml_hangs(self) -> None:
        self.machine.answers.clear()

    @rule()
    def nvml_answers(self) -> None:
        self.machine.answers.set()

    @precondition(lambda self: self.machine.answers.is_set())
    @rule(is_there=st.booleans())
    def the_driver_goes_or_comes(self, is_there: bool) -> None:
        self.machine.has_loaded_driver = is_there

    def expected(self) -> dict[str, dict[str, str]]:
        if not self.machine.has_loaded_driver:
            return {}
        found, _ = resources(self.machine.now(), self.load())
        return {
            name: {
                id_: "Unhealthy" if device.gpu in self.sick else "Healthy"
                for id_, device in one.devices.items()
            }
            for name, one in found.items()
        }

    @invariant()
    def the_list_is_right_soon(self) -> None:
        def listed() -> dict[str, dict[str, str]]:
            return {name: devices for name, devices in self.kubelet.lists.items() if devices}

        def is_right() -> bool:
            assert not self.runs.done(), self.log.getvalue()
            if self.machine.answers.is_set():
                return listed() == self.expected()
            return {state for one in listed().values() for state in one.values()} <= {"Unhealthy"}

        try:
            self.loop.run_until_complete(until(is_right, LIMIT_S))
        except AssertionError:
            print(listed(), self.expected(), self.log.getvalue(), sep="\n")
            raise

    @invariant()
    def no_device_is_offered_twice(self) -> None:
        ids = Counter(id_ for one in self.kubelet.lists.values() for id_ in one)
        assert set(ids.values()) <= {1}

    @invariant()
    def what_is_unhealthy_has_a_reason(self) -> None:
        reasons: dict[str, str] = {}
        for entry in self.plugin.registrations.values():
            reasons |= entry.endpoint.content.unhealthy
        listed = [one for lists in self.kubelet.lists.values() for one in lists.items()]
        assert all(reasons[id_] for id_, state in listed if state == "Unhealthy")


def test_after_any_sequence_of_events_the_list_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (core_task, "MACHINE_S", 0.02), (task, "SETTLE_S", 0.02), (task, "PERIOD_S", 0.05),
        (task, "RETRY_S", 0.05), (task, "BROKEN_S", 0.05), (folder_watch, "LOOK_S", 0.01),
        (engine, "EVENTS_S", 0.01), (engine, "SUSPECT_S", 0.05), (engine, "LOOK_S", 0.02),
        (registration, "WITHDRAWN_S", 0.05), (registration, "LISTED_S", 1.0),
        (registration, "DELAYS_S", (0.005, 0.01, 0.02, 0.05)),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        monkeypatch.setattr(Plugin, "loop", loop, raising=False)
        run_state_machine_as_test(
            Plugin,
            settings=settings(
                max_examples=25, stateful_step_count=15, deadline=None,
                suppress_health_check=list(HealthCheck), database=None, phases=[Phase.generate],
            ),
        )  # fmt: skip
