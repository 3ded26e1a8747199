# SPDX-License-Identifier: Apache-2.0
"""Large inputs (a megabyte in make ci-full, else a quarter), each of a shape that a careless parser takes quadratic time for."""

import json
import os
import struct
from collections.abc import Callable

from nvct.linux import elf, ldcache
from nvct_sim.elf_writer import shared_object
from tests.fuzz.requests import FOLDER, PREFIX

SIZE = 1 << (20 if os.environ.get("NVCT_TESTS_PROFILE") == "full" else 18)


def _filled(head: str, one: Callable[[int], str], tail: str, size: int = SIZE) -> bytes:
    """Return head, as many numbered pieces as fit, and tail."""
    parts = [head]
    length = number = 0
    while length < size:
        parts.append(one(number))
        length += len(parts[-1])
        number += 1
    return ("".join(parts) + tail).encode()


def _spec(devices: str) -> str:
    return '{"cdiVersion":"0.5.0","kind":"acme.org/net","devices":[' + devices


def _notes() -> bytes:
    note = struct.pack("<III", 0, 0, 1)
    return shared_object(sections={".note.x": note * (SIZE // len(note))})


def _zeros() -> bytes:
    """Return a cache of 65000 names that all mean libcuda.so.1, each of 4000 characters."""
    name = b"libcuda.so." + b"0" * 3900 + b"1\0/n/x\0"
    count = 43_000
    base = ldcache.HEADER + count * ldcache.ENTRY
    record = struct.pack("<iIIIQ", ldcache.FLAGS["x86_64"], base, base + len(name) - 5, 0, 0)
    head = struct.pack("<20sIIB3xI12x", ldcache.MAGIC, count, len(name), 2, 0)
    return head + record * count + name


def _tails() -> bytes:
    """Return a cache whose names are the tails of one string."""
    text = b"libcuda.so." + b"9" * 4000 + b"\0"
    count = 40_000
    base = ldcache.HEADER + count * ldcache.ENTRY
    flags = ldcache.FLAGS["x86_64"]
    records = b"".join(
        struct.pack("<iIIIQ", flags, base + i % 4000, base + i % 3000, 0, 0) for i in range(count)
    )
    head = struct.pack("<20sIIB3xI12x", ldcache.MAGIC, count, len(text), 2, 0)
    return head + records + text


def _merges() -> bytes:
    """Return YAML whose tables each merge the one before."""
    return _filled(
        "x0: &a0 {k: v}\n",
        lambda i: f"x{i + 1}: &a{i + 1} {{<<: *a{i}, k{i}: v}}\n",
        "",
        SIZE // 2,
    )


def _aliases() -> bytes:
    """Return YAML with a thousand million strings behind ten aliases."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 10) + "]" for i in range(1, 9)]
    return "\n".join(lines).encode()


LARGE: dict[str, dict[str, bytes]] = {
    "config": {
        "env": _filled('{"process":{"env":["A=1"', lambda i: f',"V{i}=x"', "]}}"),
        "one-variable": _filled(
            '{"process":{"env":["A=1"', lambda _: ',"NVIDIA_VISIBLE_DEVICES=0"', "]}}"
        ),
        "mounts": _filled(
            '{"mounts":[{}', lambda i: f',{{"destination":"{FOLDER}{i}","source":"/dev/null"}}', "]}"
        ),
        "nested-mounts": _filled(
            '{"mounts":[{}', lambda i: f',{{"destination":"{"/d" * (i % 900)}/x{i}"}}', "]}"
        ),
        "annotations": _filled(
            '{"annotations":{"a":"b"', lambda i: f',"{PREFIX}{i}":"nvidia.com/gpu=0"', "}}"
        ),
        "members": _filled('{"a":1', lambda i: f',"m{i}":{{}}', "}"),
        "doubles": _filled('{"a":1', lambda _: ',"a":1', "}"),
        "hooks": _filled('{"hooks":{"prestart":[{}', lambda i: f',{{"path":"/h{i}"}}', "]}}"),
        "devices": _filled(
            '{"linux":{"devices":[{}', lambda i: f',{{"path":"/dev/x{i}"}}', '],"resources":{}}}'
        ),
        "gids": _filled('{"process":{"user":{"additionalGids":[1', lambda i: f",{i}", "]}}}"),
        "depth": b'{"a":' + b"[" * SIZE,
        "depth-of-objects": b'{"a":' * (SIZE // 5),
        "spaces": b'{"process"' + b" " * SIZE + b":{}}",
        "escapes": b'{"process":{"env":["' + b"\\u004e" * (SIZE // 6) + b'"]}}',
        "digits": b'{"process":{"user":{"uid":' + b"9" * SIZE + b"}}}",
        "open-string": b'{"process":{"env":["' + b"a" * SIZE,
    },
    "request": {
        "words": _filled("0\x1eeNVIDIA_VISIBLE_DEVICES=0", lambda i: f",{i % 1000}", "", 65_000),
        "requirements": _filled("0\x1eeNVIDIA_VISIBLE_DEVICES=0", lambda i: f"\x1eeNVIDIA_REQUIRE_{i}=cuda>=1", ""),
        "terms": _filled("0\x1eeNVIDIA_VISIBLE_DEVICES=0\x1eeNVIDIA_REQUIRE_CUDA=cuda>99", lambda _: " cuda>99", "", 65_000),
        "factors": _filled("0\x1eeNVIDIA_VISIBLE_DEVICES=0\x1eeNVIDIA_REQUIRE_CUDA=cuda>1", lambda _: ",brand=x", "", 65_000),
        "capabilities": _filled("0\x1eeNVIDIA_VISIBLE_DEVICES=0\x1eeNVIDIA_DRIVER_CAPABILITIES=all", lambda _: ",video", "", 65_000),
        "mounts": _filled("5", lambda i: f"\x1em{FOLDER}{i % 9}/../{i}", ""),
        "dots": _filled("5\x1em" + FOLDER, lambda _: "a/../", "0"),
        "annotations": _filled("0", lambda i: f"\x1ea{PREFIX}{i}=nvidia.com/gpu={i}", ""),
        "channels": _filled("0\x1eeNVIDIA_VISIBLE_DEVICES=0\x1eeNVIDIA_IMEX_CHANNELS=0", lambda i: f",{i}", "", 65_000),
    },
    "cdi": {
        "one-key-twice": _filled('{"a":1', lambda i: f',"m{i}":1', ',"z":1,"z":1}'),
        "devices": _filled(
            _spec('{"name":"x","containerEdits":{"env":["A=b"]}}'),
            lambda i: f',{{"name":"n{i}","containerEdits":{{"env":["A=b"]}}}}', "]}",
        ),
        "annotations": json.dumps({"annotations": {f"a.b/c{i}": "d" for i in range(50_000)}}).encode(),
        "env": _filled(_spec('{"name":"x","containerEdits":{"env":["A=b"'), lambda i: f',"E{i}=x"', "]}}]}"),
        "networks": _filled(
            _spec('{"name":"x","containerEdits":{"netDevices":[{"hostInterfaceName":"h","name":"n"}'),
            lambda i: f',{{"hostInterfaceName":"h{i}","name":"n{i}"}}', "]}}]}",
        ),
        "yaml-devices": _filled(
            "cdiVersion: 0.5.0\nkind: acme.org/net\ndevices:\n",
            lambda i: f"- {{name: n{i}, containerEdits: {{env: [A=b]}}}}\n", "", SIZE // 4,
        ),
        "yaml-keys": _filled("", lambda i: f"k{i}: v\n", "", SIZE // 4),
        "yaml-merges": _merges(),
        "yaml-aliases": _aliases(),
        "yaml-depth": b"[" * SIZE,
        "yaml-depth-of-blocks": _filled("", lambda i: " " * (i % 1000) + f"k{i}:\n", "", SIZE // 4),
        "yaml-anchors": _filled("", lambda i: f"- &a{i} x\n", "", SIZE // 4),
        "yaml-word": b"kind: " + b"a" * SIZE,
        "yaml-quotes": b'kind: "' + b"\\x41" * (SIZE // 4) + b'"',
        "yaml-number": b"devices: [{name: x, containerEdits: {additionalGids: [" + b"7" * SIZE + b"]}}]",
        "yaml-underscores": b"kind: 1" + b"_" * SIZE,
        "json-that-is-none": b"{" * SIZE,
    },
    "ldcache": {
        "zeros": _zeros(),
        "tails": _tails(),
        "libraries": ldcache.merge(
            None, [(f"libx{i}.so", f"/usr/lib/libx{i}.so") for i in range(20_000)], machine="x86_64"
        ),
        "nothing": ldcache.MAGIC + bytes(SIZE),
        "old": ldcache.OLD_MAGIC.ljust(12, b"\0") + struct.pack("<I", 1 << 31) + bytes(SIZE),
    },
    "elf": {
        "notes": _notes(),
        "needed": shared_object(needed=[f"lib{'n' * 900}{i}.so" for i in range(elf.NEEDED_LIMIT)]),
        "sections": shared_object(sections={f".note.{i}": bytes(200) for i in range(3_000)}),
        "nothing": b"\x7fELF\2\1\1" + bytes(SIZE),
        "ones": b"\x7fELF\2\1\1" + b"\xff" * SIZE,
    },
    "state": {
        "annotations": _filled('{"pid":7,"bundle":"/nowhere","annotations":{"a":"b"', lambda i: f',"k{i}":"v"', "}}", SIZE - 99),
        "depth": b'{"a":' + b"[" * (SIZE - 99),
        "path": b'{"pid":7,"bundle":"/' + b"a/" * (SIZE // 2 - 99) + b'"}',
        "too-long": b'{"pid":7,"bundle":"/' + b"a" * (2 << 20) + b'"}',
    },
}  # fmt: skip
