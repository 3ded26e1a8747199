# SPDX-License-Identifier: Apache-2.0
"""What the C scanner of `_json` takes from json.decoder when a text is malformed."""


class JSONDecodeError(ValueError):
    """As json.decoder has it: the same sentence, without the attributes that nobody reads."""

    def __init__(self, msg: str, doc: str, pos: int) -> None:
        """Say where it stands."""
        line = doc.count("\n", 0, pos) + 1
        column = pos - doc.rfind("\n", 0, pos)
        super().__init__(f"{msg}: line {line} column {column} (char {pos})")
