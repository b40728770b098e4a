// SPDX-License-Identifier: Apache-2.0
//! Token lists that follow from rings of recent tokens.
use crate::device::{Device, Stream};
use crate::error::{call_library, Result};
use crate::ffi;
use crate::lowering::{count_row_entries, saturating_product, to_i64, Check};
use crate::parameters::*;
use crate::recent::{Recent, RecentC};
use crate::views::{Rows, View, ViewMut};
use std::mem::size_of;
use std::ptr;

/// Sequences of tokens: sequence k is `ids[offsets[k]..offsets[k + 1]]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sequences<'a> {
    /// `[count + 1]`, optional, increasing. Empty: no sequences.
    pub offsets: View<'a, i64>,
    /// Token ids.
    pub ids: View<'a, i32>,
    /// `[B + 1]`, optional: row b has the sequences `of_row[b]..of_row[b + 1]`. Empty: all rows
    /// have all.
    pub of_row: View<'a, i64>,
}

/// The rules of [`Device::make_lists`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ListRules<'a> {
    /// DRY: the bias of a token that continues a repetition, >= 0; default 0, off.
    pub dry_multiplier: Rows<'a, f32>,
    /// The growth of this bias for each token of the repetition; off below 1; default 1.75.
    pub dry_base: Rows<'a, f32>,
    /// The shortest repetition that has a bias, >= 0; default 2.
    pub dry_allowed_length: Rows<'a, i32>,
    /// The number of last tokens that DRY reads; -1: all, the default.
    pub dry_last_n: Rows<'a, i32>,
    /// Sequences at which repetitions end, sorted by the first id.
    pub dry_breakers: Sequences<'a>,
    /// No sequence of this many tokens occurs twice, >= 0; default 0, off.
    pub ngram_size: Rows<'a, i32>,
    /// The number of last tokens that hold it; -1: all, the default.
    pub ngram_window: Rows<'a, i32>,
    /// Tokens that `ngram_size` does not ban.
    pub ngram_keep: TokenLists<'a>,
    /// Sequences whose last token is banned after the tokens before it.
    pub bad_words: Sequences<'a>,
    /// The step in the row's sequence; default 0.
    pub position: Rows<'a, u64>,
    /// `stop_tokens` are banned before this position; default 0, off.
    pub min_position: Rows<'a, u64>,
    /// Tokens that end a text.
    pub stop_tokens: TokenLists<'a>,
}

/// Where [`Device::make_lists`] writes. Ids are distinct and ascending; unused places have the id
/// `i32::MAX`. [`Transforms`] takes the lists as `banned`, `late_bias` and `list_status`.
#[derive(Debug, Default)]
pub struct RowLists<'a> {
    /// Places of a row in each list, 1 to 2048.
    pub capacity: usize,
    /// `[B + 1]`: offsets of both lists.
    pub offsets: ViewMut<'a, i64>,
    /// `[B, capacity]`; optional if the rules are DRY alone.
    pub banned: ViewMut<'a, i32>,
    /// `[B, capacity]`; optional without DRY.
    pub late_ids: ViewMut<'a, i32>,
    /// `[B, capacity]`, with `late_ids`.
    pub late_values: ViewMut<'a, f32>,
    /// `[B]`, each a [`RowStatus`](crate::RowStatus).
    pub status: ViewMut<'a, i32>,
}

fn lower_rules(
    check: &Check,
    r: &ListRules<'_>,
    batch: usize,
    row_entries: usize,
) -> Result<ffi::gumbel_list_rules> {
    let floats = |field, rows| check.rows_f32(field, rows, row_entries);
    let integers = |field, rows| check.rows_i32(field, rows, row_entries);
    let positions = |field, rows| check.rows_u64(field, rows, row_entries);
    Ok(ffi::gumbel_list_rules {
        struct_size: size_of::<ffi::gumbel_list_rules>(),
        dry_multiplier: floats("rules.dry_multiplier", &r.dry_multiplier)?,
        dry_base: floats("rules.dry_base", &r.dry_base)?,
        dry_allowed_length: integers("rules.dry_allowed_length", &r.dry_allowed_length)?,
        dry_last_n: integers("rules.dry_last_n", &r.dry_last_n)?,
        dry_breakers: check.sequences("rules.dry_breakers", &r.dry_breakers, batch)?,
        ngram_size: integers("rules.ngram_size", &r.ngram_size)?,
        ngram_window: integers("rules.ngram_window", &r.ngram_window)?,
        ngram_keep: check.lists("rules.ngram_keep", &r.ngram_keep, batch)?,
        bad_words: check.sequences("rules.bad_words", &r.bad_words, batch)?,
        position: positions("rules.position", &r.position)?,
        min_position: positions("rules.min_position", &r.min_position)?,
        stop_tokens: check.lists("rules.stop_tokens", &r.stop_tokens, batch)?,
    })
}

fn lower_lists(check: &Check, l: &RowLists<'_>, batch: usize) -> Result<ffi::gumbel_row_lists> {
    let all = saturating_product(batch, l.capacity);
    Ok(ffi::gumbel_row_lists {
        struct_size: size_of::<ffi::gumbel_row_lists>(),
        capacity: to_i64("lists.capacity", l.capacity)?,
        offsets: check.view_mut("lists.offsets", &l.offsets, batch.saturating_add(1))?,
        banned: check.view_mut("lists.banned", &l.banned, all)?,
        late_ids: check.view_mut("lists.late_ids", &l.late_ids, all)?,
        late_values: check.view_mut("lists.late_values", &l.late_values, all)?,
        status: check.view_mut("lists.status", &l.status, batch)?,
    })
}

impl Device {
    /// Writes the lists of `batch` rows for the next draw. `recent` may be None if the only rule is
    /// `min_position`.
    ///
    /// # Errors
    /// [`Status::Argument`](crate::Status::Argument): a view is smaller than its shape, or a value
    /// is out of range. The lists are unchanged.
    pub fn make_lists(
        &self,
        rules: &ListRules<'_>,
        recent: Option<&Recent<'_>>,
        batch: usize,
        slots: &Slots<'_>,
        lists: &mut RowLists<'_>,
        stream: Stream,
    ) -> Result<()> {
        let (check, row_entries) = (self.check(), count_row_entries(slots, batch));
        let at = check.slots("slots", slots, batch)?;
        let by = lower_rules(&check, rules, batch, row_entries)?;
        let mut rings = match recent {
            Some(recent) => Some(RecentC::new(&check, recent, row_entries)?),
            None => None,
        };
        let of = rings.as_mut().map_or(ptr::null(), RecentC::link);
        let (rows, into) = (to_i64("batch", batch)?, lower_lists(&check, lists, batch)?);
        // SAFETY: every view has at least the elements of its shape.
        call_library(|error| unsafe {
            ffi::gumbel_make_lists(self.as_raw(), stream.0, &by, of, rows, &at, &into, error)
        })
    }
}
