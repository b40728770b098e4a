// SPDX-License-Identifier: Apache-2.0
//! Parameters and results of the verification of drafts; `drafts.h` documents each field.
use crate::enums::Rule;
use crate::parameters::{Head, Logits, Output, Sampling, TokenLists};
use crate::views::{View, ViewMut};

/// Drafted tokens of R requests, with at most M nodes each and n nodes together.
///
/// Node 0 of a request, the root, is the last token of its text; other nodes are drafts.
/// [`Device::verify`](crate::Device::verify) takes one row of hidden states or logits for each
/// node.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// R, the number of requests.
    pub requests: usize,
    /// M, the largest number of nodes of a request, root included; at most 1024.
    pub max_nodes: usize,
    /// The rule by which drafts are accepted.
    pub rule: Rule,
    /// `[n]`: the token of each node.
    pub tokens: View<'a, i32>,
    /// `[R + 1]`, optional: request r has rows `offsets[r]..offsets[r + 1]`. Empty: M rows each.
    pub offsets: View<'a, i32>,
    /// `[R]`, optional: number of rows that a request uses. Empty: all.
    pub nodes: View<'a, i32>,
    /// `[n]`, optional: the parent of each node, for trees. Empty: chains.
    pub parents: View<'a, i32>,
    /// `[R]`, optional: largest number of tokens to emit. Empty: M.
    pub limit: View<'a, i32>,
    /// R lists of tokens that end a request.
    pub stop: TokenLists<'a>,
    /// The head that drew the drafts, for rules that use it.
    pub head: Option<Head<'a>>,
    /// The logits from which the drafts were drawn, instead of a head.
    pub logits: Option<Logits<'a>>,
    /// The parameters of the draft's draws.
    pub sampling: Option<Sampling<'a>>,
    /// `[n]`, optional: log-normalisers of the draft's draws.
    pub lse: View<'a, f32>,
    /// `[n]`, optional: log-probabilities of the draft's draws.
    pub logprobs: View<'a, f32>,
    /// `[n]`, optional, for [`Rule::Coupled`]: the position of each row's draw, such as those of
    /// [`Device::watermark_nodes`](crate::Device::watermark_nodes).
    pub node_position: View<'a, u64>,
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
            node_position: View::default(),
        }
    }
}

/// Results of a verification. `tokens` and `emitted` are required; outputs whose view is empty are
/// not computed.
#[derive(Debug, Default)]
pub struct Verified<'a> {
    /// `[R, M]`: emitted tokens; -1 after the last.
    pub tokens: ViewMut<'a, i32>,
    /// `[R]`: number of emitted tokens.
    pub emitted: ViewMut<'a, i32>,
    /// `[R]`: number of accepted drafts.
    pub accepted: ViewMut<'a, i32>,
    /// `[R, M]`: rows of the root and the accepted drafts; -1 after the last.
    pub path: ViewMut<'a, i32>,
    /// `[R]`: the last row of `path`, or -1.
    pub last_row: ViewMut<'a, i32>,
    /// `[R or slots]`: positions for the next call.
    pub position: ViewMut<'a, u64>,
    /// `[R]`, each a [`FinishReason`](crate::FinishReason)
    pub finished: ViewMut<'a, i32>,
    /// `[R]`, each a [`RowStatus`](crate::RowStatus)
    pub status: ViewMut<'a, i32>,
    /// `[R, M]`: log-probabilities of the emitted tokens.
    pub logprobs: ViewMut<'a, f32>,
    /// `[R, M]`: scores of the emitted tokens.
    pub scores: ViewMut<'a, f32>,
    /// `[M]`: number of requests by number of accepted drafts; the call adds to it.
    pub histogram: ViewMut<'a, u64>,
    /// Outputs of the draws in the n rows.
    pub rows: Option<Output<'a>>,
}
