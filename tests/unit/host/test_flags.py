# SPDX-License-Identifier: Apache-2.0
"""Feature flags of `cdi generate`."""

from __future__ import annotations

import pytest

from nvct.host import flags


def test_known_flags_are_enabled_without_a_warning() -> None:
    assert flags.parse(flags.KNOWN) == (frozenset(flags.KNOWN), ())


@pytest.mark.parametrize("word", ["coherent", "enable-coherent-annotations=maybe", ""])
def test_an_unknown_flag_has_no_effect_and_is_a_warning(word: str) -> None:
    on, (warning,) = flags.parse([word, flags.NO_IPC])

    assert on == {flags.NO_IPC}
    assert warning.startswith(f"feature flag {word!r} is unknown and has no effect")


def test_a_flag_may_have_a_value_and_the_last_word_counts() -> None:
    on, warnings = flags.parse(
        [f"{flags.NO_GIDS}=true", f" {flags.COHERENT}=TRUE ", f"{flags.NO_GIDS}=false"]
    )

    assert (set(on), warnings) == ({flags.COHERENT}, ())


def test_the_old_spelling_is_accepted() -> None:
    on, warnings = flags.parse(["disable-nvsandbox-utils"])

    assert (set(on), warnings) == ({flags.NO_SANDBOXUTILS}, ())
