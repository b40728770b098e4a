// SPDX-License-Identifier: Apache-2.0
//! Draws of random shapes succeed if slices have exactly the elements of their shapes, and fail if
//! one slice is one element short. A memory checker detects reads beyond slices.
mod problem;

use gumbel::{
    Counts, DeviceOptions, Head, History, Logits, Mask, Output, Sampling, Slots, Status, Stream,
    Tensor, TokenLists, Transforms, Truncation, ViewMut,
};
use problem::{space, values};

/// Random choices; makes one slice of a problem one element short.
struct Chooser {
    state: u64,
    short: usize,
    seen: usize,
    shortened: bool,
}

impl Chooser {
    fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 33) as usize % end
    }
    fn often(&mut self) -> bool {
        self.below(3) > 0
    }
    /// Number of elements of the next slice; an empty slice cannot be short.
    fn len(&mut self, needed: usize) -> usize {
        self.seen += 1;
        if self.seen != self.short || needed == 0 {
            return needed;
        }
        self.shortened = true;
        needed - 1
    }
    fn floats(&mut self, needed: usize) -> Vec<f32> {
        values(self.len(needed))
    }
    fn of<T: Clone>(&mut self, value: T, needed: usize) -> Vec<T> {
        vec![value; self.len(needed)]
    }
}

fn optional<T>(wanted: bool, memory: &mut [T]) -> ViewMut<'_, T> {
    if wanted {
        memory.into()
    } else {
        ViewMut::default()
    }
}

/// Features of a draw, which determine the sizes of its slices.
struct Features {
    fused: bool,
    biased: bool,
    slotted: bool,
    transformed: bool,
    truncated: bool,
    listed: bool,
}

/// Draws once; returns whether the draw succeeded, and whether a slice was short.
fn draw_at_random(device: &gumbel::Device, seed: u64, short: usize) -> (bool, bool) {
    let mut c = Chooser { state: seed, short, seen: 0, shortened: false };
    let (b, v, d, s) = (1 + c.below(5), 1 + c.below(130), 1 + c.below(20), 1 + c.below(3));
    let (first, gap, top) = (c.below(2) * 64, c.below(3), c.below(4));
    let features = Features {
        fused: c.often(),
        biased: c.often(),
        slotted: c.often(),
        transformed: c.often(),
        truncated: c.often(),
        listed: c.often(),
    };
    let places = if features.slotted { b + 2 } else { b };
    let words = (first + v + 31) / 32;
    // Slices of unused features have no elements, and cannot be short.
    let of = |wanted: bool, elements: usize| if wanted { elements } else { 0 };

    let hidden = c.floats(of(features.fused, (b - 1) * (d + gap) + d));
    let weight = c.floats(of(features.fused, v * d));
    let bias = c.floats(of(features.fused && features.biased, v));
    let scores = c.floats(of(!features.fused, b * v));
    let mut head =
        Head::new(Tensor::float32(&hidden, b, d).strided(d + gap), Tensor::float32(&weight, v, d));
    if features.biased {
        head.bias = Tensor::float32(&bias, 1, v);
    }
    head.first_token = first;
    let mut logits = Logits::new(Tensor::float32(&scores, b, v));
    logits.first_token = first;

    let penalised = of(features.transformed, places);
    let (mut prompt, mut output) = (c.of(0u32, penalised * 3), c.of(0u32, penalised * 3));
    let mut counts = c.of(0u16, penalised * 90);
    let history = History {
        vocab_size: 90,
        prompt: (&mut prompt).into(),
        output: (&mut output).into(),
        counts: Counts::Bits16((&mut counts).into()),
    };
    let (masks, penalties) = (c.of(-1, penalised * words), c.of(1.2f32, penalised));
    let (mut offsets, ids) =
        (c.of(0i64, of(features.transformed, b + 1)), c.of(1 << 20, of(features.transformed, 2)));
    if let Some(end) = offsets.get_mut(b) {
        *end = 2;
    }
    let transforms = Transforms {
        mask: Mask { words: (&masks).into(), ..Mask::default() },
        banned: TokenLists {
            offsets: (&offsets).into(),
            ids: (&ids).into(),
            ..TokenLists::default()
        },
        repetition: (&penalties).into(),
        history: Some(&history),
        ..Transforms::default()
    };
    let truncations = of(features.truncated, places);
    let (min_p, top_k) = (c.of(0.01f32, truncations), c.of(9i32, truncations));
    let truncation =
        Truncation { min_p: (&min_p).into(), top_k: (&top_k).into(), ..Truncation::default() };
    let of_row = c.of(1i32, of(features.slotted, b));
    let slots = Slots { of_row: (&of_row).into(), count: places };
    let (temperatures, seeds) = (c.of(0.7f32, places), c.of(3u64, places));
    let (positions, counters) = (c.of(5u64, places), c.of(6u32, places));
    let how = Sampling {
        temperature: (&temperatures).into(),
        seed: (&seeds).into(),
        position: (&positions).into(),
        first_sample: (&counters).into(),
        num_samples: s,
        transforms: Some(transforms).filter(|_| features.transformed),
        truncation: Some(truncation).filter(|_| features.truncated),
        slots: Some(slots).filter(|_| features.slotted).unwrap_or_default(),
        ..Sampling::default()
    };

    let (mut tokens, mut status) = (c.of(-2, b * s), c.of(-1, b));
    let (mut logprobs, mut lse) =
        (c.of(0.0, of(features.listed, b * s)), c.of(0.0, of(features.listed, b)));
    let mut top_ids = c.of(-2, of(features.listed, b * top));
    let mut out = Output {
        tokens: (&mut tokens).into(),
        status: (&mut status).into(),
        logprobs: optional(features.listed, &mut logprobs),
        lse: optional(features.listed, &mut lse),
        top_ids: optional(features.listed, &mut top_ids),
        num_top: top,
        ..Output::default()
    };
    let mut room = space(1 << 20);
    let done = if features.fused {
        device.sample(&head, &how, &mut out, &mut room, Stream::NONE)
    } else {
        device.sample(&logits, &how, &mut out, &mut room, Stream::NONE)
    };
    if let Err(error) = &done {
        assert_eq!(error.status(), Status::Argument, "{}", error);
    }
    (done.is_ok(), c.shortened)
}

#[test]
fn a_draw_succeeds_where_no_slice_is_short() {
    let options = DeviceOptions { threads: 1, ..DeviceOptions::default() };
    let device = gumbel::Device::open(options).unwrap();
    let (mut succeeded, mut refused) = (0, 0);
    for seed in 0..2000 {
        for short in [0, 1 + seed as usize % 21] {
            let (done, shortened) = draw_at_random(&device, seed, short);
            assert_eq!(done, !shortened, "seed {}, slice {}", seed, short);
            succeeded += done as usize;
            refused += shortened as usize;
        }
    }
    assert!(succeeded > 2000 && refused > 1000, "{} {}", succeeded, refused);
}
