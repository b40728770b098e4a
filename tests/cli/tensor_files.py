# SPDX-License-Identifier: Apache-2.0
"""Write and read .npy and safetensors files with the standard library alone."""

import json
import math
import struct

FORMATS = {"<f4": "f", "<f2": "e", "<i4": "i", "<i8": "q", "<u2": "H", "<u4": "I", "<u8": "Q"}
DTYPES = {"F32": "f", "F16": "e", "I32": "i", "BF16": None}


def bfloat16_bits(value):
    """The upper half of a float32, without rounding."""
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def write_npy(path, descr, shape, values):
    """An array of version 1.0; `descr` as in FORMATS."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode())
        file.write(struct.pack(f"<{len(values)}{FORMATS[descr]}", *values))


def read_npy(path):
    """(descr, shape, values)."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    size = struct.unpack_from("<H", data, 8)[0]
    header = eval(data[10 : 10 + size].decode(), {"__builtins__": {}})  # our own file
    assert header["fortran_order"] is False
    count = math.prod(header["shape"])
    values = struct.unpack_from(f"<{count}{FORMATS[header['descr']]}", data, 10 + size)
    return header["descr"], header["shape"], list(values)


def tensor_bytes(dtype, values):
    if dtype == "BF16":
        return struct.pack(f"<{len(values)}H", *map(bfloat16_bits, values))
    return struct.pack(f"<{len(values)}{DTYPES[dtype]}", *values)


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, values)."""
    header, blob = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        data = tensor_bytes(dtype, values)
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    write_raw_safetensors(path, header, blob)


def write_raw_safetensors(path, header, blob, sparse_bytes=0):
    """Writes the header unchanged, padded to 8 bytes, then the blob and a sparse range of
    `sparse_bytes` zeros."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + blob)
        if sparse_bytes:
            file.truncate(8 + len(text) + len(blob) + sparse_bytes)
