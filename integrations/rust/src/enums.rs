// SPDX-License-Identifier: Apache-2.0
//! Enums with the values of the C interface.

/// Declares enums with the values of the C interface.
macro_rules! c_enums {
    ($($(#[$of:meta])* $name:ident { $($(#[$on:meta])* $item:ident = $value:literal,)* })*) => {$(
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub enum $name { $($(#[$on])* $item = $value,)* }

        impl $name {
            /// The variant with this value in the C interface; None if there is none.
            pub fn from_raw(value: i32) -> Option<Self> {
                match value {
                    $($value => Some($name::$item),)*
                    _ => None,
                }
            }
        }
    )*};
}

c_enums! {
    /// Instruction sets of the CPU; all give the same bits.
    Isa {
        /// The environment variable GUMBEL_ISA, or else the best of this machine.
        Auto = 0,
        /// Plain C.
        Reference = 1,
        /// AVX2, FMA, F16C.
        Avx2 = 2,
        /// AVX-512 F, BW, DQ, VL.
        Avx512 = 3,
        /// AArch64 Advanced SIMD.
        Neon = 4,
    }
    /// The order in which truncation rules apply.
    Order {
        /// min_p, then top_k, then top_p, each on the renormalised kept set; vLLM's order.
        MinPTopKTopP = 0,
        /// Each rule on the whole distribution; SGLang's order.
        Joint = 1,
        /// As `MinPTopKTopP`, on the distribution at temperature 1.
        BeforeTemperature = 2,
        /// top_k, then top_p, then min_p; the order of transformers and Ollama.
        TopKTopPMinP = 3,
        /// As `TopKTopPMinP`, on the distribution at temperature 1; llama.cpp's order.
        TopKTopPMinPTemperature = 4,
        /// As `Joint`, on the distribution at temperature 1; the order of mlx.
        JointTemperature = 5,
    }
    /// A rule of a [`Program`](crate::Program).
    ProgramRule {
        /// Multiplies values by 1 / T.
        Temperature = 1,
        /// Keeps tokens of at least min_p times the largest probability.
        MinP = 2,
        /// Keeps the k likeliest tokens.
        TopK = 3,
        /// Keeps the smallest set of likeliest tokens that sums to top_p.
        TopP = 4,
        /// Keeps tokens whose `-ln p` is closest to the entropy, up to typical_p in sum.
        TypicalP = 5,
        /// Keeps tokens up to top_n_sigma standard deviations below the largest logit.
        TopNSigma = 6,
        /// Keeps tokens of at least this probability.
        Epsilon = 7,
        /// Keeps tokens of at least the probability `min(eta, sqrt(eta) * exp(-entropy))`.
        Eta = 8,
        /// Keeps tokens of at least top_a times the square of the largest probability.
        TopA = 9,
        /// Keeps tokens of at least the sum of squared probabilities.
        PLess = 10,
        /// Keeps tokens with `-log2 p <= surprise`.
        Surprise = 11,
        /// Removes, with a probability, all likely tokens but the least likely one of them.
        Xtc = 12,
        /// Lowers logits by the square and the cube of their distance to the largest.
        Smoothing = 13,
        /// Prefers tokens whose probability is near a target; the last rule.
        AdaptiveP = 14,
    }
    /// Handling of tokens as likely as the last kept token.
    Ties {
        /// All such tokens are kept.
        All = 0,
        /// Only as many as needed, lower ids first.
        Exact = 1,
    }
    /// The distribution that log-probabilities refer to.
    Distribution {
        /// The distribution of the draw.
        Processed = 0,
        /// The softmax of the unmodified logits.
        Raw = 1,
    }
    /// The status of a row.
    RowStatus {
        /// A token was drawn.
        Ok = 0,
        /// A logit was NaN.
        Nan = 1,
        /// A logit was +inf.
        Infinite = 2,
        /// No token can be drawn.
        Empty = 3,
        /// On a GPU: the temperature is negative or not finite.
        Temperature = 4,
        /// On a GPU: the slot does not exist.
        Slot = 5,
        /// The row is beyond `live_rows`, or its request has no nodes.
        Unused = 6,
        /// On a GPU: the draft is not valid.
        Draft = 7,
        /// A list of the row has no room for its ids.
        Lists = 8,
    }
    /// The rule by which drafts are accepted. All rules are exact.
    Rule {
        /// Accepts drafts that equal the target's own draws with the same noise.
        Coupled = 0,
        /// Accepts each draft with probability min(1, p / q). Unstable: may change in a minor
        /// release.
        Rejection = 1,
        /// Accepts the drafts of a request jointly. Unstable: may change in a minor release.
        Block = 2,
    }
    /// The reason why a request has ended.
    FinishReason {
        /// The request has not ended.
        None = 0,
        /// A token of `stop` was emitted.
        Stop = 1,
        /// `limit` tokens were emitted.
        Limit = 2,
    }
}

/// Independent random streams: values of [`Sampling::domain`](crate::Sampling::domain).
pub mod domain {
    /// Draws of the model.
    pub const TARGET: u32 = 0;
    /// Draws of a drafter.
    pub const DRAFT: u32 = 1;
    /// The acceptance of drafts.
    pub const ACCEPT: u32 = 2;
    /// Draws in place of rejected drafts.
    pub const RESIDUAL: u32 = 3;
    /// Grouped draws.
    pub const GROUP: u32 = 4;
    /// Streamed draws.
    pub const STREAM: u32 = 5;
    /// The domain of token `step` of a draft under [`Rule::Block`](super::Rule::Block).
    pub const fn draft(step: u32) -> u32 {
        DRAFT | step << 8
    }
}
