"""Writes a GGUF file (version 3): metadata, and tensors in F32 or Q8_0."""

import struct
from pathlib import Path

import numpy as np

F32, Q8_0 = 0, 8
ALIGNMENT = 32
BLOCK = 32

U32_VALUE, I32_VALUE, F32_VALUE, BOOL_VALUE, TEXT_VALUE, LIST_VALUE = 4, 5, 6, 7, 8, 9


def quantize_q8_0(rows: np.ndarray) -> bytes:
    """Blocks of 32 numbers: a scale in F16, and 32 signed bytes."""
    blocks = rows.astype(np.float32).reshape(-1, BLOCK)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    packed = np.empty(len(blocks), dtype=[("scale", "<f2"), ("values", "i1", BLOCK)])
    packed["scale"] = scale[:, 0]
    packed["values"] = np.rint(blocks * inverse)
    return packed.tobytes()


def dequantize_q8_0(rows: np.ndarray) -> np.ndarray:
    """What a reader of the file gets."""
    packed = np.frombuffer(quantize_q8_0(rows), dtype=[("scale", "<f2"), ("values", "i1", BLOCK)])
    return (packed["scale"].astype(np.float32)[:, None] * packed["values"]).reshape(rows.shape)


def write_gguf(path: Path, metadata: dict, tensors: dict[str, tuple[np.ndarray, int]]) -> int:
    """Tensors as (array, type), rows last. Returns the bytes of the file."""
    header = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        header += _text(key) + _value(value)
    bodies: list[bytes] = []
    offset = 0
    for name, (array, kind) in tensors.items():
        body = quantize_q8_0(array) if kind == Q8_0 else array.astype("<f4").tobytes()
        header += _text(name) + struct.pack("<I", array.ndim)
        header += struct.pack(f"<{array.ndim}Q", *reversed(array.shape))
        header += struct.pack("<IQ", kind, offset)
        body += bytes(-len(body) % ALIGNMENT)
        bodies.append(body)
        offset += len(body)
    header += bytes(-len(header) % ALIGNMENT)
    path.write_bytes(bytes(header) + b"".join(bodies))
    return path.stat().st_size


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value) -> bytes:
    """Whole numbers are u32, lists of whole numbers i32, as readers expect of the keys written here."""
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL_VALUE, value)
    if isinstance(value, int):
        return struct.pack("<II", U32_VALUE, value)
    if isinstance(value, float):
        return struct.pack("<If", F32_VALUE, value)
    if isinstance(value, str):
        return struct.pack("<I", TEXT_VALUE) + _text(value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", LIST_VALUE, TEXT_VALUE, len(value)) + b"".join(map(_text, value))
    return struct.pack("<IIQ", LIST_VALUE, I32_VALUE, len(value)) + struct.pack(f"<{len(value)}i", *value)
