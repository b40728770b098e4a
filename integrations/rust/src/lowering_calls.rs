// SPDX-License-Identifier: Apache-2.0
//! Converts the arguments of whole calls to structs of the C interface.
use crate::drafts::{Draft, Verified};
use crate::error::Result;
use crate::ffi;
use crate::lowering::{
    count_mask_words, count_row_entries, saturating_product, strided_len, to_i32, to_i64, Check,
    Shape,
};
use crate::parameters::*;
use std::mem::size_of;
use std::ptr;

/// Numbers of entries of a call's parameters: `batch` token lists; `row_entries` values of a row
/// parameter, if there are no slots; and `mask_rows` mask rows, or as many as row entries if None.
#[derive(Clone, Copy)]
pub(crate) struct RowCounts {
    pub batch: usize,
    pub row_entries: usize,
    pub mask_rows: Option<usize>,
}

/// The C structs of a [`Sampling`]; link() sets the pointers between them.
#[derive(Clone, Copy, Default)]
pub(crate) struct SamplingC {
    sampling: ffi::gumbel_sampling,
    transforms: Option<ffi::gumbel_transforms>,
    truncation: Option<ffi::gumbel_truncation>,
    programs: Option<ffi::gumbel_programs>,
    history: Option<ffi::gumbel_history>,
}

impl SamplingC {
    /// Converts `sampling`, and sets the samples and row entries of `sizes`.
    pub fn new(
        check: &Check,
        sampling: &Sampling<'_>,
        sizes: &mut Shape,
        counts: RowCounts,
    ) -> Result<Self> {
        sizes.samples = sampling.num_samples.max(1);
        sizes.row_entries = count_row_entries(&sampling.slots, counts.row_entries);
        let row_entries = sizes.row_entries;
        let mut into = SamplingC::default();
        let given = strided_len(sizes.batch, sizes.samples, sampling.given_stride);
        let noise = strided_len(sizes.draws(), sizes.vocab, sampling.noise_stride);
        into.sampling = ffi::gumbel_sampling {
            struct_size: size_of::<ffi::gumbel_sampling>(),
            temperature: check.rows_f32(
                "sampling.temperature",
                &sampling.temperature,
                row_entries,
            )?,
            seed: check.rows_u64("sampling.seed", &sampling.seed, row_entries)?,
            position: check.rows_u64("sampling.position", &sampling.position, row_entries)?,
            first_sample: check.rows_u32(
                "sampling.first_sample",
                &sampling.first_sample,
                row_entries,
            )?,
            num_samples: to_i32("sampling.num_samples", sampling.num_samples)?,
            reserved: 0,
            transforms: ptr::null(),
            truncation: ptr::null(),
            slots: check.slots("sampling.slots", &sampling.slots, counts.batch)?,
            live_rows: check.view("sampling.live_rows", &sampling.live_rows, 1)?,
            given: ffi::gumbel_row_i32 {
                data: check.view("sampling.given", &sampling.given, given)?,
                stride: to_i64("sampling.given_stride", sampling.given_stride)?,
            },
            noise: check.view("sampling.noise", &sampling.noise, noise)?,
            noise_stride: to_i64("sampling.noise_stride", sampling.noise_stride)?,
            domain: sampling.domain,
            reserved2: 0,
            token_ids: check.view("sampling.token_ids", &sampling.token_ids, sizes.vocab)?,
        };
        if let Some(transforms) = &sampling.transforms {
            let mask_rows = counts.mask_rows.unwrap_or(row_entries);
            into.transforms =
                Some(lower_transforms(check, transforms, sizes, counts.batch, mask_rows)?);
            if let Some(history) = transforms.history {
                into.history =
                    Some(check.history("sampling.transforms.history", history, row_entries)?);
            }
        }
        if let Some(truncation) = &sampling.truncation {
            into.truncation = Some(lower_truncation(check, truncation, row_entries)?);
            if let Some(programs) = &truncation.programs {
                into.programs = Some(lower_programs(check, programs, counts.batch, row_entries)?);
            }
        }
        Ok(into)
    }

    /// Sets the pointers between the structs. The result is valid until `self` is moved.
    pub fn link(&mut self) -> *const ffi::gumbel_sampling {
        if let Some(transforms) = &mut self.transforms {
            if let Some(history) = &self.history {
                transforms.history = history;
            }
            self.sampling.transforms = transforms;
        }
        if let Some(truncation) = &mut self.truncation {
            if let Some(programs) = &self.programs {
                truncation.programs = programs;
            }
            self.sampling.truncation = truncation;
        }
        &self.sampling
    }
}

fn lower_transforms(
    check: &Check,
    t: &Transforms<'_>,
    sizes: &Shape,
    batch: usize,
    mask_rows: usize,
) -> Result<ffi::gumbel_transforms> {
    let row_entries = sizes.row_entries;
    let words = count_mask_words(sizes.tokens_end);
    let mask_rows = if t.mask.same { mask_rows.min(1) } else { mask_rows };
    let mask = strided_len(mask_rows, words, t.mask.stride);
    let lists = |field, lists| check.lists(field, lists, batch);
    let rows = |field, rows| check.rows_f32(field, rows, row_entries);
    Ok(ffi::gumbel_transforms {
        struct_size: size_of::<ffi::gumbel_transforms>(),
        mask: ffi::gumbel_row_i32 {
            data: check.view("sampling.transforms.mask", &t.mask.words, mask)?,
            stride: match t.mask.same {
                true => ffi::GUMBEL_SAME,
                false => to_i64("sampling.transforms.mask", t.mask.stride)?,
            },
        },
        allowed: lists("sampling.transforms.allowed", &t.allowed)?,
        banned: lists("sampling.transforms.banned", &t.banned)?,
        bias: lists("sampling.transforms.bias", &t.bias)?,
        repetition: rows("sampling.transforms.repetition", &t.repetition)?,
        frequency: rows("sampling.transforms.frequency", &t.frequency)?,
        presence: rows("sampling.transforms.presence", &t.presence)?,
        history: ptr::null(),
        prompt_tokens: lists("sampling.transforms.prompt_tokens", &t.prompt_tokens)?,
        output_tokens: lists("sampling.transforms.output_tokens", &t.output_tokens)?,
        late_bias: lists("sampling.transforms.late_bias", &t.late_bias)?,
        list_status: check.view("sampling.transforms.list_status", &t.list_status, batch)?,
        max_allowed: to_i64("sampling.transforms.max_allowed", t.max_allowed)?,
    })
}

fn lower_truncation(
    check: &Check,
    t: &Truncation<'_>,
    row_entries: usize,
) -> Result<ffi::gumbel_truncation> {
    Ok(ffi::gumbel_truncation {
        struct_size: size_of::<ffi::gumbel_truncation>(),
        min_p: check.rows_f32("sampling.truncation.min_p", &t.min_p, row_entries)?,
        top_k: check.rows_i32("sampling.truncation.top_k", &t.top_k, row_entries)?,
        top_p: check.rows_f32("sampling.truncation.top_p", &t.top_p, row_entries)?,
        order: t.order as i32,
        ties: t.ties as i32,
        programs: ptr::null(),
    })
}

fn lower_programs(
    check: &Check,
    p: &Programs<'_>,
    batch: usize,
    row_entries: usize,
) -> Result<ffi::gumbel_programs> {
    let rows = |field, rows| check.rows_f32(field, rows, row_entries);
    Ok(ffi::gumbel_programs {
        struct_size: size_of::<ffi::gumbel_programs>(),
        rules: p.rules.as_ptr().cast(),
        count: to_i32("programs.count", p.rules.len())?,
        reserved: 0,
        program: check.rows_i32("programs.program", &p.program, row_entries)?,
        min_keep: check.rows_i32("programs.min_keep", &p.min_keep, row_entries)?,
        temperature_range: rows("programs.temperature_range", &p.temperature_range)?,
        temperature_exponent: rows("programs.temperature_exponent", &p.temperature_exponent)?,
        typical_p: rows("programs.typical_p", &p.typical_p)?,
        top_n_sigma: rows("programs.top_n_sigma", &p.top_n_sigma)?,
        epsilon: rows("programs.epsilon", &p.epsilon)?,
        eta: rows("programs.eta", &p.eta)?,
        top_a: rows("programs.top_a", &p.top_a)?,
        surprise: rows("programs.surprise", &p.surprise)?,
        xtc_probability: rows("programs.xtc_probability", &p.xtc_probability)?,
        xtc_threshold: rows("programs.xtc_threshold", &p.xtc_threshold)?,
        xtc_keep: check.lists("programs.xtc_keep", &p.xtc_keep, batch)?,
        smoothing_factor: rows("programs.smoothing_factor", &p.smoothing_factor)?,
        smoothing_curve: rows("programs.smoothing_curve", &p.smoothing_curve)?,
        adaptive_target: rows("programs.adaptive_target", &p.adaptive_target)?,
    })
}

/// The C struct of a call's source of logits.
pub enum Source {
    Head(ffi::gumbel_head),
    Logits(ffi::gumbel_logits),
}

impl Source {
    /// Pointers to a head and to logits; one of them is null.
    pub fn pointers(&self) -> (*const ffi::gumbel_head, *const ffi::gumbel_logits) {
        match self {
            Source::Head(head) => (head, ptr::null()),
            Source::Logits(logits) => (ptr::null(), logits),
        }
    }
}

/// The source of a call's logits: a [`Head`] or [`Logits`]. No other type implements this trait.
pub trait Input: sealed::Sealed {}
impl Input for Head<'_> {}
impl Input for Logits<'_> {}

pub(crate) mod sealed {
    use super::*;

    pub trait Sealed {
        #[doc(hidden)]
        fn lower(&self, check: &Check) -> Result<(Source, Shape)>;
    }
    impl Sealed for Head<'_> {
        fn lower(&self, check: &Check) -> Result<(Source, Shape)> {
            check.head(self).map(|(head, sizes)| (Source::Head(head), sizes))
        }
    }
    impl Sealed for Logits<'_> {
        fn lower(&self, check: &Check) -> Result<(Source, Shape)> {
            check.logits(self).map(|(logits, sizes)| (Source::Logits(logits), sizes))
        }
    }
}

/// The C structs of a call that draws.
pub(crate) struct CallC {
    source: Source,
    sampling: SamplingC,
    output: Option<ffi::gumbel_output>,
    pub sizes: Shape,
}

/// Pointers to the structs of a [`CallC`]; `head` or `logits` is null.
pub(crate) struct CallPointers {
    pub head: *const ffi::gumbel_head,
    pub logits: *const ffi::gumbel_logits,
    pub sampling: *const ffi::gumbel_sampling,
    pub output: *const ffi::gumbel_output,
}

impl CallC {
    pub fn new(
        check: &Check,
        input: &impl Input,
        sampling: &Sampling<'_>,
        out: Option<&Output<'_>>,
    ) -> Result<Self> {
        let (source, mut sizes) = input.lower(check)?;
        let counts = RowCounts { batch: sizes.batch, row_entries: sizes.batch, mask_rows: None };
        let sampling = SamplingC::new(check, sampling, &mut sizes, counts)?;
        let output = out.map(|out| check.output(out, &sizes)).transpose()?;
        Ok(CallC { source, sampling, output, sizes })
    }

    /// Sets the pointers between the structs. The result is valid until `self` is moved.
    pub fn link(&mut self) -> CallPointers {
        let (head, logits) = self.source.pointers();
        CallPointers {
            head,
            logits,
            sampling: self.sampling.link(),
            output: self.output.as_ref().map_or(ptr::null(), |out| out),
        }
    }
}

/// The C structs of a verification.
pub(crate) struct VerifyC {
    source: Source,
    sampling: SamplingC,
    draft: ffi::gumbel_draft,
    head: Option<ffi::gumbel_head>,
    logits: Option<ffi::gumbel_logits>,
    proposal: Option<SamplingC>,
    verified: ffi::gumbel_verified,
    rows: Option<ffi::gumbel_output>,
}

/// Pointers to the structs of a [`VerifyC`]; `head` or `logits` is null.
pub(crate) struct VerifyPointers {
    pub head: *const ffi::gumbel_head,
    pub logits: *const ffi::gumbel_logits,
    pub sampling: *const ffi::gumbel_sampling,
    pub draft: *const ffi::gumbel_draft,
    pub verified: *const ffi::gumbel_verified,
}

impl VerifyC {
    pub fn new(
        check: &Check,
        input: &impl Input,
        sampling: &Sampling<'_>,
        draft: &Draft<'_>,
        out: &Verified<'_>,
    ) -> Result<Self> {
        let (source, mut sizes) = input.lower(check)?;
        let n = sizes.batch;
        let counts =
            RowCounts { batch: draft.requests, row_entries: draft.requests, mask_rows: Some(n) };
        let sampling = SamplingC::new(check, sampling, &mut sizes, counts)?;
        let draft_counts = RowCounts { row_entries: sizes.row_entries, ..counts };
        let mut own = sizes;
        let proposal = draft.sampling.as_ref();
        let proposal =
            proposal.map(|sampling| SamplingC::new(check, sampling, &mut own, draft_counts));
        let row_shape = Shape::new(n, 0, 0);
        Ok(VerifyC {
            source,
            sampling,
            draft: lower_draft(check, draft, n)?,
            head: match &draft.head {
                Some(head) => Some(check.head(head)?.0),
                None => None,
            },
            logits: match &draft.logits {
                Some(logits) => Some(check.logits(logits)?.0),
                None => None,
            },
            proposal: proposal.transpose()?,
            verified: lower_verified(check, out, draft, sizes.row_entries)?,
            rows: match &out.rows {
                Some(rows) => Some(check.output(rows, &row_shape)?),
                None => None,
            },
        })
    }

    /// Sets the pointers between the structs. The result is valid until `self` is moved.
    pub fn link(&mut self) -> VerifyPointers {
        if let Some(head) = &self.head {
            self.draft.head = head;
        }
        if let Some(logits) = &self.logits {
            self.draft.logits = logits;
        }
        if let Some(proposal) = &mut self.proposal {
            self.draft.sampling = proposal.link();
        }
        if let Some(rows) = &self.rows {
            self.verified.rows = rows;
        }
        let (head, logits) = self.source.pointers();
        VerifyPointers {
            head,
            logits,
            sampling: self.sampling.link(),
            draft: &self.draft,
            verified: &self.verified,
        }
    }
}

pub(crate) fn lower_draft(check: &Check, d: &Draft<'_>, n: usize) -> Result<ffi::gumbel_draft> {
    Ok(ffi::gumbel_draft {
        struct_size: size_of::<ffi::gumbel_draft>(),
        requests: to_i64("draft.requests", d.requests)?,
        max_nodes: to_i32("draft.max_nodes", d.max_nodes)?,
        rule: d.rule as i32,
        tokens: check.view("draft.tokens", &d.tokens, n)?,
        offsets: check.view("draft.offsets", &d.offsets, d.requests.saturating_add(1))?,
        nodes: check.view("draft.nodes", &d.nodes, d.requests)?,
        parents: check.view("draft.parents", &d.parents, n)?,
        limit: check.view("draft.limit", &d.limit, d.requests)?,
        stop: check.lists("draft.stop", &d.stop, d.requests)?,
        head: ptr::null(),
        logits: ptr::null(),
        sampling: ptr::null(),
        lse: check.view("draft.lse", &d.lse, n)?,
        logprobs: check.view("draft.logprobs", &d.logprobs, n)?,
        node_position: check.view("draft.node_position", &d.node_position, n)?,
    })
}

fn lower_verified(
    check: &Check,
    v: &Verified<'_>,
    draft: &Draft<'_>,
    row_entries: usize,
) -> Result<ffi::gumbel_verified> {
    let (requests, most) = (draft.requests, draft.max_nodes);
    let all = saturating_product(requests, most);
    Ok(ffi::gumbel_verified {
        struct_size: size_of::<ffi::gumbel_verified>(),
        tokens: check.view_mut("verified.tokens", &v.tokens, all)?,
        emitted: check.view_mut("verified.emitted", &v.emitted, requests)?,
        accepted: check.view_mut("verified.accepted", &v.accepted, requests)?,
        path: check.view_mut("verified.path", &v.path, all)?,
        last_row: check.view_mut("verified.last_row", &v.last_row, requests)?,
        position: check.view_mut("verified.position", &v.position, row_entries)?,
        finished: check.view_mut("verified.finished", &v.finished, requests)?,
        status: check.view_mut("verified.status", &v.status, requests)?,
        logprobs: check.view_mut("verified.logprobs", &v.logprobs, all)?,
        scores: check.view_mut("verified.scores", &v.scores, all)?,
        histogram: check.view_mut("verified.histogram", &v.histogram, most)?,
        rows: ptr::null(),
    })
}
