# SPDX-License-Identifier: Apache-2.0
"""Checks CDI specs against nvct's JSON schema, for authors of specs and for tests.

Cold side: importing jsonschema takes longer than reading a spec. The schema is stricter than
engines and `validate` (absolute paths, exact spelling of members), but lacks the rules that JSON
schema cannot express: versions, duplicate names.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

import jsonschema

from nvct.cdi.read.spec_fields import member, owner
from nvct.errors import CdiSpecError

FILE = "schema.json"
MESSAGE_LIMIT = 120


@cache
def schema() -> dict[str, Any]:
    """Return the schema as a document."""
    text = resources.files("nvct.cdi.read").joinpath(FILE).read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


@cache
def _validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(schema())


def check(document: object, *, source: str) -> None:
    """Check a document against the schema; CdiSpecError names file and position of an error."""
    error = jsonschema.exceptions.best_match(_validator().iter_errors(document))
    if error is None:
        return
    at = f"{source}:"
    for step in error.absolute_path:
        at = f"{at}[{step}]" if isinstance(step, int) else member(at, step)
    message = error.message
    if len(message) > MESSAGE_LIMIT:
        message = message[: MESSAGE_LIMIT * 2 // 3] + "..." + message[-MESSAGE_LIMIT // 3 :]
    raise CdiSpecError(f"{owner(at)} breaks the schema: {message}", hint="see cdi/schema.json")
