# SPDX-License-Identifier: Apache-2.0
"""The grammar of device lists in the environment, mounts and annotations.

Hot. An attacker may control the words. Contract: an unknown word fails the whole list, so no typo
stays unnoticed; no result names a device that is not in the list. The meaning of void, all, none
and of the order is that of nvidia-container-toolkit v1.20. Duplicates count once here; there they
turn into "none".
"""

from __future__ import annotations

from nvct.cdi import names
from nvct.container.request.model import RUNTIME_KIND
from nvct.errors import RequestError
from nvct.paths import VOLUME_MOUNT_ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

VALUE_LIMIT = 64 * 1024
WORD_LIMIT = 4096
JIT_PREFIX = f"{RUNTIME_KIND}="
"""The prefix of device names that the incumbent generates in memory."""

BLANK = " \t\n\r\v\f"
DIGITS = "0123456789"
HEX = "0123456789abcdefABCDEF"
UUID_PARTS = (8, 4, 4, 4, 12)
INDEX_DIGITS = 9
VOLUME_MOUNT_KEY = "accept-nvidia-visible-devices-as-volume-mounts"
HINT = "use all, none, void, an index, G:M, a UUID, a PCI bus id, a CDI name or free:N"


def split(value: str, source: str) -> list[str]:
    """Return the trimmed words of a comma list, without empty ones; RequestError for too many."""
    if len(value) > VALUE_LIMIT:
        raise RequestError(
            f"{source} is {len(value)} characters long", hint=f"the limit is {VALUE_LIMIT}"
        )
    if value.count(",") >= WORD_LIMIT:
        raise RequestError(
            f"{source} lists more than {WORD_LIMIT} words", hint="name each device once"
        )
    words = [part.strip(BLANK) for part in value.split(",")]
    return [word for word in words if word]


def evaluate(
    words: Iterable[str], source: str, *, check: Callable[[str, str], object] | None = None
) -> list[str] | None:
    """Return the devices that a list of trimmed words requests; `check` raises for a bad word.

    The result is None for no request (an empty list, or one with void), [] for "none" (driver
    files but no device), ["all"], or the distinct ids as written, in order. Raises RequestError
    for a word that is not a device name, or too many words.
    """
    check = check or check_word
    ids = list(dict.fromkeys(words))
    if len(ids) > WORD_LIMIT:
        raise RequestError(
            f"{source} lists more than {WORD_LIMIT} words", hint="name each device once"
        )
    if not ids or "void" in ids:
        return None
    result = ids
    for word in ids:
        if word in {"all", "none"}:
            # The first of the two decides, as in nvidia-container-toolkit v1.20; the rest of the
            # list is still checked for typos.
            if result is ids:
                result = ["all"] if word == "all" else []
        else:
            check(word, source)
    return result


def check_word(word: str, source: str) -> None:
    """Refuse a word (RequestError) that has none of the forms in HINT."""
    device_id = word[len(JIT_PREFIX) :] if word.startswith(JIT_PREFIX) else word
    if (
        is_index(device_id)
        or is_mig_index(device_id)
        or is_uuid(device_id)
        or is_bus_id(device_id)
    ):
        return
    if device_id is not word:
        if device_id in {"all", "none"}:
            return
    elif "=" in word:
        _check_qualified(word, source)
        return
    raise RequestError(
        f"{source} asks for {shown(word)}, which names no device", hint=hint(device_id)
    )


def _check_qualified(word: str, source: str) -> None:
    try:
        names.parse(word)
    except RequestError as error:
        wanted = hint(word) if word.startswith("free") else error.hint
        raise RequestError(f"{source}: {error.message}", hint=wanted) from error


def is_index(word: str) -> bool:
    """Report whether a word is a decimal index without leading zeros."""
    if not word or len(word) > INDEX_DIGITS or word.strip(DIGITS):
        return False
    return word == "0" or word[0] != "0"


def is_mig_index(word: str) -> bool:
    """Report whether a word is G:M, the index of a GPU and of a MIG device in it."""
    gpu, colon, mig = word.partition(":")
    return bool(colon) and is_index(gpu) and is_index(mig)


def is_uuid(word: str) -> bool:
    """Report whether a word is GPU-<uuid>, MIG-<uuid> or MIG-GPU-<uuid>/gi/ci."""
    if word.startswith("GPU-"):
        return _is_hex_uuid(word[4:])
    if word.startswith("MIG-GPU-"):
        # The form of drivers before R470.
        uuid, *instances = word[8:].split("/")
        return _is_hex_uuid(uuid) and len(instances) == 2 and all(map(is_index, instances))
    return word.startswith("MIG-") and _is_hex_uuid(word[4:])


def is_bus_id(word: str) -> bool:
    """Report whether a word is a PCI bus id, domain:bus:device with or without .function."""
    fields = word.split(":")
    if len(fields) != 3:
        return False
    domain, bus, device = fields
    device, dot, function = device.partition(".")
    if dot and not (len(function) == 1 and function in "01234567"):
        return False
    return _is_hex(domain, 8) and _is_hex(bus, 2) and _is_hex(device, 2)


def plain_bus_id(word: str) -> str:
    """Return a PCI bus id in the form of plans and sysfs; any other word unchanged.

    As in libnvidia-container, case and leading zeros do not matter. A GPU is function 0 of its
    PCI device; other functions do not select it.
    """
    if not is_bus_id(word):
        return word
    domain, bus, device = word.removesuffix(".0").split(":")
    if "." in device:
        return word
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.0"


def _is_hex_uuid(text: str) -> bool:
    parts = text.split("-")
    if len(parts) != len(UUID_PARTS):
        return False
    return all(
        len(part) == size and not part.strip(HEX)
        for part, size in zip(parts, UUID_PARTS, strict=True)
    )


def _is_hex(text: str, limit: int) -> bool:
    return 0 < len(text) <= limit and not text.strip(HEX)


def shown(word: str) -> str:
    """Return a word in quotes, shortened, for a message."""
    return f"'{word}'" if len(word) <= 64 else f"'{word[:61]}...'"


def hint(word: str) -> str:
    """Return the hint for a word that names no device."""
    if word.lower() in {"all", "none", "void"}:
        return f"write '{word.lower()}' in lower case"
    if word.count(":") == 1 and is_bus_id(f"0:{word}"):
        return f"a PCI bus id begins with its domain, as in 0000:{word}"
    if f"{word}/".startswith(f"{VOLUME_MOUNT_ROOT}/"):  # the device plugin sets it in that case
        return f"set {VOLUME_MOUNT_KEY} in config.toml"
    if word[:4].lower() == "free":
        return "free GPUs are asked for as free:1, see docs/free-gpus.md"
    first, dash, last = word.partition("-")
    if dash and is_index(first) and is_index(last):
        return f"there are no ranges: list each index, as in {first},{last}"
    return HINT
