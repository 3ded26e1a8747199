# SPDX-License-Identifier: Apache-2.0
"""Asks each GPU a question; if one hangs, the others still answer. Runs in the worker.

One thread asks a GPU after another, which is cheapest. If a GPU does not answer soon, the others
get threads of their own. A GPU that does not answer in time is reported; until its thread has
ended, no verb asks it again.

Contract: if no GPU answers at all, NVML itself hangs: the question waits for the session's
deadline, which ends the process.
"""

from __future__ import annotations

import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from nvct.errors import NvmlError
from nvct.host.nvml.calls import Calls, reason
from nvct.host.nvml.messages import HANG

T = TypeVar("T")


SOON_S = 0.2  # after this time without an answer, the other GPUs are asked at the same time
LIMIT_S = 0.8
"""A GPU that has not answered this long after another one hangs. An answer takes 1 ms."""
FIRST_S = 10.0  # the same if a GPU has never answered: one that nothing uses takes 3 s to start
MARGIN_S = 0.5  # between the answers and the session's deadline
PARTS = 8  # parts of a wait: on a busy machine each part takes longer, so the whole wait does


@dataclass(slots=True)
class Answers(Generic[T]):
    """The answers of all GPUs, by index."""

    values: dict[int, T] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)  # why NVML refuses the question
    unanswered: dict[int, str] = field(default_factory=dict)  # why a GPU counts as one that hangs


_asked: dict[int, float] = {}  # since when a thread asks a GPU, by `time.monotonic`
_known: set[int] = set()  # GPUs that have answered a question in this process
_lock = threading.Lock()  # guards both, and the answers of each inquiry
_changed = threading.Condition(_lock)  # wakes threads that wait for a GPU, at each answer


def ask(
    nvml: Calls,
    question: Callable[[Calls, int], T],
    limit_s: float = LIMIT_S,
    *,
    at_once: bool = False,
    complete: bool = False,
) -> Answers[T]:
    """Return the answer of each GPU to a question, which takes `Calls` and the GPU's index.

    Each thread that asks has `Calls` of its own. A GPU counts as hanging if it has not answered
    `limit_s` seconds after another one. `at_once` asks all GPUs at the same time, which is for
    slow answers. NvmlError if a GPU hangs and the answer must be `complete`.
    """
    every = range(nvml.nvmlDeviceGetCount())
    with _changed:
        while not (indices := [index for index in every if not _hangs(index)]) and every:
            _changed.wait()
        patience_s = limit_s if _known.issuperset(indices) else max(limit_s, FIRST_S)
    inquiry = _Inquiry(nvml, question)
    queue = deque(indices)
    if not at_once and queue:
        inquiry.start(queue)
        inquiry.wait(len(indices), SOON_S)
    for index in _rest(queue):
        inquiry.start(deque([index]))
    inquiry.wait(len(indices), patience_s, for_one=True)
    answers = inquiry.answers(every, f"no answer within {limit_s:g} s")
    for index, why in answers.unanswered.items() if complete else ():
        raise NvmlError(f"{HANG} for GPU {index}: {why}", hint="dmesg tells why")
    return answers


def check(nvml: Calls) -> None:
    """Ask each GPU for any value; NvmlError if a GPU hangs."""

    def memory(nvml: Calls, index: int) -> None:
        nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(index))

    ask(nvml, memory, complete=True)


def is_hanging() -> bool:
    """Return whether a thread is still in a call of NVML."""
    return bool(_asked)


def _hangs(index: int) -> bool:
    """Return whether a GPU has not answered an earlier question, and is not just starting."""
    since = _asked.get(index)
    return since is not None and (index in _known or time.monotonic() - since > FIRST_S)


def _rest(queue: deque[int]) -> Iterable[int]:
    """Take GPUs out of a queue that threads share, until it is empty."""
    while True:
        try:
            yield queue.popleft()
        except IndexError:
            return


class _Inquiry(Generic[T]):
    """One question to all GPUs, and the answers so far."""

    def __init__(self, nvml: Calls, question: Callable[[Calls, int], T]) -> None:
        self._nvml, self._question = nvml, question
        self._answers: Answers[T] = Answers()
        self._defects: list[Exception] = []
        self._come = threading.Condition(_lock)  # notified when a thread has asked all its GPUs

    def start(self, queue: deque[int]) -> None:
        """Start a thread that asks the GPUs of a queue, one after another."""
        start_new_thread(self._run, (queue,))  # Thread.start() would wait until the thread runs

    def wait(self, count: int, limit_s: float, *, for_one: bool = False) -> None:
        """Wait until `count` GPUs have answered, or no further GPU does so within `limit_s`.

        `for_one` waits for the first answer without a limit.
        """
        idle_s = 0.0
        with self._come:
            while (come := self._count()) < count:
                if idle_s >= 0.99 * limit_s and (come or not for_one):  # a sum of parts
                    return
                left_s = self._nvml.deadline.left_s()
                if come and not left_s:
                    return
                part_s = limit_s / PARTS
                if come:
                    part_s = min(part_s, left_s)
                if not self._come.wait(part_s):
                    idle_s += part_s
                if self._count() > come:
                    idle_s = 0.0

    def answers(self, indices: Sequence[int], late: str) -> Answers[T]:
        """Return the answers so far; raise an exception of the question that is not NVML's."""
        with _changed:
            if self._defects:
                raise self._defects[0]
            values, refused = self._answers.values, self._answers.refused
            return Answers(
                values={index: values[index] for index in indices if index in values},
                refused={index: refused[index] for index in indices if index in refused},
                unanswered={
                    index: late
                    for index in indices
                    if index not in values and index not in refused
                },
            )

    def _count(self) -> int:
        return len(self._answers.values) + len(self._answers.refused) + len(self._defects)

    def _run(self, queue: deque[int]) -> None:
        nvml = self._nvml.copy()
        for index in _rest(queue):
            with _changed:
                while index in _asked:  # by another verb; the GPU has never answered
                    _changed.wait()
                _asked[index] = time.monotonic()
            try:
                self._answers.values[index] = self._question(nvml, index)
            except nvml.NVMLError as error:
                self._answers.refused[index] = f"{nvml.last}: {reason(error)}"
            except Exception as error:  # `answers` raises it
                self._defects.append(error)
            with _changed:
                del _asked[index]
                _known.add(index)
                _changed.notify_all()
                if not queue:
                    self._come.notify_all()
