# SPDX-License-Identifier: Apache-2.0
"""The ctypes structs have the sizes and offsets of the header's structs in a C compiler."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import gumbel
import pytest
from gumbel import _abi

INCLUDE = Path(__file__).resolve().parents[3] / "include"

STRUCTS = {
    "gumbel_error": _abi.Error,
    "gumbel_device_options": _abi.DeviceOptions,
    "gumbel_device_info": _abi.DeviceInfo,
    "gumbel_tensor": _abi.Tensor,
    "gumbel_screen": _abi.ScreenMemory,
    "gumbel_head": _abi.Head,
    "gumbel_logits": _abi.Logits,
    "gumbel_row_f32": _abi.Rows,
    "gumbel_row_i32": _abi.Rows,
    "gumbel_row_u32": _abi.Rows,
    "gumbel_row_u64": _abi.Rows,
    "gumbel_slots": _abi.Slots,
    "gumbel_token_lists": _abi.TokenLists,
    "gumbel_history": _abi.History,
    "gumbel_transforms": _abi.Transforms,
    "gumbel_programs": _abi.Programs,
    "gumbel_truncation": _abi.Truncation,
    "gumbel_sampling": _abi.Sampling,
    "gumbel_output": _abi.Output,
    "gumbel_summary": _abi.Summary,
    "gumbel_draft": _abi.Draft,
    "gumbel_verified": _abi.Verified,
    "gumbel_step": _abi.Step,
    "gumbel_recent": _abi.Recent,
    "gumbel_sequences": _abi.Sequences,
    "gumbel_list_rules": _abi.ListRules,
    "gumbel_row_lists": _abi.RowLists,
    "gumbel_rule_updates": _abi.RuleUpdates,
    "gumbel_watermark": _abi.Watermark,
    "gumbel_watermark_draws": _abi.WatermarkDraws,
    "gumbel_detector": _abi.Detector,
    "gumbel_detection": _abi.Detection,
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
    "GUMBEL_ERROR_DEVICE": _abi.ERROR_DEVICE,
    "GUMBEL_ERROR_GROUP": _abi.ERROR_GROUP,
    "GUMBEL_ORDER_MIN_P_TOP_K_TOP_P": _abi.ORDER_MIN_P_TOP_K_TOP_P,
    "GUMBEL_ORDER_JOINT": _abi.ORDER_JOINT,
    "GUMBEL_ORDER_BEFORE_TEMPERATURE": _abi.ORDER_BEFORE_TEMPERATURE,
    "GUMBEL_ORDER_TOP_K_TOP_P_MIN_P": _abi.ORDER_TOP_K_TOP_P_MIN_P,
    "GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE": _abi.ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE,
    "GUMBEL_ORDER_JOINT_TEMPERATURE": _abi.ORDER_JOINT_TEMPERATURE,
    "GUMBEL_TIES_ALL": _abi.TIES_ALL,
    "GUMBEL_TIES_EXACT": _abi.TIES_EXACT,
    **{f"GUMBEL_PROGRAM_{name.upper()}": value for name, value in _abi.PROGRAM_RULES.items()},
    "GUMBEL_PROGRAM_LENGTH": _abi.PROGRAM_LENGTH,
    "GUMBEL_PROGRAMS_MAX": _abi.PROGRAMS_MAX,
    "GUMBEL_PROCESSED": _abi.PROCESSED,
    "GUMBEL_RULE_COUPLED": _abi.RULE_COUPLED,
    "GUMBEL_RULE_REJECTION": _abi.RULE_REJECTION,
    "GUMBEL_RULE_BLOCK": _abi.RULE_BLOCK,
    "GUMBEL_DOMAIN_DRAFT": _abi.DOMAIN_DRAFT,
    "GUMBEL_RAW": _abi.RAW,
    **{f"GUMBEL_ROW_{status.name}": int(status) for status in gumbel.RowStatus},
    "GUMBEL_SAME": _abi.SAME,
    "GUMBEL_SAMPLES_MAX": _abi.SAMPLES_MAX,
    "GUMBEL_PARTS_MAX": _abi.PARTS_MAX,
    "GUMBEL_NODES_MAX": _abi.NODES_MAX,
    "GUMBEL_RECENT_MAX": _abi.RECENT_MAX,
    "GUMBEL_LIST_MAX": _abi.LIST_MAX,
    "GUMBEL_CONTEXT_MAX": _abi.CONTEXT_MAX,
    "GUMBEL_CONTEXT_DEFAULT": _abi.CONTEXT_DEFAULT,
    "GUMBEL_DETECT_MAX": _abi.DETECT_MAX,
    "GUMBEL_WORKSPACE_ALIGNMENT": _abi.WORKSPACE_ALIGNMENT,
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
        "#include <gumbel/drafts.h>\n#include <gumbel/programs.h>\n#include <gumbel/recent.h>\n"
        "#include <gumbel/watermark.h>\n"
        + "".join(f'_Static_assert({claim}, "{claim}");\n' for claim in claims)
    )
    command = ["cc", "-std=c17", "-fsyntax-only", "-DGUMBEL_UNSTABLE", f"-I{INCLUDE}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
