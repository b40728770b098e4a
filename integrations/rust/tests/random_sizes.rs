// SPDX-License-Identifier: Apache-2.0
//! Draws of random shapes, whose slices have exactly the elements that the shapes say, succeed;
//! with one element less in any of them they are refused. A checker of memory finds what reads
//! beyond.
mod problem;

use gumbel::{
    Counts, DeviceOptions, Head, History, Logits, Mask, Output, Sampling, Slots, Status, Stream,
    Tensor, TokenLists, Transforms, Truncation, ViewMut,
};
use problem::{space, values};

/// Random choices, and one slice of a problem that is an element short.
struct Chooser {
    state: u64,
    short: usize,
    seen: usize,
    cut: bool,
}

impl Chooser {
    fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 33) as usize % end
    }
    fn often(&mut self) -> bool {
        self.below(3) > 0
    }
    /// How many elements the next slice gets; a slice that needs none cannot be short.
    fn len(&mut self, needed: usize) -> usize {
        self.seen += 1;
        if self.seen != self.short || needed == 0 {
            return needed;
        }
        self.cut = true;
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

/// What a draw asks for, of which the slices are sized.
struct Asked {
    fused: bool,
    biased: bool,
    slotted: bool,
    transformed: bool,
    truncated: bool,
    listed: bool,
}

/// Draw once; whether it succeeded, and whether a slice was short.
fn draw_at_random(device: &gumbel::Device, seed: u64, short: usize) -> (bool, bool) {
    let mut c = Chooser { state: seed, short, seen: 0, cut: false };
    let (b, v, d, s) = (1 + c.below(5), 1 + c.below(130), 1 + c.below(20), 1 + c.below(3));
    let (first, gap, top) = (c.below(2) * 64, c.below(3), c.below(4));
    let asked = Asked {
        fused: c.often(),
        biased: c.often(),
        slotted: c.often(),
        transformed: c.often(),
        truncated: c.often(),
        listed: c.often(),
    };
    let places = if asked.slotted { b + 2 } else { b };
    let words = (first + v + 31) / 32;
    // What is not asked for has no elements, and none to be short of.
    let of = |wanted: bool, elements: usize| if wanted { elements } else { 0 };

    let hidden = c.floats(of(asked.fused, (b - 1) * (d + gap) + d));
    let weight = c.floats(of(asked.fused, v * d));
    let bias = c.floats(of(asked.fused && asked.biased, v));
    let scores = c.floats(of(!asked.fused, b * v));
    let mut head =
        Head::new(Tensor::float32(&hidden, b, d).strided(d + gap), Tensor::float32(&weight, v, d));
    if asked.biased {
        head.bias = Tensor::float32(&bias, 1, v);
    }
    head.first_token = first;
    let mut logits = Logits::new(Tensor::float32(&scores, b, v));
    logits.first_token = first;

    let penalised = of(asked.transformed, places);
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
        (c.of(0i64, of(asked.transformed, b + 1)), c.of(1 << 20, of(asked.transformed, 2)));
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
    let cuts = of(asked.truncated, places);
    let (min_p, top_k) = (c.of(0.01f32, cuts), c.of(9i32, cuts));
    let truncation =
        Truncation { min_p: (&min_p).into(), top_k: (&top_k).into(), ..Truncation::default() };
    let of_row = c.of(1i32, of(asked.slotted, b));
    let slots = Slots { of_row: (&of_row).into(), count: places };
    let (temperatures, seeds) = (c.of(0.7f32, places), c.of(3u64, places));
    let (positions, counters) = (c.of(5u64, places), c.of(6u32, places));
    let how = Sampling {
        temperature: (&temperatures).into(),
        seed: (&seeds).into(),
        position: (&positions).into(),
        first_sample: (&counters).into(),
        num_samples: s,
        transforms: Some(transforms).filter(|_| asked.transformed),
        truncation: Some(truncation).filter(|_| asked.truncated),
        slots: Some(slots).filter(|_| asked.slotted).unwrap_or_default(),
        ..Sampling::default()
    };

    let (mut tokens, mut status) = (c.of(-2, b * s), c.of(-1, b));
    let (mut logprobs, mut lse) =
        (c.of(0.0, of(asked.listed, b * s)), c.of(0.0, of(asked.listed, b)));
    let mut top_ids = c.of(-2, of(asked.listed, b * top));
    let mut out = Output {
        tokens: (&mut tokens).into(),
        status: (&mut status).into(),
        logprobs: optional(asked.listed, &mut logprobs),
        lse: optional(asked.listed, &mut lse),
        top_ids: optional(asked.listed, &mut top_ids),
        num_top: top,
        ..Output::default()
    };
    let mut room = space(1 << 20);
    let done = if asked.fused {
        device.sample(&head, &how, &mut out, &mut room, Stream::NONE)
    } else {
        device.sample(&logits, &how, &mut out, &mut room, Stream::NONE)
    };
    if let Err(error) = &done {
        assert_eq!(error.status(), Status::Argument, "{}", error);
    }
    (done.is_ok(), c.cut)
}

#[test]
fn a_draw_succeeds_where_no_slice_is_short() {
    let options = DeviceOptions { threads: 1, ..DeviceOptions::default() };
    let device = gumbel::Device::open(options).unwrap();
    let (mut succeeded, mut refused) = (0, 0);
    for seed in 0..2000 {
        for short in [0, 1 + seed as usize % 21] {
            let (done, cut) = draw_at_random(&device, seed, short);
            assert_eq!(done, !cut, "seed {}, slice {}", seed, short);
            succeeded += done as usize;
            refused += cut as usize;
        }
    }
    assert!(succeeded > 2000 && refused > 1000, "{} {}", succeeded, refused);
}
