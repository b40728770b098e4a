// SPDX-License-Identifier: Apache-2.0
//! The unchanged C interface: `gumbel/gumbel.h`, `gumbel/drafts.h`, `gumbel/programs.h`,
//! `gumbel/recent.h` and `gumbel/screen.h`, which document every item.
//! Enums are `i32`, as in the C ABI. A struct's first field `struct_size` is its size.
#![allow(non_camel_case_types, missing_docs)]

pub use crate::ffi_calls::*;
use std::mem::size_of;
use std::os::raw::{c_char, c_void};

pub const GUMBEL_OK: i32 = 0;
pub const GUMBEL_SAME: i64 = -1;
pub const GUMBEL_WORKSPACE_ALIGNMENT: usize = 64;
pub const GUMBEL_PROGRAM_LENGTH: usize = 16;
pub const GUMBEL_PROGRAMS_MAX: usize = 16;
pub const GUMBEL_RECENT_MAX: i64 = 1 << 30;
pub const GUMBEL_LIST_MAX: usize = 2048;

/// An open device, an opaque type.
#[repr(C)]
pub struct gumbel_device {
    _opaque: [u8; 0],
}

/// Declares C structs: plain data, whose default is zero.
macro_rules! c_structs {
    ($($name:ident, $bytes:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name { $(pub $field: $type,)* }
            impl Default for $name {
                fn default() -> Self {
                    // SAFETY: integers, floats, arrays of them and pointers may be zero.
                    unsafe { std::mem::zeroed() }
                }
            }
            #[cfg(target_pointer_width = "64")]
            const _: () = assert!(size_of::<$name>() == $bytes);
        )*

        /// The structs and the fields of each, in the order of the header, with name, offset and
        /// size: for the test that compares them with those of the C compiler.
        #[cfg(test)]
        #[allow(clippy::type_complexity)]
        pub(crate) fn layouts() -> Vec<(&'static str, usize, Vec<(&'static str, usize, usize)>)> {
            fn size_behind<T>(_: *const T) -> usize { size_of::<T>() }
            vec![$({
                let value = <$name>::default();
                let start = &value as *const _ as usize;
                let fields = vec![$((
                    stringify!($field),
                    std::ptr::addr_of!(value.$field) as usize - start,
                    size_behind(std::ptr::addr_of!(value.$field)),
                ),)*];
                (stringify!($name), size_of::<$name>(), fields)
            },)*]
        }
    };
}

pub type gumbel_task = unsafe extern "C" fn(argument: *mut c_void, index: i32);
pub type gumbel_parallel_for = unsafe extern "C" fn(
    context: *mut c_void,
    count: i32,
    task: gumbel_task,
    argument: *mut c_void,
);

c_structs! {
    gumbel_error, 256 {
        field: [c_char; 48],
        message: [c_char; 208],
    }
    gumbel_device_options, 56 {
        struct_size: usize,
        device: *const c_char,
        isa: i32,
        threads: i32,
        tile: i32,
        parallel_for: Option<gumbel_parallel_for>,
        parallel_context: *mut c_void,
        rungs: *const c_char,
    }
    gumbel_device_info, 216 {
        struct_size: usize,
        isa: i32,
        threads: i32,
        tile: i32,
        name: [c_char; 64],
        description: [c_char; 128],
    }
    gumbel_tensor, 56 {
        data: *const c_void,
        dtype: i32,
        rows: i64,
        cols: i64,
        stride: i64,
        reserved: [i64; 2],
    }
    gumbel_screen, 24 {
        data: *mut c_void,
        bytes: usize,
        format: i32,
    }
    gumbel_screen_options, 24 {
        struct_size: usize,
        certificate: i32,
        format: i32,
        seed: *const u64,
    }
    gumbel_head, 224 {
        struct_size: usize,
        hidden: gumbel_tensor,
        weight: gumbel_tensor,
        bias: gumbel_tensor,
        scale: f32,
        soft_cap: f32,
        first_token: i64,
        vocab_size: i64,
        screen: gumbel_screen,
    }
    gumbel_logits, 88 {
        struct_size: usize,
        logits: gumbel_tensor,
        scale: f32,
        soft_cap: f32,
        first_token: i64,
        vocab_size: i64,
    }
    gumbel_row_f32, 16 {
        data: *const f32,
        stride: i64,
    }
    gumbel_row_i32, 16 {
        data: *const i32,
        stride: i64,
    }
    gumbel_row_u32, 16 {
        data: *const u32,
        stride: i64,
    }
    gumbel_row_u64, 16 {
        data: *const u64,
        stride: i64,
    }
    gumbel_slots, 16 {
        of_row: *const i32,
        count: i64,
    }
    gumbel_token_lists, 32 {
        offsets: *const i64,
        ids: *const i32,
        values: *const f32,
        reserved: i64,
    }
    gumbel_history, 48 {
        struct_size: usize,
        vocab_size: i64,
        prompt: *mut u32,
        output: *mut u32,
        counts: *mut c_void,
        count_bits: i32,
        reserved: i32,
    }
    gumbel_transforms, 288 {
        struct_size: usize,
        mask: gumbel_row_i32,
        allowed: gumbel_token_lists,
        banned: gumbel_token_lists,
        bias: gumbel_token_lists,
        repetition: gumbel_row_f32,
        frequency: gumbel_row_f32,
        presence: gumbel_row_f32,
        history: *const gumbel_history,
        prompt_tokens: gumbel_token_lists,
        output_tokens: gumbel_token_lists,
        late_bias: gumbel_token_lists,
        list_status: *const i32,
        max_allowed: i64,
    }
    gumbel_programs, 296 {
        struct_size: usize,
        rules: *const u8,
        count: i32,
        reserved: i32,
        program: gumbel_row_i32,
        min_keep: gumbel_row_i32,
        temperature_range: gumbel_row_f32,
        temperature_exponent: gumbel_row_f32,
        typical_p: gumbel_row_f32,
        top_n_sigma: gumbel_row_f32,
        epsilon: gumbel_row_f32,
        eta: gumbel_row_f32,
        top_a: gumbel_row_f32,
        surprise: gumbel_row_f32,
        xtc_probability: gumbel_row_f32,
        xtc_threshold: gumbel_row_f32,
        xtc_keep: gumbel_token_lists,
        smoothing_factor: gumbel_row_f32,
        smoothing_curve: gumbel_row_f32,
        adaptive_target: gumbel_row_f32,
    }
    gumbel_truncation, 72 {
        struct_size: usize,
        min_p: gumbel_row_f32,
        top_k: gumbel_row_i32,
        top_p: gumbel_row_f32,
        order: i32,
        ties: i32,
        programs: *const gumbel_programs,
    }
    gumbel_sampling, 168 {
        struct_size: usize,
        temperature: gumbel_row_f32,
        seed: gumbel_row_u64,
        position: gumbel_row_u64,
        first_sample: gumbel_row_u32,
        num_samples: i32,
        reserved: i32,
        transforms: *const gumbel_transforms,
        truncation: *const gumbel_truncation,
        slots: gumbel_slots,
        live_rows: *const i32,
        given: gumbel_row_i32,
        noise: *const f32,
        noise_stride: i64,
        domain: u32,
        reserved2: i32,
        token_ids: *const i32,
    }
    gumbel_output, 144 {
        struct_size: usize,
        tokens: *mut i32,
        logprobs: *mut f32,
        scores: *mut f32,
        lse: *mut f32,
        status: *mut i32,
        ranks: *mut i32,
        kept: *mut i32,
        top_ids: *mut i32,
        top_logprobs: *mut f32,
        num_top: i32,
        logprobs_of: i32,
        top_logits: *mut f32,
        best_ids: *mut i32,
        best_scores: *mut f32,
        num_best: i32,
        kept_capacity: i32,
        kept_ids: *mut i32,
        kept_logprobs: *mut f32,
        entropy: *mut f32,
    }
    gumbel_rule_updates, 272 {
        struct_size: usize,
        batch: i64,
        tokens: *const i32,
        token_stride: i64,
        logprobs: *const f32,
        slots: gumbel_slots,
        live_rows: *const i32,
        surprise: *mut f32,
        surprise_stride: i64,
        surprise_target: gumbel_row_f32,
        surprise_rate: gumbel_row_f32,
        top_p: *mut f32,
        top_p_stride: i64,
        top_p_first: gumbel_row_f32,
        top_p_decay: gumbel_row_f32,
        top_p_min: gumbel_row_f32,
        top_p_reset: gumbel_row_i32,
        adaptive_target: *mut f32,
        adaptive_target_stride: i64,
        adaptive_sum: *mut f32,
        adaptive_sum_stride: i64,
        adaptive_weight: *mut f32,
        adaptive_weight_stride: i64,
        adaptive_goal: gumbel_row_f32,
        adaptive_decay: gumbel_row_f32,
    }
    gumbel_recent, 56 {
        struct_size: usize,
        capacity: i64,
        tokens: *mut i32,
        count: *mut u64,
        history: *const gumbel_history,
        window: gumbel_row_i32,
    }
    gumbel_sequences, 40 {
        offsets: *const i64,
        ids: *const i32,
        count: i64,
        of_row: *const i64,
        reserved: i64,
    }
    gumbel_list_rules, 280 {
        struct_size: usize,
        dry_multiplier: gumbel_row_f32,
        dry_base: gumbel_row_f32,
        dry_allowed_length: gumbel_row_i32,
        dry_last_n: gumbel_row_i32,
        dry_breakers: gumbel_sequences,
        ngram_size: gumbel_row_i32,
        ngram_window: gumbel_row_i32,
        ngram_keep: gumbel_token_lists,
        bad_words: gumbel_sequences,
        position: gumbel_row_u64,
        min_position: gumbel_row_u64,
        stop_tokens: gumbel_token_lists,
    }
    gumbel_row_lists, 56 {
        struct_size: usize,
        capacity: i64,
        offsets: *mut i64,
        banned: *mut i32,
        late_ids: *mut i32,
        late_values: *mut f32,
        status: *mut i32,
    }
    gumbel_watermark, 136 {
        struct_size: usize,
        key: *const u64,
        key_stride: i64,
        context: gumbel_row_i32,
        text_start: gumbel_row_u64,
        seed: gumbel_row_u64,
        position: gumbel_row_u64,
        slots: gumbel_slots,
        live_rows: *const i32,
        drafts: *const i32,
        draft_stride: i64,
        num_drafts: i32,
        reserved: i32,
    }
    gumbel_watermark_draws, 32 {
        struct_size: usize,
        seed: *mut u64,
        position: *mut u64,
        watermarked: *mut i32,
    }
    gumbel_detector, 48 {
        struct_size: usize,
        key: [u64; 2],
        context: i32,
        sample: u32,
        domain: u32,
        reserved: i32,
        first: i64,
    }
    gumbel_detection, 40 {
        struct_size: usize,
        scored: i64,
        statistic: f64,
        p_value: f64,
        log10_p: f64,
    }
    gumbel_limits, 56 {
        struct_size: usize,
        batch: i64,
        vocab_size: i64,
        hidden_size: i64,
        num_samples: i32,
        requests: i32,
        screens: i32,
        max_nodes: i32,
        token_ids: i32,
        reserved: i32,
    }
    gumbel_step, 88 {
        struct_size: usize,
        batch: i64,
        num_samples: i32,
        reserved: i32,
        tokens: *const i32,
        position: *mut u64,
        position_stride: i64,
        ring: *mut i32,
        ring_length: i64,
        slots: gumbel_slots,
        live_rows: *const i32,
    }
    gumbel_summary, 48 {
        best_score: f32,
        best_z: f32,
        best_id: i32,
        max_z: f32,
        mass: [u64; 3],
        mass_exponent: i32,
        flags: u32,
    }
    gumbel_draft, 144 {
        struct_size: usize,
        requests: i64,
        max_nodes: i32,
        rule: i32,
        tokens: *const i32,
        offsets: *const i32,
        nodes: *const i32,
        parents: *const i32,
        limit: *const i32,
        stop: gumbel_token_lists,
        head: *const gumbel_head,
        logits: *const gumbel_logits,
        sampling: *const gumbel_sampling,
        lse: *const f32,
        logprobs: *const f32,
        node_position: *const u64,
    }
    gumbel_verified, 104 {
        struct_size: usize,
        tokens: *mut i32,
        emitted: *mut i32,
        accepted: *mut i32,
        path: *mut i32,
        last_row: *mut i32,
        position: *mut u64,
        finished: *mut i32,
        status: *mut i32,
        logprobs: *mut f32,
        scores: *mut f32,
        histogram: *mut u64,
        rows: *const gumbel_output,
    }
}
