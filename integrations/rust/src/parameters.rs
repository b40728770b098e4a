// SPDX-License-Identifier: Apache-2.0
//! Parameters of calls, as plain structs with the defaults of the C interface; `gumbel.h` and
//! `drafts.h` document each field. A view that is smaller than the shape given here is an error.
use crate::enums::{domain, Distribution, Isa, Order, Ties};
use crate::views::{MatrixMut, Rows, Tensor, View, ViewMut};
use std::os::raw::c_void;

/// An engine's own thread pool.
///
/// # Safety
/// `run` calls `task(i)` once for each `i` in `0..count`, on any threads, and returns when all have
/// returned; nothing calls `task` with another `i`, or later.
pub unsafe trait ParallelFor: Send + Sync {
    /// Runs the tasks. A panic in a task ends the process.
    fn run(&self, count: i32, task: &(dyn Fn(i32) + Sync));
}

/// Options of [`Device::open`](crate::Device::open).
#[derive(Default)]
pub struct DeviceOptions<'a> {
    /// "cpu" or "cuda:N"; absent: "cpu".
    pub device: Option<&'a str>,
    /// Absent: [`Isa::Auto`].
    pub isa: Option<Isa>,
    /// Number of threads, 1..=1024; 0: the CPUs of this process.
    pub threads: i32,
    /// Vocabulary rows of a tile; 0: automatic.
    pub tile: i32,
    /// The engine's thread pool; absent: the device starts its own threads.
    pub parallel_for: Option<Box<dyn ParallelFor>>,
    /// On a GPU, the kernel variants that may be used.
    pub rungs: Option<&'a str>,
}

/// Result of [`Device::describe`](crate::Device::describe).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The instruction set in use.
    pub isa: Option<Isa>,
    /// Number of threads of a call; of multiprocessors on a GPU.
    pub threads: i32,
    /// Vocabulary rows of a tile.
    pub tile: i32,
    /// "cpu" or "cuda:N".
    pub name: String,
    /// Model name of the processor or GPU; "" if unknown.
    pub description: String,
}

/// Hidden states and LM head, for fused draws.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Head<'a> {
    /// `[B, D]`
    pub hidden: Tensor<'a>,
    /// `[V, D]`
    pub weight: Tensor<'a>,
    /// `[1, V]` or absent
    pub bias: Tensor<'a>,
    pub scale: f32,
    pub soft_cap: f32,
    pub first_token: usize,
    /// 0: first_token + V
    pub vocab_size: usize,
}

/// Precomputed logits.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Logits<'a> {
    /// `[B, V]`
    pub values: Tensor<'a>,
    pub scale: f32,
    pub soft_cap: f32,
    pub first_token: usize,
    pub vocab_size: usize,
}

impl<'a> Head<'a> {
    /// A head with these tensors and default options.
    pub fn new(hidden: Tensor<'a>, weight: Tensor<'a>) -> Self {
        Head {
            hidden,
            weight,
            bias: Tensor::default(),
            scale: 1.0,
            soft_cap: 0.0,
            first_token: 0,
            vocab_size: 0,
        }
    }
}

impl<'a> Logits<'a> {
    /// Logits with these values and default options.
    pub fn new(values: Tensor<'a>) -> Self {
        Logits { values, scale: 1.0, soft_cap: 0.0, first_token: 0, vocab_size: 0 }
    }
}

/// The slot of each row, which selects its parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slots<'a> {
    /// `[B]`, each below `count`, or absent
    pub of_row: View<'a, i32>,
    /// Number of slots.
    pub count: usize,
}

/// Lists of tokens: row b has `ids[offsets[b]..offsets[b + 1]]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenLists<'a> {
    /// `[B + 1]` or absent
    pub offsets: View<'a, i64>,
    /// Global ids.
    pub ids: View<'a, i32>,
    /// One value for each id, for biases only.
    pub values: View<'a, f32>,
}

/// Counts of tokens.
#[derive(Debug)]
pub enum Counts<'a> {
    /// Counts of 16 bits.
    Bits16(ViewMut<'a, u16>),
    /// Counts of 32 bits, never negative.
    Bits32(ViewMut<'a, i32>),
}

/// Token histories that penalties count, one row for each row or slot.
#[derive(Debug)]
pub struct History<'a> {
    /// Only token ids below are counted.
    pub vocab_size: usize,
    /// `ceil(vocab_size / 32)` words for each row
    pub prompt: ViewMut<'a, u32>,
    /// As `prompt`.
    pub output: ViewMut<'a, u32>,
    /// `vocab_size` counts for each row
    pub counts: Counts<'a>,
}

impl History<'_> {
    pub(crate) fn counts_raw(&self) -> (*mut c_void, i32) {
        match &self.counts {
            Counts::Bits16(view) => (view.pointer().cast(), 16),
            Counts::Bits32(view) => (view.pointer().cast(), 32),
        }
    }
}

/// A bit for each token of each row: set bits allow tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mask<'a> {
    /// `ceil((first_token + V) / 32)` words for each row, or absent
    pub words: View<'a, i32>,
    /// Words from one row to the next; 0: contiguous.
    pub stride: usize,
    /// One mask row serves all rows.
    pub same: bool,
}

/// Edits of logits before the temperature.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Transforms<'a> {
    pub mask: Mask<'a>,
    pub allowed: TokenLists<'a>,
    pub banned: TokenLists<'a>,
    pub bias: TokenLists<'a>,
    pub repetition: Rows<'a, f32>,
    pub frequency: Rows<'a, f32>,
    pub presence: Rows<'a, f32>,
    pub history: Option<&'a History<'a>>,
    pub prompt_tokens: TokenLists<'a>,
    pub output_tokens: TokenLists<'a>,
}

/// Truncation: the tokens that may be drawn.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Truncation<'a> {
    pub min_p: Rows<'a, f32>,
    pub top_k: Rows<'a, i32>,
    pub top_p: Rows<'a, f32>,
    pub order: Order,
    pub ties: Ties,
}

impl Default for Truncation<'_> {
    fn default() -> Self {
        Truncation {
            min_p: Rows::Default,
            top_k: Rows::Default,
            top_p: Rows::Default,
            order: Order::MinPTopKTopP,
            ties: Ties::All,
        }
    }
}

/// Parameters of the draw.
#[derive(Clone, Copy, Debug)]
pub struct Sampling<'a> {
    /// Default 1; 0 is greedy.
    pub temperature: Rows<'a, f32>,
    /// Default 0, for all rows.
    pub seed: Rows<'a, u64>,
    /// The step in the row's sequence; default 0.
    pub position: Rows<'a, u64>,
    /// Sample counter of draw 0; default 0. Draw j uses `first_sample + j`, mod 2^32.
    pub first_sample: Rows<'a, u32>,
    /// S
    pub num_samples: usize,
    /// Absent: none.
    pub transforms: Option<Transforms<'a>>,
    /// Absent: none.
    pub truncation: Option<Truncation<'a>>,
    /// Absent: row b uses entry b of row parameters.
    pub slots: Slots<'a>,
    /// `[1]`, or absent: all rows are live.
    pub live_rows: View<'a, i32>,
    /// `[B, S]` tokens to score instead of drawing, or absent
    pub given: View<'a, i32>,
    /// Elements from one row of `given` to the next; 0: S.
    pub given_stride: usize,
    /// `[B, S, V]` precomputed noise, or absent
    pub noise: View<'a, f32>,
    /// Elements from one draw's noise to the next; 0: V.
    pub noise_stride: usize,
    /// A value of [`domain`](crate::domain).
    pub domain: u32,
}

impl Default for Sampling<'_> {
    fn default() -> Self {
        Sampling {
            temperature: Rows::Default,
            seed: Rows::Default,
            position: Rows::Default,
            first_sample: Rows::Default,
            num_samples: 1,
            transforms: None,
            truncation: None,
            slots: Slots::default(),
            live_rows: View::default(),
            given: View::default(),
            given_stride: 0,
            noise: View::default(),
            noise_stride: 0,
            domain: domain::TARGET,
        }
    }
}

/// Limits of calls, for one workspace that is sufficient for all of them.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Limits {
    pub batch: usize,
    pub vocab_size: usize,
    pub hidden_size: usize,
    /// 0: 1
    pub num_samples: usize,
    pub requests: bool,
}

/// Results; only `tokens` is required.
#[derive(Debug)]
pub struct Output<'a> {
    /// `[B, S]`
    pub tokens: ViewMut<'a, i32>,
    /// `[B, S]`
    pub logprobs: ViewMut<'a, f32>,
    /// `[B, S]`
    pub scores: ViewMut<'a, f32>,
    /// `[B]`
    pub lse: ViewMut<'a, f32>,
    /// `[B]`, each a [`RowStatus`](crate::RowStatus)
    pub status: ViewMut<'a, i32>,
    /// `[B, S]`
    pub ranks: ViewMut<'a, i32>,
    /// `[B]`
    pub kept: ViewMut<'a, i32>,
    /// `[B, num_top]`
    pub top_ids: ViewMut<'a, i32>,
    /// `[B, num_top]`
    pub top_logprobs: ViewMut<'a, f32>,
    /// `[B, num_top]`
    pub top_logits: ViewMut<'a, f32>,
    /// Number of likeliest tokens to return.
    pub num_top: usize,
    /// The distribution of log-probabilities and log-normalisers.
    pub logprobs_of: Distribution,
    /// `[B, num_best]`
    pub best_ids: ViewMut<'a, i32>,
    /// `[B, num_best]`
    pub best_scores: ViewMut<'a, f32>,
    /// Number of best scores to return.
    pub num_best: usize,
}

impl Default for Output<'_> {
    fn default() -> Self {
        Output {
            tokens: ViewMut::default(),
            logprobs: ViewMut::default(),
            scores: ViewMut::default(),
            lse: ViewMut::default(),
            status: ViewMut::default(),
            ranks: ViewMut::default(),
            kept: ViewMut::default(),
            top_ids: ViewMut::default(),
            top_logprobs: ViewMut::default(),
            top_logits: ViewMut::default(),
            num_top: 0,
            logprobs_of: Distribution::Processed,
            best_ids: ViewMut::default(),
            best_scores: ViewMut::default(),
            num_best: 0,
        }
    }
}

/// The end of a decode step.
#[derive(Debug, Default)]
pub struct Step<'a> {
    /// B
    pub batch: usize,
    /// S; 0: 1
    pub num_samples: usize,
    /// `[B, S]`, the tokens of this step
    pub tokens: View<'a, i32>,
    /// `[B or slots]`
    pub position: ViewMut<'a, u64>,
    /// Elements from one row to the next; 0: 1.
    pub position_stride: usize,
    /// One position serves all rows.
    pub position_same: bool,
    /// `[ring_length, B or slots, S]` or absent
    pub ring: ViewMut<'a, i32>,
    /// Number of steps that the ring holds.
    pub ring_length: usize,
    /// As in [`Sampling`].
    pub slots: Slots<'a>,
    /// As in [`Sampling`].
    pub live_rows: View<'a, i32>,
}

/// Logits to process in place.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct LogitsMut<'a> {
    /// `[B, V]`
    pub values: MatrixMut<'a>,
    pub scale: f32,
    pub soft_cap: f32,
    pub first_token: usize,
    pub vocab_size: usize,
}

impl<'a> LogitsMut<'a> {
    /// Logits with these values and default options.
    pub fn new(values: MatrixMut<'a>) -> Self {
        LogitsMut { values, scale: 1.0, soft_cap: 0.0, first_token: 0, vocab_size: 0 }
    }
}
