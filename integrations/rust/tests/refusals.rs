// SPDX-License-Identifier: Apache-2.0
//! Wrong sizes, strides and memory are errors that name the argument; no output is touched.
mod problem;

use gumbel::{
    noise, philox4x32, Counts, Device, DeviceOptions, Draft, History, LogitsMut, Mask, MatrixMut,
    Output, Program, ProgramRule, Programs, Rows, Sampling, Slots, Space, Status, Step, Stream,
    Summary, Tensor, TokenLists, Transforms, Truncation, Verified, View, ViewMut,
};
use problem::{open, space, values, Problem, B, D, V};
use std::ptr;

/// The field of the error of a draw from a head; asserts that its output is unchanged.
fn refused(input: &impl gumbel::Input, how: &Sampling<'_>) -> String {
    let device = open();
    let mut tokens = [77; 3 * B];
    let mut out = Output { tokens: (&mut tokens).into(), ..Output::default() };
    let mut space = space(1 << 20);
    let error = device.sample(input, how, &mut out, &mut space, Stream::NONE).unwrap_err();
    assert_eq!(tokens, [77; 3 * B]);
    assert_eq!(error.status(), Status::Argument, "{}", error);
    assert!(!error.message().is_empty() && error.to_string().contains(error.field()));
    error.field().to_owned()
}

#[test]
fn tensors_smaller_than_their_shape() {
    let problem = Problem::new();
    let how = Sampling::default();
    let (head, short) = (problem.head(), values(B * D - 1));
    let hidden = Tensor::float32(&short, B, D);
    assert_eq!(refused(&gumbel::Head { hidden, ..head }, &how), "head.hidden");
    let hidden = Tensor::float32(&problem.hidden, B, D).strided(D + 1);
    assert_eq!(refused(&gumbel::Head { hidden, ..head }, &how), "head.hidden");
    let hidden = Tensor::float32(&problem.hidden, B, D).strided(D - 1);
    assert_eq!(refused(&gumbel::Head { hidden, ..head }, &how), "head.hidden");
    let weight = Tensor::float32(&problem.weight, V + 1, D);
    assert_eq!(refused(&gumbel::Head { weight, ..head }, &how), "head.weight");
    let weight = Tensor::float32(&problem.weight, usize::MAX, usize::MAX);
    assert_eq!(refused(&gumbel::Head { weight, ..head }, &how), "head.weight");
    let bias = Tensor::float32(&problem.weight[..V - 1], 1, V);
    assert_eq!(refused(&gumbel::Head { bias, ..head }, &how), "head.bias");
    let bias = Tensor::float32(&problem.weight, 2, V);
    assert_eq!(refused(&gumbel::Head { bias, ..head }, &how), "head.bias");
    let hidden = Tensor::default();
    assert_eq!(refused(&gumbel::Head { hidden, ..head }, &how), "head.hidden");
    let first_token = usize::MAX;
    assert_eq!(refused(&gumbel::Head { first_token, ..head }, &how), "head.first_token");
    let logits = gumbel::Logits::new(Tensor::float32(&problem.logits, B, V + 1));
    assert_eq!(refused(&logits, &how), "logits.values");
    let bits = vec![0u16; B * V - 1];
    let logits = gumbel::Logits::new(Tensor::bfloat16(&bits, B, V));
    assert_eq!(refused(&logits, &how), "logits.values");
}

#[test]
fn parameters_of_too_few_rows() {
    let problem = Problem::new();
    let (head, how) = (problem.head(), Sampling::default());
    let (few, wide) = ([0.5f32; B - 1], [0.5f32; 2 * B - 2]);
    let (words, tokens) = ([1u64; B - 1], [0i32; B - 1]);
    let field = |how: &Sampling<'_>| refused(&head, how);
    assert_eq!(field(&Sampling { temperature: (&few).into(), ..how }), "sampling.temperature");
    let temperature = Rows::Strided((&wide).into(), 2);
    assert_eq!(field(&Sampling { temperature, ..how }), "sampling.temperature");
    let temperature = Rows::Same((&few[..0]).into());
    assert_eq!(field(&Sampling { temperature, ..how }), "sampling.temperature");
    assert_eq!(field(&Sampling { seed: (&words).into(), ..how }), "sampling.seed");
    assert_eq!(field(&Sampling { position: (&words).into(), ..how }), "sampling.position");
    let first_sample = (&[7u32; B - 1]).into();
    assert_eq!(field(&Sampling { first_sample, ..how }), "sampling.first_sample");
    assert_eq!(field(&Sampling { given: (&tokens).into(), ..how }), "sampling.given");
    assert_eq!(field(&Sampling { noise: (&wide).into(), ..how }), "sampling.noise");
    let table = [3i32; V - 1];
    assert_eq!(field(&Sampling { token_ids: (&table).into(), ..how }), "sampling.token_ids");
    let slots = Slots { of_row: (&tokens).into(), count: 9 };
    assert_eq!(field(&Sampling { slots, ..how }), "sampling.slots");
    let of_row = [0, 1, 2, 9];
    let slots = Slots { of_row: (&of_row).into(), count: 9 };
    assert_eq!(field(&Sampling { slots, ..how }), "sampling.slots");
    let slots = Slots { of_row: (&of_row).into(), count: usize::MAX };
    assert_eq!(field(&Sampling { slots, ..how }), "sampling.slots");
    let (temperature, slots) = ((&wide[..B]).into(), Slots { of_row: (&of_row).into(), count: 10 });
    assert_eq!(field(&Sampling { temperature, slots, ..how }), "sampling.temperature");
    let live: [i32; 0] = [];
    assert_eq!(field(&Sampling { live_rows: (&live).into(), ..how }), "sampling.live_rows");
    assert_eq!(field(&Sampling { num_samples: 1 << 40, ..how }), "sampling.num_samples");
    assert_eq!(field(&Sampling { temperature: (-1.0).into(), ..how }), "sampling.temperature[0]");
    let truncation = Some(Truncation { top_p: (&few).into(), ..Truncation::default() });
    assert_eq!(field(&Sampling { truncation, ..how }), "sampling.truncation.top_p");
    let orders = [Program::new(&[ProgramRule::Temperature]); 17];
    let programs = Programs { rules: &orders[..1], ..Programs::default() };
    let field = |programs| {
        let truncation = Some(Truncation { programs: Some(programs), ..Truncation::default() });
        field(&Sampling { truncation, ..how })
    };
    assert_eq!(field(Programs { rules: &orders, ..programs }), "programs.count");
    assert_eq!(field(Programs { rules: &[], ..programs }), "programs.count");
    let empty = [Program::new(&[])];
    assert_eq!(field(Programs { rules: &empty, ..programs }), "programs.rules[0]");
    assert_eq!(field(Programs { typical_p: (&few).into(), ..programs }), "programs.typical_p");
    assert_eq!(field(Programs { typical_p: 2.0.into(), ..programs }), "programs.typical_p[0]");
    assert_eq!(field(Programs { program: (&tokens).into(), ..programs }), "programs.program");
    assert_eq!(field(Programs { program: 1.into(), ..programs }), "programs.program[0]");
    let offsets = [0i64; B];
    let xtc_keep = TokenLists { offsets: (&offsets).into(), ..TokenLists::default() };
    assert_eq!(field(Programs { xtc_keep, ..programs }), "programs.xtc_keep");
}

#[test]
fn transforms_of_too_few_elements() {
    let problem = Problem::new();
    let head = problem.head();
    let field = |t: Transforms<'_>| {
        refused(&head, &Sampling { transforms: Some(t), ..Sampling::default() })
    };
    let none = Transforms::default();
    let words = [-1i32; B * 32 - 1];
    let mask = Mask { words: (&words).into(), ..Mask::default() };
    assert_eq!(field(Transforms { mask, ..none }), "sampling.transforms.mask");
    let mask = Mask { words: (&words[..31]).into(), same: true, ..Mask::default() };
    assert_eq!(field(Transforms { mask, ..none }), "sampling.transforms.mask");
    let (ids, values) = ([1i32, 2], [0.5f32]);
    for offsets in [&[0i64, 0, 0, 3, 3][..], &[0, 1, 2, 2], &[0, 2, 1, 2, 2], &[-1, 0, 0, 0, 0]] {
        let lists =
            TokenLists { offsets: offsets.into(), ids: (&ids).into(), ..Default::default() };
        assert_eq!(field(Transforms { banned: lists, ..none }), "sampling.transforms.banned");
    }
    let far = [0i64, i64::MAX, i64::MAX, i64::MAX, i64::MAX];
    let lists = TokenLists { offsets: (&far).into(), ids: (&ids).into(), ..Default::default() };
    assert_eq!(field(Transforms { allowed: lists, ..none }), "sampling.transforms.allowed");
    assert_eq!(field(Transforms { max_allowed: 2, ..none }), "sampling.transforms.max_allowed");
    let offsets = [0i64, 2, 2, 2, 2];
    let lists =
        TokenLists { offsets: (&offsets).into(), ids: (&ids).into(), values: (&values).into() };
    assert_eq!(field(Transforms { bias: lists, ..none }), "sampling.transforms.bias");
    assert_eq!(field(Transforms { repetition: 1.5.into(), ..none }), "sampling.transforms.history");
    let (mut prompt, mut output, mut counts) = ([0u32; 128], [0u32; 128], vec![0i32; B * V - 1]);
    let history = History {
        vocab_size: V,
        prompt: (&mut prompt).into(),
        output: (&mut output).into(),
        counts: Counts::Bits32((&mut counts).into()),
    };
    let counted = Transforms { repetition: 1.5.into(), history: Some(&history), ..none };
    assert_eq!(field(counted), "sampling.transforms.history");
}

#[test]
fn outputs_and_workspaces_that_are_too_small() {
    let (problem, device) = (Problem::new(), open());
    let (head, how) = (problem.head(), Sampling { num_samples: 2, ..Sampling::default() });
    let (mut tokens, mut few, mut top) = ([77; 2 * B], [0.0f32; B - 1], [0; B]);
    let mut room = space(1 << 20);
    let mut fails = |out: &mut Output<'_>| {
        let error = device.sample(&head, &how, out, &mut room, Stream::NONE).unwrap_err();
        (error.status(), error.field().to_owned())
    };
    let at = |field: &str| (Status::Argument, field.to_owned());
    let mut out = Output { tokens: (&mut tokens[1..]).into(), ..Output::default() };
    assert_eq!(fails(&mut out), at("output.tokens"));
    assert_eq!(fails(&mut Output::default()), at("output.tokens"));
    let mut out =
        Output { tokens: (&mut tokens).into(), lse: (&mut few).into(), ..Output::default() };
    assert_eq!(fails(&mut out), at("output.lse"));
    let mut out = Output {
        tokens: (&mut tokens).into(),
        top_ids: (&mut top).into(),
        num_top: 2,
        ..Output::default()
    };
    assert_eq!(fails(&mut out), at("output.top_ids"));

    let mut out = Output { tokens: (&mut tokens).into(), ..Output::default() };
    let mut bytes = vec![0u8; 1 << 20];
    let odd = bytes.as_ptr().align_offset(64) + 8;
    for place in [0..0, odd..1 << 19] {
        let error =
            device.sample(&head, &how, &mut out, &mut bytes[place], Stream::NONE).unwrap_err();
        assert_eq!(error.status(), Status::Workspace);
    }
    assert_eq!(tokens, [77; 2 * B]);
    let mut huge = gumbel::Workspace::new();
    assert_eq!(huge.reserve(usize::MAX).unwrap_err().status(), Status::Memory);
    huge.reserve(100).unwrap();
    huge.reserve(10).unwrap();
    assert_eq!(huge.bytes(), 100);
}

#[test]
fn memory_of_another_device() {
    let (problem, device) = (Problem::new(), open());
    let (head, how) = (problem.head(), Sampling::default());
    let mut tokens = [77; B];
    let mut room = space(1 << 20);
    // No memory is accessed, as the device is a CPU.
    let far = unsafe { View::device(ptr::null::<f32>(), B * D) };
    let hidden = Tensor::float32(far, B, D);
    assert_eq!(refused(&gumbel::Head { hidden, ..head }, &how), "head.hidden");
    let temperature = Rows::Each(unsafe { View::device(ptr::null(), B) });
    assert_eq!(refused(&head, &Sampling { temperature, ..how }), "sampling.temperature");
    let tokens_there = unsafe { ViewMut::device(ptr::null_mut(), B) };
    let mut out = Output { tokens: tokens_there, ..Output::default() };
    let error = device.sample(&head, &how, &mut out, &mut room, Stream::NONE).unwrap_err();
    assert_eq!(error.field(), "output.tokens");
    let mut out = Output { tokens: (&mut tokens).into(), ..Output::default() };
    let there = unsafe { Space::device(ptr::null_mut(), 1 << 20) };
    let error = device.sample(&head, &how, &mut out, there, Stream::NONE).unwrap_err();
    assert_eq!(error.field(), "workspace");
    let stream = unsafe { Stream::from_raw(64 as *mut _) };
    let error = device.sample(&head, &how, &mut out, &mut room, stream).unwrap_err();
    assert_eq!(error.field(), "stream");
    assert_eq!(tokens, [77; B]);
}

#[test]
fn other_calls_check_sizes() {
    let (problem, device) = (Problem::new(), open());
    let (logits, how) = (problem.logits(), Sampling::default());
    let mut room = space(1 << 22);
    let mut z = vec![0.0; B * V];
    let mut check = |rows, cols, len: usize, stride| {
        let mut into = MatrixMut::new(&mut z[..len], rows, cols).strided(stride);
        device.softmax(&logits, &how, &mut into, &mut room, Stream::NONE).is_err()
    };
    assert!(check(B, V, B * V - 1, 0));
    assert!(check(B, V, B * V, V + 1));
    assert!(check(B, V, B * V, V - 1));
    assert!(check(B - 1, V, B * V, 0));
    assert!(!check(B, V, B * V, 0));
    let mut own = LogitsMut::new(MatrixMut::new(&mut z[1..], B, V));
    assert!(device.process_logits_in_place(&mut own, &how, &mut room, Stream::NONE).is_err());
    let mut few = [Summary::default(); B - 1];
    assert!(device.partial(&logits, &how, &mut few, &mut room, Stream::NONE).is_err());
    let mut all = [Summary::default(); B];
    assert!(device.merge(&mut all, &few, Stream::NONE).is_err());
    assert!(gumbel::merge(&mut few, &all).is_err());
    let (mut tokens, mut fewer) = ([0; B], [0; B - 1]);
    let mut out = Output { tokens: (&mut tokens).into(), ..Output::default() };
    assert!(device.finish(&all, 2, B, 1, &mut out, Stream::NONE).is_err());
    let mut out = Output { tokens: (&mut fewer).into(), ..Output::default() };
    assert!(device.finish(&all, 1, B, 1, &mut out, Stream::NONE).is_err());
    assert!(device.finish(&all, 2, B, 0, &mut out, Stream::NONE).is_err());
    assert!(gumbel::finish(&few, 1, B, 0, &mut out).is_err());
    assert!(device.finish(&all, 0, usize::MAX, 1, &mut out, Stream::NONE).is_err());
    assert!(device.prepare_noise(&how, B, 0, V, &mut z[1..], 0, Stream::NONE).is_err());
    assert!(noise(0, 0, 0, 1 << 31, 0, &mut z).is_err());
    assert!(noise(0, 0, 0, 0, usize::MAX, &mut z).is_err());
    assert!(philox4x32([0; 4], [0; 2], 17).is_err());
    let (mut position, mut ring) = ([0u64; B], [0; 2 * B - 1]);
    let mut step = Step {
        batch: B,
        tokens: (&tokens).into(),
        position: (&mut position).into(),
        ring: (&mut ring).into(),
        ring_length: 2,
        ..Step::default()
    };
    assert_eq!(device.advance(&mut step, Stream::NONE).unwrap_err().field(), "step.ring");
}

#[test]
fn histories_check_sizes() {
    let device = open();
    let (mut prompt, mut output, mut counts) = ([0u32; 128], [0u32; 127], vec![0u16; B * V]);
    let (rows, none) = (Slots::default(), TokenLists::default());
    let mut history = History {
        vocab_size: V,
        prompt: (&mut prompt).into(),
        output: (&mut output).into(),
        counts: Counts::Bits16((&mut counts).into()),
    };
    assert!(device.history_start(&mut history, B, &rows, &none, &none, Stream::NONE).is_err());
    device.history_start(&mut history, B - 1, &rows, &none, &none, Stream::NONE).unwrap();
    let tokens = [1; 5];
    let update = |history: &mut History<'_>, batch, stride, counts: &[i32]| {
        device.history_update(history, batch, &rows, &tokens, stride, counts, Stream::NONE)
    };
    assert!(update(&mut history, 3, 2, &[1, 1, 2]).is_err());
    assert!(update(&mut history, 2, 2, &[1]).is_err());
    assert!(update(&mut history, 2, 2, &[1, 3]).is_err());
    update(&mut history, 2, 2, &[1, 2]).unwrap();
    let one_each = View::default();
    device.history_update(&mut history, 3, &rows, &tokens, 2, one_each, Stream::NONE).unwrap();
}

#[test]
fn drafts_check_sizes() {
    let (problem, device) = (Problem::new(), open());
    let (logits, how, mut room) = (problem.logits(), Sampling::default(), space(1 << 20));
    let (drafted, short) = ([0; B], [0; B - 1]);
    let (mut tokens, mut emitted) = ([77; B], [77]);
    let draft = Draft { requests: 1, max_nodes: B, tokens: (&drafted).into(), ..Draft::default() };
    let mut field = |draft: &Draft<'_>, few: usize| {
        let mut out = Verified {
            tokens: (&mut tokens[few..]).into(),
            emitted: (&mut emitted).into(),
            ..Verified::default()
        };
        let done = device.verify(&logits, &how, draft, &mut out, &mut room, Stream::NONE);
        done.map_err(|error| error.field().to_owned())
    };
    assert_eq!(field(&draft, 1).unwrap_err(), "verified.tokens");
    let bad = Draft { tokens: (&short).into(), ..draft };
    assert_eq!(field(&bad, 0).unwrap_err(), "draft.tokens");
    let bad = Draft { parents: (&short).into(), ..draft };
    assert_eq!(field(&bad, 0).unwrap_err(), "draft.parents");
    let bad = Draft { offsets: (&[0]).into(), ..draft };
    assert_eq!(field(&bad, 0).unwrap_err(), "draft.offsets");
    let bad = Draft { offsets: (&[0, 5]).into(), ..draft };
    assert_eq!(field(&bad, 0).unwrap_err(), "draft.offsets");
    let bad = Draft { requests: usize::MAX, ..draft };
    assert!(field(&bad, 0).is_err());
    field(&draft, 0).unwrap();
}

#[test]
fn devices_that_are_not_to_be_had() {
    let fails = |options: DeviceOptions<'_>| Device::open(options).err().unwrap().status();
    let named = |device| DeviceOptions { device: Some(device), ..DeviceOptions::default() };
    assert_eq!(fails(named("cpu\0")), Status::Argument);
    assert_eq!(fails(named("abacus")), Status::Unsupported);
    assert_eq!(fails(named("cuda:4096")), Status::Unsupported);
    assert_eq!(fails(DeviceOptions { threads: -1, ..Default::default() }), Status::Argument);
    assert_eq!(fails(DeviceOptions { tile: 65, ..Default::default() }), Status::Argument);
}
