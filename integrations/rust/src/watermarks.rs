// SPDX-License-Identifier: Apache-2.0
//! Watermarks of drawn tokens, and their detection; `watermark.h` documents each field.
use crate::device::{Device, Stream};
use crate::drafts::Draft;
use crate::error::{call_library, Error, Result};
use crate::ffi;
use crate::lowering::{count_row_entries, strided_len, to_i32, to_i64, Check};
use crate::lowering_calls::lower_draft;
use crate::parameters::Slots;
use crate::recent::{Recent, RecentC};
use crate::views::{Rows, View, ViewMut};
use std::mem::size_of;

/// Watermarks of rows, or of the requests of a draft.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watermark<'a> {
    /// `[B or slots, 2]`, at `key_stride` elements; `[2]` with `one_key`: secret keys of 128 random
    /// bits.
    pub key: View<'a, u64>,
    /// Elements from one row's key to the next; 0 means 2.
    pub key_stride: usize,
    /// One key for all rows.
    pub one_key: bool,
    /// Tokens that determine the noise of the next, 0 to 16; 0: no watermark; default 4.
    pub context: Rows<'a, i32>,
    /// Tokens of the ring before the text, such as its prompt; default 0.
    pub text_start: Rows<'a, u64>,
    /// The request's own seed, as in [`Sampling`](crate::Sampling).
    pub seed: Rows<'a, u64>,
    /// The position of the token after the ring, as in [`Sampling`](crate::Sampling).
    pub position: Rows<'a, u64>,
    /// Slots, as in [`Sampling`](crate::Sampling); no slot twice.
    pub slots: Slots<'a>,
    /// Number of live rows, as in [`Sampling`](crate::Sampling).
    pub live_rows: View<'a, i32>,
    /// `[B]` rows of `num_drafts` tokens after the ring, at `draft_stride` elements, for drafters.
    pub drafts: View<'a, i32>,
    /// Elements from one row's drafts to the next; 0 means `num_drafts`.
    pub draft_stride: usize,
    /// Number of drafts of each row.
    pub num_drafts: usize,
}

/// Where [`Device::watermark_rows`] and [`Device::watermark_nodes`] write.
#[derive(Debug, Default)]
pub struct WatermarkDraws<'a> {
    /// `[B or slots]`: the seeds of the draws.
    pub seed: ViewMut<'a, u64>,
    /// `[B or slots]`; for nodes `[n]`: the positions of the draws.
    pub position: ViewMut<'a, u64>,
    /// `[B]`; for nodes `[n]`; optional: 1 if the draw is watermarked.
    pub watermarked: ViewMut<'a, i32>,
}

/// The watermark that [`detect_watermark`] searches for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Detector {
    /// The secret key.
    pub key: [u64; 2],
    /// The context of the watermark, 1 to 16; 0 means 4.
    pub context: usize,
    /// The draw's `first_sample`.
    pub sample: u32,
    /// The draw's `domain`.
    pub domain: u32,
    /// Tokens before this one are not scored.
    pub first: usize,
}

/// The result of [`detect_watermark`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detection {
    /// Number of scored tokens.
    pub scored: usize,
    /// The sum of their scores; its mean is `scored` without a watermark.
    pub statistic: f64,
    /// The probability of this sum or more in a text that does not depend on the key.
    pub p_value: f64,
    /// Its decimal logarithm, also where `p_value` is 0.
    pub log10_p: f64,
}

fn lower_watermark(
    check: &Check,
    w: &Watermark<'_>,
    batch: usize,
    row_entries: usize,
) -> Result<ffi::gumbel_watermark> {
    let keys = if w.one_key { 2 } else { strided_len(row_entries, 2, w.key_stride) };
    let numbers = |field, rows| check.rows_u64(field, rows, row_entries);
    let drafted = strided_len(batch, w.num_drafts, w.draft_stride);
    Ok(ffi::gumbel_watermark {
        struct_size: size_of::<ffi::gumbel_watermark>(),
        key: check.view("watermark.key", &w.key, keys)?,
        key_stride: if w.one_key { -1 } else { to_i64("watermark.key_stride", w.key_stride)? },
        context: check.rows_i32("watermark.context", &w.context, row_entries)?,
        text_start: numbers("watermark.text_start", &w.text_start)?,
        seed: numbers("watermark.seed", &w.seed)?,
        position: numbers("watermark.position", &w.position)?,
        slots: check.slots("watermark.slots", &w.slots, batch)?,
        live_rows: check.view("watermark.live_rows", &w.live_rows, 1)?,
        drafts: check.view("watermark.drafts", &w.drafts, drafted)?,
        draft_stride: to_i64("watermark.draft_stride", w.draft_stride)?,
        num_drafts: to_i32("watermark.num_drafts", w.num_drafts)?,
        reserved: 0,
    })
}

/// `positions` and `rows` are the lengths of the positions and of `watermarked`.
fn lower_draws(
    check: &Check,
    d: &WatermarkDraws<'_>,
    row_entries: usize,
    positions: usize,
    rows: usize,
) -> Result<ffi::gumbel_watermark_draws> {
    Ok(ffi::gumbel_watermark_draws {
        struct_size: size_of::<ffi::gumbel_watermark_draws>(),
        seed: check.view_mut("draws.seed", &d.seed, row_entries)?,
        position: check.view_mut("draws.position", &d.position, positions)?,
        watermarked: check.view_mut("draws.watermarked", &d.watermarked, rows)?,
    })
}

impl Device {
    /// Writes the seed and position with which the next token of each of `batch` rows is drawn.
    ///
    /// # Errors
    /// [`Status::Argument`](crate::Status::Argument): a view is smaller than its shape, or a value
    /// is out of range. Nothing is written.
    pub fn watermark_rows(
        &self,
        watermark: &Watermark<'_>,
        recent: &Recent<'_>,
        batch: usize,
        draws: &mut WatermarkDraws<'_>,
        stream: Stream,
    ) -> Result<()> {
        let (check, row_entries) = (self.check(), count_row_entries(&watermark.slots, batch));
        let by = lower_watermark(&check, watermark, batch, row_entries)?;
        let mut rings = RecentC::new(&check, recent, row_entries)?;
        let into = lower_draws(&check, draws, row_entries, row_entries, batch)?;
        let (rows, of) = (to_i64("batch", batch)?, rings.link());
        // SAFETY: every view has at least the elements of its shape.
        call_library(|error| unsafe {
            ffi::gumbel_watermark_rows(self.as_raw(), stream.0, &by, of, rows, &into, error)
        })
    }

    /// Writes the positions with which [`Device::verify`](crate::Device::verify) draws the nodes of
    /// a draft, for [`Draft::node_position`]; `rows` is n, the rows of the verification. Only the
    /// tokens, offsets, nodes and parents of the draft are used.
    ///
    /// # Errors
    /// As [`Device::watermark_rows`].
    pub fn watermark_nodes(
        &self,
        watermark: &Watermark<'_>,
        recent: &Recent<'_>,
        draft: &Draft<'_>,
        rows: usize,
        draws: &mut WatermarkDraws<'_>,
        stream: Stream,
    ) -> Result<()> {
        let (check, requests) = (self.check(), draft.requests);
        let row_entries = count_row_entries(&watermark.slots, requests);
        let by = lower_watermark(&check, watermark, requests, row_entries)?;
        let mut rings = RecentC::new(&check, recent, row_entries)?;
        let at = lower_draft(&check, draft, rows)?;
        let into = lower_draws(&check, draws, row_entries, rows, rows)?;
        let (rows, of) = (to_i64("rows", rows)?, rings.link());
        // SAFETY: every view has at least the elements of its shape.
        call_library(|error| unsafe {
            ffi::gumbel_watermark_nodes(self.as_raw(), stream.0, &by, of, &at, rows, &into, error)
        })
    }
}

/// Searches for the watermark of a key in a text. `scores` is `[tokens.len()]`, or empty; it
/// receives the score of each token, NaN for tokens without one.
///
/// # Errors
/// [`Status::Argument`](crate::Status::Argument): a token or a field of the detector is out of
/// range, or `scores` has another length.
pub fn detect_watermark(
    detector: &Detector,
    tokens: &[i32],
    scores: &mut [f64],
) -> Result<Detection> {
    if !scores.is_empty() && scores.len() != tokens.len() {
        let message = format!("it has {} elements, {} are required", scores.len(), tokens.len());
        return Err(Error::argument("scores", message));
    }
    let with = ffi::gumbel_detector {
        struct_size: size_of::<ffi::gumbel_detector>(),
        key: detector.key,
        context: to_i32("detector.context", detector.context)?,
        sample: detector.sample,
        domain: detector.domain,
        reserved: 0,
        first: to_i64("detector.first", detector.first)?,
    };
    let mut found = ffi::gumbel_detection {
        struct_size: size_of::<ffi::gumbel_detection>(),
        ..ffi::gumbel_detection::default()
    };
    let into = if scores.is_empty() { std::ptr::null_mut() } else { scores.as_mut_ptr() };
    let count = to_i64("tokens", tokens.len())?;
    // SAFETY: `scores` is NULL or has as many elements as `tokens`.
    call_library(|error| unsafe {
        ffi::gumbel_detect_watermark(&with, tokens.as_ptr(), count, into, &mut found, error)
    })?;
    Ok(Detection {
        scored: found.scored as usize,
        statistic: found.statistic,
        p_value: found.p_value,
        log10_p: found.log10_p,
    })
}
