// SPDX-License-Identifier: Apache-2.0
//! Exact token sampling by libgumbel: the LM-head product and the draw are one pass, and a token is
//! a function of seed, position, sample and the model's logits.
//!
//! ```no_run
//! use gumbel::{Device, DeviceOptions, Head, Output, Sampling, Stream, Tensor, Workspace};
//!
//! # fn draw(hidden: &[f32], weight: &[u16]) -> gumbel::Result<i32> {
//! let device = Device::open(DeviceOptions::default())?;
//! let head = Head::new(Tensor::float32(hidden, 1, 64), Tensor::bfloat16(weight, 1000, 64));
//! let how = Sampling { temperature: 0.8.into(), seed: 42.into(), ..Sampling::default() };
//! let mut tokens = [0];
//! let mut out = Output { tokens: (&mut tokens).into(), ..Output::default() };
//! let mut space = Workspace::new();
//! space.reserve(device.workspace_size(&head, &how, Some(&out))?)?;
//! device.sample(&head, &how, &mut out, &mut space, Stream::NONE)?;
//! # Ok(tokens[0])
//! # }
//! ```
//!
//! `gumbel/gumbel.h` and `gumbel/drafts.h` document the calls; names are the same. A slice that is
//! smaller than its shape is an error before the C call. On a GPU, device "cuda:N", host memory is
//! an error; views of device memory and streams come from unsafe functions ([`View::device`],
//! [`ViewMut::device`], [`Space::device`], [`Stream::from_raw`]), and calls with them are queued.
//! [`ffi`] is the unchanged C interface.
#![warn(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

mod device;
mod drafts;
mod enums;
mod error;
pub mod ffi;
#[cfg(test)]
mod layout_test;
mod lowering;
mod lowering_calls;
#[cfg(test)]
mod lowering_test;
mod parameters;
mod sampling;
mod steps;
mod views;

pub use device::{Device, Stream, Summary};
pub use drafts::{Draft, Verified};
pub use enums::{domain, Distribution, FinishReason, Isa, Order, RowStatus, Rule, Ties};
pub use error::{Error, Result, Status};
pub use lowering_calls::Input;
pub use parameters::{
    Counts, DeviceInfo, DeviceOptions, Head, History, Limits, Logits, LogitsMut, Mask, Output,
    ParallelFor, Sampling, Slots, Step, TokenLists, Transforms, Truncation,
};
pub use views::{Dtype, MatrixMut, Rows, Space, Tensor, View, ViewMut, Workspace};

/// The version of the linked library: 10000 major + 100 minor + patch.
pub fn version() -> i32 {
    // SAFETY: the function has no pointer arguments.
    unsafe { ffi::gumbel_version() }
}

/// The version of the linked library as text.
pub fn version_string() -> &'static str {
    // SAFETY: the function has no pointer arguments.
    error::static_text(unsafe { ffi::gumbel_version_string() })
}

/// The GPU architectures of the linked library's kernels, by nvcc's names, such as
/// "sm_80 sm_90 sm_90a compute_90"; "" if it has none.
pub fn cuda_architectures() -> &'static str {
    // SAFETY: the function has no arguments and returns static storage.
    error::static_text(unsafe { ffi::gumbel_cuda_architectures() })
}

impl RowStatus {
    /// The status in English.
    pub fn phrase(self) -> &'static str {
        // SAFETY: the function accepts any value.
        error::static_text(unsafe { ffi::gumbel_row_status_string(self as i32) })
    }
}

impl Isa {
    /// The name, such as "avx2".
    pub fn name(self) -> &'static str {
        // SAFETY: the function accepts any value.
        error::static_text(unsafe { ffi::gumbel_isa_name(self as i32) })
    }

    /// Whether the build and this machine support it.
    pub fn is_available(self) -> bool {
        // SAFETY: the function accepts any value.
        unsafe { ffi::gumbel_isa_available(self as i32) != 0 }
    }
}

/// The seed of row `row` if one seed serves the batch.
pub fn row_seed(seed: u64, row: u64) -> u64 {
    // SAFETY: the function has no pointer arguments.
    unsafe { ffi::gumbel_row_seed(seed, row) }
}

/// One block of Philox4x32 with 0 to 16 rounds; the library uses 10.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2], rounds: i32) -> Result<[u32; 4]> {
    let mut out = [0; 4];
    // SAFETY: the arrays have the sizes that the function reads and writes.
    error::call(|_| unsafe {
        ffi::gumbel_philox4x32(counter.as_ptr(), key.as_ptr(), rounds, out.as_mut_ptr())
    })?;
    Ok(out)
}

/// The noise of `out.len()` tokens, from `first_token` on.
pub fn noise(
    seed: u64,
    position: u64,
    sample: u32,
    domain: u32,
    first_token: usize,
    out: &mut [f32],
) -> Result<()> {
    let first = lowering::int64("first_token", first_token)?;
    let count = lowering::int64("out", out.len())?;
    // SAFETY: the function writes `count` elements.
    error::call(|error| unsafe {
        let to = out.as_mut_ptr();
        ffi::gumbel_noise(seed, position, sample, domain, first, count, to, error)
    })
}

/// Empty summaries, for merging.
pub fn clear(summaries: &mut [Summary]) {
    // SAFETY: the function writes the slice's elements, whose number fits in i64.
    unsafe { ffi::gumbel_summary_clear(summaries.as_mut_ptr(), summaries.len() as i64) }
}

/// [`Device::merge`] in host memory, for summaries of any device.
pub fn merge(into: &mut [Summary], from: &[Summary]) -> Result<()> {
    let (into, from) = (into.into(), from.into());
    steps::merge_by(std::ptr::null_mut(), HOST, &into, &from, Stream::NONE)
}

/// [`Device::finish`] in host memory, for summaries of any device.
pub fn finish(
    summaries: &[Summary],
    parts: usize,
    batch: usize,
    num_samples: usize,
    out: &mut Output<'_>,
) -> Result<()> {
    let shape = (parts, batch, num_samples);
    steps::finish_by(std::ptr::null_mut(), HOST, &summaries.into(), shape, out, Stream::NONE)
}

const HOST: lowering::Check = lowering::Check { host: true, reads: true };
