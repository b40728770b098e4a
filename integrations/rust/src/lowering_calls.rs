// SPDX-License-Identifier: Apache-2.0
//! Conversion of whole calls to structs of the C interface.
use crate::drafts::{Draft, Verified};
use crate::error::Result;
use crate::ffi;
use crate::lowering::{int32, int64, places_of, times, words_of, Check, Shape};
use crate::parameters::*;
use std::mem::size_of;
use std::ptr;

/// Numbers of rows of a sampling's parameters: `batch` rows of lists, `places` row parameters if it
/// has no slots, and `mask_rows` rows of a mask; absent: as many as places.
#[derive(Clone, Copy)]
pub(crate) struct RowsOf {
    pub batch: usize,
    pub places: usize,
    pub mask_rows: Option<usize>,
}

/// A sampling's structs; link() sets their pointers to each other.
#[derive(Clone, Copy, Default)]
pub(crate) struct SamplingC {
    sampling: ffi::gumbel_sampling,
    transforms: Option<ffi::gumbel_transforms>,
    truncation: Option<ffi::gumbel_truncation>,
    history: Option<ffi::gumbel_history>,
}

impl SamplingC {
    /// Sets the samples and places of `sizes`.
    pub fn new(to: &Check, how: &Sampling<'_>, sizes: &mut Shape, of: RowsOf) -> Result<Self> {
        sizes.samples = how.num_samples.max(1);
        sizes.places = places_of(&how.slots, of.places);
        let places = sizes.places;
        let mut into = SamplingC::default();
        let given = crate::lowering::extent(sizes.batch, sizes.samples, how.given_stride);
        let noise = crate::lowering::extent(sizes.draws(), sizes.vocab, how.noise_stride);
        into.sampling = ffi::gumbel_sampling {
            struct_size: size_of::<ffi::gumbel_sampling>(),
            temperature: to.rows_f32("sampling.temperature", &how.temperature, places)?,
            seed: to.rows_u64("sampling.seed", &how.seed, places)?,
            position: to.rows_u64("sampling.position", &how.position, places)?,
            first_sample: to.rows_u32("sampling.first_sample", &how.first_sample, places)?,
            num_samples: int32("sampling.num_samples", how.num_samples)?,
            reserved: 0,
            transforms: ptr::null(),
            truncation: ptr::null(),
            slots: to.slots("sampling.slots", &how.slots, of.batch)?,
            live_rows: to.view("sampling.live_rows", &how.live_rows, 1)?,
            given: ffi::gumbel_row_i32 {
                data: to.view("sampling.given", &how.given, given)?,
                stride: int64("sampling.given_stride", how.given_stride)?,
            },
            noise: to.view("sampling.noise", &how.noise, noise)?,
            noise_stride: int64("sampling.noise_stride", how.noise_stride)?,
            domain: how.domain,
            reserved2: 0,
        };
        if let Some(transforms) = &how.transforms {
            let mask_rows = of.mask_rows.unwrap_or(places);
            into.transforms = Some(transforms_of(to, transforms, sizes, of.batch, mask_rows)?);
            if let Some(history) = transforms.history {
                into.history = Some(to.history("sampling.transforms.history", history, places)?);
            }
        }
        if let Some(truncation) = &how.truncation {
            into.truncation = Some(truncation_of(to, truncation, places)?);
        }
        Ok(into)
    }

    /// The C struct, valid until this one is moved.
    pub fn link(&mut self) -> *const ffi::gumbel_sampling {
        if let Some(transforms) = &mut self.transforms {
            if let Some(history) = &self.history {
                transforms.history = history;
            }
            self.sampling.transforms = transforms;
        }
        if let Some(truncation) = &self.truncation {
            self.sampling.truncation = truncation;
        }
        &self.sampling
    }
}

fn transforms_of(
    to: &Check,
    t: &Transforms<'_>,
    sizes: &Shape,
    batch: usize,
    mask_rows: usize,
) -> Result<ffi::gumbel_transforms> {
    let places = sizes.places;
    let words = words_of(sizes.tokens_end);
    let mask_rows = if t.mask.same { mask_rows.min(1) } else { mask_rows };
    let mask = crate::lowering::extent(mask_rows, words, t.mask.stride);
    let lists = |field, of| to.lists(field, of, batch);
    let rows = |field, of| to.rows_f32(field, of, places);
    Ok(ffi::gumbel_transforms {
        struct_size: size_of::<ffi::gumbel_transforms>(),
        mask: ffi::gumbel_row_i32 {
            data: to.view("sampling.transforms.mask", &t.mask.words, mask)?,
            stride: match t.mask.same {
                true => ffi::GUMBEL_SAME,
                false => int64("sampling.transforms.mask", t.mask.stride)?,
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
    })
}

fn truncation_of(to: &Check, t: &Truncation<'_>, places: usize) -> Result<ffi::gumbel_truncation> {
    Ok(ffi::gumbel_truncation {
        struct_size: size_of::<ffi::gumbel_truncation>(),
        min_p: to.rows_f32("sampling.truncation.min_p", &t.min_p, places)?,
        top_k: to.rows_i32("sampling.truncation.top_k", &t.top_k, places)?,
        top_p: to.rows_f32("sampling.truncation.top_p", &t.top_p, places)?,
        order: t.order as i32,
        ties: t.ties as i32,
    })
}

/// The source of a call's logits.
pub enum WayIn {
    Head(ffi::gumbel_head),
    Logits(ffi::gumbel_logits),
}

impl WayIn {
    /// Pointers to a head and to logits; one of them is null.
    pub fn pointers(&self) -> (*const ffi::gumbel_head, *const ffi::gumbel_logits) {
        match self {
            WayIn::Head(head) => (head, ptr::null()),
            WayIn::Logits(logits) => (ptr::null(), logits),
        }
    }
}

/// The source of a call's logits: a [`Head`] or [`Logits`].
pub trait Input: sealed::Sealed {}
impl Input for Head<'_> {}
impl Input for Logits<'_> {}

pub(crate) mod sealed {
    use super::*;

    pub trait Sealed {
        #[doc(hidden)]
        fn lower(&self, to: &Check) -> Result<(WayIn, Shape)>;
    }
    impl Sealed for Head<'_> {
        fn lower(&self, to: &Check) -> Result<(WayIn, Shape)> {
            to.head(self).map(|(head, sizes)| (WayIn::Head(head), sizes))
        }
    }
    impl Sealed for Logits<'_> {
        fn lower(&self, to: &Check) -> Result<(WayIn, Shape)> {
            to.logits(self).map(|(logits, sizes)| (WayIn::Logits(logits), sizes))
        }
    }
}

/// The structs of a call that draws.
pub(crate) struct CallC {
    way_in: WayIn,
    sampling: SamplingC,
    output: Option<ffi::gumbel_output>,
    pub sizes: Shape,
}

/// Pointers to what it is given.
pub(crate) struct CallPointers {
    pub head: *const ffi::gumbel_head,
    pub logits: *const ffi::gumbel_logits,
    pub sampling: *const ffi::gumbel_sampling,
    pub output: *const ffi::gumbel_output,
}

impl CallC {
    pub fn new(
        to: &Check,
        input: &impl Input,
        how: &Sampling<'_>,
        out: Option<&Output<'_>>,
    ) -> Result<Self> {
        let (way_in, mut sizes) = input.lower(to)?;
        let of = RowsOf { batch: sizes.batch, places: sizes.batch, mask_rows: None };
        let sampling = SamplingC::new(to, how, &mut sizes, of)?;
        let output = out.map(|out| to.output(out, &sizes)).transpose()?;
        Ok(CallC { way_in, sampling, output, sizes })
    }

    /// Pointers that are valid until this call is moved.
    pub fn link(&mut self) -> CallPointers {
        let (head, logits) = self.way_in.pointers();
        CallPointers {
            head,
            logits,
            sampling: self.sampling.link(),
            output: self.output.as_ref().map_or(ptr::null(), |out| out),
        }
    }
}

/// The structs of a verification.
pub(crate) struct VerifyC {
    way_in: WayIn,
    sampling: SamplingC,
    draft: ffi::gumbel_draft,
    head: Option<ffi::gumbel_head>,
    logits: Option<ffi::gumbel_logits>,
    proposal: Option<SamplingC>,
    verified: ffi::gumbel_verified,
    rows: Option<ffi::gumbel_output>,
}

/// Pointers to what it is given.
pub(crate) struct VerifyPointers {
    pub head: *const ffi::gumbel_head,
    pub logits: *const ffi::gumbel_logits,
    pub sampling: *const ffi::gumbel_sampling,
    pub draft: *const ffi::gumbel_draft,
    pub verified: *const ffi::gumbel_verified,
}

impl VerifyC {
    pub fn new(
        to: &Check,
        input: &impl Input,
        how: &Sampling<'_>,
        draft: &Draft<'_>,
        out: &Verified<'_>,
    ) -> Result<Self> {
        let (way_in, mut sizes) = input.lower(to)?;
        let n = sizes.batch;
        let of = RowsOf { batch: draft.requests, places: draft.requests, mask_rows: Some(n) };
        let sampling = SamplingC::new(to, how, &mut sizes, of)?;
        let of_draft = RowsOf { places: sizes.places, ..of };
        let mut own = sizes;
        let proposal = draft.sampling.as_ref();
        let proposal = proposal.map(|how| SamplingC::new(to, how, &mut own, of_draft));
        let of_rows = Shape::new(n, 0, 0);
        Ok(VerifyC {
            way_in,
            sampling,
            draft: draft_of(to, draft, n)?,
            head: match &draft.head {
                Some(head) => Some(to.head(head)?.0),
                None => None,
            },
            logits: match &draft.logits {
                Some(logits) => Some(to.logits(logits)?.0),
                None => None,
            },
            proposal: proposal.transpose()?,
            verified: verified_of(to, out, draft, sizes.places)?,
            rows: match &out.rows {
                Some(rows) => Some(to.output(rows, &of_rows)?),
                None => None,
            },
        })
    }

    /// Pointers that are valid until this call is moved.
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
        let (head, logits) = self.way_in.pointers();
        VerifyPointers {
            head,
            logits,
            sampling: self.sampling.link(),
            draft: &self.draft,
            verified: &self.verified,
        }
    }
}

fn draft_of(to: &Check, d: &Draft<'_>, n: usize) -> Result<ffi::gumbel_draft> {
    Ok(ffi::gumbel_draft {
        struct_size: size_of::<ffi::gumbel_draft>(),
        requests: int64("draft.requests", d.requests)?,
        max_nodes: int32("draft.max_nodes", d.max_nodes)?,
        rule: d.rule as i32,
        tokens: to.view("draft.tokens", &d.tokens, n)?,
        offsets: to.view("draft.offsets", &d.offsets, d.requests.saturating_add(1))?,
        nodes: to.view("draft.nodes", &d.nodes, d.requests)?,
        parents: to.view("draft.parents", &d.parents, n)?,
        limit: to.view("draft.limit", &d.limit, d.requests)?,
        stop: to.lists("draft.stop", &d.stop, d.requests)?,
        head: ptr::null(),
        logits: ptr::null(),
        sampling: ptr::null(),
        lse: to.view("draft.lse", &d.lse, n)?,
        logprobs: to.view("draft.logprobs", &d.logprobs, n)?,
    })
}

fn verified_of(
    to: &Check,
    v: &Verified<'_>,
    draft: &Draft<'_>,
    places: usize,
) -> Result<ffi::gumbel_verified> {
    let (requests, most) = (draft.requests, draft.max_nodes);
    let all = times(requests, most);
    Ok(ffi::gumbel_verified {
        struct_size: size_of::<ffi::gumbel_verified>(),
        tokens: to.view_mut("verified.tokens", &v.tokens, all)?,
        emitted: to.view_mut("verified.emitted", &v.emitted, requests)?,
        accepted: to.view_mut("verified.accepted", &v.accepted, requests)?,
        path: to.view_mut("verified.path", &v.path, all)?,
        last_row: to.view_mut("verified.last_row", &v.last_row, requests)?,
        position: to.view_mut("verified.position", &v.position, places)?,
        finished: to.view_mut("verified.finished", &v.finished, requests)?,
        status: to.view_mut("verified.status", &v.status, requests)?,
        logprobs: to.view_mut("verified.logprobs", &v.logprobs, all)?,
        scores: to.view_mut("verified.scores", &v.scores, all)?,
        histogram: to.view_mut("verified.histogram", &v.histogram, most)?,
        rows: ptr::null(),
    })
}
