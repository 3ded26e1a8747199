# SPDX-License-Identifier: Apache-2.0
"""A GPU that hangs costs no answer but its own, over a library in Python."""

import threading
import time
from collections.abc import Iterator

import pytest

from nvct.host.nvml import each_gpu
from nvct.host.nvml.calls import Calls
from nvct.linux.deadline import Deadline
from tests.support.cpu import Limit
from tests.unit.host.nvml.library import PythonNvml

TIMEOUT_S = 20.0


class Machine:
    """GPUs that hang while their index is in `hanging`, and what they were asked."""

    def __init__(self, count: int) -> None:
        gpus: list[dict[str, object]] = [{"uuid": f"GPU-{n}"} for n in range(count)]
        self.calls = Calls(PythonNvml(*gpus))
        self.hanging: set[int] = set()
        self.lost: set[int] = set()
        self.asked: list[int] = []
        self.threads: set[int] = set()
        self._changed = threading.Condition()

    def question(self, nvml: Calls, index: int) -> str:
        self.asked.append(index)
        self.threads.add(threading.get_ident())
        with self._changed:
            self._changed.wait_for(lambda: index not in self.hanging)
        uuid = nvml.nvmlDeviceGetHandleByIndex(index)["uuid"]
        if index in self.lost:
            raise nvml.NVMLError_NotSupported
        return str(uuid)

    def free(self, *gpus: int) -> None:
        with self._changed:
            self.hanging.difference_update(gpus or set(self.hanging))
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait until no question waits."""
        limit = Limit(TIMEOUT_S)
        while each_gpu.is_hanging():
            assert not limit.is_over
            time.sleep(0.001)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(each_gpu, "SOON_S", 0.02)
    monkeypatch.setattr(each_gpu, "LIMIT_S", 0.05)
    monkeypatch.setattr(each_gpu, "FIRST_S", 0.3)
    monkeypatch.setattr(each_gpu, "_known", set())
    machine = Machine(4)
    yield machine
    machine.free()
    machine.settle()


def ask(machine: Machine) -> each_gpu.Answers[str]:
    machine.asked = []
    return each_gpu.ask(machine.calls, machine.question, each_gpu.LIMIT_S)


def test_one_thread_asks_gpus_that_answer(machine: Machine) -> None:
    answers = ask(machine)

    assert answers.values == {n: f"GPU-{n}" for n in range(4)}
    assert (answers.refused, answers.unanswered) == ({}, {})
    assert len(machine.threads) == 1
    assert machine.threads != {threading.get_ident()}


def test_gpus_that_hang_are_named_and_not_asked_again_until_they_answer(machine: Machine) -> None:
    ask(machine)
    machine.hanging = {0, 2}

    answers = ask(machine)

    assert answers.values == {1: "GPU-1", 3: "GPU-3"}
    assert answers.unanswered == dict.fromkeys([0, 2], "no answer within 0.05 s")
    assert each_gpu.is_hanging()
    again = ask(machine)
    assert (again.values, again.unanswered) == (answers.values, answers.unanswered)
    assert machine.asked == [1, 3]
    machine.free(0, 2)
    machine.settle()
    assert ask(machine).values == {n: f"GPU-{n}" for n in range(4)}


def test_a_gpu_that_is_refused_has_answered(machine: Machine) -> None:
    machine.lost = {1}
    answers = ask(machine)

    assert answers.refused == {1: "nvmlDeviceGetHandleByIndex: not supported"}
    assert sorted(answers.values) == [0, 2, 3]


def test_a_gpu_that_starts_has_more_time_and_so_have_those_that_ask_it_next(
    machine: Machine,
) -> None:
    machine.hanging = {3}
    threading.Timer(0.15, machine.free).start()

    assert sorted(ask(machine).values) == [0, 1, 2, 3]

    machine.free()
    machine.hanging = {3}
    each_gpu._known.clear()
    first = threading.Thread(target=ask, args=(machine,))
    first.start()
    threading.Timer(0.15, machine.free).start()
    assert sorted(ask(machine).values) == [0, 1, 2, 3]
    first.join(TIMEOUT_S)


def test_nothing_is_answered_while_every_gpu_hangs(machine: Machine) -> None:
    """The session ends the process then: it is NVML that hangs."""
    ask(machine)
    machine.hanging = {0, 1, 2, 3}
    answers: list[each_gpu.Answers[str]] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(machine))) for _ in range(2)]
    for thread in threads:  # one question waits, the other one finds them all hanging
        thread.start()
        thread.join(0.15)
    assert all(thread.is_alive() for thread in threads)
    machine.free()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert all(answer.values for answer in answers)
    machine.settle()
    assert sorted(ask(machine).values) == [0, 1, 2, 3]


def test_the_answer_comes_before_the_deadline_of_the_request(machine: Machine) -> None:
    machine.hanging = {1}
    machine.calls.deadline = Deadline(0.5)

    began = time.monotonic()
    answers = each_gpu.ask(machine.calls, machine.question, limit_s=600.0)

    assert time.monotonic() - began < TIMEOUT_S
    assert sorted(answers.unanswered) == [1]


def test_a_defect_of_a_question_is_raised(machine: Machine) -> None:
    def question(_nvml: Calls, index: int) -> int:
        return 1 // index

    with pytest.raises(ZeroDivisionError):
        each_gpu.ask(machine.calls, question)
