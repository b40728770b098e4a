// SPDX-License-Identifier: Apache-2.0
//! What a call is given, as plain structs whose defaults are those of the C interface; `gumbel.h`
//! and `drafts.h` say what each field means. Views that hold less than the shapes here say are
//! refused.
use crate::enums::{domain, Distribution, Isa, Order, Ties};
use crate::views::{MatrixMut, Rows, Tensor, View, ViewMut};
use std::os::raw::c_void;

/// An engine's own thread pool.
///
/// # Safety
/// `run` calls `task(i)` once for each `i` in `0..count`, on any threads, and returns when all have
/// returned; nothing calls `task` with another `i`, or later.
pub unsafe trait ParallelFor: Send + Sync {
    /// Do so. A panic in it ends the process.
    fn run(&self, count: i32, task: &(dyn Fn(i32) + Sync));
}

/// What [`Device::open`](crate::Device::open) takes.
#[derive(Default)]
pub struct DeviceOptions<'a> {
    /// "cpu" where it is absent, or "cuda:N".
    pub device: Option<&'a str>,
    /// Absent: [`Isa::Auto`].
    pub isa: Option<Isa>,
    /// 1..=1024 ways to split a call; 0: the CPUs of this process.
    pub threads: i32,
    /// Vocabulary rows a tile; 0: chosen.
    pub tile: i32,
    /// Absent: the device starts threads of its own.
    pub parallel_for: Option<Box<dyn ParallelFor>>,
    /// On a GPU, which ways to serve a call may be used.
    pub rungs: Option<&'a str>,
}

/// What [`Device::describe`](crate::Device::describe) tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The one in use.
    pub isa: Option<Isa>,
    /// Ways a call is split; of a GPU its multiprocessors.
    pub threads: i32,
    /// Vocabulary rows a tile.
    pub tile: i32,
    /// "cpu" or "cuda:N".
    pub name: String,
    /// The processor's own name, "" where unknown.
    pub description: String,
}

/// Hidden states and LM head: the fused way in.
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

/// Logits that are there already.
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
    /// Of these tensors, with nothing else.
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
    /// Of these values, with nothing else.
    pub fn new(values: Tensor<'a>) -> Self {
        Logits { values, scale: 1.0, soft_cap: 0.0, first_token: 0, vocab_size: 0 }
    }
}

/// Where what belongs to a row lies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slots<'a> {
    /// `[B]`, each below `count`, or absent
    pub of_row: View<'a, i32>,
    /// Slots that there are.
    pub count: usize,
}

/// Lists of tokens: row b's are `ids[offsets[b]..offsets[b + 1]]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenLists<'a> {
    /// `[B + 1]` or absent
    pub offsets: View<'a, i64>,
    /// Global ids.
    pub ids: View<'a, i32>,
    /// One an id, of a bias alone.
    pub values: View<'a, f32>,
}

/// How often tokens occur.
#[derive(Debug)]
pub enum Counts<'a> {
    /// In 16 bits each.
    Bits16(ViewMut<'a, u16>),
    /// In 32 bits each, never negative.
    Bits32(ViewMut<'a, i32>),
}

/// What penalties count, `[B or slots]` rows.
#[derive(Debug)]
pub struct History<'a> {
    /// Tokens below are counted.
    pub vocab_size: usize,
    /// `ceil(vocab_size / 32)` words a row
    pub prompt: ViewMut<'a, u32>,
    /// the same
    pub output: ViewMut<'a, u32>,
    /// `vocab_size` a row
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

/// A bit for each token of each row: those that are set may be drawn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mask<'a> {
    /// `ceil((first_token + V) / 32)` words a row, or absent
    pub words: View<'a, i32>,
    /// Words from one row to the next; 0: without a gap.
    pub stride: usize,
    /// One row for all.
    pub same: bool,
}

/// What is done to a logit before the temperature.
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

/// Which tokens may be drawn.
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
    /// Default 0, of all rows.
    pub seed: Rows<'a, u64>,
    /// The step in its sequence; default 0.
    pub position: Rows<'a, u64>,
    /// Sample counter of draw 0; default 0. Draw j uses `first_sample + j`, mod 2^32.
    pub first_sample: Rows<'a, u32>,
    /// S
    pub num_samples: usize,
    /// Absent: none.
    pub transforms: Option<Transforms<'a>>,
    /// Absent: none.
    pub truncation: Option<Truncation<'a>>,
    /// Absent: row b is row b.
    pub slots: Slots<'a>,
    /// `[1]`, or absent: all rows are live.
    pub live_rows: View<'a, i32>,
    /// `[B, S]` tokens to score instead of drawing, or absent
    pub given: View<'a, i32>,
    /// Elements from one row of these to the next; 0: S.
    pub given_stride: usize,
    /// `[B, S, V]` made ahead of time, or absent
    pub noise: View<'a, f32>,
    /// Elements from one draw's to the next; 0: V.
    pub noise_stride: usize,
    /// Of [`domain`](crate::domain).
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

/// What calls stay within, for one workspace that serves them all.
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

/// Where results go; all but `tokens` may be absent.
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
    /// Most likely tokens to list.
    pub num_top: usize,
    /// Of all log-probabilities and log-normalisers.
    pub logprobs_of: Distribution,
    /// `[B, num_best]`
    pub best_ids: ViewMut<'a, i32>,
    /// `[B, num_best]`
    pub best_scores: ViewMut<'a, f32>,
    /// Best scores to list.
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
    /// `[B, S]`, just drawn
    pub tokens: View<'a, i32>,
    /// `[B or slots]`
    pub position: ViewMut<'a, u64>,
    /// Elements between rows; 0: 1.
    pub position_stride: usize,
    /// One position serves all rows.
    pub position_same: bool,
    /// `[ring_length, B or slots, S]` or absent
    pub ring: ViewMut<'a, i32>,
    /// Places of the ring.
    pub ring_length: usize,
    /// As in [`Sampling`].
    pub slots: Slots<'a>,
    /// As in [`Sampling`].
    pub live_rows: View<'a, i32>,
}

/// Logits that are processed in place.
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
    /// Of these values, with nothing else.
    pub fn new(values: MatrixMut<'a>) -> Self {
        LogitsMut { values, scale: 1.0, soft_cap: 0.0, first_token: 0, vocab_size: 0 }
    }
}
