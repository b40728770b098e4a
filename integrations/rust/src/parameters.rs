// SPDX-License-Identifier: Apache-2.0
//! Parameters of calls: plain structs with the fields and defaults of the C interface. A call
//! returns an error if a view is smaller than the shape documented for it.
use crate::enums::{domain, Distribution, Isa, Order, ProgramRule, Ties};
use crate::ffi::GUMBEL_PROGRAM_LENGTH;
use crate::views::{MatrixMut, Rows, Tensor, View, ViewMut};
use std::os::raw::c_void;

/// An engine's own thread pool.
///
/// # Safety
/// `run` must call `task(i)` exactly once for each `i` in `0..count`, on any threads, and return
/// after all these calls have returned. `task` must not be called with another `i`, or later.
pub unsafe trait ParallelFor: Send + Sync {
    /// Runs the tasks `0..count`. A panic aborts the process.
    fn run(&self, count: i32, task: &(dyn Fn(i32) + Sync));
}

/// Options of [`Device::open`](crate::Device::open).
#[derive(Default)]
pub struct DeviceOptions<'a> {
    /// "cpu" or "cuda:N"; the default is "cpu".
    pub device: Option<&'a str>,
    /// Instruction set of a CPU; the default is [`Isa::Auto`].
    pub isa: Option<Isa>,
    /// Number of threads, 1..=1024; 0: the CPUs available to this process.
    pub threads: i32,
    /// Vocabulary rows of a tile; 0: automatic.
    pub tile: i32,
    /// The engine's thread pool. None: the device starts its own threads.
    pub parallel_for: Option<Box<dyn ParallelFor>>,
    /// Kernel variants that a GPU may use, as a comma-separated list; a name with a minus is
    /// excluded.
    pub rungs: Option<&'a str>,
}

/// Result of [`Device::describe`](crate::Device::describe).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The instruction set in use.
    pub isa: Option<Isa>,
    /// Number of threads of a call on a CPU; number of multiprocessors of a GPU.
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
pub struct Head<'a> {
    /// `[B, D]`: hidden states.
    pub hidden: Tensor<'a>,
    /// `[V, D]`: weights of the LM head.
    pub weight: Tensor<'a>,
    /// `[1, V]`, optional: added to the logits.
    pub bias: Tensor<'a>,
    /// Multiplies the logits; default 1.
    pub scale: f32,
    /// Soft-cap c of the logits, `c * tanh(l / c)`; 0: off.
    pub soft_cap: f32,
    /// Token id of the first column or weight row; not 0 for a shard.
    pub first_token: usize,
    /// Size of the whole vocabulary; ids from it on are padding. 0: `first_token + V`.
    pub vocab_size: usize,
}

/// Precomputed logits.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    /// `[B, V]`: logits.
    pub values: Tensor<'a>,
    /// Multiplies the logits; default 1.
    pub scale: f32,
    /// Soft-cap c of the logits, `c * tanh(l / c)`; 0: off.
    pub soft_cap: f32,
    /// Token id of the first column or weight row; not 0 for a shard.
    pub first_token: usize,
    /// Size of the whole vocabulary; ids from it on are padding. 0: `first_token + V`.
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

/// The slot of each row. With slots, row parameters, masks and histories have one entry for each
/// slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slots<'a> {
    /// `[B]`, optional: the slot of each row, below `count`. Empty: no slots.
    pub of_row: View<'a, i32>,
    /// Number of slots.
    pub count: usize,
}

/// Lists of tokens: row b has `ids[offsets[b]..offsets[b + 1]]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenLists<'a> {
    /// `[B + 1]`, optional. Empty: no lists.
    pub offsets: View<'a, i64>,
    /// Token ids in the whole vocabulary.
    pub ids: View<'a, i32>,
    /// One value for each id, for biases only.
    pub values: View<'a, f32>,
}

/// Counts of each token in the output, `[B or slots, vocab_size]`.
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
    /// Token ids >= `vocab_size` are not counted.
    pub vocab_size: usize,
    /// `[B or slots, ceil(vocab_size / 32)]`: bit `t % 32` of word `t / 32` is set if t is in the
    /// prompt.
    pub prompt: ViewMut<'a, u32>,
    /// Bits of the tokens in the output, as in `prompt`.
    pub output: ViewMut<'a, u32>,
    /// Number of times that each token is in the output.
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

/// Bits that allow tokens: bit `t % 32` of word `t / 32` of a row allows token t.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mask<'a> {
    /// `[B or slots, ceil((first_token + V) / 32)]`, optional. Empty: all tokens are allowed.
    pub words: View<'a, i32>,
    /// Words from one row to the next; 0: contiguous rows.
    pub stride: usize,
    /// Whether one mask row serves all rows.
    pub same: bool,
}

/// Changes of logits before the temperature: mask, token lists, biases and penalties.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transforms<'a> {
    /// Allowed tokens, as bits.
    pub mask: Mask<'a>,
    /// The only tokens that may be drawn; a row with an empty list allows all.
    pub allowed: TokenLists<'a>,
    /// Tokens that are never drawn.
    pub banned: TokenLists<'a>,
    /// Values to add to the logits of tokens.
    pub bias: TokenLists<'a>,
    /// Repetition penalty, > 0; default 1.
    pub repetition: Rows<'a, f32>,
    /// Frequency penalty; default 0.
    pub frequency: Rows<'a, f32>,
    /// Presence penalty; default 0.
    pub presence: Rows<'a, f32>,
    /// The history that penalties count, instead of the two lists below.
    pub history: Option<&'a History<'a>>,
    /// Prompt tokens that penalties count.
    pub prompt_tokens: TokenLists<'a>,
    /// Output tokens that penalties count.
    pub output_tokens: TokenLists<'a>,
    /// Values to add after the penalties.
    pub late_bias: TokenLists<'a>,
    /// `[B]`, optional, of [`RowLists`](crate::RowLists): rows with
    /// [`RowStatus::Lists`](crate::RowStatus::Lists) are not drawn.
    pub list_status: View<'a, i32>,
    /// The largest number of tokens that `mask` and `allowed` allow to a row; 0: unknown. The value
    /// affects the time of a call on CUDA, and no output. Unstable until 1.0.
    pub max_allowed: usize,
}

/// An ordered list of sampling rules, at most 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Program([u8; GUMBEL_PROGRAM_LENGTH]);

impl Program {
    /// A program of these rules.
    ///
    /// # Panics
    /// If there are more than 16.
    pub const fn new(rules: &[ProgramRule]) -> Self {
        let mut program = [0; GUMBEL_PROGRAM_LENGTH];
        let mut i = 0;
        while i < rules.len() {
            program[i] = rules[i] as u8;
            i += 1;
        }
        Program(program)
    }
}

/// Programs, which restrict a draw by any rules in any order, and the parameters of rules that
/// [`Truncation`] lacks. A rule whose parameter is off does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Programs<'a> {
    /// 1 to 16 programs, in host memory on every device. Each has [`ProgramRule::Temperature`].
    pub rules: &'a [Program],
    /// The index of each row's program; default 0.
    pub program: Rows<'a, i32>,
    /// No rule but top_k keeps fewer tokens, >= 1; default 1.
    pub min_keep: Rows<'a, i32>,
    /// How far the temperature may differ from T, by the entropy, >= 0; default 0, off.
    pub temperature_range: Rows<'a, f32>,
    /// Exponent of the entropy in this temperature, >= 0; default 1.
    pub temperature_exponent: Rows<'a, f32>,
    /// Parameter of [`ProgramRule::TypicalP`], in (0, 1]; default 1, off.
    pub typical_p: Rows<'a, f32>,
    /// Parameter of [`ProgramRule::TopNSigma`], >= 0; default 0, off.
    pub top_n_sigma: Rows<'a, f32>,
    /// Parameter of [`ProgramRule::Epsilon`], in [0, 1); default 0, off.
    pub epsilon: Rows<'a, f32>,
    /// Parameter of [`ProgramRule::Eta`], in [0, 1); default 0, off.
    pub eta: Rows<'a, f32>,
    /// Parameter of [`ProgramRule::TopA`], in [0, 1]; default 0, off.
    pub top_a: Rows<'a, f32>,
    /// Parameter of [`ProgramRule::Surprise`] in bits, >= 0; default infinite, off.
    pub surprise: Rows<'a, f32>,
    /// Probability of [`ProgramRule::Xtc`], in [0, 1]; default 0, off.
    pub xtc_probability: Rows<'a, f32>,
    /// Threshold of [`ProgramRule::Xtc`], in (0, 1], off above 0.5; default 0.1.
    pub xtc_threshold: Rows<'a, f32>,
    /// Tokens that [`ProgramRule::Xtc`] must not remove: it skips a row that would lose one.
    pub xtc_keep: TokenLists<'a>,
    /// Factor of [`ProgramRule::Smoothing`], >= 0; default 0, off.
    pub smoothing_factor: Rows<'a, f32>,
    /// Curve of [`ProgramRule::Smoothing`], in [1, 3]; default 1.
    pub smoothing_curve: Rows<'a, f32>,
    /// Target of [`ProgramRule::AdaptiveP`], in [-1, 1]; off below 0, the default.
    pub adaptive_target: Rows<'a, f32>,
}

/// Truncation rules, which restrict a draw to the likeliest tokens.
#[derive(Clone, Copy, Debug)]
pub struct Truncation<'a> {
    /// Keeps tokens of at least min_p times the largest probability, in [0, 1]; 0: off.
    pub min_p: Rows<'a, f32>,
    /// Keeps the k likeliest tokens; 0: off.
    pub top_k: Rows<'a, i32>,
    /// Keeps the smallest set of likeliest tokens that sums to top_p, in (0, 1]; 1: off.
    pub top_p: Rows<'a, f32>,
    /// The order in which the three rules apply.
    pub order: Order,
    /// Handling of tokens as likely as the last kept one.
    pub ties: Ties,
    /// Programs, in place of `order`.
    pub programs: Option<Programs<'a>>,
}

impl Default for Truncation<'_> {
    fn default() -> Self {
        Truncation {
            min_p: Rows::Default,
            top_k: Rows::Default,
            top_p: Rows::Default,
            order: Order::MinPTopKTopP,
            ties: Ties::All,
            programs: None,
        }
    }
}

/// Parameters of the draw.
#[derive(Clone, Copy, Debug)]
pub struct Sampling<'a> {
    /// Temperature, >= 0; 0 is greedy. Default 1.
    pub temperature: Rows<'a, f32>,
    /// 64-bit seed; from one value each row's seed is derived ([`row_seed`](crate::row_seed)).
    /// Default 0.
    pub seed: Rows<'a, u64>,
    /// The step in the row's sequence: advance it by one at every step. Default 0.
    pub position: Rows<'a, u64>,
    /// Sample counter of draw 0; default 0. Draw j uses `first_sample + j`, mod 2^32.
    pub first_sample: Rows<'a, u32>,
    /// S, the number of independent draws for each row. Default 1.
    pub num_samples: usize,
    /// Transforms of the logits, if any.
    pub transforms: Option<Transforms<'a>>,
    /// Truncation, if any.
    pub truncation: Option<Truncation<'a>>,
    /// Slots, if any. Without slots row b uses entry b of row parameters.
    pub slots: Slots<'a>,
    /// `[1]`, optional: number of rows to draw. Empty: all.
    pub live_rows: View<'a, i32>,
    /// `[B, S]`, optional: tokens to score instead of drawing.
    pub given: View<'a, i32>,
    /// Elements from one row of `given` to the next; 0: S.
    pub given_stride: usize,
    /// `[B, S, V]`, optional: precomputed noise.
    pub noise: View<'a, f32>,
    /// Elements from one draw's noise to the next; 0: V.
    pub noise_stride: usize,
    /// The random stream, a value of [`domain`](crate::domain). Default 0.
    pub domain: u32,
    /// `[V]`, optional: the id of the token of each row of a head over a subset of the vocabulary,
    /// or of each column of its logits. Unstable until 1.0.
    pub token_ids: View<'a, i32>,
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
            token_ids: View::default(),
        }
    }
}

/// Limits of calls, for [`Device::workspace_most`](crate::Device::workspace_most).
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Largest B.
    pub batch: usize,
    /// Largest V; only calls with transforms, truncation or row outputs require it.
    pub vocab_size: usize,
    /// Largest D; 0: draws from logits only.
    pub hidden_size: usize,
    /// Largest S; 0 means 1.
    pub num_samples: usize,
    /// Whether calls have transforms, truncation or row outputs.
    pub requests: bool,
    /// Largest number of nodes of a request whose drafts are verified by [`Rule::Coupled`], 0 if
    /// none are; B counts nodes.
    ///
    /// [`Rule::Coupled`]: crate::Rule::Coupled
    pub max_nodes: usize,
    /// Whether calls have `token_ids`; requires `requests`. Unstable until 1.0.
    pub token_ids: bool,
}

/// Results of a draw. `tokens` is required; outputs whose view is empty are not computed.
#[derive(Debug)]
pub struct Output<'a> {
    /// `[B, S]`: token ids; -1 in a row without a token.
    pub tokens: ViewMut<'a, i32>,
    /// `[B, S]`: log-probabilities of the tokens.
    pub logprobs: ViewMut<'a, f32>,
    /// `[B, S]`: scores (logit plus noise) of the tokens.
    pub scores: ViewMut<'a, f32>,
    /// `[B]`: log-normalisers, ln(sum of exp(logits)).
    pub lse: ViewMut<'a, f32>,
    /// `[B]`, each a [`RowStatus`](crate::RowStatus)
    pub status: ViewMut<'a, i32>,
    /// `[B, S]`: 1 + number of likelier tokens.
    pub ranks: ViewMut<'a, i32>,
    /// `[B]`: number of tokens that truncation keeps.
    pub kept: ViewMut<'a, i32>,
    /// `[B, num_top]`: the likeliest tokens, best first.
    pub top_ids: ViewMut<'a, i32>,
    /// `[B, num_top]`: log-probabilities of `top_ids`.
    pub top_logprobs: ViewMut<'a, f32>,
    /// `[B, num_top]`: raw logits of `top_ids`.
    pub top_logits: ViewMut<'a, f32>,
    /// Number of likeliest tokens to return, 0 to 128.
    pub num_top: usize,
    /// The distribution of log-probabilities, log-normalisers and entropies.
    pub logprobs_of: Distribution,
    /// `[B, num_best]`: tokens of the best scores, best first.
    pub best_ids: ViewMut<'a, i32>,
    /// `[B, num_best]`: the best scores.
    pub best_scores: ViewMut<'a, f32>,
    /// Number of best scores to return, 0 to 16; requires S = 1.
    pub num_best: usize,
    /// Places of a row in `kept_ids`.
    pub kept_capacity: usize,
    /// `[B, kept_capacity]`: the tokens that `kept` counts, by ascending id; requires `kept`. The
    /// first `kept` places of a row are written, or none if there are more than `kept_capacity`.
    pub kept_ids: ViewMut<'a, i32>,
    /// `[B, kept_capacity]`: log-probabilities of `kept_ids`.
    pub kept_logprobs: ViewMut<'a, f32>,
    /// `[B]`: entropy in nats, of the distribution `logprobs_of`. Unstable until 1.0.
    pub entropy: ViewMut<'a, f32>,
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
            kept_capacity: 0,
            kept_ids: ViewMut::default(),
            kept_logprobs: ViewMut::default(),
            entropy: ViewMut::default(),
        }
    }
}

/// Arguments of [`Device::advance`](crate::Device::advance), which ends a decode step.
#[derive(Debug, Default)]
pub struct Step<'a> {
    /// B, the number of rows.
    pub batch: usize,
    /// S; 0 means 1.
    pub num_samples: usize,
    /// `[B, S]`: the tokens of this step.
    pub tokens: View<'a, i32>,
    /// `[B or slots]`: positions to advance by one.
    pub position: ViewMut<'a, u64>,
    /// Elements from one row's position to the next; 0 means 1.
    pub position_stride: usize,
    /// Whether one position serves all rows.
    pub position_same: bool,
    /// `[ring_length, B or slots, S]`, optional: receives the tokens.
    pub ring: ViewMut<'a, i32>,
    /// Number of steps that the ring holds.
    pub ring_length: usize,
    /// Slots, as in [`Sampling`].
    pub slots: Slots<'a>,
    /// Number of live rows, as in [`Sampling`].
    pub live_rows: View<'a, i32>,
}

/// Logits that a call overwrites.
#[derive(Debug)]
pub struct LogitsMut<'a> {
    /// `[B, V]`: logits.
    pub values: MatrixMut<'a>,
    /// Multiplies the logits; default 1.
    pub scale: f32,
    /// Soft-cap c of the logits, `c * tanh(l / c)`; 0: off.
    pub soft_cap: f32,
    /// Token id of the first column or weight row; not 0 for a shard.
    pub first_token: usize,
    /// Size of the whole vocabulary; ids from it on are padding. 0: `first_token + V`.
    pub vocab_size: usize,
}

impl<'a> LogitsMut<'a> {
    /// Logits with these values and default options.
    pub fn new(values: MatrixMut<'a>) -> Self {
        LogitsMut { values, scale: 1.0, soft_cap: 0.0, first_token: 0, vocab_size: 0 }
    }
}
