// SPDX-License-Identifier: Apache-2.0
//! Converts Rust structs to C structs. Views that are smaller than their shape, and memory of the
//! wrong kind of device, are errors here; the C call checks everything else.
use crate::error::{Error, Result};
use crate::ffi;
use crate::parameters::*;
use crate::row_lists::Sequences;
use crate::views::{MatrixMut, Memory, Rows, Space, Tensor, View, ViewMut};
use std::mem::size_of;
use std::os::raw::c_void;
use std::ptr;

pub(crate) fn saturating_product(a: usize, b: usize) -> usize {
    a.saturating_mul(b)
}

/// Number of elements that `rows` rows of `width` elements span; a `stride` of 0 means `width`.
pub(crate) fn strided_len(rows: usize, width: usize, stride: usize) -> usize {
    if rows == 0 || width == 0 {
        return 0;
    }
    let stride = if stride == 0 { width } else { stride };
    saturating_product(rows - 1, stride).saturating_add(width)
}

pub(crate) fn count_mask_words(tokens: usize) -> usize {
    tokens / 32 + (tokens % 32 != 0) as usize
}

pub(crate) fn to_i64(field: &str, size: usize) -> Result<i64> {
    i64::try_from(size).map_err(|_| Error::argument(field, format!("{} is too large", size)))
}

pub(crate) fn to_i32(field: &str, size: usize) -> Result<i32> {
    i32::try_from(size).map_err(|_| Error::argument(field, format!("{} is too large", size)))
}

/// Sizes of a call: B, S, V, first_token + V, and the number of row parameters (B, or slots).
#[derive(Clone, Copy, Default)]
pub struct Shape {
    pub batch: usize,
    pub samples: usize,
    pub vocab: usize,
    pub tokens_end: usize,
    pub row_entries: usize,
}

impl Shape {
    pub fn new(batch: usize, vocab: usize, first_token: usize) -> Self {
        Shape {
            batch,
            samples: 1,
            vocab,
            tokens_end: first_token.saturating_add(vocab),
            row_entries: batch,
        }
    }
    pub fn draws(&self) -> usize {
        saturating_product(self.batch, self.samples)
    }
}

/// Number of entries of row parameters: the number of slots, or B without slots.
pub(crate) fn count_row_entries(slots: &Slots<'_>, batch: usize) -> usize {
    match slots.of_row.memory() {
        Memory::Absent => batch,
        _ => slots.count,
    }
}

/// Which checks a call requires: `host` if its device uses host memory, `reads` if the call follows
/// pointers, so that sizes matter.
#[derive(Clone, Copy)]
pub struct Check {
    pub host: bool,
    pub reads: bool,
}

impl Check {
    pub fn check_view(&self, field: &str, memory: Memory, has: usize, needed: usize) -> Result<()> {
        match (memory, self.host) {
            (Memory::Host, false) => {
                Err(Error::argument(field, "in host memory, but this device is a GPU"))
            }
            (Memory::Device, true) => {
                Err(Error::argument(field, "in GPU memory, but this device is a CPU"))
            }
            _ if self.reads && has < needed => Err(Error::argument(
                field,
                format!("it has {} elements, {} are required", has, needed),
            )),
            _ => Ok(()),
        }
    }

    /// The pointer of a view that must have `needed` elements.
    pub fn required<T>(&self, field: &str, view: &View<'_, T>, needed: usize) -> Result<*const T> {
        self.check_view(field, view.memory(), view.len(), needed)?;
        Ok(view.pointer())
    }
    pub fn required_mut<T>(
        &self,
        field: &str,
        view: &ViewMut<'_, T>,
        needed: usize,
    ) -> Result<*mut T> {
        self.check_view(field, view.memory(), view.len(), needed)?;
        Ok(view.pointer())
    }

    /// The pointer of a view that must be empty, or have `needed` elements.
    pub fn view<T>(&self, field: &str, view: &View<'_, T>, needed: usize) -> Result<*const T> {
        match view.memory() {
            Memory::Absent => Ok(ptr::null()),
            _ => self.required(field, view, needed),
        }
    }
    pub fn view_mut<T>(&self, field: &str, view: &ViewMut<'_, T>, needed: usize) -> Result<*mut T> {
        match view.memory() {
            Memory::Absent => Ok(ptr::null_mut()),
            _ => self.required_mut(field, view, needed),
        }
    }

    pub fn space(&self, space: &Space<'_>) -> Result<()> {
        self.check_view("workspace", space.memory, 0, 0)
    }

    pub fn tensor(&self, field: &str, t: &Tensor<'_>) -> Result<ffi::gumbel_tensor> {
        if t.memory != Memory::Absent {
            self.check_view(field, t.memory, t.len, strided_len(t.rows, t.cols, t.stride))?;
        }
        Ok(ffi::gumbel_tensor {
            data: t.data,
            dtype: t.dtype as i32,
            rows: to_i64(field, t.rows)?,
            cols: to_i64(field, t.cols)?,
            stride: to_i64(field, t.stride)?,
            reserved: [0; 2],
        })
    }

    /// Pointer and stride of a row parameter with `row_entries` rows or slots.
    fn rows<T>(
        &self,
        field: &str,
        rows: &Rows<'_, T>,
        row_entries: usize,
    ) -> Result<(*const T, i64)> {
        match rows {
            Rows::Default => Ok((ptr::null(), 0)),
            Rows::Value(value) => {
                self.check_view(field, Memory::Host, 1, 1)?;
                Ok((value, ffi::GUMBEL_SAME))
            }
            Rows::Each(view) => Ok((self.view(field, view, row_entries)?, 0)),
            Rows::Same(view) => Ok((self.view(field, view, 1)?, ffi::GUMBEL_SAME)),
            Rows::Strided(view, stride) => {
                let data = self.view(field, view, strided_len(row_entries, 1, *stride))?;
                Ok((data, to_i64(field, *stride)?))
            }
        }
    }

    pub fn rows_f32(
        &self,
        field: &str,
        rows: &Rows<'_, f32>,
        row_entries: usize,
    ) -> Result<ffi::gumbel_row_f32> {
        let (data, stride) = self.rows(field, rows, row_entries)?;
        Ok(ffi::gumbel_row_f32 { data, stride })
    }

    pub fn rows_i32(
        &self,
        field: &str,
        rows: &Rows<'_, i32>,
        row_entries: usize,
    ) -> Result<ffi::gumbel_row_i32> {
        let (data, stride) = self.rows(field, rows, row_entries)?;
        Ok(ffi::gumbel_row_i32 { data, stride })
    }

    pub fn rows_u32(
        &self,
        field: &str,
        rows: &Rows<'_, u32>,
        row_entries: usize,
    ) -> Result<ffi::gumbel_row_u32> {
        let (data, stride) = self.rows(field, rows, row_entries)?;
        Ok(ffi::gumbel_row_u32 { data, stride })
    }

    pub fn rows_u64(
        &self,
        field: &str,
        rows: &Rows<'_, u64>,
        row_entries: usize,
    ) -> Result<ffi::gumbel_row_u64> {
        let (data, stride) = self.rows(field, rows, row_entries)?;
        Ok(ffi::gumbel_row_u64 { data, stride })
    }

    pub fn slots(&self, field: &str, slots: &Slots<'_>, batch: usize) -> Result<ffi::gumbel_slots> {
        Ok(ffi::gumbel_slots {
            of_row: self.view(field, &slots.of_row, batch)?,
            count: to_i64(field, slots.count)?,
        })
    }

    pub fn lists(
        &self,
        field: &str,
        lists: &TokenLists<'_>,
        batch: usize,
    ) -> Result<ffi::gumbel_token_lists> {
        let has = lists.ids.len();
        let into = ffi::gumbel_token_lists {
            offsets: self.view(field, &lists.offsets, batch.saturating_add(1))?,
            ids: self.view(field, &lists.ids, 0)?,
            values: self.view(field, &lists.values, has)?,
            reserved: 0,
        };
        if let (true, Some(offsets)) = (self.reads, lists.offsets.on_host()) {
            for &end in &offsets[..=batch] {
                if end > 0 && end as u64 > has as u64 {
                    let text = format!("it has {} ids, an offset is {}", has, end);
                    return Err(Error::argument(field, text));
                }
            }
        }
        Ok(into)
    }

    pub fn sequences(
        &self,
        field: &str,
        sequences: &Sequences<'_>,
        batch: usize,
    ) -> Result<ffi::gumbel_sequences> {
        let has = sequences.ids.len();
        if let (true, Some(offsets)) = (self.reads, sequences.offsets.on_host()) {
            for &end in offsets {
                if end > 0 && end as u64 > has as u64 {
                    let text = format!("it has {} ids, an offset is {}", has, end);
                    return Err(Error::argument(field, text));
                }
            }
        }
        Ok(ffi::gumbel_sequences {
            offsets: self.view(field, &sequences.offsets, 1)?,
            ids: self.view(field, &sequences.ids, 0)?,
            count: to_i64(field, sequences.offsets.len().saturating_sub(1))?,
            of_row: self.view(field, &sequences.of_row, batch.saturating_add(1))?,
            reserved: 0,
        })
    }

    pub fn history(
        &self,
        field: &str,
        history: &History<'_>,
        row_entries: usize,
    ) -> Result<ffi::gumbel_history> {
        let words = saturating_product(row_entries, count_mask_words(history.vocab_size));
        let all = saturating_product(row_entries, history.vocab_size);
        match &history.counts {
            Counts::Bits16(view) => self.check_view(field, view.memory(), view.len(), all)?,
            Counts::Bits32(view) => self.check_view(field, view.memory(), view.len(), all)?,
        }
        let (counts, count_bits) = history.counts_raw();
        Ok(ffi::gumbel_history {
            struct_size: size_of::<ffi::gumbel_history>(),
            vocab_size: to_i64(field, history.vocab_size)?,
            prompt: self.required_mut(field, &history.prompt, words)?,
            output: self.required_mut(field, &history.output, words)?,
            counts,
            count_bits,
            reserved: 0,
        })
    }

    pub fn head(&self, head: &Head<'_>) -> Result<(ffi::gumbel_head, Shape)> {
        let into = ffi::gumbel_head {
            struct_size: size_of::<ffi::gumbel_head>(),
            hidden: self.tensor("head.hidden", &head.hidden)?,
            weight: self.tensor("head.weight", &head.weight)?,
            bias: self.tensor("head.bias", &head.bias)?,
            scale: head.scale,
            soft_cap: head.soft_cap,
            first_token: to_i64("head.first_token", head.first_token)?,
            vocab_size: to_i64("head.vocab_size", head.vocab_size)?,
            screen: ffi::gumbel_screen { data: std::ptr::null_mut(), bytes: 0, format: 0 },
        };
        let sizes = Shape::new(head.hidden.rows, head.weight.rows, head.first_token);
        Ok((into, sizes))
    }

    pub fn logits(&self, logits: &Logits<'_>) -> Result<(ffi::gumbel_logits, Shape)> {
        let into = ffi::gumbel_logits {
            struct_size: size_of::<ffi::gumbel_logits>(),
            logits: self.tensor("logits.values", &logits.values)?,
            scale: logits.scale,
            soft_cap: logits.soft_cap,
            first_token: to_i64("logits.first_token", logits.first_token)?,
            vocab_size: to_i64("logits.vocab_size", logits.vocab_size)?,
        };
        let sizes = Shape::new(logits.values.rows, logits.values.cols, logits.first_token);
        Ok((into, sizes))
    }

    pub fn output(&self, out: &Output<'_>, sizes: &Shape) -> Result<ffi::gumbel_output> {
        let (rows, draws) = (sizes.batch, sizes.draws());
        let top = saturating_product(rows, out.num_top);
        let best = saturating_product(rows, out.num_best);
        let places = saturating_product(rows, out.kept_capacity);
        Ok(ffi::gumbel_output {
            struct_size: size_of::<ffi::gumbel_output>(),
            tokens: self.view_mut("output.tokens", &out.tokens, draws)?,
            logprobs: self.view_mut("output.logprobs", &out.logprobs, draws)?,
            scores: self.view_mut("output.scores", &out.scores, draws)?,
            lse: self.view_mut("output.lse", &out.lse, rows)?,
            status: self.view_mut("output.status", &out.status, rows)?,
            ranks: self.view_mut("output.ranks", &out.ranks, draws)?,
            kept: self.view_mut("output.kept", &out.kept, rows)?,
            top_ids: self.view_mut("output.top_ids", &out.top_ids, top)?,
            top_logprobs: self.view_mut("output.top_logprobs", &out.top_logprobs, top)?,
            num_top: to_i32("output.num_top", out.num_top)?,
            logprobs_of: out.logprobs_of as i32,
            top_logits: self.view_mut("output.top_logits", &out.top_logits, top)?,
            best_ids: self.view_mut("output.best_ids", &out.best_ids, best)?,
            best_scores: self.view_mut("output.best_scores", &out.best_scores, best)?,
            num_best: to_i32("output.num_best", out.num_best)?,
            kept_capacity: to_i32("output.kept_capacity", out.kept_capacity)?,
            kept_ids: self.view_mut("output.kept_ids", &out.kept_ids, places)?,
            kept_logprobs: self.view_mut("output.kept_logprobs", &out.kept_logprobs, places)?,
            entropy: self.view_mut("output.entropy", &out.entropy, rows)?,
        })
    }

    pub fn matrix(
        &self,
        field: &str,
        m: &MatrixMut<'_>,
        rows: usize,
        cols: usize,
    ) -> Result<*mut c_void> {
        if (m.rows, m.cols) != (rows, cols) {
            let text = format!("it is [{}, {}], not [{}, {}]", m.rows, m.cols, rows, cols);
            return Err(Error::argument(field, text));
        }
        self.check_view(field, m.memory, m.len, strided_len(rows, cols, m.stride))?;
        Ok(m.data)
    }

    pub fn step(&self, step: &Step<'_>) -> Result<ffi::gumbel_step> {
        let samples = step.num_samples.max(1);
        let row_entries = count_row_entries(&step.slots, step.batch);
        let (positions, stride) = if step.position_same {
            (1, ffi::GUMBEL_SAME)
        } else {
            let all = strided_len(row_entries, 1, step.position_stride);
            (all, to_i64("step.position_stride", step.position_stride)?)
        };
        let of_ring =
            saturating_product(step.ring_length, saturating_product(row_entries, samples));
        Ok(ffi::gumbel_step {
            struct_size: size_of::<ffi::gumbel_step>(),
            batch: to_i64("step.batch", step.batch)?,
            num_samples: to_i32("step.num_samples", samples)?,
            reserved: 0,
            tokens: self.view(
                "step.tokens",
                &step.tokens,
                saturating_product(step.batch, samples),
            )?,
            position: self.view_mut("step.position", &step.position, positions)?,
            position_stride: stride,
            ring: self.view_mut("step.ring", &step.ring, of_ring)?,
            ring_length: to_i64("step.ring_length", step.ring_length)?,
            slots: self.slots("step.slots", &step.slots, step.batch)?,
            live_rows: self.view("step.live_rows", &step.live_rows, 1)?,
        })
    }
}
