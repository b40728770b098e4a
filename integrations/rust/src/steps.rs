// SPDX-License-Identifier: Apache-2.0
//! Other calls of a device: decode steps, summaries, noise.
use crate::device::{Device, Stream, Summary};
use crate::error::{call, Result};
use crate::ffi;
use crate::lowering::{extent, int32, int64, places_of, times, Check, Shape};
use crate::lowering_calls::{RowsOf, SamplingC};
use crate::parameters::*;
use crate::views::{View, ViewMut};

impl Device {
    // ----------------------------------------------------------------------- decode steps ----

    /// Store the tokens of a decode step in the ring buffer, and advance positions.
    pub fn advance(&self, step: &mut Step<'_>, stream: Stream) -> Result<()> {
        let to = self.check().step(step)?;
        // SAFETY: every view has at least the elements of its shape.
        call(|error| unsafe { ffi::gumbel_advance(self.as_raw(), stream.0, &to, error) })
    }

    /// Clear the histories of `batch` rows, then count prompts and outputs.
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
        let into = check.history("history", history, places_of(slots, batch))?;
        let before = check.lists("prompts", prompts, batch)?;
        let after = check.lists("outputs", outputs, batch)?;
        let rows = int64("batch", batch)?;
        // SAFETY: every view has at least the elements of its shape.
        call(|error| unsafe {
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

    /// Count further output tokens: the first `counts` (absent: one) of each of `batch` rows of
    /// `tokens`. Rows are `stride` elements apart.
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
        let into = check.history("history", history, places_of(slots, batch))?;
        let many = check.view("counts", &counts, batch)?;
        let stride = stride.max(1);
        let width = if many.is_null() { 1 } else { stride };
        let of = check.required("tokens", &tokens, extent(batch, width, stride))?;
        let (rows, stride) = (int64("batch", batch)?, int64("stride", stride)?);
        // SAFETY: every view has at least the elements of its shape.
        call(|error| unsafe {
            ffi::gumbel_history_update(
                self.as_raw(),
                stream.0,
                &into,
                rows,
                &at,
                of,
                stride,
                many,
                error,
            )
        })
    }

    // -------------------------------------------------------------------------- summaries ----

    /// `into[i] = merge(into[i], from[i])`, in this device's memory; both have equal sizes.
    pub fn merge<'a, 'b>(
        &self,
        into: impl Into<ViewMut<'a, Summary>>,
        from: impl Into<View<'b, Summary>>,
        stream: Stream,
    ) -> Result<()> {
        let check = self.check();
        merge_by(self.as_raw(), check, &into.into(), &from.into(), stream)
    }

    /// Convert the summaries `[parts, B, S]` of all shards of a vocabulary to outputs.
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
        finish_by(self.as_raw(), self.check(), &summaries.into(), shape, out, stream)
    }

    /// Precompute the noise `[B, S, count]` of a step, with `stride` elements for each draw; 0:
    /// `count`.
    #[allow(clippy::too_many_arguments)]
    pub fn prepare_noise<'a>(
        &self,
        how: &Sampling<'_>,
        batch: usize,
        first_token: usize,
        count: usize,
        noise: impl Into<ViewMut<'a, f32>>,
        stride: usize,
        stream: Stream,
    ) -> Result<()> {
        let (check, noise) = (self.check(), noise.into());
        let mut sizes = Shape::new(batch, count, first_token);
        let of = RowsOf { batch, places: batch, mask_rows: None };
        let mut to = SamplingC::new(&check, how, &mut sizes, of)?;
        let all = extent(sizes.draws(), count, stride);
        let into = check.required_mut("noise", &noise, all)?;
        let (rows, count) = (int64("batch", batch)?, int64("count", count)?);
        let (first, stride) = (int64("first_token", first_token)?, int64("stride", stride)?);
        let sampling = to.link();
        // SAFETY: every view has at least the elements of its shape.
        call(|error| unsafe {
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

/// [`Device::merge`] for summaries in host memory, without a device.
pub(crate) fn merge_by(
    device: *mut ffi::gumbel_device,
    check: Check,
    into: &ViewMut<'_, Summary>,
    from: &View<'_, Summary>,
    stream: Stream,
) -> Result<()> {
    let to = check.required_mut("into", into, from.len())?;
    let of = check.required("from", from, into.len())?;
    let count = int64("into", into.len())?;
    // SAFETY: both have equally many elements, in the device's memory.
    call(|error| unsafe { ffi::gumbel_merge(device, stream.0, to, of, count, error) })
}

/// [`Device::finish`] for summaries `[parts, B, S]` in host memory, without a device.
pub(crate) fn finish_by(
    device: *mut ffi::gumbel_device,
    check: Check,
    summaries: &View<'_, Summary>,
    (parts, batch, num_samples): (usize, usize, usize),
    out: &mut Output<'_>,
    stream: Stream,
) -> Result<()> {
    let mut sizes = Shape::new(batch, 0, 0);
    sizes.samples = num_samples.max(1);
    let of = check.required("summaries", summaries, times(parts, sizes.draws()))?;
    let to = check.output(out, &sizes)?;
    let parts = int32("parts", parts)?;
    let (rows, samples) = (int64("batch", batch)?, int32("num_samples", num_samples)?);
    // SAFETY: every view has at least the elements of its shape.
    call(|error| unsafe {
        ffi::gumbel_finish(device, stream.0, of, parts, rows, samples, &to, error)
    })
}
