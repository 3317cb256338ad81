"""Read TensorFlow's TFRecord format without TensorFlow.

A file is a sequence of records:

    length           8 bytes, little-endian
    its checksum     4 bytes, a masked CRC-32C
    data             `length` bytes: in TFDS, a serialised tf.train.Example
    its checksum     4 bytes

Only the checksum of the length is verified, which detects other file types and missing bytes. In
Python, the checksum of the data would take longer than decoding the image, and a damaged image
fails to decode.
"""

import os
import pathlib
import struct
from collections.abc import Iterator
from typing import Any

from calib_jax.core.files import reading

_POLYNOMIAL = 0x82F63B78  # Castagnoli, with reversed bits
_MASK = 0xA282EAD8


def records(path: pathlib.Path) -> Iterator[bytes]:
    """Yield the data of each record."""
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
            if left < 0:  # check before allocating the memory
                raise ValueError(f"it ends within record {number}")
            yield file.read(length + 4)[:length]
            number += 1


def example(data: bytes) -> dict[str, Any]:
    """Parse a serialised tf.train.Example; return the features that have exactly one value."""
    from tensorflow_datasets.proto import tf_example_pb2

    features = tf_example_pb2.Example.FromString(data).features.feature
    single_values: dict[str, Any] = {}
    for name, feature in features.items():
        kind = feature.WhichOneof("kind")
        values: Any = getattr(feature, kind).value if kind else ()
        if len(values) == 1:
            single_values[name] = values[0]
    return single_values


def masked_crc(data: bytes) -> int:
    """Compute the masked CRC-32C that the format stores.

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
