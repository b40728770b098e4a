# SPDX-License-Identifier: Apache-2.0
"""A program in C that is built with the installed package's header and library starts and draws."""

import os
import shlex
import shutil
import subprocess
import sys

import gumbel
import pytest

PROGRAM = """
#include <gumbel/gumbel.h>
#include <stdio.h>
int main(void)
{
    uint32_t words[4], counter[4] = {1, 2, 3, 4}, key[2] = {5, 6};
    if (gumbel_philox4x32(counter, key, 10, words) != GUMBEL_OK)
        return 1;
    printf("%s %u\\n", gumbel_version_string(), (unsigned)words[0]);
    return 0;
}
"""


def flags(*options):
    command = [sys.executable, "-m", "gumbel", *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return shlex.split(done.stdout)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_program_in_c_starts(tmp_path):
    (tmp_path / "program.c").write_text(PROGRAM)
    command = ["cc", "-Wall", "-Werror", "-c", "program.c", *flags("--cflags")]
    subprocess.run(command, check=True, cwd=tmp_path)
    subprocess.run(["cc", "-o", "program", "program.o", *flags("--libs")], check=True, cwd=tmp_path)
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        ["./program"], check=True, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    word = gumbel.philox4x32([1, 2, 3, 4], [5, 6])[0]
    assert done.stdout == f"{gumbel.__version__} {word}\n"


def test_flags_require_an_option():
    done = subprocess.run([sys.executable, "-m", "gumbel"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "--cflags" in done.stderr
