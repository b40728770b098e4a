// SPDX-License-Identifier: Apache-2.0
//! Decode steps through the crate: histories, slots, rings, drafts.
mod problem;

use gumbel::{
    Counts, Device, Draft, FinishReason, History, Logits, Rule, Sampling, Slots, Step, Stream,
    Tensor, TokenLists, Transforms, Verified,
};
use problem::{bits, draw, open, space, Problem, B, V};

const WORDS: usize = (V + 31) / 32;

/// The memory of a history of `B` rows.
struct Memory {
    prompt: Vec<u32>,
    output: Vec<u32>,
    counts: Vec<u16>,
}

impl Memory {
    fn new() -> Self {
        Memory { prompt: vec![0; B * WORDS], output: vec![0; B * WORDS], counts: vec![0; B * V] }
    }
    fn history(&mut self) -> History<'_> {
        History {
            vocab_size: V,
            prompt: (&mut self.prompt).into(),
            output: (&mut self.output).into(),
            counts: Counts::Bits16((&mut self.counts).into()),
        }
    }
}

fn penalised<'a>(counted: Transforms<'a>) -> Sampling<'a> {
    let transforms = Transforms {
        repetition: 1.5.into(),
        frequency: 0.7.into(),
        presence: 0.3.into(),
        ..counted
    };
    Sampling { seed: 3.into(), transforms: Some(transforms), ..Sampling::default() }
}

#[test]
fn a_history_counts_what_lists_say() {
    let (problem, device) = (Problem::new(), open());
    let mut memory = Memory::new();
    let (offsets, ids) = ([0i64, 2, 3, 3, 4], [1i32, 2, 3, 999]);
    let prompts =
        TokenLists { offsets: (&offsets).into(), ids: (&ids).into(), ..TokenLists::default() };
    let (rows, none) = (Slots::default(), TokenLists::default());
    let mut history = memory.history();
    device.history_start(&mut history, B, &rows, &prompts, &none, Stream::NONE).unwrap();
    let mut texts: Vec<Vec<i32>> = vec![Vec::new(); B];
    for _ in 0..4 {
        let by_history = Transforms { history: Some(&history), ..Transforms::default() };
        let drawn = draw(&device, &problem.logits(), &penalised(by_history));
        let ends: Vec<i64> = (0..=B).map(|b| (b * texts[0].len()) as i64).collect();
        let flat: Vec<i32> = texts.concat();
        let outputs =
            TokenLists { offsets: (&ends).into(), ids: (&flat).into(), ..TokenLists::default() };
        let by_lists =
            Transforms { prompt_tokens: prompts, output_tokens: outputs, ..Transforms::default() };
        assert_eq!(drawn, draw(&device, &problem.logits(), &penalised(by_lists)));
        let counts = [1; B];
        device.history_update(&mut history, B, &rows, &drawn.0, 1, &counts, Stream::NONE).unwrap();
        texts.iter_mut().zip(&drawn.0).for_each(|(text, &token)| text.push(token));
    }
    assert_eq!(memory.counts.iter().map(|&c| c as usize).sum::<usize>(), 4 * B);
}

#[test]
fn slots_find_a_rows_parameters() {
    let (problem, device) = (Problem::new(), open());
    let (by_row, by_slot) = ([0.4f32, 0.6, 0.8, 1.2], [9.0, 1.2, 0.8, 0.6, 0.4f32]);
    let seeds = [11u64, 12, 13, 14];
    let slot_seeds = [99u64, 14, 13, 12, 11];
    let of_row = [4, 3, 2, 1];
    let plain =
        Sampling { temperature: (&by_row).into(), seed: (&seeds).into(), ..Sampling::default() };
    let slotted = Sampling {
        temperature: (&by_slot).into(),
        seed: (&slot_seeds).into(),
        slots: Slots { of_row: (&of_row).into(), count: 5 },
        ..Sampling::default()
    };
    let head = problem.head();
    assert_eq!(draw(&device, &head, &slotted), draw(&device, &head, &plain));
    let live = [2];
    let fewer = Sampling { live_rows: (&live).into(), ..plain };
    let (tokens, _, _) = draw(&device, &head, &fewer);
    assert_eq!(tokens[..2], draw(&device, &head, &plain).0[..2]);
    assert_eq!(tokens[2..], [-1, -1]);
}

#[test]
fn steps_move_positions_on() {
    let device = open();
    let (tokens, mut positions, mut ring) = ([5, 6], [7u64, 10], [0; 3 * 2]);
    let mut step = Step {
        batch: 2,
        tokens: (&tokens).into(),
        position: (&mut positions).into(),
        ring: (&mut ring).into(),
        ring_length: 3,
        ..Step::default()
    };
    device.advance(&mut step, Stream::NONE).unwrap();
    assert_eq!(positions, [8, 11]);
    assert_eq!(ring, [0, 0, 5, 6, 0, 0]);
}

/// Row j of four rows of logits follows node j of one request.
fn verify(device: &Device, logits: &Logits<'_>, draft: &Draft<'_>) -> (Vec<i32>, i32, Vec<u32>) {
    let (mut tokens, mut emitted) = (vec![0; B], [0]);
    let (mut scores, mut position, mut finished) = (vec![0.0f32; B], [0u64], [-1]);
    let mut histogram = [0u64; B];
    let mut out = Verified {
        tokens: (&mut tokens).into(),
        emitted: (&mut emitted).into(),
        scores: (&mut scores).into(),
        position: (&mut position).into(),
        finished: (&mut finished).into(),
        histogram: (&mut histogram).into(),
        ..Verified::default()
    };
    let start = [7u64];
    let how = Sampling { seed: 5.into(), position: (&start).into(), ..Sampling::default() };
    let mut space = space(device.verify_workspace_size(logits, &how, draft, &out).unwrap());
    device.verify(logits, &how, draft, &mut out, &mut space, Stream::NONE).unwrap();
    assert_eq!(position[0], 7 + emitted[0] as u64);
    assert_eq!(finished[0], FinishReason::None as i32);
    assert_eq!(histogram.iter().sum::<u64>(), 1);
    (tokens, emitted[0], bits(&scores))
}

#[test]
fn the_targets_own_draws_are_accepted() {
    let (problem, device) = (Problem::new(), open());
    let positions: Vec<u64> = (7..7 + B as u64).collect();
    let seeds = [5u64; B];
    let steps =
        Sampling { seed: (&seeds).into(), position: (&positions).into(), ..Sampling::default() };
    let (own, _, scores) = draw(&device, &problem.logits(), &steps);
    let drafted = [0, own[0], own[1], own[2]];
    let draft = Draft { requests: 1, max_nodes: B, tokens: (&drafted).into(), ..Draft::default() };
    assert_eq!(verify(&device, &problem.logits(), &draft), (own.clone(), B as i32, scores));
    let wrong = [0, own[0], (own[1] + 1) % V as i32, own[2]];
    let draft = Draft { tokens: (&wrong).into(), ..draft };
    let (tokens, emitted, _) = verify(&device, &problem.logits(), &draft);
    assert_eq!((tokens, emitted), (vec![own[0], own[1], -1, -1], 2));

    // The draws from hidden states differ from those of the logits.
    let (own, _, _) = draw(&device, &problem.head(), &steps);
    let drafted = [0, own[0], own[1], own[2]];
    let draft = Draft { tokens: (&drafted).into(), ..draft };
    let (mut tokens, mut emitted) = ([0; B], [0]);
    let mut out = Verified {
        tokens: (&mut tokens).into(),
        emitted: (&mut emitted).into(),
        ..Verified::default()
    };
    let how = Sampling { seed: 5.into(), position: 7.into(), ..Sampling::default() };
    let head = problem.head();
    let mut space = space(device.verify_workspace_size(&head, &how, &draft, &out).unwrap());
    device.verify(&head, &how, &draft, &mut out, &mut space, Stream::NONE).unwrap();
    assert_eq!((tokens.to_vec(), emitted[0]), (own, B as i32));
}

#[test]
fn drafts_drawn_from_the_target_itself_are_never_rejected() {
    let (problem, device) = (Problem::new(), open());
    // If draft and target have the same distribution, every draft is accepted.
    let by = Sampling { seed: 77.into(), domain: gumbel::domain::DRAFT, ..Sampling::default() };
    let (drawn, _, _) = draw(&device, &problem.logits(), &by);
    let drafted = [0, drawn[0], drawn[1], drawn[2]];
    let draft = Draft {
        requests: 1,
        max_nodes: B,
        rule: Rule::Rejection,
        tokens: (&drafted).into(),
        logits: Some(Logits::new(Tensor::float32(&problem.logits, B, V))),
        sampling: Some(by),
        ..Draft::default()
    };
    let (tokens, emitted, _) = verify(&device, &problem.logits(), &draft);
    assert_eq!((&tokens[..3], emitted), (&drawn[..3], B as i32));
}
