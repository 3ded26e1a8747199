# SPDX-License-Identifier: Apache-2.0
"""Follows one Node for the tasks that obey a label of it."""

from __future__ import annotations

import asyncio
import random

from nvct.agent.kubernetes import node_news
from nvct.agent.kubernetes.cluster import NODE
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from nvct.agent.kubernetes.cluster import Cluster, Object

DELAYS_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Until the next watch after a failure; a random part is added."""


async def follow(
    cluster: Cluster,
    name: str,
    see: Callable[[Object | None], None],
    complain: Callable[[NvctError], None],
) -> NoReturn:
    """Report a Node as it is now, and after each change, until canceled.

    Args:
        cluster: of the Node.
        name: of the Node.
        see: takes the Node, None if it is deleted; an error that it raises is reported, too.
        complain: takes the reason why the Node cannot be watched now.
    """
    failures = 0
    while True:
        try:
            async for node in cluster.changes(NODE, name):
                node_news.tell(name, node)
                see(node)
                failures = 0
            continue
        except NvctError as error:
            complain(error)
        delay_s = DELAYS_S[min(failures, len(DELAYS_S) - 1)]
        failures += 1
        await asyncio.sleep(delay_s * (1 + random.random()))  # noqa: S311 - spreads requests
