// SPDX-License-Identifier: Apache-2.0
//! Draws through the crate equal those of the C interface, bit by bit.
mod problem;

use gumbel::{
    clear, ffi, merge, noise, philox4x32, row_seed, Device, DeviceOptions, Distribution, Isa,
    Limits, Logits, LogitsMut, MatrixMut, Output, ParallelFor, Program, ProgramRule, Programs,
    RowStatus, Rows, Sampling, Stream, Summary, Tensor, TokenLists, Transforms, Truncation,
};
use problem::{bits, draw, open, space, Problem, B, D, V};
use std::mem::size_of;
use std::ptr;

fn how() -> Sampling<'static> {
    Sampling { temperature: 0.8.into(), seed: 42.into(), position: 7.into(), ..Sampling::default() }
}

#[test]
fn tokens_are_the_known_ones() {
    let (problem, device) = (Problem::new(), open());
    let mut rows = problem.head();
    rows.hidden = Tensor::float32(&problem.hidden[..2 * D], 2, D);
    let how = Sampling { position: 0.into(), ..how() };
    let mut tokens = [0; 2];
    let mut out = Output { tokens: (&mut tokens).into(), ..Output::default() };
    let mut space = space(device.workspace_size(&rows, &how, Some(&out)).unwrap());
    device.sample(&rows, &how, &mut out, &mut space, Stream::NONE).unwrap();
    assert_eq!(tokens, [269, 983]); // the first line that docs/examples/engine.c prints
}

/// A draw by the C interface, without the crate.
fn draw_by_c(device: &Device, problem: &Problem, samples: i32) -> (Vec<i32>, Vec<f32>) {
    let draws = B * samples as usize;
    let (mut tokens, mut logprobs) = (vec![0; draws], vec![0.0f32; draws]);
    let tensor = |data: &[f32], rows: usize, cols: usize| ffi::gumbel_tensor {
        data: data.as_ptr().cast(),
        dtype: 1,
        rows: rows as i64,
        cols: cols as i64,
        ..Default::default()
    };
    let head = ffi::gumbel_head {
        struct_size: size_of::<ffi::gumbel_head>(),
        hidden: tensor(&problem.hidden, B, D),
        weight: tensor(&problem.weight, V, D),
        ..Default::default()
    };
    let temperatures = [0.0f32, 0.5, 0.8, 1.3];
    let (seed, position, k) = (42u64, 7u64, 50i32);
    let counters = [9, 0, u32::MAX, 3];
    let truncation = ffi::gumbel_truncation {
        struct_size: size_of::<ffi::gumbel_truncation>(),
        top_k: ffi::gumbel_row_i32 { data: &k, stride: -1 },
        ..Default::default()
    };
    let sampling = ffi::gumbel_sampling {
        struct_size: size_of::<ffi::gumbel_sampling>(),
        temperature: ffi::gumbel_row_f32 { data: temperatures.as_ptr(), stride: 0 },
        seed: ffi::gumbel_row_u64 { data: &seed, stride: -1 },
        position: ffi::gumbel_row_u64 { data: &position, stride: -1 },
        first_sample: ffi::gumbel_row_u32 { data: counters.as_ptr(), stride: 0 },
        num_samples: samples,
        truncation: &truncation,
        ..Default::default()
    };
    let output = ffi::gumbel_output {
        struct_size: size_of::<ffi::gumbel_output>(),
        tokens: tokens.as_mut_ptr(),
        logprobs: logprobs.as_mut_ptr(),
        ..Default::default()
    };
    let mut memory = vec![[0u64; 8]; 1 << 16];
    let base = memory.as_mut_ptr().cast::<u8>();
    let base = base.wrapping_add(base.align_offset(64));
    let status = unsafe {
        let (raw, none, bytes) = (device.as_raw(), ptr::null_mut(), (memory.len() - 1) * 64);
        ffi::gumbel_sample(
            raw,
            none,
            &head,
            &sampling,
            &output,
            base.cast(),
            bytes,
            ptr::null_mut(),
        )
    };
    assert_eq!(status, ffi::GUMBEL_OK);
    (tokens, logprobs)
}

#[test]
fn a_request_has_the_bits_of_the_c_interface() {
    let (problem, device) = (Problem::new(), open());
    let temperatures = [0.0, 0.5, 0.8, 1.3];
    let counters = [9, 0, u32::MAX, 3];
    for samples in [1, 3] {
        let truncation = Truncation { top_k: 50.into(), ..Truncation::default() };
        let how = Sampling {
            temperature: (&temperatures).into(),
            first_sample: (&counters).into(),
            num_samples: samples,
            truncation: Some(truncation),
            ..how()
        };
        let (tokens, logprobs, _) = draw(&device, &problem.head(), &how);
        let (c_tokens, c_logprobs) = draw_by_c(&device, &problem, samples as i32);
        assert_eq!(tokens, c_tokens);
        assert_eq!(logprobs, bits(&c_logprobs));
    }
}

/// Each row draws by its own program, with the bits of a batch that has this program alone.
#[test]
fn rows_draw_by_their_programs() {
    const ORDERS: [Program; 2] = [
        Program::new(&[ProgramRule::Temperature, ProgramRule::TypicalP, ProgramRule::TopNSigma]),
        Program::new(&[
            ProgramRule::TypicalP,
            ProgramRule::MinP,
            ProgramRule::Xtc,
            ProgramRule::Temperature,
        ]),
    ];
    let (problem, device) = (Problem::new(), open());
    let (which, offsets, ids) = ([1, 0, 0, 1], [0i64; B + 1], [5]);
    let keep =
        TokenLists { offsets: (&offsets).into(), ids: (&ids).into(), ..TokenLists::default() };
    let draw_by = |rules, program| {
        let programs = Some(Programs {
            rules,
            program,
            typical_p: 0.6.into(),
            top_n_sigma: 2.5.into(),
            xtc_probability: 0.5.into(),
            xtc_threshold: 0.001.into(),
            xtc_keep: keep,
            ..Programs::default()
        });
        let truncation = Truncation { min_p: 0.1.into(), programs, ..Truncation::default() };
        let how = Sampling { truncation: Some(truncation), ..how() };
        draw(&device, &problem.logits(), &how)
    };
    let each = draw_by(&ORDERS, (&which).into());
    let one = [draw_by(&ORDERS[..1], Rows::Default), draw_by(&ORDERS[1..], Rows::Default)];
    assert!(one[0] != one[1]);
    for b in 0..B {
        let own = &one[which[b] as usize];
        assert_eq!((each.0[b], each.1[b]), (own.0[b], own.1[b]));
    }
}

#[test]
fn every_output_arrives() {
    let (problem, device) = (Problem::new(), open());
    let (mut tokens, mut logprobs, mut scores) = ([0; B], [0.0; B], [0.0; B]);
    let (mut lse, mut status, mut ranks, mut kept) = ([0.0; B], [-1; B], [0; B], [0; B]);
    let (mut ids, mut top, mut raw) = ([0; B * 5], [0.0; B * 5], [0.0; B * 5]);
    let (mut best_ids, mut best) = ([0; B * 3], [0.0; B * 3]);
    let (mut kept_ids, mut kept_logprobs) = ([0; B * V], [0.0; B * V]);
    let mut entropy = [0.0; B];
    let mut out = Output {
        tokens: (&mut tokens).into(),
        logprobs: (&mut logprobs).into(),
        scores: (&mut scores).into(),
        lse: (&mut lse).into(),
        status: (&mut status).into(),
        ranks: (&mut ranks).into(),
        kept: (&mut kept).into(),
        top_ids: (&mut ids).into(),
        top_logprobs: (&mut top).into(),
        top_logits: (&mut raw).into(),
        num_top: 5,
        logprobs_of: Distribution::Processed,
        best_ids: (&mut best_ids).into(),
        best_scores: (&mut best).into(),
        num_best: 3,
        kept_capacity: V,
        kept_ids: (&mut kept_ids).into(),
        kept_logprobs: (&mut kept_logprobs).into(),
        entropy: (&mut entropy).into(),
    };
    let logits = problem.logits();
    let mut space = space(device.workspace_size(&logits, &how(), Some(&out)).unwrap());
    device.sample(&logits, &how(), &mut out, &mut space, Stream::NONE).unwrap();
    for b in 0..B {
        let row = &problem.logits[b * V..][..V];
        let most = row.iter().cloned().fold(f32::MIN, f32::max);
        assert_eq!(status[b], RowStatus::Ok as i32);
        assert_eq!(kept[b], V as i32);
        assert!((0..V).all(|i| kept_ids[b * V + i] == i as i32));
        assert_eq!(kept_logprobs[b * V + tokens[b] as usize], logprobs[b]);
        assert_eq!(row[ids[b * 5] as usize], most);
        assert_eq!(raw[b * 5], most);
        assert!(top[b * 5] >= top[b * 5 + 1] && top[b * 5] >= logprobs[b]);
        assert_eq!((best_ids[b * 3], best[b * 3]), (tokens[b], scores[b]));
        assert!(lse[b].is_finite() && ranks[b] >= 1);
        let expected: f64 = kept_logprobs[b * V..][..V]
            .iter()
            .map(|&logprob| -f64::from(logprob) * f64::from(logprob).exp())
            .sum();
        assert!((f64::from(entropy[b]) - expected).abs() < 1e-4);
    }
}

#[test]
fn what_the_draw_sees_can_be_had() {
    let (problem, device) = (Problem::new(), open());
    let (logits, how) = (problem.logits(), how());
    let (mut z, mut p, mut own) = (vec![0.0; B * V], vec![0.0; B * V], problem.logits.clone());
    let mut space = space(device.workspace_size(&logits, &how, None).unwrap());
    let mut into = MatrixMut::new(&mut z, B, V);
    device.process_logits(&logits, &how, &mut into, &mut space, Stream::NONE).unwrap();
    let mut into = MatrixMut::new(&mut p, B, V);
    device.softmax(&logits, &how, &mut into, &mut space, Stream::NONE).unwrap();
    let mut in_place = LogitsMut::new(MatrixMut::new(&mut own, B, V));
    device.process_logits_in_place(&mut in_place, &how, &mut space, Stream::NONE).unwrap();
    assert_eq!(bits(&z), bits(&own));
    assert!((z[3] - problem.logits[3] / 0.8).abs() < 1e-5);
    for row in p.chunks(V) {
        assert!((row.iter().map(|&x| x as f64).sum::<f64>() - 1.0).abs() < 1e-4);
    }
}

#[test]
fn rows_of_16_bits_are_rounded_in_place() {
    let device = open();
    let before: Vec<u16> = (0..B * V).map(|i| 0x3f80 + (i % 512) as u16).collect();
    let (mut z, mut apart, mut own) = (vec![0.0; B * V], vec![0; B * V], before.clone());
    let logits = Logits::new(Tensor::bfloat16(&before, B, V));
    let mut space = space(device.workspace_size(&logits, &how(), None).unwrap());
    let mut into = MatrixMut::new(&mut z, B, V);
    device.process_logits(&logits, &how(), &mut into, &mut space, Stream::NONE).unwrap();
    let mut into = MatrixMut::bfloat16(&mut apart, B, V);
    device.process_logits(&logits, &how(), &mut into, &mut space, Stream::NONE).unwrap();
    assert!(device.softmax(&logits, &how(), &mut into, &mut space, Stream::NONE).is_err());
    let mut in_place = LogitsMut::new(MatrixMut::bfloat16(&mut own, B, V));
    device.process_logits_in_place(&mut in_place, &how(), &mut space, Stream::NONE).unwrap();
    assert_eq!(own, apart);
    for (x, &half) in z.iter().zip(&own) {
        let bits = x.to_bits();
        assert_eq!(half as u32, (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    let mut other = MatrixMut::float16(&mut apart, B, V);
    let error = device.process_logits(&logits, &how(), &mut other, &mut space, Stream::NONE);
    assert_eq!(error.unwrap_err().field(), "dtype");
}

#[test]
fn shards_merge_into_the_whole() {
    let (problem, device) = (Problem::new(), open());
    let half = 512;
    let (mut first, mut second) = (problem.head(), problem.head());
    first.weight = Tensor::float32(&problem.weight[..half * D], half, D);
    second.weight = Tensor::float32(&problem.weight[half * D..], V - half, D);
    second.first_token = half;
    first.vocab_size = V;
    let mut parts = [Summary::default(); 2 * B];
    clear(&mut parts);
    let mut space = space(device.workspace_size(&problem.head(), &how(), None).unwrap());
    for (part, head) in parts.chunks_mut(B).zip([&first, &second]) {
        device.partial(head, &how(), part, &mut space, Stream::NONE).unwrap();
    }
    let (whole, _, scores) = draw(&device, &problem.head(), &how());
    let finish = |summaries: &[Summary], count| {
        let (mut tokens, mut found) = ([0; B], [0.0f32; B]);
        let mut out = Output {
            tokens: (&mut tokens).into(),
            scores: (&mut found).into(),
            ..Output::default()
        };
        device.finish(summaries, count, B, 1, &mut out, Stream::NONE).unwrap();
        let of_device = tokens;
        let mut out = Output { tokens: (&mut tokens).into(), ..Output::default() };
        gumbel::finish(summaries, count, B, 1, &mut out).unwrap();
        assert_eq!(tokens, of_device);
        (tokens.to_vec(), bits(&found))
    };
    assert_eq!(finish(&parts, 2), (whole.clone(), scores.clone()));
    let (into, from) = parts.split_at_mut(B);
    let mut again = into.to_vec();
    merge(into, from).unwrap();
    device.merge(&mut again, &*from, Stream::NONE).unwrap();
    assert_eq!(finish(into, 1), (whole.clone(), scores.clone()));
    assert_eq!(finish(&again, 1), (whole, scores));

    let mut of_logits = [Summary::default(); B];
    device.partial(&problem.logits(), &how(), &mut of_logits, &mut space, Stream::NONE).unwrap();
    assert_eq!(finish(&of_logits, 1).0, draw(&device, &problem.logits(), &how()).0);
}

#[test]
fn given_tokens_score_what_a_draw_scored() {
    let (problem, device) = (Problem::new(), open());
    let (tokens, logprobs, _) = draw(&device, &problem.logits(), &how());
    let given = Sampling { given: (&tokens).into(), ..how() };
    let (again, scored, _) = draw(&device, &problem.logits(), &given);
    assert_eq!((again, scored), (tokens, logprobs));
}

#[test]
fn precomputed_noise_is_the_draws() {
    let (problem, device) = (Problem::new(), open());
    let mut ahead = vec![0.0; B * V];
    device.prepare_noise(&how(), B, 0, V, &mut ahead, 0, Stream::NONE).unwrap();
    let with = Sampling { noise: (&ahead).into(), ..how() };
    assert_eq!(draw(&device, &problem.head(), &with), draw(&device, &problem.head(), &how()));
    for b in 0..B {
        let mut own = [0.0; V];
        noise(row_seed(42, b as u64), 7, 0, gumbel::domain::TARGET, 0, &mut own).unwrap();
        assert_eq!(bits(&own), bits(&ahead[b * V..][..V]));
    }
    assert_eq!(row_seed(42, 0), 42);
    let zero = philox4x32([0; 4], [0; 2], 10).unwrap(); // the published answer
    assert_eq!(zero, [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
}

#[test]
fn tables_draw_with_the_noise_of_their_tokens() {
    let (problem, device) = (Problem::new(), open());
    let ids: Vec<i32> = (0..V as i32).map(|i| 7 * i + 3).collect();
    let table = Sampling { token_ids: (&ids).into(), ..how() };
    let mut ahead = vec![0.0; B * V];
    device.prepare_noise(&table, B, 0, V, &mut ahead, 0, Stream::NONE).unwrap();
    let mut one = [0.0];
    noise(row_seed(42, 1), 7, 0, gumbel::domain::TARGET, ids[2] as usize, &mut one).unwrap();
    assert_eq!(bits(&one), bits(&ahead[V + 2..][..1]));
    let rows = Sampling { noise: (&ahead).into(), ..how() };
    let (tokens, logprobs, scores) = draw(&device, &problem.head(), &rows);
    let tokens: Vec<i32> = tokens.iter().map(|&row| ids[row as usize]).collect();
    assert_eq!(draw(&device, &problem.head(), &table), (tokens, logprobs, scores));
    let limits = Limits { batch: B, vocab_size: V, requests: true, ..Limits::default() };
    let plain = device.workspace_most(&limits).unwrap();
    let most = device.workspace_most(&Limits { token_ids: true, ..limits }).unwrap();
    assert!(most >= plain + 4 * B * V);
}

#[test]
fn masks_bans_and_biases_count() {
    let (problem, device) = (Problem::new(), open());
    let (offsets, ids) = ([0i64, 1, 2, 3, 4], [5i32, 6, 7, 8]);
    let only =
        TokenLists { offsets: (&offsets).into(), ids: (&ids).into(), ..TokenLists::default() };
    let transforms = Transforms { allowed: only, ..Transforms::default() };
    let how = Sampling { transforms: Some(transforms), ..how() };
    assert_eq!(draw(&device, &problem.head(), &how).0, ids);
    let transforms = Transforms { max_allowed: 1, ..transforms };
    let how = Sampling { transforms: Some(transforms), ..how };
    assert_eq!(draw(&device, &problem.head(), &how).0, ids);
    let values = [1e6f32; 4];
    let pushed = TokenLists { values: (&values).into(), ..only };
    let transforms = Transforms { bias: pushed, ..Transforms::default() };
    let how = Sampling { transforms: Some(transforms), ..how };
    assert_eq!(draw(&device, &problem.head(), &how).0, ids);
}

/// Runs the tasks on two threads, from the last to the first.
struct Pool;

// SAFETY: each index once; the scope waits for its threads.
unsafe impl ParallelFor for Pool {
    fn run(&self, count: i32, task: &(dyn Fn(i32) + Sync)) {
        std::thread::scope(|scope| {
            scope.spawn(|| (0..count / 2).rev().for_each(task));
            (count / 2..count).rev().for_each(task);
        });
    }
}

#[test]
fn an_engines_pool_and_many_callers_give_the_same_bits() {
    let (problem, device) = (Problem::new(), open());
    let alone = draw(&device, &problem.head(), &how());
    let options =
        DeviceOptions { parallel_for: Some(Box::new(Pool)), threads: 5, ..Default::default() };
    let pooled = Device::open(options).unwrap();
    assert_eq!(draw(&pooled, &problem.head(), &how()), alone);
    assert_eq!(pooled.describe().unwrap().threads, 5);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(draw(&device, &problem.head(), &how()), alone));
        }
    });
    let moved = std::thread::spawn(move || draw(&device, &Problem::new().head(), &how()));
    assert_eq!(moved.join().unwrap(), alone);
}

#[test]
fn rows_may_be_strided_or_the_same() {
    let (problem, device) = (Problem::new(), open());
    let wide = [0.5f32, 9.0, 0.6, 9.0, 0.7, 9.0, 0.8];
    let narrow = [0.5f32, 0.6, 0.7, 0.8];
    let strided = Sampling { temperature: Rows::Strided((&wide).into(), 2), ..how() };
    let each = Sampling { temperature: (&narrow).into(), ..how() };
    assert_eq!(draw(&device, &problem.head(), &strided), draw(&device, &problem.head(), &each));
    let one = [0.8f32];
    let same = Sampling { temperature: Rows::Same((&one).into()), ..how() };
    assert_eq!(draw(&device, &problem.head(), &same), draw(&device, &problem.head(), &how()));
}

#[test]
fn a_device_describes_itself() {
    let (problem, device) = (Problem::new(), open());
    let info = device.describe().unwrap();
    assert_eq!(info.name, "cpu");
    assert!(info.isa.unwrap().is_available() && Isa::Reference.is_available());
    assert_eq!(Isa::Reference.name(), "reference");
    assert!(device.explain(&problem.head(), &how(), None).unwrap().len() > 3);
    assert_eq!(gumbel::version() / 100, 3);
    assert_eq!(gumbel::version_string(), env!("CARGO_PKG_VERSION"));
    assert!(RowStatus::Nan.phrase().len() > 3);
    let kernels = gumbel::cuda_architectures();
    assert!(kernels.is_empty() || kernels.contains("sm_90"), "{kernels}");
    let hopper = gumbel::cuda_architecture("hopper", 90);
    assert!(kernels.contains(hopper) && hopper.is_empty() == kernels.is_empty(), "{hopper}");
    assert_eq!(gumbel::cuda_architecture("hopper", 120), "");
    assert_eq!(gumbel::cuda_architecture("other\0", 90), "");
    assert_eq!(device.capability(), 0);
    let most = gumbel::Limits { batch: B, hidden_size: D, ..Default::default() };
    let one = device.workspace_size(&problem.head(), &how(), None).unwrap();
    assert!(device.workspace_most(&most).unwrap() > 0 && one > 0);
}
