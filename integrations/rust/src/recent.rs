// SPDX-License-Identifier: Apache-2.0
//! Rings of recent tokens.
use crate::device::{Device, Stream};
use crate::error::{call_library, Result};
use crate::ffi;
use crate::lowering::{count_row_entries, saturating_product, to_i64, Check};
use crate::parameters::*;
use crate::steps::Added;
use crate::views::{Rows, View, ViewMut};
use std::mem::size_of;

/// The last tokens of each row, from which [`Device::make_lists`] makes lists.
#[derive(Debug, Default)]
pub struct Recent<'a> {
    /// Tokens that a ring keeps, 1 to 2^30.
    pub capacity: usize,
    /// `[B or slots, capacity]`: token i of a row is at `i % capacity`.
    pub tokens: ViewMut<'a, i32>,
    /// `[B or slots]`: tokens of each row so far, also those that the ring no longer has.
    pub count: ViewMut<'a, u64>,
    /// Receives the counts of the last `window` tokens; only the calls of this ring may change it.
    pub history: Option<History<'a>>,
    /// The number of last tokens that the history counts; default 64, or `capacity` if smaller.
    pub window: Rows<'a, i32>,
}

/// The C structs of a [`Recent`]; link() sets the pointer between them.
pub(crate) struct RecentC {
    recent: ffi::gumbel_recent,
    history: Option<ffi::gumbel_history>,
}

impl RecentC {
    pub fn new(check: &Check, recent: &Recent<'_>, row_entries: usize) -> Result<Self> {
        let all = saturating_product(row_entries, recent.capacity);
        let history = match &recent.history {
            Some(history) => Some(check.history("recent.history", history, row_entries)?),
            None => None,
        };
        let recent = ffi::gumbel_recent {
            struct_size: size_of::<ffi::gumbel_recent>(),
            capacity: to_i64("recent.capacity", recent.capacity)?,
            tokens: check.required_mut("recent.tokens", &recent.tokens, all)?,
            count: check.required_mut("recent.count", &recent.count, row_entries)?,
            history: std::ptr::null(),
            window: check.rows_i32("recent.window", &recent.window, row_entries)?,
        };
        Ok(RecentC { recent, history })
    }

    /// Sets the pointer between the structs. The result is valid until `self` is moved.
    pub fn link(&mut self) -> *const ffi::gumbel_recent {
        if let Some(history) = &self.history {
            self.recent.history = history;
        }
        &self.recent
    }
}

impl Device {
    /// Empties the rings of `batch` rows, then appends the tokens of `prompts` and `outputs`.
    ///
    /// # Errors
    /// [`Status::Argument`](crate::Status::Argument): a view is smaller than its shape, or a value
    /// is out of range.
    pub fn recent_start(
        &self,
        recent: &mut Recent<'_>,
        batch: usize,
        slots: &Slots<'_>,
        prompts: &TokenLists<'_>,
        outputs: &TokenLists<'_>,
        stream: Stream,
    ) -> Result<()> {
        let check = self.check();
        let at = check.slots("slots", slots, batch)?;
        let mut into = RecentC::new(&check, recent, count_row_entries(slots, batch))?;
        let before = check.lists("prompts", prompts, batch)?;
        let after = check.lists("outputs", outputs, batch)?;
        let (rows, into) = (to_i64("batch", batch)?, into.link());
        // SAFETY: every view has at least the elements of its shape.
        call_library(|error| unsafe {
            ffi::gumbel_recent_start(
                self.as_raw(),
                stream.0,
                into,
                rows,
                &at,
                &before,
                &after,
                error,
            )
        })
    }

    /// Appends tokens to the rings of `batch` rows: the first `counts[b]` tokens of row b, or one
    /// token if `counts` is empty. Rows of `tokens` are `stride` elements apart.
    #[allow(clippy::too_many_arguments)]
    pub fn recent_append<'a, 'b>(
        &self,
        recent: &mut Recent<'_>,
        batch: usize,
        slots: &Slots<'_>,
        tokens: impl Into<View<'a, i32>>,
        stride: usize,
        counts: impl Into<View<'b, i32>>,
        stream: Stream,
    ) -> Result<()> {
        let (check, tokens, counts) = (self.check(), tokens.into(), counts.into());
        let at = check.slots("slots", slots, batch)?;
        let mut into = RecentC::new(&check, recent, count_row_entries(slots, batch))?;
        let added = Added::new(&check, batch, &tokens, stride, &counts)?;
        let (rows, into) = (to_i64("batch", batch)?, into.link());
        // SAFETY: every view has at least the elements of its shape.
        call_library(|error| unsafe {
            ffi::gumbel_recent_append(
                self.as_raw(),
                stream.0,
                into,
                rows,
                &at,
                added.tokens,
                added.stride,
                added.counts,
                error,
            )
        })
    }
}
