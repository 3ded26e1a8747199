# SPDX-License-Identifier: Apache-2.0
import os

import pytest

from nvct.kernel.kmsg import FILE, Kmsg, Message, parse

XID = (
    b"6,1402,98765432,-;NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus.\n"
    b" SUBSYSTEM=pci\n DEVICE=+pci:0000:18:00.0\n"
)


def test_a_record_of_the_driver() -> None:
    text = "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus."
    assert parse(XID) == Message(6, 0, 1402, 98765432, text)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            b"30,7,1,-;systemd[1]: started; done\n",
            Message(6, 3, 7, 1, "systemd[1]: started; done"),
        ),
        (b"4,8,2,c,caller=T1;part\n", Message(4, 0, 8, 2, "part")),
        (b"12,9,3,-;caf\\xc3\\xa9 \\x5cx41\n", Message(4, 1, 9, 3, "caf\u00e9 \\x41")),
        (b"12,9,3,-;\\xff\n", Message(4, 1, 9, 3, "\ufffd")),
        (b"5,10,4,-;\n", Message(5, 0, 10, 4, "")),
    ],
    ids=["facility", "more-fields", "escapes", "no-utf8", "empty"],
)
def test_forms_of_records(record: bytes, message: Message) -> None:
    assert parse(record) == message


@pytest.mark.parametrize("record", [b"", b"text", b"6,1;x", b"a,b,c,-;x"])
def test_what_is_no_record_is_refused(record: bytes) -> None:
    with pytest.raises(ValueError, match="not a record of /dev/kmsg"):
        parse(record)


def test_a_recorded_stream_is_read_record_by_record() -> None:
    reading, writing = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)  # a read returns one write
    with Kmsg(f"/proc/self/fd/{reading}", past=True) as kmsg:
        os.close(reading)
        assert kmsg.read() == []
        os.write(writing, XID)
        os.write(writing, XID.replace(b"1402", b"1405"))
        assert [message.sequence for message in kmsg.read()] == [1402, 1405]
        assert kmsg.read() == []
        os.write(writing, XID)
        os.close(writing)
        assert [message.sequence for message in kmsg.read()] == [1402]


def test_the_kernels_own_log() -> None:
    try:
        kmsg = Kmsg(past=True)
    except OSError as error:
        pytest.skip(f"{FILE} is not readable: {error.strerror}")
    with kmsg, Kmsg() as later:
        numbers = [message.sequence for message in kmsg.read()]
        assert numbers == sorted(set(numbers))
        assert len(numbers) > 1
        assert all(message.sequence >= numbers[-1] for message in later.read())
        assert not os.get_inheritable(kmsg.fileno())
