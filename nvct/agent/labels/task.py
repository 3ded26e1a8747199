# SPDX-License-Identifier: Apache-2.0
"""Keeps the labels of this node up to date.

Level-triggered: after each change of the driver, of MIG devices or of the settings, and at the
latest after the interval, all labels are computed and written again. While the driver or the API
server does not answer, the labels stay as they are.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

from nvct.agent.core.context import Context
from nvct.agent.core.logs import Log
from nvct.agent.core.task import PERIOD_S, SETTLE_S, Task
from nvct.agent.labels import compute, gather, outputs, settings
from nvct.agent.labels.facts import Facts, Labels
from nvct.agent.labels.outputs import Output
from nvct.agent.labels.settings import VFIO, Settings
from nvct.agent.machine.discovery import Discovery
from nvct.agent.nvml.client import ReleasedError
from nvct.errors import DriverNotFoundError, NvctError, NvmlError
from nvct.host.gpu import pci

RETRY_S = 10.0  # Until the next attempt after a failure
REPAIR_S = 30.0
"""Seconds after which removed labels are written again; twice as many each time, up to the
interval."""
LATER = ("kubernetes.cluster",)  # Imported when the task runs


def make(context: Context) -> NodeLabels:
    """Return the task."""

    def load() -> Settings:
        return context.load(partial(settings.resolve, in_agent=context.in_agent))

    def discovery(known: Settings) -> Discovery:
        return context.discovery(known.container_driver_root, known.device_discovery_strategy)

    def output(known: Settings) -> Output:
        return outputs.of_settings(known, context.connect, context.journal)

    return NodeLabels(load, discovery, output, context.journal)


class NodeLabels(Task):
    """The task of the agent that labels its node."""

    def __init__(
        self,
        load: Callable[[], Settings],
        discovery: Callable[[Settings], Discovery],
        output: Callable[[Settings], Output],
        log: Log,
    ) -> None:
        super().__init__(log, problems_are_errors=True)
        self.labels: Labels | None = None
        self._load = load
        self._make_discovery = discovery
        self._make_output = output
        self._timestamp = int(time.time())
        self._settings = load()
        self._discovery = discovery(self._settings)
        self._is_first = True
        self._due_at = self._repair_at = 0.0
        self._repair_s = REPAIR_S
        self._warnings: list[str] = []

    def describe(self) -> list[dict[str, object]]:
        """Return the state of the labels, as JSON data."""
        state = "waiting" if self.labels is None else "written"
        return [
            {
                "resource": "labels",
                "state": state,
                "reason": self.problem.text,
                "labels": len(self.labels or ()),
            }
        ]

    async def run(self) -> None:
        """Label the node until canceled, or once; or remove the labels, if the settings say so.

        NvctError if the settings do not fit the machine at the start; or if the driver does not
        answer then, and the settings say not to wait for it.
        """
        output = self._make_output(self._settings)
        try:
            if self._settings.remove_labels:
                await output.write({})
                return
            if self._settings.oneshot:
                await self._label(output)
                return
            while True:
                before = self._settings
                await self._follow(output)
                if self._settings.output != before.output:
                    await output.close()
                    output = self._make_output(self._settings)
        finally:
            await output.close()

    async def _follow(self, output: Output) -> None:
        self._is_first = self.labels is None
        await self._follow_machine(
            self._discovery.signature, partial(self._try_label, output),
            partial(self._is_lost, output),
        )  # fmt: skip
        self._read_settings()

    async def _try_label(self, output: Output, is_change: bool) -> float:  # noqa: FBT001
        """Label the node; return the seconds until the node is looked at again."""
        is_first, self._is_first = self._is_first, False
        try:
            await self._label(output)
        except NvctError as error:
            if is_first and not self._may_wait(error):
                raise
            self.problem.tell(error)
            is_soon = is_change or self._discovery.has_driver()
            return SETTLE_S if is_soon else RETRY_S
        self.problem.clear()
        return SETTLE_S if is_change else min(PERIOD_S, self._interval_s)

    def _is_lost(self, output: Output) -> bool:
        """Return whether somebody has removed labels, and it is time to write them again."""
        is_time = time.monotonic() >= self._repair_at
        return is_time and self.labels is not None and output.lacks(self.labels)

    def _may_wait(self, error: NvctError) -> bool:
        """Return whether the error can pass, and the settings say to wait."""
        if isinstance(error, ReleasedError):
            return True
        is_driver = isinstance(error, (NvmlError, DriverNotFoundError))
        return is_driver and not self._settings.fail_on_init_error

    def _read_settings(self) -> None:
        self._settings = self._loaded_again(self._load, self._settings)
        self._discovery = self._make_discovery(self._settings)
        self._due_at = 0.0

    async def _label(self, output: Output) -> None:
        """Compute the labels, and write them if they have changed or the interval is over."""
        found, warnings = await self._facts()
        known = self._settings
        timestamp = None if known.no_timestamp else self._timestamp
        labels, more = compute.labels(found, known, timestamp)
        own = compute.load(known.labels_file) if known.labels_file else {}
        labels, of_own = compute.added(labels, own)
        self._warn([*warnings, *more, *of_own])
        is_lost = self._is_lost(output)
        if labels == self.labels and time.monotonic() < self._due_at and not is_lost:
            return
        await output.write(labels)
        self._repair_s = min(2 * self._repair_s, self._interval_s) if is_lost else REPAIR_S
        self._repair_at = time.monotonic() + self._repair_s
        if labels != self.labels:
            self._log.info(f"{len(labels)} labels were written")
        self.labels = labels
        # Earlier by up to a tenth, so that nodes that started together do not ask together.
        early = random.uniform(0.9, 1)  # noqa: S311  no secret
        self._due_at = time.monotonic() + self._interval_s * early

    async def _facts(self) -> tuple[Facts, list[str]]:
        """Return the facts of this node; without a driver, only if none is expected.

        DriverNotFoundError or NvmlError if the driver does not answer, but may do so later.
        """
        known, roots = self._settings, self._discovery.roots
        if known.device_discovery_strategy == VFIO:
            return await gather.with_passthrough(self._discovery, known.machine_type_file)
        try:
            return await gather.with_gpus(self._discovery, known.machine_type_file, known.excluded)
        except (DriverNotFoundError, NvmlError) as error:
            is_expected = known.oneshot or not pci.nvidia_devices(roots)
            if known.fail_on_init_error or self.labels or not is_expected:
                raise
            self.problem.tell(error)
            return await gather.without_gpus(self._discovery)

    @property
    def _interval_s(self) -> float:
        return settings.seconds(self._settings.sleep_interval)

    def _warn(self, warnings: list[str]) -> None:
        for warning in warnings:
            if warning not in self._warnings:
                self._log.warning(warning)
        self._warnings = warnings
