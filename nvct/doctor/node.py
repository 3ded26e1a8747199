# SPDX-License-Identifier: Apache-2.0
"""This host for the checks of `nvct doctor`: each part of it is read once. Cold."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from nvct.cdi.check.drift import Report
from nvct.cdi.read import registry
from nvct.cdi.read.registry import Registry
from nvct.compile import live_host
from nvct.config.model import Config
from nvct.doctor import decisions, specifications
from nvct.doctor.containers import Containers
from nvct.engine import status as engine_status
from nvct.engine.model import Engine, Files
from nvct.engine.status import Status
from nvct.errors import DriverNotFoundError, NvctError, NvmlError
from nvct.host.model import Inventory
from nvct.host.nvml.kernel_xids import KMSG_ENV
from nvct.host.nvml.library import nvml_library
from nvct.host.nvml.mig_model import MigState
from nvct.host.nvml.sample_model import GpuReadiness
from nvct.host.nvml.session import NvmlSession, is_hang, shared_session
from nvct.host.roots import Roots
from nvct.kernel.kmsg import FILE, Kmsg, Message

T = TypeVar("T")

BOOTED = "/run/systemd/system"  # sd_booted(3)
RECENT_S = 3600.0


class Log(NamedTuple):
    """Messages of the kernel, the oldest first, or why they cannot be read."""

    messages: Sequence[Message] = ()
    problem: str = ""

    def recent(self) -> Iterator[tuple[str, float]]:
        """Yield the messages of the last hour, with their age in seconds."""
        now = time.clock_gettime(time.CLOCK_MONOTONIC)
        for message in self.messages:
            age_s = now - message.time_us / 1e6
            if age_s <= RECENT_S:
                yield message.text, age_s


def kernel_log(env: Mapping[str, str]) -> Log:
    """Return the messages in the kernel's log, without those of programs."""
    path = env.get(KMSG_ENV) or FILE
    try:
        with Kmsg(path, past=True) as kmsg:
            return Log([message for message in kmsg.read() if message.facility == 0])
    except OSError as error:
        return Log(problem=f"{path} cannot be read: {error.strerror}")
    except ValueError as error:
        return Log(problem=str(error))


@dataclass
class Node:
    """This host. A part that no check needs is not read."""

    settings: Config
    env: Mapping[str, str]
    engines: Sequence[Engine] = ()
    agent: Mapping[str, Any] | None = None
    trouble: NvctError | None = None  # why config.toml cannot be used, and the defaults are
    released: str = ""  # why the driver is being replaced, "" if it is not
    image: str = ""  # the folder of an unpacked image, "" for none
    host: str = "/"  # the root folder; another one than / only in tests
    booted: bool = field(default_factory=lambda: os.path.isdir(BOOTED))

    @cached_property
    def roots(self) -> Roots:
        """The roots of the driver, /proc and /sys."""
        return live_host.roots_of(self.settings)

    @cached_property
    def discovery(self) -> Inventory | NvctError:
        """The inventory of discovery, or why discovery fails."""
        try:
            return live_host.discover(self.settings)
        except NvctError as error:
            return error

    @property
    def inventory(self) -> Inventory | None:
        """The inventory of discovery, None if discovery fails."""
        return self.discovery if isinstance(self.discovery, Inventory) else None

    @cached_property
    def session(self) -> NvmlSession | None:
        """A session with the NVML of the driver's root; None without NVML."""
        try:
            return shared_session(nvml_library(self.roots))
        except DriverNotFoundError:
            return None

    @cached_property
    def nvml(self) -> MigState | NvctError | None:
        """NVML's MIG state or error; without a new call if NVML hung for discovery."""
        before = vars(self).get("discovery")
        if isinstance(before, NvmlError) and is_hang(before.message):
            return before
        try:
            return self.session.mig() if self.session else None
        except NvmlError as error:
            return error

    @property
    def mig(self) -> MigState | None:
        """The MIG state of the GPUs, None if NVML does not answer."""
        return self.nvml if isinstance(self.nvml, MigState) else None

    @cached_property
    def readiness(self) -> tuple[GpuReadiness, ...]:
        """Persistence mode and NVLink fabric by NVML; () if it does not answer."""
        return self.ask("readiness", tuple[GpuReadiness, ...]) or ()

    def ask(self, verb: str, kind: type[T]) -> T | None:
        """Return NVML's answer; None without one, which the check `nvml` reports."""
        if self.session is None or self.mig is None:
            return None
        try:
            return self.session.ask(verb, kind)
        except NvmlError:
            return None

    @cached_property
    def log(self) -> Log:
        """The kernel's messages."""
        return kernel_log(self.env)

    @cached_property
    def statuses(self) -> list[Status]:
        """The configuration and state of the engines."""
        return [engine_status.of(engine, Files()) for engine in self.engines]

    @cached_property
    def containers(self) -> Containers:
        """The containers of this host, by their processes."""
        containers = Containers(self.host)
        containers.refresh()
        return containers

    @cached_property
    def decisions(self) -> decisions.Log:
        """The decisions of runtime, hooks and agent about containers."""
        return decisions.look(decisions.folders(self.env))

    @cached_property
    def report(self) -> Report:
        """The differences between the CDI specifications and this host."""
        return specifications.compare(self.settings, self.inventory)

    @cached_property
    def registry(self) -> Registry:
        """The CDI specifications."""
        return registry.scan(self.settings.spec_dirs)
