// SPDX-License-Identifier: Apache-2.0
//! Calls of a device for decode steps, summaries and noise.
use crate::device::{Device, Stream, Summary};
use crate::error::{call_library, Result};
use crate::ffi;
use crate::lowering::{
    count_row_entries, saturating_product, strided_len, to_i32, to_i64, Check, Shape,
};
use crate::lowering_calls::{RowCounts, SamplingC};
use crate::parameters::*;
use crate::views::{View, ViewMut};

impl Device {
    // ----------------------------------------------------------------------- decode steps ----

    /// Ends a decode step: stores its tokens in the ring buffer, if any, and advances positions by
    /// one.
    ///
    /// # Errors
    /// [`Status::Argument`](crate::Status::Argument): a view is smaller than its shape.
    pub fn advance(&self, step: &mut Step<'_>, stream: Stream) -> Result<()> {
        let lowered = self.check().step(step)?;
        // SAFETY: every view has at least the elements of its shape.
        call_library(|error| unsafe {
            ffi::gumbel_advance(self.as_raw(), stream.0, &lowered, error)
        })
    }

    /// Clears the histories of `batch` rows, then counts the tokens of `prompts` and `outputs`.
    pub fn history_start(
        &self,
        history: &mut History<'_>,
        batch: usize,
        slots: &Slots<'_>,
        prompts: &TokenLists<'_>,
        outputs: &TokenLists<'_>,
        stream: Stream,
    ) -> Result<()> {
        let check = self.check();
        let at = check.slots("slots", slots, batch)?;
        let into = check.history("history", history, count_row_entries(slots, batch))?;
        let before = check.lists("prompts", prompts, batch)?;
        let after = check.lists("outputs", outputs, batch)?;
        let rows = to_i64("batch", batch)?;
        // SAFETY: every view has at least the elements of its shape.
        call_library(|error| unsafe {
            ffi::gumbel_history_start(
                self.as_raw(),
                stream.0,
                &into,
                rows,
                &at,
                &before,
                &after,
                error,
            )
        })
    }

    /// Counts further output tokens of `batch` rows: the first `counts[b]` tokens of row b, or one
    /// token if `counts` is empty. Rows of `tokens` are `stride` elements apart.
    #[allow(clippy::too_many_arguments)]
    pub fn history_update<'a, 'b>(
        &self,
        history: &mut History<'_>,
        batch: usize,
        slots: &Slots<'_>,
        tokens: impl Into<View<'a, i32>>,
        stride: usize,
        counts: impl Into<View<'b, i32>>,
        stream: Stream,
    ) -> Result<()> {
        let (check, tokens, counts) = (self.check(), tokens.into(), counts.into());
        let at = check.slots("slots", slots, batch)?;
        let into = check.history("history", history, count_row_entries(slots, batch))?;
        let added = Added::new(&check, batch, &tokens, stride, &counts)?;
        let rows = to_i64("batch", batch)?;
        // SAFETY: every view has at least the elements of its shape.
        call_library(|error| unsafe {
            ffi::gumbel_history_update(
                self.as_raw(),
                stream.0,
                &into,
                rows,
                &at,
                added.tokens,
                added.stride,
                added.counts,
                error,
            )
        })
    }

    // -------------------------------------------------------------------------- summaries ----

    /// Merges `from[i]` into `into[i]`, for all i, in this device's memory.
    ///
    /// # Errors
    /// [`Status::Argument`](crate::Status::Argument): the views have different sizes.
    pub fn merge<'a, 'b>(
        &self,
        into: impl Into<ViewMut<'a, Summary>>,
        from: impl Into<View<'b, Summary>>,
        stream: Stream,
    ) -> Result<()> {
        let check = self.check();
        merge_with(self.as_raw(), check, &into.into(), &from.into(), stream)
    }

    /// Computes outputs from the summaries `[parts, B, S]` of all shards of a vocabulary.
    pub fn finish<'a>(
        &self,
        summaries: impl Into<View<'a, Summary>>,
        parts: usize,
        batch: usize,
        num_samples: usize,
        out: &mut Output<'_>,
        stream: Stream,
    ) -> Result<()> {
        let shape = (parts, batch, num_samples);
        finish_with(self.as_raw(), self.check(), &summaries.into(), shape, out, stream)
    }

    /// Precomputes the noise `[B, S, count]` of a step, for [`Sampling::noise`].
    ///
    /// `stride` is the number of elements from one draw's noise to the next; 0 means `count`.
    #[allow(clippy::too_many_arguments)]
    pub fn prepare_noise<'a>(
        &self,
        sampling: &Sampling<'_>,
        batch: usize,
        first_token: usize,
        count: usize,
        noise: impl Into<ViewMut<'a, f32>>,
        stride: usize,
        stream: Stream,
    ) -> Result<()> {
        let (check, noise) = (self.check(), noise.into());
        let mut sizes = Shape::new(batch, count, first_token);
        let counts = RowCounts { batch, row_entries: batch, mask_rows: None };
        let mut lowered = SamplingC::new(&check, sampling, &mut sizes, counts)?;
        let all = strided_len(sizes.draws(), count, stride);
        let into = check.required_mut("noise", &noise, all)?;
        let (rows, count) = (to_i64("batch", batch)?, to_i64("count", count)?);
        let (first, stride) = (to_i64("first_token", first_token)?, to_i64("stride", stride)?);
        let sampling = lowered.link();
        // SAFETY: every view has at least the elements of its shape.
        call_library(|error| unsafe {
            ffi::gumbel_prepare_noise(
                self.as_raw(),
                stream.0,
                sampling,
                rows,
                first,
                count,
                into,
                stride,
                error,
            )
        })
    }
}

/// The tokens that a call adds to `batch` rows.
pub(crate) struct Added {
    pub tokens: *const i32,
    pub stride: i64,
    pub counts: *const i32,
}

impl Added {
    pub fn new(
        check: &Check,
        batch: usize,
        tokens: &View<'_, i32>,
        stride: usize,
        counts: &View<'_, i32>,
    ) -> Result<Self> {
        let counts = check.view("counts", counts, batch)?;
        let stride = stride.max(1);
        let width = if counts.is_null() { 1 } else { stride };
        let tokens = check.required("tokens", tokens, strided_len(batch, width, stride))?;
        Ok(Added { tokens, stride: to_i64("stride", stride)?, counts })
    }
}

/// [`Device::merge`] on a device of the C interface; null: in host memory, without a device.
pub(crate) fn merge_with(
    device: *mut ffi::gumbel_device,
    check: Check,
    into: &ViewMut<'_, Summary>,
    from: &View<'_, Summary>,
    stream: Stream,
) -> Result<()> {
    let to = check.required_mut("into", into, from.len())?;
    let of = check.required("from", from, into.len())?;
    let count = to_i64("into", into.len())?;
    // SAFETY: both have equally many elements, in the device's memory.
    call_library(|error| unsafe { ffi::gumbel_merge(device, stream.0, to, of, count, error) })
}

/// [`Device::finish`] on a device of the C interface; null: in host memory, without a device.
pub(crate) fn finish_with(
    device: *mut ffi::gumbel_device,
    check: Check,
    summaries: &View<'_, Summary>,
    (parts, batch, num_samples): (usize, usize, usize),
    out: &mut Output<'_>,
    stream: Stream,
) -> Result<()> {
    let mut sizes = Shape::new(batch, 0, 0);
    sizes.samples = num_samples.max(1);
    let of = check.required("summaries", summaries, saturating_product(parts, sizes.draws()))?;
    let to = check.output(out, &sizes)?;
    let parts = to_i32("parts", parts)?;
    let (rows, samples) = (to_i64("batch", batch)?, to_i32("num_samples", num_samples)?);
    // SAFETY: every view has at least the elements of its shape.
    call_library(|error| unsafe {
        ffi::gumbel_finish(device, stream.0, of, parts, rows, samples, &to, error)
    })
}
