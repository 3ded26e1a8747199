# SPDX-License-Identifier: Apache-2.0
"""A rack of nodes that fail at once: `python rack.py KUBECONFIG NODES AT_ONCE STOP`, in a cluster.

Each node has the brakes of its own. It heals for a moment once it may, but for the first one, which
dies in the middle. The last line of the output tells what was seen, as JSON.
"""

import asyncio
import json
import random
import sys
import tempfile
import time

from nvct.agent.core.logs import Log
from nvct.agent.heal.brakes import Brakes, Limits
from nvct.agent.health.store import Store
from nvct.agent.kubernetes import cluster as clusters

LEASE_S, HEAL_S, LOOK_S = 6, 0.5, 0.1
ALL_STOPPED = "all others are stopped"


class Rack:
    """What is seen of the nodes: how many heal, and how many did at most."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.healing, self.most, self.healed = 0, 0, 0
        self.stops: set[str] = set()
        self.stopped: set[Brakes] = set()
        self.is_first = True
        self.died = 0

    async def heal(self, node: Brakes) -> None:
        """Heal a node."""
        while refusal := await node.take():
            if "is stopped" in refusal:
                self.stops.add(refusal)
                self.stopped.add(node)
                self.tell_stop()
            await asyncio.sleep(LOOK_S)
        self.healing += 1
        self.tell_stop()
        self.most = max(self.most, self.healing)
        if self.is_first:
            self.is_first = False
            assert node._renewal
            node._renewal.cancel()  # as a kill does
            await asyncio.sleep(LEASE_S / 2)
            self.healing, self.died = self.healing - 1, 1
            return
        await asyncio.sleep(random.uniform(HEAL_S, 2 * HEAL_S))
        self.healing -= 1
        self.healed += 1
        await node.release()

    def tell_stop(self) -> None:
        """Tell when all that do not heal know that they are stopped."""
        others = self.healing + self.healed + self.died
        if self.stopped and len(self.stopped) + others >= self.count:
            print(ALL_STOPPED, flush=True)


async def main() -> None:
    """Heal all nodes."""
    kubeconfig, (count, at_once, stop) = sys.argv[1], map(int, sys.argv[2:])
    limits = Limits(nodes=at_once, stop=stop, lease_s=LEASE_S)
    rack, cluster = Rack(count), clusters.connect(kubeconfig, {})
    with tempfile.TemporaryDirectory() as folder:
        nodes = [
            Brakes(cluster, f"node-{number}", limits, Store(folder), Log())
            for number in range(count)
        ]
        began = time.monotonic()
        await asyncio.gather(*(rack.heal(node) for node in nodes))
    await cluster.close()
    print(
        json.dumps(
            {
                "most": rack.most,
                "healed": rack.healed,
                "stops": sorted(rack.stops),
                "seconds": round(time.monotonic() - began, 1),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
