// SPDX-License-Identifier: Apache-2.0
//! Choices of the C interface, with its values.

/// Declare enums of the C interface.
macro_rules! c_enums {
    ($($(#[$of:meta])* $name:ident { $($(#[$on:meta])* $item:ident = $value:literal,)* })*) => {$(
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub enum $name { $($(#[$on])* $item = $value,)* }

        impl $name {
            /// The one with this value of the C interface.
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
        /// Environment variable GUMBEL_ISA, else the best one.
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
    /// In which order the rules of truncation apply.
    Order {
        /// vLLM.
        MinPTopKTopP = 0,
        /// SGLang.
        Joint = 1,
        /// min_p, top_k, top_p, temperature.
        BeforeTemperature = 2,
        /// transformers, Ollama.
        TopKTopPMinP = 3,
        /// llama.cpp.
        TopKTopPMinPTemperature = 4,
        /// mlx.
        JointTemperature = 5,
    }
    /// What happens to equals at a cut.
    Ties {
        /// They stay together.
        All = 0,
        /// Lower ids first.
        Exact = 1,
    }
    /// Which distribution log-probabilities are of.
    Distribution {
        /// That of the draw.
        Processed = 0,
        /// The softmax of the logits as they are.
        Raw = 1,
    }
    /// What a row's data showed.
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
        /// On a GPU: its slot is none.
        Slot = 5,
        /// It is none of the live rows.
        Unused = 6,
        /// On a GPU: the draft is not valid.
        Draft = 7,
    }
    /// How drafts are accepted; all rules are exact.
    Rule {
        /// While they are the target's own draws.
        Coupled = 0,
        /// Each with chance min(1, p / q).
        Rejection = 1,
        /// Jointly.
        Block = 2,
    }
    /// Why a request has ended.
    FinishReason {
        /// It has not.
        None = 0,
        /// It emitted a token of `stop`.
        Stop = 1,
        /// It emitted as many as `limit`.
        Limit = 2,
    }
}

/// Streams of randomness that never overlap: values of [`Sampling::domain`].
pub mod domain {
    /// The model's own draws.
    pub const TARGET: u32 = 0;
    /// A drafter's.
    pub const DRAFT: u32 = 1;
    /// The acceptance of drafts.
    pub const ACCEPT: u32 = 2;
    /// What is drawn where a draft was not accepted.
    pub const RESIDUAL: u32 = 3;
    /// Groups.
    pub const GROUP: u32 = 4;
    /// Streams.
    pub const STREAM: u32 = 5;
    /// That of token `step` of a draft under [`Rule::Block`](super::Rule::Block).
    pub const fn draft(step: u32) -> u32 {
        DRAFT | step << 8
    }
}
