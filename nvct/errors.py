# SPDX-License-Identifier: Apache-2.0
"""The exceptions of nvct, and the form in which programs print them.

::

    NvctError
    ├── UsageError                     wrong option or combination; exit status 2
    ├── RequestError                   the request is malformed or not allowed
    │   ├── UnknownDeviceError
    │   ├── NotPermittedError
    │   └── RequirementError
    ├── HostError                      this machine lacks something
    │   ├── DriverNotFoundError
    │   ├── NvmlError
    │   ├── StaleSpecError             a CDI spec no longer describes the host
    │   └── EngineError                a container engine refuses its configuration or is down
    ├── DocumentError                  a file is malformed or of an unknown version
    │   ├── BundleError
    │   ├── CdiSpecError
    │   ├── CdiConflictError
    │   ├── ConfigError
    │   ├── EngineConfigError          a container engine's configuration
    │   └── ElfError  LdCacheError
    ├── UnsafePathError                a path leaves a container's root, or is not a regular file
    ├── ContainerNotPossibleError      this machine cannot run containers (simulation, demo)
    └── RuntimeNotFoundError           no low-level runtime; exit status 127

Contract: imports nothing; the hot side loads it before anything else.
"""

LINE_LIMIT = 200


class NvctError(Exception):
    """An error with a message and a hint.

    Attributes:
        message: in lower case, without a full stop; names the value and the path.
        hint: how to correct the error, or "".
        code: a stable word in kebab-case, for scripts.
        exit_status: the status of a program that ends with this error.
    """

    code = "error"
    exit_status = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class OSErrorsAs:
    """A context manager: raises an OSError of its block as an nvct error, `text: strerror`."""

    __slots__ = ("_hint", "_kind", "_text")

    def __init__(self, kind: type[NvctError], text: str, *, hint: str = "") -> None:
        self._kind, self._text, self._hint = kind, text, hint

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if isinstance(error, OSError):
            raise self._kind(f"{self._text}: {error.strerror}", hint=self._hint) from error


class UsageError(NvctError):
    """A wrong option or combination of options."""

    code = "usage"
    exit_status = 2


class RequestError(NvctError):
    """The request of a container is malformed or not allowed."""

    code = "bad-request"


class UnknownDeviceError(RequestError):
    """A requested device does not exist on this node."""

    code = "unknown-device"


class NotPermittedError(RequestError):
    """The container is not allowed to have what it requests."""

    code = "not-permitted"


class RequirementError(RequestError):
    """A NVIDIA_REQUIRE_* expression does not hold on this node."""

    code = "requirement-not-met"


class HostError(NvctError):
    """This machine lacks something that is required."""

    code = "host"


class DriverNotFoundError(HostError):
    """No NVIDIA driver, or no user space of it, was found."""

    code = "driver-not-found"


class NvmlError(HostError):
    """An NVML call failed."""

    code = "nvml"


class StaleSpecError(HostError):
    """A CDI spec no longer describes the host."""

    code = "stale-spec"


class EngineError(HostError):
    """A container engine refuses its configuration, or does not start with it."""

    code = "engine"


class DocumentError(NvctError):
    """A file is malformed or of an unknown version."""

    code = "bad-document"


class BundleError(DocumentError):
    """A config.json or a container state cannot be used."""

    code = "bad-bundle"


class CdiSpecError(DocumentError):
    """A CDI spec is malformed."""

    code = "bad-cdi-spec"


class CdiConflictError(DocumentError):
    """Two CDI specs of the same priority define the same device."""

    code = "cdi-conflict"


class ConfigError(DocumentError):
    """config.toml is malformed or has a value that is not valid."""

    code = "bad-config"


class EngineConfigError(DocumentError):
    """A container engine's configuration cannot be edited."""

    code = "bad-engine-config"


class ElfError(DocumentError):
    """A file is not an ELF file, or is damaged."""

    code = "bad-elf"


class LdCacheError(DocumentError):
    """An ld.so.cache is damaged or of an unknown format."""

    code = "bad-ldcache"


class UnsafePathError(NvctError):
    """A path in a container leaves its root or has the wrong file type."""

    code = "unsafe-path"


class ContainerNotPossibleError(NvctError):
    """This machine cannot run containers."""

    code = "no-containers"


class RuntimeNotFoundError(NvctError):
    """None of the configured low-level runtimes is on this machine."""

    code = "runtime-not-found"
    exit_status = 127


EXTRA = "the agent, nvct-nri and cluster commands need it: pip install '.[agent]' in a checkout"


def unexpected(error: Exception) -> NvctError:
    """Return an NvctError for an unexpected exception; its hint asks for a report.

    A missing module is a HostError: packages install nvct without the libraries of the extra
    `agent`.
    """
    if isinstance(error, ModuleNotFoundError) and f"{error.name}".partition(".")[0] not in (
        "nvct",
        "nvct_sim",
    ):
        return HostError(f"Python has no module {error.name} here", hint=EXTRA)
    unknown = NvctError(
        f"unexpected {type(error).__name__}: {error}",
        hint="please report it; NVCT_DEBUG=1 shows more",
    )
    unknown.code = "bug"
    return unknown


def to_dict(error: NvctError) -> dict[str, str]:
    """Return an error as strings, from which another process makes it again by `from_dict`."""
    return {
        "class": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "code": error.code,
    }


def from_dict(members: object) -> NvctError:
    """Return the error that `to_dict` was given; an NvctError if its class is unknown."""
    if not isinstance(members, dict):
        members = {}
    error_class = globals().get(str(members.get("class")))
    if not (isinstance(error_class, type) and issubclass(error_class, NvctError)):
        error_class = NvctError
    error = error_class(str(members.get("message")), hint=str(members.get("hint", "")))
    if isinstance(members.get("code"), str):
        error.code = members["code"]
    return error


def printable(text: str) -> str:
    """Return text on one line, with escapes for control characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def line(program: str, error: NvctError) -> str:
    """Return an error as one line for users, of at most LINE_LIMIT characters.

    The form is ``program: message; hint [code]``. A long message loses its middle; a hint that
    takes most of the line loses its last words; the code stays whole.
    """
    head = f"{shortened(printable(program), 40)}: "
    code = f" [{error.code}]"
    room = LINE_LIMIT - len(head) - len(code)
    hint = f"; {_of_words(printable(error.hint), room - 42)}" if error.hint else ""
    return head + shortened(printable(error.message), room - len(hint)) + hint + code


def shortened(text: str, room: int) -> str:
    """Return a text shortened to `room` characters by removing its middle."""
    if len(text) <= room:
        return text
    tail = (room - 3) // 3
    return text[: room - 3 - tail] + "..." + text[len(text) - tail :]


def _of_words(text: str, room: int) -> str:
    """Return the first words of a text that fit into `room`; one long word loses its middle."""
    if len(text) <= room:
        return text
    words, _, _ = text[: room - 3].rpartition(" ")
    return f"{words} ..." if words else shortened(text, room)
