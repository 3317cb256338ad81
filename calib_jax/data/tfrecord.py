"""Records of TensorFlow's file format, read without TensorFlow.

A file is a row of records, and nothing else:

    length           8 bytes, little-endian
    its checksum     4 bytes, a masked CRC-32C
    data             `length` bytes: of TFDS, a serialised tf.train.Example
    its checksum     4 bytes

The checksum of the length is compared, so that a file of another kind, or one that lost a byte, is
noticed at once. That of the data is not, which in Python would take longer than to decode an
image; a damaged image does not decode.
"""

import os
import pathlib
import struct
from collections.abc import Iterator
from typing import Any

from calib_jax.core import reading

_POLYNOMIAL = 0x82F63B78  # of Castagnoli, its bits reversed
_MASK = 0xA282EAD8


def records(path: pathlib.Path) -> Iterator[bytes]:
    """Read the data of one record after another."""
    with reading.opened(path, "a file of TFRecords", "prepare the data set anew") as file:
        left = os.fstat(file.fileno()).st_size
        number = 0
        while head := file.read(12):
            if len(head) < 12:
                raise ValueError(f"it ends within record {number}")
            length, checksum = struct.unpack("<QI", head)
            if masked_crc(head[:8]) != checksum:
                raise ValueError(f"it is no file of TFRecords, or damaged, at record {number}")
            left -= 12 + length + 4
            if left < 0:  # before so much memory is asked for
                raise ValueError(f"it ends within record {number}")
            yield file.read(length + 4)[:length]
            number += 1


def example(data: bytes) -> dict[str, Any]:
    """Read the features of a serialised tf.train.Example, each of which has one value."""
    from tensorflow_datasets.proto import tf_example_pb2

    features = tf_example_pb2.Example.FromString(data).features.feature
    found: dict[str, Any] = {}
    for name, feature in features.items():
        kind = feature.WhichOneof("kind")
        values: Any = getattr(feature, kind).value if kind else ()
        if len(values) == 1:
            found[name] = values[0]
    return found


def masked_crc(data: bytes) -> int:
    """Compute the CRC-32C of a few bytes, in the form that the format keeps.

    >>> hex(masked_crc(b"123456789"))  # whose CRC-32C is 0xe3069283
    '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]
