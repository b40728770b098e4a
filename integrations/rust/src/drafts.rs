// SPDX-License-Identifier: Apache-2.0
//! Parameters and results of the verification of drafts; `drafts.h` documents each field.
use crate::enums::Rule;
use crate::parameters::{Head, Logits, Output, Sampling, TokenLists};
use crate::views::{View, ViewMut};

/// Drafts of R requests with at most M nodes each, in n rows.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// R
    pub requests: usize,
    /// M
    pub max_nodes: usize,
    /// The rule of acceptance.
    pub rule: Rule,
    /// `[n]`
    pub tokens: View<'a, i32>,
    /// `[R + 1]` or absent
    pub offsets: View<'a, i32>,
    /// `[R]` or absent
    pub nodes: View<'a, i32>,
    /// `[n]` or absent
    pub parents: View<'a, i32>,
    /// `[R]` or absent
    pub limit: View<'a, i32>,
    /// R lists
    pub stop: TokenLists<'a>,
    /// The head that drew the drafts, for rules that use it.
    pub head: Option<Head<'a>>,
    /// The logits from which the drafts were drawn, instead of a head.
    pub logits: Option<Logits<'a>>,
    /// The parameters of the draft's draws.
    pub sampling: Option<Sampling<'a>>,
    /// `[n]` or absent: log-normalisers of the draft's draws.
    pub lse: View<'a, f32>,
    /// `[n]` or absent: log-probabilities of the draft's draws.
    pub logprobs: View<'a, f32>,
}

impl Default for Draft<'_> {
    fn default() -> Self {
        Draft {
            requests: 0,
            max_nodes: 0,
            rule: Rule::Coupled,
            tokens: View::default(),
            offsets: View::default(),
            nodes: View::default(),
            parents: View::default(),
            limit: View::default(),
            stop: TokenLists::default(),
            head: None,
            logits: None,
            sampling: None,
            lse: View::default(),
            logprobs: View::default(),
        }
    }
}

/// Results of a verification; only `tokens` and `emitted` are required.
#[derive(Debug, Default)]
pub struct Verified<'a> {
    /// `[R, M]`
    pub tokens: ViewMut<'a, i32>,
    /// `[R]`
    pub emitted: ViewMut<'a, i32>,
    /// `[R]`
    pub accepted: ViewMut<'a, i32>,
    /// `[R, M]`
    pub path: ViewMut<'a, i32>,
    /// `[R]`
    pub last_row: ViewMut<'a, i32>,
    /// `[R or slots]`, for the next call
    pub position: ViewMut<'a, u64>,
    /// `[R]`, each a [`FinishReason`](crate::FinishReason)
    pub finished: ViewMut<'a, i32>,
    /// `[R]`, each a [`RowStatus`](crate::RowStatus)
    pub status: ViewMut<'a, i32>,
    /// `[R, M]`
    pub logprobs: ViewMut<'a, f32>,
    /// `[R, M]`
    pub scores: ViewMut<'a, f32>,
    /// `[M]`
    pub histogram: ViewMut<'a, u64>,
    /// Outputs of the n rows.
    pub rows: Option<Output<'a>>,
}
