// SPDX-License-Identifier: Apache-2.0
//! The calls of the C interface; [`ffi`](crate::ffi) exports them.
#![allow(missing_docs)]

use crate::ffi::*;
use std::os::raw::{c_char, c_int, c_void};

extern "C" {
    pub fn gumbel_version() -> c_int;
    pub fn gumbel_version_string() -> *const c_char;
    pub fn gumbel_status_string(status: i32) -> *const c_char;
    pub fn gumbel_row_status_string(status: i32) -> *const c_char;
    pub fn gumbel_isa_name(isa: i32) -> *const c_char;
    pub fn gumbel_isa_available(isa: i32) -> c_int;
    pub fn gumbel_open(
        options: *const gumbel_device_options,
        device: *mut *mut gumbel_device,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_close(device: *mut gumbel_device);
    pub fn gumbel_cuda_architectures() -> *const c_char;
    pub fn gumbel_cuda_architecture(kernels: *const c_char, capability: i32) -> *const c_char;
    pub fn gumbel_device_capability(device: *const gumbel_device) -> i32;
    pub fn gumbel_describe(device: *const gumbel_device, info: *mut gumbel_device_info) -> i32;
    pub fn gumbel_workspace_size(
        device: *const gumbel_device,
        head: *const gumbel_head,
        logits: *const gumbel_logits,
        sampling: *const gumbel_sampling,
        output: *const gumbel_output,
        bytes: *mut usize,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_workspace_most(
        device: *const gumbel_device,
        limits: *const gumbel_limits,
        bytes: *mut usize,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_screen_size(
        device: *const gumbel_device,
        weight: *const gumbel_tensor,
        bytes: *mut usize,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_screen_prepare(
        device: *mut gumbel_device,
        stream: *mut c_void,
        weight: *const gumbel_tensor,
        options: *const gumbel_screen_options,
        screen: *const gumbel_screen,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_screen_verify(
        device: *mut gumbel_device,
        stream: *mut c_void,
        weight: *const gumbel_tensor,
        screen: *const gumbel_screen,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_sample(
        device: *mut gumbel_device,
        stream: *mut c_void,
        head: *const gumbel_head,
        sampling: *const gumbel_sampling,
        output: *const gumbel_output,
        workspace: *mut c_void,
        workspace_bytes: usize,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_sample_logits(
        device: *mut gumbel_device,
        stream: *mut c_void,
        logits: *const gumbel_logits,
        sampling: *const gumbel_sampling,
        output: *const gumbel_output,
        workspace: *mut c_void,
        workspace_bytes: usize,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_process_logits(
        device: *mut gumbel_device,
        stream: *mut c_void,
        logits: *const gumbel_logits,
        sampling: *const gumbel_sampling,
        processed: *mut f32,
        stride: i64,
        workspace: *mut c_void,
        workspace_bytes: usize,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_process_logits_into(
        device: *mut gumbel_device,
        stream: *mut c_void,
        logits: *const gumbel_logits,
        sampling: *const gumbel_sampling,
        processed: *mut c_void,
        dtype: i32,
        stride: i64,
        workspace: *mut c_void,
        workspace_bytes: usize,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_softmax(
        device: *mut gumbel_device,
        stream: *mut c_void,
        logits: *const gumbel_logits,
        sampling: *const gumbel_sampling,
        probabilities: *mut f32,
        stride: i64,
        workspace: *mut c_void,
        workspace_bytes: usize,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_advance(
        device: *mut gumbel_device,
        stream: *mut c_void,
        step: *const gumbel_step,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_history_start(
        device: *mut gumbel_device,
        stream: *mut c_void,
        history: *const gumbel_history,
        batch: i64,
        slots: *const gumbel_slots,
        prompts: *const gumbel_token_lists,
        outputs: *const gumbel_token_lists,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_history_update(
        device: *mut gumbel_device,
        stream: *mut c_void,
        history: *const gumbel_history,
        batch: i64,
        slots: *const gumbel_slots,
        tokens: *const i32,
        token_stride: i64,
        counts: *const i32,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_update_rules(
        device: *mut gumbel_device,
        stream: *mut c_void,
        updates: *const gumbel_rule_updates,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_recent_start(
        device: *mut gumbel_device,
        stream: *mut c_void,
        recent: *const gumbel_recent,
        batch: i64,
        slots: *const gumbel_slots,
        prompts: *const gumbel_token_lists,
        outputs: *const gumbel_token_lists,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_recent_append(
        device: *mut gumbel_device,
        stream: *mut c_void,
        recent: *const gumbel_recent,
        batch: i64,
        slots: *const gumbel_slots,
        tokens: *const i32,
        token_stride: i64,
        counts: *const i32,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_make_lists(
        device: *mut gumbel_device,
        stream: *mut c_void,
        rules: *const gumbel_list_rules,
        recent: *const gumbel_recent,
        batch: i64,
        slots: *const gumbel_slots,
        lists: *const gumbel_row_lists,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_watermark_rows(
        device: *mut gumbel_device,
        stream: *mut c_void,
        watermark: *const gumbel_watermark,
        recent: *const gumbel_recent,
        batch: i64,
        draws: *const gumbel_watermark_draws,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_watermark_nodes(
        device: *mut gumbel_device,
        stream: *mut c_void,
        watermark: *const gumbel_watermark,
        recent: *const gumbel_recent,
        draft: *const gumbel_draft,
        rows: i64,
        draws: *const gumbel_watermark_draws,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_detect_watermark(
        detector: *const gumbel_detector,
        tokens: *const i32,
        count: i64,
        scores: *mut f64,
        detection: *mut gumbel_detection,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_partial(
        device: *mut gumbel_device,
        stream: *mut c_void,
        head: *const gumbel_head,
        sampling: *const gumbel_sampling,
        summaries: *mut gumbel_summary,
        workspace: *mut c_void,
        workspace_bytes: usize,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_partial_logits(
        device: *mut gumbel_device,
        stream: *mut c_void,
        logits: *const gumbel_logits,
        sampling: *const gumbel_sampling,
        summaries: *mut gumbel_summary,
        workspace: *mut c_void,
        workspace_bytes: usize,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_summary_clear(summaries: *mut gumbel_summary, count: i64);
    pub fn gumbel_merge(
        device: *mut gumbel_device,
        stream: *mut c_void,
        into: *mut gumbel_summary,
        from: *const gumbel_summary,
        count: i64,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_finish(
        device: *mut gumbel_device,
        stream: *mut c_void,
        summaries: *const gumbel_summary,
        parts: i32,
        batch: i64,
        num_samples: i32,
        output: *const gumbel_output,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_philox4x32(
        counter: *const u32,
        key: *const u32,
        rounds: c_int,
        out: *mut u32,
    ) -> i32;
    pub fn gumbel_noise(
        seed: u64,
        position: u64,
        sample: u32,
        domain: u32,
        first_token: i64,
        count: i64,
        out: *mut f32,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_prepare_noise(
        device: *mut gumbel_device,
        stream: *mut c_void,
        sampling: *const gumbel_sampling,
        batch: i64,
        first_token: i64,
        count: i64,
        noise: *mut f32,
        noise_stride: i64,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_row_seed(seed: u64, row: u64) -> u64;
    pub fn gumbel_explain(
        device: *const gumbel_device,
        head: *const gumbel_head,
        logits: *const gumbel_logits,
        sampling: *const gumbel_sampling,
        output: *const gumbel_output,
        text: *mut c_char,
        size: usize,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_verify(
        device: *mut gumbel_device,
        stream: *mut c_void,
        head: *const gumbel_head,
        sampling: *const gumbel_sampling,
        draft: *const gumbel_draft,
        verified: *const gumbel_verified,
        workspace: *mut c_void,
        workspace_bytes: usize,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_verify_logits(
        device: *mut gumbel_device,
        stream: *mut c_void,
        logits: *const gumbel_logits,
        sampling: *const gumbel_sampling,
        draft: *const gumbel_draft,
        verified: *const gumbel_verified,
        workspace: *mut c_void,
        workspace_bytes: usize,
        error: *mut gumbel_error,
    ) -> i32;
    pub fn gumbel_verify_workspace_size(
        device: *const gumbel_device,
        head: *const gumbel_head,
        logits: *const gumbel_logits,
        sampling: *const gumbel_sampling,
        draft: *const gumbel_draft,
        verified: *const gumbel_verified,
        bytes: *mut usize,
        error: *mut gumbel_error,
    ) -> i32;
}
