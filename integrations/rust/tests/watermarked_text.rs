// SPDX-License-Identifier: Apache-2.0
//! Watermarks through the crate: a text that is decoded, verified from a draft, and detected.
mod problem;

use gumbel::{
    detect_watermark, Detector, Device, Draft, Logits, Output, Recent, Sampling, Status, Stream,
    Tensor, Verified, View, Watermark, WatermarkDraws, Workspace,
};
use problem::open;

const VOCAB: usize = 64;
const STEPS: usize = 120;
const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 77];

/// Logits after a token, in an order that depends on it.
fn logits_after(token: i32) -> Vec<f32> {
    (0..VOCAB).map(|i| 3.0 * ((i as f32 + 1.0) * (token as f32 + 2.0) * 1.7).sin()).collect()
}

fn mark(step: u64) -> Watermark<'static> {
    Watermark {
        key: (&KEY).into(),
        one_key: true,
        context: 2.into(),
        seed: 5.into(),
        position: step.into(),
        ..Watermark::default()
    }
}

fn draw(device: &Device, logits: &[f32], seed: &[u64], position: &[u64]) -> i32 {
    let input = Logits::new(Tensor::float32(logits, 1, VOCAB));
    let sampling = Sampling { seed: seed.into(), position: position.into(), ..Sampling::default() };
    let (mut tokens, mut space) = ([0], Workspace::new());
    let mut out = Output { tokens: (&mut tokens).into(), ..Output::default() };
    space.reserve(device.workspace_size(&input, &sampling, Some(&out)).unwrap()).unwrap();
    device.sample(&input, &sampling, &mut out, &mut space, Stream::NONE).unwrap();
    tokens[0]
}

/// A text, and the number of its watermarked tokens.
fn decode(device: &Device, ring: &mut [i32], count: &mut [u64]) -> (Vec<i32>, usize) {
    let (mut text, mut marked) = (Vec::new(), 0);
    for step in 0..STEPS {
        let (mut seed, mut position, mut watermarked) = ([0u64], [0u64], [0]);
        let mut draws = WatermarkDraws {
            seed: (&mut seed).into(),
            position: (&mut position).into(),
            watermarked: (&mut watermarked).into(),
        };
        let mut recent = Recent {
            capacity: STEPS,
            tokens: (&mut *ring).into(),
            count: (&mut *count).into(),
            ..Recent::default()
        };
        device.watermark_rows(&mark(step as u64), &recent, 1, &mut draws, Stream::NONE).unwrap();
        let token = [draw(device, &logits_after(*text.last().unwrap_or(&0)), &seed, &position)];
        device
            .recent_append(
                &mut recent,
                1,
                &Default::default(),
                &token,
                1,
                View::default(),
                Stream::NONE,
            )
            .unwrap();
        marked += watermarked[0] as usize;
        text.push(token[0]);
    }
    (text, marked)
}

#[test]
fn a_text_is_decoded_verified_and_detected() {
    let (device, mut ring, mut count) = (open(), [0; STEPS], [0u64]);
    let (text, marked) = decode(&device, &mut ring, &mut count);
    let mut scores = vec![0.0; STEPS];
    let detector = Detector { key: KEY, context: 2, ..Detector::default() };
    let found = detect_watermark(&detector, &text, &mut scores).unwrap();
    assert!(marked > 40 && found.scored == marked && found.p_value < 1e-6);
    assert_eq!(scores.iter().filter(|score| !score.is_nan()).count(), marked);
    let other = detect_watermark(&Detector { key: [1, 2], ..detector }, &text, &mut []).unwrap();
    assert!(other.scored == marked && other.p_value > 1e-4);

    // The right draft of the last four tokens is accepted.
    let root = STEPS - 5;
    count[0] = root as u64 + 1;
    let (mut seed, mut position) = ([0u64], [0u64; 4]);
    let recent = Recent {
        capacity: STEPS,
        tokens: (&mut ring).into(),
        count: (&mut count).into(),
        ..Recent::default()
    };
    let mut draft = Draft {
        requests: 1,
        max_nodes: 4,
        tokens: (&text[root..root + 4]).into(),
        ..Draft::default()
    };
    let mut draws = WatermarkDraws {
        seed: (&mut seed).into(),
        position: (&mut position).into(),
        ..WatermarkDraws::default()
    };
    let own = [root as u64 + 1];
    device.watermark_nodes(&mark(own[0]), &recent, &draft, 4, &mut draws, Stream::NONE).unwrap();
    draft.node_position = (&position).into();
    let logits: Vec<f32> = text[root..root + 4].iter().flat_map(|&t| logits_after(t)).collect();
    let input = Logits::new(Tensor::float32(&logits, 4, VOCAB));
    let sampling =
        Sampling { seed: (&seed).into(), position: (&own).into(), ..Sampling::default() };
    let (mut tokens, mut emitted, mut space) = ([0; 4], [0], Workspace::new());
    let mut out = Verified {
        tokens: (&mut tokens).into(),
        emitted: (&mut emitted).into(),
        ..Verified::default()
    };
    let bytes = device.verify_workspace_size(&input, &sampling, &draft, &out).unwrap();
    space.reserve(bytes).unwrap();
    device.verify(&input, &sampling, &draft, &mut out, &mut space, Stream::NONE).unwrap();
    assert_eq!((&tokens[..], emitted[0]), (&text[root + 1..], 4));
}

#[test]
fn invalid_arguments_are_errors_by_name() {
    let (device, mut ring, mut count) = (open(), [0; 4], [0u64]);
    let recent = Recent {
        capacity: 4,
        tokens: (&mut ring).into(),
        count: (&mut count).into(),
        ..Recent::default()
    };
    let (mut seed, mut position) = ([0u64], [0u64]);
    let mut draws = WatermarkDraws {
        seed: (&mut seed).into(),
        position: (&mut position).into(),
        ..WatermarkDraws::default()
    };
    let short = [1u64];
    for (watermark, field) in [
        (Watermark { key: (&short).into(), ..mark(0) }, "watermark.key"),
        (Watermark { context: 17.into(), ..mark(0) }, "watermark.context[0]"),
        (Watermark { num_drafts: 2, ..mark(0) }, "watermark.drafts"),
    ] {
        let error =
            device.watermark_rows(&watermark, &recent, 1, &mut draws, Stream::NONE).unwrap_err();
        assert_eq!((error.status(), error.field()), (Status::Argument, field));
    }
    let detector = Detector { context: 17, ..Detector::default() };
    let error = detect_watermark(&detector, &[1, 2], &mut []).unwrap_err();
    assert_eq!(error.field(), "detector.context");
    let error = detect_watermark(&Detector::default(), &[1, 2], &mut [0.0]).unwrap_err();
    assert_eq!(error.field(), "scores");
}
