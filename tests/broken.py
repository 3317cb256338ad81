"""Broken files: about a hundred out of one that is whole, the same at every call."""

import gzip
import io
import itertools
import os
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tests.data import tiny

Ways = Callable[[bytes], Iterator[tuple[str, bytes]]]  # pairs of a name and a content


class Broken(NamedTuple):
    """How a file was broken, and what puts it at a path."""

    how: str
    put: Callable[[os.PathLike[str]], object]


def files(whole: bytes, inner=None, ways: Ways | None = None) -> Iterator[Broken]:
    """Break a file in all ways that know nothing of its format, and in its inner ones.

    Args:
      whole: its content.
      inner: `(content, ways) -> pairs of a name and a content`: breaks what a checksum or a length
        stands for, and makes these right again.
      ways: of breaking bytes.
    """
    ways = contents if ways is None else ways
    for how, content in itertools.chain(ways(whole), inner(whole, ways) if inner else ()):
        yield Broken(how, lambda path, content=content: path.write_bytes(content))
    yield Broken("a folder", os.mkdir)
    yield Broken("a link to itself", lambda path: os.symlink(path.name, path))
    yield Broken("a pipe", os.mkfifo)
    yield Broken("a terabyte of nothing behind it", lambda path: _sparse(path, whole))


def contents(whole: bytes) -> Iterator[tuple[str, bytes]]:
    """Break bytes: cut, flipped, overwritten, added to, replaced."""
    yield "empty", b""
    for size in cuts(len(whole)):
        yield f"cut to {size} bytes", whole[:size]
    for place in places(len(whole), 24):
        yield (
            f"a bit of byte {place}",
            changed(whole, place, bytes([whole[place] ^ 1 << place % 8])),
        )
    for value in (b"\xff" * 8, b"\xff" * 4, b"\xff\xff\xff\x7f", bytes(8), b"\x00\x00\x00\x80"):
        for place in places(len(whole), 6):
            yield f"{value.hex()} at byte {place}", changed(whole, place, value)
    for number in (b"9" * 400, b"-1", b"1e999", b"nan", b"18446744073709551616", b"0x", b"\xff"):
        yield f"{number[:20]!r} for its digits", in_place_of_digits(whole, number)
    random = np.random.default_rng(0)
    yield from {
        "NULs at its beginning": changed(whole, 0, bytes(16)),
        "NULs in its middle": changed(whole, len(whole) // 2, bytes(64)),
        "NULs": bytes(len(whole)),
        "other bytes": random.bytes(len(whole)),
        "a page of a web server": b"<!DOCTYPE html><html><head><title>404</title></head></html>\n",
        "it twice": whole + whole,
        "NULs behind it": whole + bytes(100),
        "a line before it": b"\n" + whole,
        "backwards": whole[::-1],
        "two bytes a letter": whole.decode("latin-1").encode("utf-16"),
        "a pickle": pickle.dumps(Trap()),
        "a pickle behind its beginning": whole[:16] + pickle.dumps(Trap()),
        "brackets": b"[" * 100_000,
        "braces": b'{"a":' * 100_000,
        "commas": b"," * 100_000,
        "quotes": b'"' * 100_001,
        "a number": b"1" * 100_000,
        "null": b"null\n",
        "a list": b"[]\n",
        "a zip of nothing": b"PK\x05\x06" + bytes(18),
        "a PNG": b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 2**31 - 1) + b"IHDR" + bytes(20),
        "a PNG of terapixels": image(2**20, 2**20),
        "a PNG of gigapixels": image(2**15, 2**15),
        "an array": b"\x93NUMPY\x02\x00" + b"\xff" * 4 + b"{" * 50,
        "gz": b"\x1f\x8b\x08" + bytes(40),
    }.items()


def at_random(number: int, seed: int, *, text: bool = False) -> Ways:
    """Make a way of breaking that does up to four things at random places.

    Args:
      number: how many contents.
      seed: of the random numbers.
      text: break words and lines in most of the contents.
    """

    def ways(whole: bytes) -> Iterator[tuple[str, bytes]]:
        for one in range(number):
            random = np.random.default_rng([seed, one])
            content = whole
            change = once_in_text if text and random.random() < 0.75 else once
            for _ in range(random.integers(1, 5)):
                content = change(content, random)
            yield f"at random, {seed} {one}", content

    return ways


def once(content: bytes, random: np.random.Generator) -> bytes:
    size = len(content)
    place, end = sorted(random.integers(0, size + 1, 2).tolist())
    if random.random() < 0.5:  # near the beginning, where headers are
        place = min(place, int(random.integers(0, 64)))
    match int(random.integers(0, 7)):
        case 0:
            return changed(content, place, bytes([int(random.integers(256))]))
        case 1:
            return changed(content, place, INTEGERS[random.integers(len(INTEGERS))])
        case 2:
            return content[:place] + random.bytes(int(random.integers(1, 9))) + content[place:]
        case 3:
            return content[:place] + content[place + int(random.integers(1, 9)) :]
        case 4:
            return content[:end]
        case 5:
            return content[:end] + content[place:]
        case _:
            return changed(content, place, bytes(min(end - place, 64)))


def once_in_text(content: bytes, random: np.random.Generator) -> bytes:
    """Replace, repeat, drop or swap a word or a line; what was UTF-8 stays UTF-8."""
    by_line = random.random() < 0.3
    parts = content.split(b"\n") if by_line else re.split(rb"(\W|\d+)", content)
    place, other = random.integers(0, len(parts), 2).tolist()
    match int(random.integers(0, 6)):
        case 0:
            parts[place] = parts[other]
        case 1:
            del parts[place]
        case 2:
            parts.insert(place, parts[other])
        case 3:
            parts[place], parts[other] = parts[other], parts[place]
        case _:
            parts[place] = WORDS[random.integers(len(WORDS))]
    return (b"\n" if by_line else b"").join(parts)


WORDS = (
    *(b"", b"0", b"1", b"-1", b"2", b"0.5", b"1e999", b"-1e-400", b"nan", b"inf", b"1_0", b"0x1"),
    *(b"9" * 5000, b"18446744073709551616", b"true", b"null", b"[]", b"{}", b'"', b"'", b"\\"),
    *(b",", b";", b"\t", b" ", b"\r", b"\n\n", b"(", b")", b"\0", b"\x1b[2J", b"%", b"a" * 300),
    *(text.encode() for text in ("é", "\u202e", "\u2028", "\u0663", "\ufeff", "\U00018d09")),
)
INTEGERS = (
    *(b"\xff" * 2, b"\xff" * 4, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\xff" * 7 + b"\x7f"),
    *(bytes(4), bytes(7) + b"\x80", b"\x01" + bytes(3), b"99999999", b"-1", b"1e99", b"\0\0\1\0"),
)


def cuts(size: int) -> list[int]:
    ends = [1, 2, 4, 6, 8, 10, 12, 16, 31, 64, 100, 128, 200, 512]
    shares = [size // 8, size // 4, size // 2, 3 * size // 4]
    return sorted({n for n in [*ends, *shares, *(size - n for n in ends)] if 0 < n < size})


def places(size: int, number: int) -> list[int]:
    """Half of them near the ends, where headers are."""
    random = np.random.default_rng([size, number])
    near = random.integers(0, min(size, 128), number // 4)
    last = size - 1 - random.integers(0, min(size, 128), number // 4)
    return sorted({*near.tolist(), *last.tolist(), *random.integers(0, size, number // 2).tolist()})


def changed(whole: bytes, place: int, by: bytes) -> bytes:
    """Overwrite some bytes, as far as there are any."""
    return whole[:place] + by[: len(whole) - place] + whole[place + len(by) :]


def in_place_of_digits(whole: bytes, number: bytes) -> bytes:
    """Replace every run of digits, which breaks texts."""
    digits = set(b"0123456789")
    out, last = bytearray(), False
    for byte in whole[:100_000]:
        if byte not in digits:
            out.append(byte)
        elif not last:
            out += number
        last = byte in digits
        if len(out) > 1_000_000:
            break
    return bytes(out)


def image(width: int, height: int) -> bytes:
    """Make a PNG that announces a size, and has the bytes of a smaller one."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1_000_000), 9)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", rows), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


class Trap:
    """An object whose unpickling is detected."""

    def __reduce__(self):
        return (os._exit, (77,))


def _sparse(path, whole: bytes) -> None:
    path.write_bytes(whole)
    os.truncate(path, 1 << 40)


# Contents that are damaged before they are packed, so that the checksum of the archive is right.


def in_npz(whole: bytes, ways: Ways = contents) -> Iterator[tuple[str, bytes]]:
    """Break the arrays of an .npz file one after the other, under right checksums."""
    with zipfile.ZipFile(io.BytesIO(whole)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    names = list(members)
    for number, (how, content) in enumerate(ways(members[names[0]])):
        name = names[number % len(names)]
        yield f"{how} in {name}", zipped(members | {name: content})
    headers = [array_header(shape, kind) for shape, kind in HEADERS]
    for name in names:
        for number, header in enumerate(headers):
            yield f"header {number} in {name}", zipped(members | {name: header + bytes(64)})
    yield "a member of 3 GB that nobody needs", zipped(members | {"more.npy": bytes(2_000_000)})
    for flag, place in ((1, 8), (99, 10), (12, 10), (14, 10)):
        where = whole.rindex(b"PK\x01\x02") + place
        yield f"flag {flag} in its table", changed(whole, where, bytes([flag]))


HEADERS = (
    ("(9223372036854775807,)", "<f4"),
    ("(18446744073709551616,)", "<f4"),
    ("(100000, 100000, 100000)", "<f4"),
    ("(-1,)", "<i8"),
    ("(-4, -4)", "<i4"),
    ("()", "<f8"),
    ("(1.5,)", "<f8"),
    ("('a',)", "<f8"),
    ("(1,)", "|O"),
    ("(8,)", "<U2"),
    ("(4294967296,)", "<U0"),
    ("(1,)", "<U16"),
    ("(8,)", "<M8[s]"),
    ("(64,)", "|V1"),
    ("(64,)", "|b1"),
    ("(64,)", "|S1"),
    ("(16,)", ">f4"),
    ("(4,)", "<f16"),
    ("(8,)", "<c8"),
    ("(0, 9223372036854775807)", "<f4"),
    ("(0,)", "<f4"),
    ("(16,)", "(2,2)<f1"),
    ("(1,) * 99", "<f4"),
)


def array_header(shape: str, kind: str) -> bytes:
    text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zipped(members) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def in_npy(whole: bytes, ways: Ways = contents) -> Iterator[tuple[str, bytes]]:
    end = whole.index(b"\n")
    for how, header in ways(whole[10:end]):
        text = header[:60_000] + b"\n"
        content = whole[:8] + struct.pack("<H", len(text)) + text + whole[end + 1 :]
        yield f"{how} in its header", content
    for number, (shape, kind) in enumerate(HEADERS):
        yield f"header {number}", array_header(shape, kind) + bytes(64)


def in_safetensors(whole: bytes, ways: Ways = contents) -> Iterator[tuple[str, bytes]]:
    """Break the header of .safetensors, under its right length."""
    end = 8 + int.from_bytes(whole[:8], "little")
    for how, header in ways(whole[8:end]):
        yield f"{how} in its header", len(header).to_bytes(8, "little") + header + whole[end:]


def in_matlab(whole: bytes, ways: Ways = contents) -> Iterator[tuple[str, bytes]]:
    """Break the first variable, packed as if it were whole."""
    _, size = struct.unpack("<II", whole[128:136])
    inner = zlib.decompress(whole[136 : 136 + size])
    for how, content in ways(inner):
        packed = zlib.compress(content)
        head = whole[:128] + struct.pack("<II", 15, len(packed))
        yield f"{how} in a variable", head + packed + whole[136 + size :]


def in_png(whole: bytes, ways: Ways = contents) -> Iterator[tuple[str, bytes]]:
    """Break a PNG, and write the right checksums behind the chunks that are left."""
    for how, content in ways(whole):
        place, out = 8, bytearray(content)
        while place + 12 <= len(out):
            end = place + 8 + int.from_bytes(out[place : place + 4], "big")
            if end + 4 > len(out):
                break
            out[end : end + 4] = struct.pack(">I", zlib.crc32(out[place + 4 : end]))
            place = end + 4
        yield f"{how} under checksums", bytes(out)


def in_gzip(whole: bytes, ways: Ways = contents) -> Iterator[tuple[str, bytes]]:
    for how, content in ways(gzip.decompress(whole)):
        yield f"{how} under gzip", gzip.compress(content, 1)


def in_records(whole: bytes, ways: Ways = contents) -> Iterator[tuple[str, bytes]]:
    """Break the first record of a file of TFRecords, under right lengths and checksums."""
    size = int.from_bytes(whole[:8], "little")
    for how, record in ways(whole[12 : 12 + size]):
        yield f"{how} in a record", record_of(record) + whole[size + 16 :]
    for length in (2**64 - 1, 2**63, 2**40, 0):
        yield f"a record of {length} bytes", record_of(b"", length) + whole[size + 16 :]


def record_of(content: bytes, length: int | None = None) -> bytes:
    size = struct.pack("<Q", len(content) if length is None else length)
    return size + struct.pack("<I", tiny.masked_crc(size)) + content + bytes(4)
