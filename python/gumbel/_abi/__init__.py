# SPDX-License-Identifier: Apache-2.0
"""The C ABI of libgumbel: structs and prototypes, as the headers in include/gumbel declare them.

`lib` is a ctypes.CDLL, so every call into it releases the global interpreter lock.
"""

from .library import check_status as check_status
from .library import decode_text as decode_text
from .library import find_file as find_file
from .library import lib as lib
from .ring_structs import *  # noqa: F403
from .structs import *  # noqa: F403
from .watermark_structs import *  # noqa: F403
