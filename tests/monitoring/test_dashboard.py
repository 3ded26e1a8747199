# SPDX-License-Identifier: Apache-2.0
"""The dashboard for Grafana: the file is what the script makes, and Grafana's schema knows it."""

import json
import runpy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.monitoring.prometheus import MONITORING

FILE = MONITORING / "dashboard.json"
SCRIPT = Path(__file__).parents[2] / "packaging/monitoring/dashboard.py"
WRITTEN: dict[str, Any] = json.loads(FILE.read_text())
PANELS: list[dict[str, Any]] = WRITTEN["panels"]


def test_the_file_is_what_the_script_makes() -> None:
    made = runpy.run_path(str(SCRIPT))["dashboard"]()

    assert made == WRITTEN, f"python3 {SCRIPT}"


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Yield what is in our document, and not or otherwise in theirs."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key in theirs:
                yield from differences(value, theirs[key], f"{path}/{key}")
            else:
                yield f"{path}/{key}"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(*pair, f"{path}/{number}")
    elif ours != theirs:
        yield path


def as_grafana_writes_it(document: dict[str, Any]) -> Any:
    """Return a dashboard after it was read and written by the types of Grafana's schema."""
    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(document)))


def test_grafanas_schema_knows_all_of_it() -> None:
    assert list(differences(WRITTEN, as_grafana_writes_it(WRITTEN))) == []


def test_a_key_that_grafanas_schema_lacks_would_be_seen() -> None:
    panel = {**PANELS[1], "colour": "red"}

    found = as_grafana_writes_it({**WRITTEN, "panels": [panel]})

    assert list(differences([panel], found["panels"])) == ["/0/colour"]


def test_panels_have_unique_names_and_places() -> None:
    for key in ("id", "title"):
        named = [panel[key] for panel in PANELS if panel["type"] != "row"]
        assert max(Counter(named).values()) == 1
    cells = Counter(
        (x, y)
        for panel in PANELS
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    )
    assert max(cells.values()) == 1
    assert max(x for x, _ in cells) < 24
