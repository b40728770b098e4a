// SPDX-License-Identifier: Apache-2.0
//! Rings of recent tokens and their lists through the crate; row parameters that change.
mod problem;

use gumbel::{
    Counts, History, ListRules, Recent, Result, RowLists, RowStatus, RuleUpdates, Sampling,
    Sequences, Slots, Status, Stream, TokenLists, Transforms, View,
};
use problem::{draw, open, Problem, B, V};

const SLOTS: usize = 5;
const CAPACITY: usize = 6;
const PLACES: usize = 4;
const WORDS: usize = (V + 31) / 32;
const UNUSED: i32 = i32::MAX;
const OF_ROW: [i32; B] = [4, 0, 3, 1];

fn slots() -> Slots<'static> {
    Slots { of_row: (&OF_ROW).into(), count: SLOTS }
}

fn token_lists<'a>(offsets: &'a [i64], ids: &'a [i32]) -> TokenLists<'a> {
    TokenLists { offsets: offsets.into(), ids: ids.into(), ..TokenLists::default() }
}

fn seeded(transforms: Transforms<'_>) -> Sampling<'_> {
    Sampling { seed: 3.into(), transforms: Some(transforms), ..Sampling::default() }
}

/// The memory of rings, and of a history of their last 3 tokens.
struct Memory {
    tokens: Vec<i32>,
    count: Vec<u64>,
    prompt: Vec<u32>,
    output: Vec<u32>,
    counts: Vec<i32>,
}

impl Memory {
    fn new() -> Self {
        Memory {
            tokens: vec![0; SLOTS * CAPACITY],
            count: vec![0; SLOTS],
            prompt: vec![0; SLOTS * WORDS],
            output: vec![0; SLOTS * WORDS],
            counts: vec![0; SLOTS * V],
        }
    }
    fn recent(&mut self) -> Recent<'_> {
        Recent {
            capacity: CAPACITY,
            tokens: (&mut self.tokens).into(),
            count: (&mut self.count).into(),
            history: Some(History {
                vocab_size: V,
                prompt: (&mut self.prompt).into(),
                output: (&mut self.output).into(),
                counts: Counts::Bits32((&mut self.counts).into()),
            }),
            window: 3.into(),
        }
    }
    /// Rings of the prompts 1 2 3 1 2, 9, nothing, and 5 6 7 8.
    fn start(&mut self) -> Recent<'_> {
        let (offsets, ids) = ([0i64, 5, 6, 6, 10], [1, 2, 3, 1, 2, 9, 5, 6, 7, 8]);
        let (prompts, none) = (token_lists(&offsets, &ids), TokenLists::default());
        let mut recent = self.recent();
        open().recent_start(&mut recent, B, &slots(), &prompts, &none, Stream::NONE).unwrap();
        recent
    }
}

/// The lists of B rows.
struct Lists {
    offsets: Vec<i64>,
    banned: Vec<i32>,
    late: Vec<i32>,
    values: Vec<f32>,
    status: Vec<i32>,
}

impl Lists {
    fn new() -> Self {
        Lists {
            offsets: vec![0; B + 1],
            banned: vec![0; B * PLACES],
            late: vec![0; B * PLACES],
            values: vec![0.0; B * PLACES],
            status: vec![77; B],
        }
    }
    fn make(&mut self, rules: &ListRules<'_>, recent: Option<&Recent<'_>>) -> Result<()> {
        let mut into = RowLists {
            capacity: PLACES,
            offsets: (&mut self.offsets).into(),
            banned: (&mut self.banned).into(),
            late_ids: (&mut self.late).into(),
            late_values: (&mut self.values).into(),
            status: (&mut self.status).into(),
        };
        open().make_lists(rules, recent, B, &slots(), &mut into, Stream::NONE)
    }
    fn transforms(&self) -> Transforms<'_> {
        Transforms {
            banned: token_lists(&self.offsets, &self.banned),
            late_bias: TokenLists {
                values: (&self.values).into(),
                ..token_lists(&self.offsets, &self.late)
            },
            list_status: (&self.status).into(),
            ..Transforms::default()
        }
    }
}

#[test]
fn rings_wrap_and_count_a_window() {
    let (mut memory, device) = (Memory::new(), open());
    let mut recent = memory.start();
    let (more, many) = ([3, 1, 2, 9, -1, 9, 4, 4, 4, 5, 5, 5], [3, 2, 0, 1]);
    device.recent_append(&mut recent, B, &slots(), &more, 3, &many, Stream::NONE).unwrap();
    device
        .recent_append(&mut recent, B, &slots(), &OF_ROW, 1, View::default(), Stream::NONE)
        .unwrap();
    assert_eq!(memory.count, [3, 6, 0, 1, 9]);
    assert_eq!(memory.tokens[4 * CAPACITY..], [1, 2, 4, 1, 2, 3]);
    let counts = &memory.counts[4 * V..];
    assert_eq!((counts[1], counts[2], counts[3], counts[4]), (1, 1, 0, 1));
    assert_eq!(memory.counts[..V].iter().sum::<i32>(), 3);
}

#[test]
fn lists_restrict_draws() {
    let (problem, device) = (Problem::new(), open());
    let (mut memory, mut lists) = (Memory::new(), Lists::new());
    let recent = memory.start();
    let (multipliers, offsets) = ([1.0f32, 1.0, 1.0, 1.0, 0.5], [0i64, 2, 3]);
    let (ids, of_row) = ([9, 40, 41], [0i64, 0, 1, 2, 2]);
    let rules = ListRules {
        dry_multiplier: (&multipliers).into(),
        bad_words: Sequences {
            offsets: (&offsets).into(),
            ids: (&ids).into(),
            of_row: (&of_row).into(),
        },
        ..ListRules::default()
    };
    lists.make(&rules, Some(&recent)).unwrap();
    assert_eq!(lists.status, [RowStatus::Ok as i32; B]);
    assert_eq!(lists.offsets, [0, 4, 8, 12, 16]);
    assert_eq!(lists.late[..PLACES], [3, UNUSED, UNUSED, UNUSED]);
    assert_eq!((lists.values[0], lists.late[PLACES]), (-0.5, UNUSED));
    let first: Vec<i32> = lists.banned.iter().copied().step_by(PLACES).collect();
    assert_eq!(first, [UNUSED, 40, 41, UNUSED]);

    let (banned_ends, late_ends) = ([0i64, 0, 1, 2, 2], [0i64, 1, 1, 1, 1]);
    let plain = Transforms {
        banned: token_lists(&banned_ends, &[40, 41]),
        late_bias: TokenLists { values: (&[-0.5]).into(), ..token_lists(&late_ends, &[3]) },
        ..Transforms::default()
    };
    let wanted = draw(&device, &problem.logits(), &seeded(plain));
    assert_eq!(draw(&device, &problem.logits(), &seeded(lists.transforms())), wanted);
    lists.status[2] = RowStatus::Lists as i32;
    let tokens = draw(&device, &problem.logits(), &seeded(lists.transforms())).0;
    assert_eq!((tokens[1], tokens[2]), (wanted.0[1], -1));

    let stops =
        ListRules { min_position: 1.into(), stop_tokens: plain.banned, ..ListRules::default() };
    lists.make(&stops, None).unwrap();
    assert_eq!((lists.banned[PLACES], lists.late[0]), (40, UNUSED));
}

#[test]
fn updates_change_surprise_and_top_p() {
    let (tokens, logprobs) = ([7, -1, 8, 7], [0.25f32.ln(), 0.0, 0.5f32.ln(), 0.0]);
    let (mut surprise, mut top_p) = ([6.0f32; SLOTS], [0.5f32; SLOTS]);
    let mut updates = RuleUpdates {
        batch: B,
        tokens: (&tokens).into(),
        logprobs: (&logprobs).into(),
        slots: slots(),
        surprise: (&mut surprise).into(),
        surprise_target: 3.0.into(),
        surprise_rate: 0.5.into(),
        top_p: (&mut top_p).into(),
        top_p_first: 0.75.into(),
        top_p_decay: 0.5.into(),
        top_p_reset: 7.into(),
        ..RuleUpdates::default()
    };
    open().update_rules(&mut updates, Stream::NONE).unwrap();
    for (found, wanted) in surprise.iter().zip([6.0, 7.5, 6.0, 7.0, 6.5]) {
        assert!((found - wanted).abs() < 1e-6, "{} {}", found, wanted);
    }
    assert_eq!(top_p, [0.5, 0.75, 0.5, 0.25, 0.75]);
}

#[test]
fn updates_change_an_adaptive_target() {
    let (tokens, logprobs) = ([7, -1, 8, 7], [0.5f32.ln(), 0.0, 0.25f32.ln(), 0.0]);
    let (mut target, mut sum, mut weight) = ([0.5f32; SLOTS], [1.0f32; SLOTS], [2.0f32; SLOTS]);
    let mut updates = RuleUpdates {
        batch: B,
        tokens: (&tokens).into(),
        logprobs: (&logprobs).into(),
        slots: slots(),
        adaptive_target: (&mut target).into(),
        adaptive_sum: (&mut sum).into(),
        adaptive_weight: (&mut weight).into(),
        adaptive_goal: 0.5.into(),
        adaptive_decay: 0.5.into(),
        ..RuleUpdates::default()
    };
    open().update_rules(&mut updates, Stream::NONE).unwrap();
    let mut wanted = [0.5f32; SLOTS];
    for (b, slot) in OF_ROW.iter().enumerate() {
        if tokens[b] >= 0 && *slot >= 0 {
            wanted[*slot as usize] = 1.0 - (logprobs[b].exp() + 0.5) / 2.0;
        }
    }
    for (found, wanted) in target.iter().zip(wanted) {
        assert!((found - wanted).abs() < 1e-6, "{} {}", found, wanted);
    }
}

/// The field of an error of an argument.
fn refused(done: Result<()>) -> String {
    let error = done.unwrap_err();
    assert_eq!(error.status(), Status::Argument, "{}", error);
    error.field().to_owned()
}

#[test]
fn wrong_sizes_and_values_name_the_argument() {
    let (mut memory, mut lists, device) = (Memory::new(), Lists::new(), open());
    let append = |recent: &mut Recent<'_>, stride| {
        refused(device.recent_append(
            recent,
            B,
            &slots(),
            &OF_ROW,
            stride,
            View::default(),
            Stream::NONE,
        ))
    };
    assert_eq!(append(&mut memory.recent(), 2), "tokens");
    let recent = &mut memory.recent();
    recent.capacity = CAPACITY + 1;
    assert_eq!(append(recent, 1), "recent.tokens");
    recent.capacity = CAPACITY;
    recent.window = (CAPACITY as i32 + 1).into();
    assert_eq!(append(recent, 1), "recent.window[0]");
    let mut short = vec![0u64; SLOTS - 1];
    let recent = &mut memory.recent();
    recent.count = (&mut short).into();
    assert_eq!(append(recent, 1), "recent.count");

    let recent = memory.recent();
    let offsets = [0i64, 3];
    let words =
        Sequences { offsets: (&offsets).into(), ids: (&[1, 2]).into(), ..Default::default() };
    let rules = ListRules { bad_words: words, ..ListRules::default() };
    assert_eq!(refused(lists.make(&rules, Some(&recent))), "rules.bad_words");
    let rules = ListRules { dry_multiplier: (-1.0).into(), ..ListRules::default() };
    assert_eq!(refused(lists.make(&rules, Some(&recent))), "rules.dry_multiplier[0]");
    let rules = ListRules { dry_multiplier: 1.0.into(), ..ListRules::default() };
    assert_eq!(refused(lists.make(&rules, None)), "recent");
    lists.values.pop();
    assert_eq!(refused(lists.make(&rules, Some(&recent))), "lists.late_values");
    assert_eq!(lists.status, [77; B]);

    let (tokens, mut few) = ([1; B], [0.5f32; B - 1]);
    let mut updates = RuleUpdates {
        batch: B,
        tokens: (&tokens).into(),
        top_p: (&mut few).into(),
        ..RuleUpdates::default()
    };
    assert_eq!(refused(device.update_rules(&mut updates, Stream::NONE)), "updates.top_p");
    updates.batch = B - 1;
    updates.top_p_decay = 2.0.into();
    assert_eq!(refused(device.update_rules(&mut updates, Stream::NONE)), "updates.top_p_decay[0]");
}
