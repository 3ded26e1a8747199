# SPDX-License-Identifier: Apache-2.0
"""The protocol of session and worker: JSON messages over a stream socket, a request, its answer.

A message is its length in four bytes, big-endian, then that many bytes of ASCII JSON. ::

    request  {"id": 1, "verb": "report", "arguments": {"limit_s": 60}}
    answer   {"id": 1, "value": ...}
    answer   {"id": 1, "error": {"class": ..., "message": ..., "hint": ..., "code": ...}}

The error is an `NvctError` as from `nvct.errors.to_dict`. The worker answers requests in their
order, and the session sends one at a time. Closing the socket ends the session.
"""

from __future__ import annotations

# Module `socket` takes 3 ms to import; `_socket` is its part in C.
from _socket import MSG_NOSIGNAL, socket

from nvct import errors
from nvct.errors import DocumentError
from nvct.linux.deadline import Deadline
from nvct.oci import jsontext
from nvct.oci.jsontext import Json
from nvct.typed import MalformedError

HEADER = 4
LIMIT = 16 << 20  # bytes of a message. A report of 16 GPUs with 7 MIG devices each takes 20 kB.
CALL_LIMIT = "limit_s"
"""An argument of every request: after how many seconds the session ends the worker."""
HANG = "NVML does not answer"  # the start of an error's message about NVML that hangs
WORKER_AWAY = "NVML's worker (container nvml-worker)"
"""The start of an error's message about the agent's worker; NVML is then in an unknown state."""
REPLACED = "the driver is being replaced"  # the start of the reason not to use the driver now
ERROR_FIELDS = {"class", "message", "hint", "code"}


class MalformedMessageError(MalformedError):
    """The other side does not speak this protocol; the text says what is wrong."""


def send(connection: socket, message: Json, deadline: Deadline | None = None) -> None:
    """Write one message before a deadline; None waits without limit.

    TimeoutError if the deadline has passed; EOFError if the other side has closed the connection.
    """
    write(connection, encode(message), deadline)


def write(connection: socket, data: bytes, deadline: Deadline | None = None) -> None:
    """Write an encoded message; arguments and errors as for `send`."""
    while data:
        _set_timeout(connection, deadline)
        try:
            data = data[connection.send(data, MSG_NOSIGNAL) :]
        except TimeoutError:  # until the next look; BlockingIOError after the last one
            continue
        except BlockingIOError as error:
            raise TimeoutError from error
        except ConnectionError as error:
            raise EOFError from error


def receive(connection: socket, deadline: Deadline | None = None) -> Json:
    """Read one message.

    Raises:
        TimeoutError: the deadline has passed.
        EOFError: the other side has closed the connection.
        MalformedMessageError: the data is not a message.
    """
    return decode(_read(connection, length_of(_read(connection, HEADER, deadline)), deadline))


def encode(message: Json) -> bytes:
    """Return the bytes of a message, with its header."""
    text = jsontext.dumps(message).encode("ascii")
    return len(text).to_bytes(HEADER, "big") + text


def length_of(header: bytes) -> int:
    """Return the length of a message from its header; MalformedMessageError if it is too long."""
    length = int.from_bytes(header, "big")
    if length > LIMIT:
        raise MalformedMessageError(f"a message of {length} bytes, more than {LIMIT}")
    return length


def decode(data: bytes) -> Json:
    """Return a message from the bytes after its header; MalformedMessageError for other bytes."""
    try:
        return jsontext.parse(data.decode("ascii"), "a message")
    except UnicodeDecodeError as error:
        raise MalformedMessageError("a message is not ASCII") from error
    except DocumentError as error:
        raise MalformedMessageError(error.message) from error


def request_of(message: Json) -> tuple[int, str, dict[str, Json]]:
    """Return a request's id, verb and arguments; MalformedMessageError for other messages."""
    if isinstance(message, dict) and message.keys() == {"id", "verb", "arguments"}:
        number, verb, arguments = message["id"], message["verb"], message["arguments"]
        if type(number) is int and isinstance(verb, str) and isinstance(arguments, dict):
            return number, verb, arguments
    raise MalformedMessageError("a message is not a request")


def answers_before(message: Json, number: int) -> bool:
    """Return whether a message answers a request before `number`: nobody waits for it any more."""
    id_ = message.get("id") if isinstance(message, dict) else None
    return type(id_) is int and id_ < number


def value_of(message: Json, number: int) -> Json:
    """Return the value of the answer to a request.

    NvctError if the answer is an error of the worker; MalformedMessageError if the message is not
    an answer, or answers another request.
    """
    if not isinstance(message, dict) or type(message.get("id")) is not int:
        raise MalformedMessageError("a message is not an answer")
    if message["id"] != number:
        raise MalformedMessageError(f"it answers request {message['id']}, not request {number}")
    if message.keys() == {"id", "value"}:
        return message["value"]
    error = message.get("error")
    if message.keys() == {"id", "error"} and isinstance(error, dict):
        texts = [value for value in error.values() if isinstance(value, str)]
        if error.keys() == ERROR_FIELDS and len(texts) == len(ERROR_FIELDS):
            raise errors.from_dict(error)
    raise MalformedMessageError("a message is not an answer")


def _read(connection: socket, size: int, deadline: Deadline | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        _set_timeout(connection, deadline)
        try:
            chunk = connection.recv(min(size - len(data), 1 << 16))
        except TimeoutError:  # until the next look; BlockingIOError after the last one
            continue
        except BlockingIOError as error:
            raise TimeoutError from error
        except ConnectionError as error:
            raise EOFError from error
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def _set_timeout(connection: socket, deadline: Deadline | None) -> None:
    connection.settimeout(None if deadline is None else deadline.left_s())
