# SPDX-License-Identifier: Apache-2.0
"""The driver's own metrics. Contract: a pure function of its parts."""

from __future__ import annotations

from collections.abc import Iterator

from nvct.agent.web.exposition import Family, family

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.dra.prepare import Preparer
    from nvct.agent.dra.publisher import Publisher

PREFIX = "nvct_dra"


def metrics(devices: int, preparer: Preparer, publisher: Publisher | None) -> Iterator[Family]:
    """Yield the metrics; `devices` is how many are offered."""
    written = publisher.written if publisher else 0
    for name, help_text, value in (
        ("devices", "Devices that are offered by ResourceSlices.", devices),
        ("prepared_total", "Claims that were prepared.", preparer.prepared),
        ("prepare_seconds_total", "How long these took.", preparer.took_s),
        ("failures_total", "Prepares that failed.", preparer.failures),
        ("slices_written_total", "ResourceSlices that were written or deleted.", written),
    ):
        yield family(f"{PREFIX}_{name}", help_text, [(value, {})])
