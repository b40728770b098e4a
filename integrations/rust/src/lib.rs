// SPDX-License-Identifier: Apache-2.0
//! Exact token sampling for language models, by libgumbel. The product with the LM head and the
//! draw are one pass, without a `[B, V]` array of logits. A token is a function of the seed, the
//! position, the sample and the model's logits: equal inputs give equal tokens on every machine.
//!
//! ```no_run
//! use gumbel::{Device, DeviceOptions, Head, Output, Sampling, Stream, Tensor, Workspace};
//!
//! # fn draw(hidden: &[f32], weight: &[u16]) -> gumbel::Result<i32> {
//! let device = Device::open(DeviceOptions::default())?;
//! let head = Head::new(Tensor::float32(hidden, 1, 64), Tensor::bfloat16(weight, 1000, 64));
//! let sampling = Sampling { temperature: 0.8.into(), seed: 42.into(), ..Sampling::default() };
//! let mut tokens = [0];
//! let mut out = Output { tokens: (&mut tokens).into(), ..Output::default() };
//! let mut space = Workspace::new();
//! space.reserve(device.workspace_size(&head, &sampling, Some(&out))?)?;
//! device.sample(&head, &sampling, &mut out, &mut space, Stream::NONE)?;
//! # Ok(tokens[0])
//! # }
//! ```
//!
//! Letters of shapes: B rows of the batch, V vocabulary size, D hidden size, S samples for each
//! row. Calls and fields have the names of `gumbel/gumbel.h`, `drafts.h`, `programs.h`, `recent.h`
//! and `watermark.h`; calls of the last two may change in a minor release.
//!
//! Calls check the size of every slice, and return an [`Error`] with [`Status::Argument`] before
//! the C call if one is smaller than its shape.
//!
//! Calls on a GPU, device "cuda:N", accept GPU memory only, and are queued on a stream. Views of
//! GPU memory and streams come from unsafe functions: [`View::device`], [`ViewMut::device`],
//! [`Space::device`] and [`Stream::from_raw`].
//!
//! [`ffi`] has the C declarations, for calls that this crate does not wrap, such as screens.
#![warn(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

mod device;
mod drafts;
mod enums;
mod error;
pub mod ffi;
mod ffi_calls;
#[cfg(test)]
mod layout_test;
mod lowering;
mod lowering_calls;
#[cfg(test)]
mod lowering_test;
mod parameters;
mod recent;
mod row_lists;
mod rule_updates;
mod sampling;
mod steps;
mod views;
mod watermarks;

pub use device::{Device, Stream, Summary};
pub use drafts::{Draft, Verified};
pub use enums::{
    domain, Distribution, FinishReason, Isa, Order, ProgramRule, RowStatus, Rule, Ties,
};
pub use error::{Error, Result, Status};
pub use lowering_calls::Input;
pub use parameters::{
    Counts, DeviceInfo, DeviceOptions, Head, History, Limits, Logits, LogitsMut, Mask, Output,
    ParallelFor, Program, Programs, Sampling, Slots, Step, TokenLists, Transforms, Truncation,
};
pub use recent::Recent;
pub use row_lists::{ListRules, RowLists, Sequences};
pub use rule_updates::RuleUpdates;
pub use views::{Dtype, MatrixMut, Rows, Space, Tensor, View, ViewMut, Workspace};
pub use watermarks::{detect_watermark, Detection, Detector, Watermark, WatermarkDraws};

/// The version of the linked library: 10000 * major + 100 * minor + patch.
pub fn version() -> i32 {
    // SAFETY: the function has no pointer arguments.
    unsafe { ffi::gumbel_version() }
}

/// The version of the linked library as "MAJOR.MINOR.PATCH".
pub fn version_string() -> &'static str {
    // SAFETY: the function has no pointer arguments.
    error::read_static_text(unsafe { ffi::gumbel_version_string() })
}

/// The GPU architectures of the linked library's kernels, by nvcc's names, such as
/// "sm_80 sm_90 sm_90a compute_90"; "" if it has none.
pub fn cuda_architectures() -> &'static str {
    // SAFETY: the function has no arguments and returns static storage.
    error::read_static_text(unsafe { ffi::gumbel_cuda_architectures() })
}

/// The architecture of the linked library whose kernels serve a GPU of this capability,
/// 10 * major + minor; "" if none does.
///
/// `kernels` is "portable" (capability 7.5 and later), "tensor" (8.0 and later), "clusters" (9.0
/// and later) or "hopper" (9.0).
/// Unstable until 1.0.
pub fn cuda_architecture(kernels: &str, capability: i32) -> &'static str {
    let name = std::ffi::CString::new(kernels).unwrap_or_default();
    // SAFETY: the text ends with a NUL byte; the function returns static storage.
    error::read_static_text(unsafe { ffi::gumbel_cuda_architecture(name.as_ptr(), capability) })
}

impl RowStatus {
    /// A description of the status in English.
    pub fn phrase(self) -> &'static str {
        // SAFETY: the function accepts any value.
        error::read_static_text(unsafe { ffi::gumbel_row_status_string(self as i32) })
    }
}

impl Isa {
    /// The name of the instruction set, such as "avx2".
    pub fn name(self) -> &'static str {
        // SAFETY: the function accepts any value.
        error::read_static_text(unsafe { ffi::gumbel_isa_name(self as i32) })
    }

    /// Whether the build and this machine support the instruction set.
    pub fn is_available(self) -> bool {
        // SAFETY: the function accepts any value.
        unsafe { ffi::gumbel_isa_available(self as i32) != 0 }
    }
}

/// The seed of row `row` of a batch with one seed. Row 0 uses the seed unchanged.
pub fn row_seed(seed: u64, row: u64) -> u64 {
    // SAFETY: the function has no pointer arguments.
    unsafe { ffi::gumbel_row_seed(seed, row) }
}

/// Computes one block of Philox4x32 with 0 to 16 rounds; the library's noise uses 10.
///
/// # Errors
/// [`Status::Argument`] if `rounds` is out of range.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2], rounds: i32) -> Result<[u32; 4]> {
    let mut out = [0; 4];
    // SAFETY: the arrays have the sizes that the function reads and writes.
    error::call_library(|_| unsafe {
        ffi::gumbel_philox4x32(counter.as_ptr(), key.as_ptr(), rounds, out.as_mut_ptr())
    })?;
    Ok(out)
}

/// Computes the Gumbel noise of `out.len()` tokens, from `first_token` on.
///
/// # Errors
/// [`Status::Argument`] if an argument is out of range.
pub fn noise(
    seed: u64,
    position: u64,
    sample: u32,
    domain: u32,
    first_token: usize,
    out: &mut [f32],
) -> Result<()> {
    let first = lowering::to_i64("first_token", first_token)?;
    let count = lowering::to_i64("out", out.len())?;
    // SAFETY: the function writes `count` elements.
    error::call_library(|error| unsafe {
        let to = out.as_mut_ptr();
        ffi::gumbel_noise(seed, position, sample, domain, first, count, to, error)
    })
}

/// Sets summaries to empty, the neutral element of [`merge`].
pub fn clear(summaries: &mut [Summary]) {
    // SAFETY: the function writes the slice's elements, whose number fits in i64.
    unsafe { ffi::gumbel_summary_clear(summaries.as_mut_ptr(), summaries.len() as i64) }
}

/// [`Device::merge`] for summaries in host memory, computed on any device.
pub fn merge(into: &mut [Summary], from: &[Summary]) -> Result<()> {
    let (into, from) = (into.into(), from.into());
    steps::merge_with(std::ptr::null_mut(), HOST, &into, &from, Stream::NONE)
}

/// [`Device::finish`] for summaries in host memory, computed on any device.
pub fn finish(
    summaries: &[Summary],
    parts: usize,
    batch: usize,
    num_samples: usize,
    out: &mut Output<'_>,
) -> Result<()> {
    let shape = (parts, batch, num_samples);
    steps::finish_with(std::ptr::null_mut(), HOST, &summaries.into(), shape, out, Stream::NONE)
}

const HOST: lowering::Check = lowering::Check { host: true, reads: true };
