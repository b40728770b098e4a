// SPDX-License-Identifier: Apache-2.0
//! What a verification of drafts is given, as plain structs; `drafts.h` says what each field means.
use crate::enums::Rule;
use crate::parameters::{Head, Logits, Output, Sampling, TokenLists};
use crate::views::{View, ViewMut};

/// What was drafted, for R requests of M nodes at most, in n rows.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// R
    pub requests: usize,
    /// M
    pub max_nodes: usize,
    /// How drafts are accepted.
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
    /// What drew the drafts, of a rule that asks.
    pub head: Option<Head<'a>>,
    /// The same from logits.
    pub logits: Option<Logits<'a>>,
    /// By which parameters it did.
    pub sampling: Option<Sampling<'a>>,
    /// `[n]` or absent: log-normalisers of the draws that it was drafted by.
    pub lse: View<'a, f32>,
    /// `[n]` or absent: log-probabilities of those.
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

/// Where a verification's results go; all but `tokens` and `emitted` may be absent.
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
    /// Of n rows.
    pub rows: Option<Output<'a>>,
}
