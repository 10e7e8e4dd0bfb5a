"""RFC 6455 section 5, read slowly: what a server gets to see of a client's bytes. And a client that makes such bytes."""

from __future__ import annotations

import codecs
import os
import struct

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
Event = tuple[int, bytes, bool]


def client_frame(opcode: int, payload: bytes = b"", *, fin: bool = True, reserved: int = 0, mask: bytes | None = None) -> bytes:
    """Render a masked frame."""
    mask = os.urandom(4) if mask is None else mask
    size = len(payload)
    head = bytes([fin << 7 | reserved << 4 | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 1 << 16:
        head += bytes([0x80 | 126]) + struct.pack(">H", size)
    else:
        head += bytes([0x80 | 127]) + struct.pack(">Q", size)
    return head + mask + bytes(byte ^ mask[n % 4] for n, byte in enumerate(payload))


def read(stream: bytes, message_max: int, binary: bool = False, deflate: bool = False) -> tuple[list[Event], int | None]:
    """Return the events of all that has come, and the close code of what is wrong with it, if anything."""
    events: list[Event] = []
    opened, message, compressed = 0, b"", False
    text = codecs.getincrementaldecoder("utf-8")()
    at = 0
    while True:
        if len(stream) - at < 2:
            return events, None
        first, second = stream[at], stream[at + 1]
        fin, reserved, opcode, length = first >> 7, first >> 4 & 7, first & 15, second & 127
        masked, control = second >> 7, opcode >= 8
        wide = {126: 2, 127: 8}.get(length, 0)
        head = 2 + wide + 4 * masked
        if len(stream) - at < head:
            return events, None
        if wide:
            length = int.from_bytes(stream[at + 2 : at + 2 + wide], "big")
            if length < (126 if wide == 2 else 1 << 16) or length >= 1 << 63:
                return events, 1002
        allowed = (0, 4) if deflate and opcode in (TEXT, BINARY) else (0,)
        if not masked or reserved not in allowed or opcode not in (0, 1, 2, 8, 9, 10):
            return events, 1002
        if control and (length > 125 or not fin):
            return events, 1002
        if (opcode == 0 and not opened) or (opcode in (TEXT, BINARY) and opened):
            return events, 1002
        if opcode == BINARY and not binary:
            return events, 1003
        if not control and len(message) + length > message_max:
            return events, 1009
        mask = stream[at + head - 4 : at + head]
        there = stream[at + head : at + head + length]
        payload = bytes(byte ^ mask[n % 4] for n, byte in enumerate(there))
        whole = len(there) == length
        if opcode in (TEXT, BINARY):
            opened, message, compressed = opcode, b"", reserved == 4
            text.reset()
        if not control:
            if opened == TEXT and not compressed:
                try:
                    text.decode(payload, final=bool(whole and fin))
                except UnicodeDecodeError:
                    return events, 1007
            message += payload
        if not whole:
            return events, None
        at += head + length
        if opcode == CLOSE:
            if wrong := close_wrong(payload):
                return events, wrong
            return [*events, (CLOSE, payload, False)], None
        if control:
            events.append((opcode, payload, False))
        elif fin:
            events.append((opened, message, compressed))
            opened, message = 0, b""


def close_wrong(payload: bytes) -> int | None:
    """Return the close code that a close frame deserves."""
    if len(payload) == 1:
        return 1002
    if payload:
        code = int.from_bytes(payload[:2], "big")
        if code not in (1000, 1001, 1002, 1003, *range(1007, 1015)) and not 3000 <= code < 5000:
            return 1002
        try:
            payload[2:].decode()
        except UnicodeDecodeError:
            return 1007
    return None
