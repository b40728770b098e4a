// SPDX-License-Identifier: Apache-2.0
//! The decode loop of docs/examples/engine.c, with the same tokens, in safe Rust. In place of
//! a model, the hidden state of the next step is the embedding of the token just drawn.
use gumbel::{Device, DeviceOptions, Head, Limits, Output, Sampling, Stream, Tensor, Workspace};

const B: usize = 2;
const V: usize = 1000;
const D: usize = 64;
const STEPS: u64 = 16;

fn main() -> gumbel::Result<()> {
    let weight: Vec<f32> = (0..(V * D) as u32) // synthetic weights
        .map(|i| (i.wrapping_mul(2654435761) >> 8) % 2001)
        .map(|i| i as f32 / 2000.0 - 0.5)
        .collect();
    let mut hidden = weight[..B * D].to_vec(); // the prompts are tokens 0 and 1

    let device = Device::open(DeviceOptions::default())?;
    let mut space = Workspace::new();
    space.reserve(device.workspace_most(&Limits {
        batch: B,
        hidden_size: D,
        ..Limits::default()
    })?)?;

    let mut tokens = [0; B];
    for position in 0..STEPS {
        let head = Head::new(Tensor::float32(&hidden, B, D), Tensor::float32(&weight, V, D));
        let sampling = Sampling {
            temperature: 0.8.into(),
            seed: 42.into(),
            position: position.into(),
            ..Sampling::default()
        };
        let mut out = Output { tokens: (&mut tokens).into(), ..Output::default() };
        device.sample(&head, &sampling, &mut out, &mut space, Stream::NONE)?;
        println!("{:4} {:4}", tokens[0], tokens[1]);
        for (b, &token) in tokens.iter().enumerate() {
            let row = token as usize * D;
            hidden[b * D..][..D].copy_from_slice(&weight[row..][..D]); // run the model here
        }
    }
    Ok(())
}
