# SPDX-License-Identifier: Apache-2.0
"""Every error that nvct raises on purpose, and the one way to print one.

::

    NvctError
    ├── UsageError                     wrong option or combination; exit status 2
    ├── RequestError                   the container may not have, or misspelt, what it asks for
    │   ├── UnknownDeviceError
    │   ├── NotPermittedError
    │   └── RequirementError
    ├── HostError                      this machine lacks something
    │   ├── DriverNotFoundError
    │   ├── NvmlError
    │   ├── StaleSpecError             a CDI spec no longer describes the host
    │   └── EngineError                a container engine refuses its configuration or stays away
    ├── DocumentError                  a file is malformed or of an unknown version
    │   ├── BundleError
    │   ├── CdiSpecError
    │   ├── CdiConflictError
    │   ├── ConfigError
    │   ├── EngineConfigError          the same, of a container engine
    │   └── ElfError  LdCacheError
    ├── UnsafePathError                a path in a container leaves its root, or is no regular file
    ├── ContainerNotPossibleError      this machine does not let containers run (simulation, demo)
    └── RuntimeNotFoundError           no low-level runtime; exit status 127

Contract: imports nothing; the hot side loads it before anything else.
"""

LINE_LIMIT = 200


class NvctError(Exception):
    """One sentence about what is wrong, and a hint about what to do.

    Attributes:
        message: lower case start, no full stop, with the value and the path concerned.
        hint: what to do, or "" where there is nothing to say.
        code: stable kebab-case reference.
        exit_status: of the program that ends with this error.
    """

    code = "error"
    exit_status = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Keep message and hint; both are shown, the message is shortened first."""
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(NvctError):
    """A wrong option or combination of options."""

    code = "usage"
    exit_status = 2


class RequestError(NvctError):
    """The container may not have, or misspelt, what it asks for."""

    code = "bad-request"


class UnknownDeviceError(RequestError):
    """A device was asked for that this node does not have."""

    code = "unknown-device"


class NotPermittedError(RequestError):
    """The container is not allowed what it asks for."""

    code = "not-permitted"


class RequirementError(RequestError):
    """A NVIDIA_REQUIRE_* expression does not hold on this node."""

    code = "requirement-not-met"


class HostError(NvctError):
    """This machine lacks something that the work needs."""

    code = "host"


class DriverNotFoundError(HostError):
    """No NVIDIA driver, or no user space of it, was found."""

    code = "driver-not-found"


class NvmlError(HostError):
    """NVML refused."""

    code = "nvml"


class StaleSpecError(HostError):
    """A CDI spec no longer describes the host."""

    code = "stale-spec"


class EngineError(HostError):
    """A container engine refuses its configuration, or does not come back with it."""

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
    """config.toml is malformed or holds a value that cannot be used."""

    code = "bad-config"


class EngineConfigError(DocumentError):
    """A container engine's configuration cannot be edited."""

    code = "bad-engine-config"


class ElfError(DocumentError):
    """A file is no ELF file, or a damaged one."""

    code = "bad-elf"


class LdCacheError(DocumentError):
    """An ld.so.cache is damaged or of an unknown format."""

    code = "bad-ldcache"


class UnsafePathError(NvctError):
    """A path inside a container leaves its root or is not what it has to be."""

    code = "unsafe-path"


class ContainerNotPossibleError(NvctError):
    """This machine does not let containers run."""

    code = "no-containers"


class RuntimeNotFoundError(NvctError):
    """None of the configured low-level runtimes is on this machine."""

    code = "runtime-not-found"
    exit_status = 127


def unexpected(error: Exception) -> NvctError:
    """Return what nobody expected as an error that asks to be reported."""
    made = NvctError(
        f"unexpected {type(error).__name__}: {error}",
        hint="please report it; NVCT_DEBUG=1 shows more",
    )
    made.code = "bug"
    return made


def told(error: NvctError) -> dict[str, str]:
    """Return an error as plain strings, of which another process makes it again."""
    return {
        "class": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "code": error.code,
    }


def rebuilt(said: object) -> NvctError:
    """Make an error again of what `told` says of it, of the same class where there is one."""
    if not isinstance(said, dict):
        said = {}
    made = globals().get(str(said.get("class")))
    if not (isinstance(made, type) and issubclass(made, NvctError)):
        made = NvctError
    error = made(str(said.get("message")), hint=str(said.get("hint", "")))
    if isinstance(said.get("code"), str):
        error.code = said["code"]
    return error


def printable(text: str) -> str:
    """Return text on one line: control characters, which may be an attacker's, as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def line(program: str, error: NvctError) -> str:
    """Render an error as the one line that users see, of at most LINE_LIMIT characters.

    The form is ``program: message; hint [code]``. A message that is too long loses its middle,
    never the code, and the hint only where it takes most of the line by itself.
    """
    head = f"{shortened(printable(program), 40)}: "
    code = f" [{error.code}]"
    room = LINE_LIMIT - len(head) - len(code)
    hint = f"; {shortened(printable(error.hint), room - 42)}" if error.hint else ""
    return head + shortened(printable(error.message), room - len(hint)) + hint + code


def shortened(text: str, room: int) -> str:
    """Return a text of at most `room` characters: a longer one loses its middle."""
    if len(text) <= room:
        return text
    behind = (room - 3) // 3
    return text[: room - 3 - behind] + "..." + text[len(text) - behind :]
