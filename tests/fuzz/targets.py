# SPDX-License-Identifier: Apache-2.0
"""The table of fuzz targets: what each parser is fed, and what it must never do.

A target's `run` returns whether the input was accepted. It may raise NvctError, which is a
refusal; whatever else it raises is a finding, as is an AssertionError about a broken promise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fuzz import binaries, documents, requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parser.

    Attributes:
        name: on the command line, and of the folder of its findings.
        run: feeds it one input.
        seeds: inputs that it accepts.
        words: what its grammar knows.
    """

    name: str
    run: Callable[[bytes], bool]
    seeds: Callable[[], list[bytes]]
    words: Sequence[bytes]


def _words(texts: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts)


TARGETS = {
    target.name: target
    for target in (
        Target(
            name="config", run=documents.run_config, seeds=documents.config_seeds,
            words=_words(documents.CONFIG_WORDS),
        ),
        Target(
            name="request", run=requests.run, seeds=requests.seeds, words=_words(requests.WORDS)
        ),
        Target(
            name="cdi", run=documents.run_spec, seeds=documents.spec_seeds,
            words=_words(documents.SPEC_WORDS),
        ),
        Target(
            name="ldcache", run=binaries.run_cache, seeds=binaries.cache_seeds,
            words=binaries.CACHE_WORDS,
        ),
        Target(
            name="elf", run=binaries.run_elf, seeds=binaries.elf_seeds, words=binaries.ELF_WORDS
        ),
        Target(
            name="state", run=documents.run_state, seeds=documents.state_seeds,
            words=_words(documents.STATE_WORDS),
        ),
        Target(
            name="worker", run=documents.run_worker, seeds=documents.worker_seeds,
            words=_words(documents.WORKER_WORDS),
        ),
    )
}  # fmt: skip
