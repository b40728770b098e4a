// SPDX-License-Identifier: Apache-2.0
//! Row parameters that change from step to step.
use crate::device::{Device, Stream};
use crate::error::{call_library, Result};
use crate::ffi;
use crate::lowering::{count_row_entries, strided_len, to_i64, Check};
use crate::parameters::Slots;
use crate::views::{Rows, View, ViewMut};
use std::mem::size_of;

/// Arguments of [`Device::update_rules`], which changes row parameters after a draw.
#[derive(Debug, Default)]
pub struct RuleUpdates<'a> {
    /// B, the number of rows.
    pub batch: usize,
    /// `[B]`, at `token_stride` elements: the drawn tokens; rows below 0 keep their values.
    pub tokens: View<'a, i32>,
    /// Elements from one row's token to the next; 0 means 1.
    pub token_stride: usize,
    /// As `tokens`: their processed log-probabilities; required with `surprise`, and
    /// with `adaptive_target`, for which they are those before the rule.
    pub logprobs: View<'a, f32>,
    /// Slots, as in [`Sampling`](crate::Sampling); no slot twice.
    pub slots: Slots<'a>,
    /// Number of live rows, as in [`Sampling`](crate::Sampling).
    pub live_rows: View<'a, i32>,
    /// `[B or slots]`, optional, at `surprise_stride` elements: mu of mirostat 2, the parameter
    /// [`Programs::surprise`](crate::Programs::surprise). Begin with twice the target.
    pub surprise: ViewMut<'a, f32>,
    /// Elements from one value to the next; 0 means 1.
    pub surprise_stride: usize,
    /// Mirostat's tau in bits, >= 0; required with `surprise`.
    pub surprise_target: Rows<'a, f32>,
    /// Mirostat's eta, >= 0; default 0.1.
    pub surprise_rate: Rows<'a, f32>,
    /// `[B or slots]`, optional, at `top_p_stride` elements: the parameter
    /// [`Truncation::top_p`](crate::Truncation::top_p).
    pub top_p: ViewMut<'a, f32>,
    /// Elements from one value to the next; 0 means 1.
    pub top_p_stride: usize,
    /// The value after `top_p_reset`, in (0, 1]; default 1.
    pub top_p_first: Rows<'a, f32>,
    /// The factor of each token, in (0, 1]; default 1.
    pub top_p_decay: Rows<'a, f32>,
    /// The smallest value, in (0, 1]; default 2^-149.
    pub top_p_min: Rows<'a, f32>,
    /// A token that sets `top_p` to `top_p_first`; default -1, none.
    pub top_p_reset: Rows<'a, i32>,
    /// `[B or slots]`, optional, at `adaptive_target_stride` elements: the parameter
    /// [`Programs::adaptive_target`](crate::Programs::adaptive_target). Not with `surprise`.
    pub adaptive_target: ViewMut<'a, f32>,
    /// Elements from one value to the next; 0 means 1.
    pub adaptive_target_stride: usize,
    /// `[B or slots]`: the decaying sum of probabilities; required with `adaptive_target`. Begin
    /// with `goal / (1 - decay)`.
    pub adaptive_sum: ViewMut<'a, f32>,
    /// Elements from one value to the next; 0 means 1.
    pub adaptive_sum_stride: usize,
    /// `[B or slots]`: the decaying number of tokens; required with `adaptive_target`. Begin with
    /// `1 / (1 - decay)`.
    pub adaptive_weight: ViewMut<'a, f32>,
    /// Elements from one value to the next; 0 means 1.
    pub adaptive_weight_stride: usize,
    /// The mean probability that the target aims at, in [-1, 1], off below 0; required with
    /// `adaptive_target`.
    pub adaptive_goal: Rows<'a, f32>,
    /// The decay of the mean, in [0, 0.99]; default 0.9.
    pub adaptive_decay: Rows<'a, f32>,
}

fn lower_updates(check: &Check, u: &RuleUpdates<'_>) -> Result<ffi::gumbel_rule_updates> {
    let row_entries = count_row_entries(&u.slots, u.batch);
    let drawn = strided_len(u.batch, 1, u.token_stride);
    let floats = |field, rows| check.rows_f32(field, rows, row_entries);
    let values =
        |field, view, stride| check.view_mut(field, view, strided_len(row_entries, 1, stride));
    Ok(ffi::gumbel_rule_updates {
        struct_size: size_of::<ffi::gumbel_rule_updates>(),
        batch: to_i64("updates.batch", u.batch)?,
        tokens: check.view("updates.tokens", &u.tokens, drawn)?,
        token_stride: to_i64("updates.token_stride", u.token_stride)?,
        logprobs: check.view("updates.logprobs", &u.logprobs, drawn)?,
        slots: check.slots("updates.slots", &u.slots, u.batch)?,
        live_rows: check.view("updates.live_rows", &u.live_rows, 1)?,
        surprise: values("updates.surprise", &u.surprise, u.surprise_stride)?,
        surprise_stride: to_i64("updates.surprise_stride", u.surprise_stride)?,
        surprise_target: floats("updates.surprise_target", &u.surprise_target)?,
        surprise_rate: floats("updates.surprise_rate", &u.surprise_rate)?,
        top_p: values("updates.top_p", &u.top_p, u.top_p_stride)?,
        top_p_stride: to_i64("updates.top_p_stride", u.top_p_stride)?,
        top_p_first: floats("updates.top_p_first", &u.top_p_first)?,
        top_p_decay: floats("updates.top_p_decay", &u.top_p_decay)?,
        top_p_min: floats("updates.top_p_min", &u.top_p_min)?,
        top_p_reset: check.rows_i32("updates.top_p_reset", &u.top_p_reset, row_entries)?,
        adaptive_target: values(
            "updates.adaptive_target",
            &u.adaptive_target,
            u.adaptive_target_stride,
        )?,
        adaptive_target_stride: to_i64("updates.adaptive_target_stride", u.adaptive_target_stride)?,
        adaptive_sum: values("updates.adaptive_sum", &u.adaptive_sum, u.adaptive_sum_stride)?,
        adaptive_sum_stride: to_i64("updates.adaptive_sum_stride", u.adaptive_sum_stride)?,
        adaptive_weight: values(
            "updates.adaptive_weight",
            &u.adaptive_weight,
            u.adaptive_weight_stride,
        )?,
        adaptive_weight_stride: to_i64("updates.adaptive_weight_stride", u.adaptive_weight_stride)?,
        adaptive_goal: floats("updates.adaptive_goal", &u.adaptive_goal)?,
        adaptive_decay: floats("updates.adaptive_decay", &u.adaptive_decay)?,
    })
}

impl Device {
    /// Changes row parameters after a draw.
    ///
    /// # Errors
    /// [`Status::Argument`](crate::Status::Argument): a view is smaller than its shape, or a value
    /// is out of range.
    pub fn update_rules(&self, updates: &mut RuleUpdates<'_>, stream: Stream) -> Result<()> {
        let lowered = lower_updates(&self.check(), updates)?;
        // SAFETY: every view has at least the elements of its shape.
        call_library(|error| unsafe {
            ffi::gumbel_update_rules(self.as_raw(), stream.0, &lowered, error)
        })
    }
}
