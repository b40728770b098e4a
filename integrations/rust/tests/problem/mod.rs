// SPDX-License-Identifier: Apache-2.0
//! The problem that tests draw from: hidden states, a head, and their logits.
#![allow(dead_code)]
use gumbel::{Device, DeviceOptions, Head, Logits, Output, Sampling, Stream, Tensor, Workspace};

pub const B: usize = 4;
pub const V: usize = 1000;
pub const D: usize = 64;

pub struct Problem {
    pub hidden: Vec<f32>,
    pub weight: Vec<f32>,
    pub logits: Vec<f32>,
}

/// Pseudo-random numbers in [-0.5, 0.5].
pub fn values(count: usize) -> Vec<f32> {
    (0..count as u32)
        .map(|i| (i.wrapping_mul(2654435761) >> 8) % 2001)
        .map(|i| i as f32 / 2000.0 - 0.5)
        .collect()
}

impl Problem {
    pub fn new() -> Self {
        let weight = values(V * D);
        let hidden = weight[..B * D].to_vec();
        let logits = values(B * V).iter().map(|x| 8.0 * x).collect();
        Problem { hidden, weight, logits }
    }
    pub fn head(&self) -> Head<'_> {
        Head::new(Tensor::float32(&self.hidden, B, D), Tensor::float32(&self.weight, V, D))
    }
    pub fn logits(&self) -> Logits<'_> {
        Logits::new(Tensor::float32(&self.logits, B, V))
    }
}

pub fn open() -> Device {
    Device::open(DeviceOptions::default()).unwrap()
}

pub fn space(bytes: usize) -> Workspace {
    let mut space = Workspace::new();
    space.reserve(bytes).unwrap();
    space
}

/// The bits of floats, which compare NaN, too.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Tokens, log-probabilities and scores `[B, S]` of a draw.
pub type Drawn = (Vec<i32>, Vec<u32>, Vec<u32>);

pub fn draw(device: &Device, input: &impl gumbel::Input, how: &Sampling<'_>) -> Drawn {
    let draws = B * how.num_samples;
    let (mut tokens, mut logprobs, mut scores) =
        (vec![-2; draws], vec![0.0f32; draws], vec![0.0f32; draws]);
    let mut out = Output {
        tokens: (&mut tokens).into(),
        logprobs: (&mut logprobs).into(),
        scores: (&mut scores).into(),
        ..Output::default()
    };
    let mut space = space(device.workspace_size(input, how, Some(&out)).unwrap());
    device.sample(input, how, &mut out, &mut space, Stream::NONE).unwrap();
    (tokens, bits(&logprobs), bits(&scores))
}
