# SPDX-License-Identifier: Apache-2.0
"""Which task offers the GPUs of this node, if the agent has both: the device plugin or DRA.

A label of the Node chooses. After a change, the task that loses the GPUs withdraws them at once;
the other one offers each GPU as soon as no pod and no claim has it. Only one of them gives a GPU
away at a time, even if pods of both kinds start during the change: `grant` and `preparing` exclude
each other, because both tasks run in one event loop.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator

from nvct.agent.core.logs import Log
from nvct.errors import HostError, NvctError, RequestError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.kubernetes.cluster import Cluster, Object

CLASSIC, DRA = "classic", "dra"
"""The device plugin's resources, such as nvidia.com/gpu; or the devices of ResourceSlices."""
NAMES = {CLASSIC: "the device plugin", DRA: "ResourceSlices (DRA)"}
LABEL = "nvct.dev/resources"
DEFAULT_ENV = "NVCT_RESOURCES"  # What a Node without the label offers
GRANTED_S = 30.0
"""How long after the answer to Allocate the kubelet may still not list the device as the pod's."""


class ResourcesMode:
    """The API by which a node offers its GPUs, device plugin or DRA, and which GPUs are taken.

    UsageError if the default is neither of the two. `is_alone`: no other task offers GPUs, so the
    default is the choice, whatever the label says.
    """

    def __init__(
        self,
        default: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_alone: bool = False,
    ) -> None:
        if default not in NAMES:
            raise UsageError(f"{DEFAULT_ENV} must be {CLASSIC} or {DRA}, not {default!r}")
        self.mode = default if is_alone else ""  # the choice; "" before the label is known
        self.problem = ""  # why the label has no effect, "" if it has one
        self.is_alone = is_alone
        self.is_withdrawn = is_alone  # whether the API server has no ResourceSlices of this node
        self.is_listed = False  # whether it has them, and the kubelet knows the driver
        # returns the UUIDs of the GPUs that claims have
        self.claims: Callable[[], Collection[str]] = frozenset
        self._default = default
        self._clock = clock
        self._granted: dict[str, float] = {}
        self._preparing: list[str] = []

    async def follow(
        self, cluster: Cluster, node: str, changed: Callable[[], None], journal: Log
    ) -> None:
        """Obey the label of a Node until canceled; `changed` is called after each change."""

        def see(found: Object | None) -> None:
            before, problem = self.mode, self.problem
            self.see(found)
            if self.problem != problem and self.problem:
                journal.error(self.problem)
            if self.mode != before:
                journal.info(f"the GPUs of this node are offered by {NAMES[self.mode]}")
                changed()

        def complain(error: NvctError) -> None:
            if error.message != self.problem:
                self.problem = error.message
                journal.error(error.message)

        from nvct.agent.kubernetes import (
            node_watch,  # lightkube, which a device plugin does without
        )

        await node_watch.follow(cluster, node, see, complain)

    def see(self, node: Object | None) -> None:
        """Choose by the label of a Node; with an unknown value, or None, the choice stays."""
        if node is None:
            return
        label = (node["metadata"].get("labels") or {}).get(LABEL, self._default)
        self.problem = ""
        if label in NAMES:
            self.mode = label
        else:
            self.problem = f"label {LABEL} of the Node must be {CLASSIC} or {DRA}, not {label!r}"
            self.mode = self.mode or self._default

    def plugin_state(self) -> tuple[bool, frozenset[str]]:
        """Return whether the device plugin offers GPUs, and the UUIDs of those it must not."""
        offers = self.mode == CLASSIC and self.is_withdrawn
        try:
            return offers, self._taken()
        except NvctError:  # what claims have is unknown
            return False, frozenset()

    def grant(self, gpus: Collection[str]) -> None:
        """Give GPUs to a container; RequestError if DRA offers them, or a claim has one."""
        offers, taken = self.plugin_state()
        held = sorted(taken.intersection(gpus))
        if held or not offers:
            reason = f"a claim has {held[0]}" if held else "its GPUs are offered by DRA"
            raise RequestError(f"the node offers no such device now: {reason}")
        now = self._clock()
        self._granted |= dict.fromkeys(gpus, now)

    @contextlib.contextmanager
    def preparing(self, gpus: Collection[str]) -> Iterator[None]:
        """Keep the device plugin from giving GPUs away while a claim for them is prepared.

        HostError if the device plugin has just given one to a container.
        """
        end = self._clock() - GRANTED_S
        for gpu in gpus:
            if self._granted.get(gpu, end) > end:
                raise HostError(
                    f"the device plugin has just given {gpu} to a pod",
                    hint="the claim is prepared when that pod has ended",
                )
        self._preparing += gpus
        try:
            yield
        finally:
            for gpu in gpus:
                self._preparing.remove(gpu)

    def _taken(self) -> frozenset[str]:
        return frozenset((*self.claims(), *self._preparing))
