#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: test_images.py LIBRARY IMAGES [DRIVERS]

Reads the fat binaries in the library LIBRARY: each kernel source that IMAGES lists must have an
image there, of exactly the listed architectures, and the library must name them. With DRIVERS, the
folder of the driver without a GPU (null_driver.c), opens GPUs of several capabilities: the library
accepts those that an image serves, names the reason for others, and no kernel exceeds the shared
memory of its GPU. LIBRARY and IMAGES must be of one build.
"""

import ctypes
import os
import pathlib
import re
import struct
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)
ZSTD = struct.pack("<I", 0xFD2FB528)
PTX, MACHINE_CODE = 1, 2
ARCHITECTURE_SPECIFIC = 1 << 20  # of an entry's flags: the 'a' of sm_90a
# Maximum shared memory of a CTA: the CUDA C++ Programming Guide. The smallest come before the
# largest, as the driver keeps a kernel's last value.
SHARED_KIB = {75: 64, 80: 163, 86: 99, 89: 99, 120: 99, 100: 227, 90: 227}
GROUPS = ("portable", "tensor", "clusters", "hopper")


def read_sections(elf):
    """{name: size} of an ELF file."""
    start, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count)]
    texts = headers[names][4]
    return {
        elf[texts + header[0] : elf.index(b"\0", texts + header[0])].decode(): header[5]
        for header in headers
    }


def read_machine_code(elf, architecture):
    """The static shared memory of each kernel, {name: bytes}; None if nvcc compressed the file."""
    if elf[:4] == ZSTD:
        return None
    name = re.search(rb"-arch (sm_\d+a?)\b", elf)
    assert elf[:4] == b"\x7fELF" and name, "machine code is ELF that names its architecture"
    assert name[1].decode() == architecture, (name[1], architecture)
    number = int(re.sub(r"\D", "", architecture))
    sections = read_sections(elf)
    kernels = [each[len(".text.") :] for each in sections if each.startswith(".text.gumbel_")]
    assert kernels, "machine code has kernels"
    # From sm_90 on, a kernel's size includes what CUDA reserves, which the maximum does not.
    reserved = 1024 if number >= 90 else 0
    sizes = {each: sections.get(f".nv.shared.{each}", 0) for each in kernels}
    return {each: max(0, size - reserved) for each, size in sizes.items()}


def read_image(data, start):
    """{architecture: {kernel: static shared bytes}} of the fat binary there; for PTX and compressed
    files None instead of the kernels."""
    _, _, header, size = struct.unpack_from("<IHHQ", data, start)
    found, place, end = {}, start + header, start + header + size
    while place < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, place)
        number, = struct.unpack_from("<I", data, place + 28)
        flags, = struct.unpack_from("<Q", data, place + 40)
        content = data[place + header : place + header + size]
        assert kind in (PTX, MACHINE_CODE) and len(content) == size, (kind, size)
        name, kernels = f"compute_{number}", None
        if kind == MACHINE_CODE:
            name = f"sm_{number}{'a' if flags & ARCHITECTURE_SPECIFIC else ''}"
            kernels = read_machine_code(content, name)
        assert name not in found, f"{name} occurs twice"
        found[name] = kernels
        place += header + size
    return found


def check_images(library, listing):
    """Compares the images with the listing; returns {group: architectures} and all images."""
    data, folder = library.read_bytes(), listing.parent
    groups, images, places = {}, [], set()
    for line in listing.read_text().splitlines():
        source, group, *promised = line.split()
        image = (folder / f"{pathlib.Path(source).name}.fatbin").read_bytes()
        assert data.count(image) == 1, f"the library has {data.count(image)} images of {source}"
        places.add(data.index(image))
        found = read_image(data, data.index(image))
        assert sorted(found) == sorted(promised), f"{source}: {sorted(found)}, not {promised}"
        kernels = [set(each) for each in found.values() if each is not None]
        assert all(each == kernels[0] for each in kernels), f"{source}: kernels differ"
        assert groups.setdefault(group, promised) == promised
        images.append(found)
    count = len(re.findall(re.escape(MAGIC) + rb"\x01\x00\x10\x00", data))
    assert count == len(images), f"the library has {count} images; {len(images)} are listed"
    assert count == len(places), "two sources have the same image"
    assert set(groups) == set(GROUPS)
    return groups, images


def choose(names, capability):
    """The name that the CUDA driver chooses; "" if the GPU cannot run any."""
    digits = {name: int(re.sub(r"\D", "", name)) for name in names}
    exact = [name for name in names if name == f"sm_{capability}a"]
    code = [name for name in names if re.fullmatch(r"sm_\d+", name)
            and capability - capability % 10 <= digits[name] <= capability]  # fmt: skip
    text = [name for name in names if name.startswith("compute_") and digits[name] <= capability]
    for kind in (exact, code, text):
        if kind:
            return max(kind, key=digits.get)
    return ""


def check_names(lib, groups):
    lib.gumbel_cuda_architectures.restype = ctypes.c_char_p
    lib.gumbel_cuda_architecture.restype = ctypes.c_char_p
    every = {name for names in groups.values() for name in names}
    assert set(lib.gumbel_cuda_architectures().decode().split()) == every
    for group in GROUPS:
        for capability in range(70, 140):
            name = lib.gumbel_cuda_architecture(group.encode(), capability).decode()
            assert name == choose(groups[group], capability), (group, capability, name)


class Kernel(ctypes.Structure):
    """As in null_driver.c."""

    _fields_ = [("name", ctypes.c_char * 64), ("dynamic", ctypes.c_int), ("out", ctypes.c_int)]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("device", ctypes.c_char_p), ("isa", ctypes.c_int),
                ("threads", ctypes.c_int32), ("tile", ctypes.c_int32),
                ("unused", ctypes.c_void_p * 3)]  # fmt: skip


def open_gpu(lib, capability):
    """The message of the error, or "" and the capability that the device reports."""
    os.environ["NULL_CAPABILITY"] = str(capability)
    device, error = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
    options = Options(ctypes.sizeof(Options), b"cuda:0")
    if lib.gumbel_open(ctypes.byref(options), ctypes.byref(device), error):
        return error.raw.replace(b"\0", b" ").decode()
    assert lib.gumbel_device_capability(device) == capability
    lib.gumbel_close(device)
    return ""


def check_gpus(lib, drivers, groups, images):
    driver = ctypes.CDLL(str(drivers / "libcuda.so.1"))  # the one that the library finds by name
    loaded = (Kernel * 1024).in_dll(driver, "null_kernels")
    old = open_gpu(lib, 70)
    assert "7.0" in old and "require 7.5 or later" in old and "'cpu'" in old, old
    assert not loaded[0].name, "kernels of a GPU that is not supported were loaded"
    for capability, kib in SHARED_KIB.items():
        names = {group: choose(groups[group], capability) for group in GROUPS}
        message = open_gpu(lib, capability)
        if not names["portable"]:
            expected = f"{capability // 10}.{capability % 10}, and this build has kernels for"
            assert expected in message, message
            continue
        assert not message, message
        serving = {}
        for image in images:
            group = next(each for each in GROUPS if set(groups[each]) == set(image))
            for kernels in image.values() if names[group] else ():
                for name, static in (kernels or {}).items():
                    serving[name] = max(static, serving.get(name, 0))
        present = {each.name.decode(): each.dynamic for each in loaded if each.name}
        for name in serving:
            assert name in present, f"{capability}: {name} is not loaded"
            total = serving[name] + present[name]
            default = present[name] == 48 << 10  # the maximum unless it is set
            assert total <= kib << 10 or default, f"{capability}: {name} has {total} bytes"
        if not names["clusters"]:
            assert not any("cluster" in name for name in present)
        print(f"capability {capability}: {len(serving)} kernels, {names}")


def main():
    library, listing, *drivers = map(pathlib.Path, sys.argv[1:])
    groups, images = check_images(library, listing)
    lib = ctypes.CDLL(str(library))
    check_names(lib, groups)
    if drivers:
        check_gpus(lib, drivers[0], groups, images)
    print(f"{len(images)} images: {groups}")


if __name__ == "__main__":
    main()
