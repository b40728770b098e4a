# SPDX-License-Identifier: Apache-2.0
"""The ctypes structs have the sizes and offsets that a C compiler gives those of the header."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from gumbel import _abi

INCLUDE = Path(__file__).resolve().parents[2] / "include"

STRUCTS = {
    "gumbel_error": _abi.Error,
    "gumbel_device_options": _abi.DeviceOptions,
    "gumbel_device_info": _abi.DeviceInfo,
    "gumbel_tensor": _abi.Tensor,
    "gumbel_head": _abi.Head,
    "gumbel_logits": _abi.Logits,
    "gumbel_sampling": _abi.Sampling,
    "gumbel_output": _abi.Output,
}

CONSTANTS = {
    "GUMBEL_FLOAT32": _abi.FLOAT32,
    "GUMBEL_FLOAT16": _abi.FLOAT16,
    "GUMBEL_BFLOAT16": _abi.BFLOAT16,
    "GUMBEL_OK": _abi.OK,
    "GUMBEL_ERROR_ARGUMENT": _abi.ERROR_ARGUMENT,
    "GUMBEL_ERROR_WORKSPACE": _abi.ERROR_WORKSPACE,
    "GUMBEL_ERROR_UNSUPPORTED": _abi.ERROR_UNSUPPORTED,
    "GUMBEL_ERROR_MEMORY": _abi.ERROR_MEMORY,
}


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.skipif(not INCLUDE.is_dir(), reason="no header beside the tests")
def test_structs_and_constants_are_those_of_the_header(tmp_path):
    claims = [f"{name} == {value}" for name, value in CONSTANTS.items()]
    for name, struct in STRUCTS.items():
        claims.append(f"sizeof({name}) == {ctypes.sizeof(struct)}")
        for field, *_ in struct._fields_:
            offset = getattr(struct, field).offset
            claims.append(f"offsetof({name}, {field}) == {offset}")
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <gumbel/gumbel.h>\n"
        + "".join(f'_Static_assert({claim}, "{claim}");\n' for claim in claims)
    )
    command = ["cc", "-std=c17", "-fsyntax-only", f"-I{INCLUDE}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
