// SPDX-License-Identifier: Apache-2.0
//! Enums of the C interface, with its values.

/// Declare enums of the C interface.
macro_rules! c_enums {
    ($($(#[$of:meta])* $name:ident { $($(#[$on:meta])* $item:ident = $value:literal,)* })*) => {$(
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub enum $name { $($(#[$on])* $item = $value,)* }

        impl $name {
            /// The variant with this value of the C interface.
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
    /// The order in which truncation rules apply.
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
    /// Handling of ties at the end of the kept set.
    Ties {
        /// All ties are kept.
        All = 0,
        /// Only as many as needed, lower ids first.
        Exact = 1,
    }
    /// The distribution of log-probabilities.
    Distribution {
        /// The distribution that is drawn from.
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
        /// The row is not a live row.
        Unused = 6,
        /// On a GPU: the draft is not valid.
        Draft = 7,
    }
    /// The rule by which drafts are accepted; all rules are exact.
    Rule {
        /// While they equal the target's own draws.
        Coupled = 0,
        /// Each with probability min(1, p / q). Unstable: may change in a minor release.
        Rejection = 1,
        /// Jointly. Unstable: may change in a minor release.
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

/// Independent random streams: values of [`Sampling::domain`].
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
