// SPDX-License-Identifier: Apache-2.0
//! Calls of a device that draw tokens, verify drafts or transform logits.
use crate::device::{Device, Stream, Summary};
use crate::drafts::{Draft, Verified};
use crate::error::{call_library, Error, Result};
use crate::ffi;
use crate::lowering::to_i64;
use crate::lowering_calls::{CallC, Input, VerifyC};
use crate::parameters::*;
use crate::views::{Dtype, MatrixMut, Space, Tensor, ViewMut};

impl Device {
    // --------------------------------------------------------------------------- sampling ----

    /// Draws `num_samples` tokens for each row, from hidden states and an LM head in one pass, or
    /// from logits.
    ///
    /// # Errors
    /// - [`Status::Argument`](crate::Status::Argument): an argument is out of range, or a view is
    ///   smaller than its shape; [`Error::field`](crate::Error::field) names it.
    /// - [`Status::Workspace`](crate::Status::Workspace): the workspace is too small or not
    ///   aligned.
    /// - [`Status::Unsupported`](crate::Status::Unsupported): the device or build does not support
    ///   the call.
    /// - [`Status::Device`](crate::Status::Device): the GPU's driver failed.
    ///
    /// No output is written if the call fails.
    pub fn sample<'s>(
        &self,
        input: &impl Input,
        sampling: &Sampling<'_>,
        out: &mut Output<'_>,
        space: impl Into<Space<'s>>,
        stream: Stream,
    ) -> Result<()> {
        let (check, space) = (self.check(), space.into());
        check.space(&space)?;
        let mut lowered = CallC::new(&check, input, sampling, Some(out))?;
        let pointers = lowered.link();
        // SAFETY: every view has at least the elements of its shape, in this device's memory;
        // outputs and workspace are borrowed for writing.
        call_library(|error| unsafe {
            let (device, queue) = (self.as_raw(), stream.0);
            let (data, bytes) = (space.data, space.bytes);
            if pointers.head.is_null() {
                ffi::gumbel_sample_logits(
                    device,
                    queue,
                    pointers.logits,
                    pointers.sampling,
                    pointers.output,
                    data,
                    bytes,
                    error,
                )
            } else {
                ffi::gumbel_sample(
                    device,
                    queue,
                    pointers.head,
                    pointers.sampling,
                    pointers.output,
                    data,
                    bytes,
                    error,
                )
            }
        })
    }

    /// Computes the summaries `[B, S]` of one shard of the vocabulary, from hidden states or
    /// logits.
    ///
    /// Merge the summaries of all shards with [`merge`](Device::merge), or pass them together to
    /// [`finish`](Device::finish). Errors are those of [`sample`](Device::sample).
    pub fn partial<'a, 's>(
        &self,
        input: &impl Input,
        sampling: &Sampling<'_>,
        summaries: impl Into<ViewMut<'a, Summary>>,
        space: impl Into<Space<'s>>,
        stream: Stream,
    ) -> Result<()> {
        let (check, space, summaries) = (self.check(), space.into(), summaries.into());
        check.space(&space)?;
        let mut lowered = CallC::new(&check, input, sampling, None)?;
        let into = check.required_mut("summaries", &summaries, lowered.sizes.draws())?;
        let pointers = lowered.link();
        // SAFETY: as in sample().
        call_library(|error| unsafe {
            let (device, queue) = (self.as_raw(), stream.0);
            let (data, bytes) = (space.data, space.bytes);
            if pointers.head.is_null() {
                ffi::gumbel_partial_logits(
                    device,
                    queue,
                    pointers.logits,
                    pointers.sampling,
                    into,
                    data,
                    bytes,
                    error,
                )
            } else {
                ffi::gumbel_partial(
                    device,
                    queue,
                    pointers.head,
                    pointers.sampling,
                    into,
                    data,
                    bytes,
                    error,
                )
            }
        })
    }

    /// Computes the transformed logits `[B, V]` of a draw; tokens that cannot be drawn are -inf.
    ///
    /// The matrix is float32, or has the dtype of the logits: it is then rounded to nearest even.
    pub fn process_logits<'s>(
        &self,
        logits: &Logits<'_>,
        sampling: &Sampling<'_>,
        into: &mut MatrixMut<'_>,
        space: impl Into<Space<'s>>,
        stream: Stream,
    ) -> Result<()> {
        self.transform_rows(false, logits, sampling, into, space.into(), stream)
    }

    /// Computes the probabilities `[B, V]` of a draw, after transforms and truncation, as float32.
    pub fn softmax<'s>(
        &self,
        logits: &Logits<'_>,
        sampling: &Sampling<'_>,
        into: &mut MatrixMut<'_>,
        space: impl Into<Space<'s>>,
        stream: Stream,
    ) -> Result<()> {
        self.transform_rows(true, logits, sampling, into, space.into(), stream)
    }

    /// [`process_logits`](Device::process_logits), overwriting the logits, of any dtype.
    pub fn process_logits_in_place<'s>(
        &self,
        logits: &mut LogitsMut<'_>,
        sampling: &Sampling<'_>,
        space: impl Into<Space<'s>>,
        stream: Stream,
    ) -> Result<()> {
        let read = Logits {
            values: Tensor::in_place(&logits.values),
            scale: logits.scale,
            soft_cap: logits.soft_cap,
            first_token: logits.first_token,
            vocab_size: logits.vocab_size,
        };
        let into = &mut logits.values;
        self.transform_rows(false, &read, sampling, into, space.into(), stream)
    }

    fn transform_rows(
        &self,
        softmax: bool,
        logits: &Logits<'_>,
        sampling: &Sampling<'_>,
        into: &mut MatrixMut<'_>,
        space: Space<'_>,
        stream: Stream,
    ) -> Result<()> {
        let check = self.check();
        check.space(&space)?;
        let mut lowered = CallC::new(&check, logits, sampling, None)?;
        let field = if softmax { "probabilities" } else { "processed" };
        let data = check.matrix(field, into, logits.values.rows, logits.values.cols)?;
        if softmax && into.dtype != Dtype::Float32 {
            return Err(Error::argument(field, "must be float32".to_string()));
        }
        let stride = to_i64(field, into.stride)?;
        let pointers = lowered.link();
        // SAFETY: as in sample(); the matrix is borrowed for writing.
        call_library(|error| unsafe {
            let (device, queue) = (self.as_raw(), stream.0);
            let (room, bytes) = (space.data, space.bytes);
            if softmax {
                ffi::gumbel_softmax(
                    device,
                    queue,
                    pointers.logits,
                    pointers.sampling,
                    data.cast(),
                    stride,
                    room,
                    bytes,
                    error,
                )
            } else {
                ffi::gumbel_process_logits_into(
                    device,
                    queue,
                    pointers.logits,
                    pointers.sampling,
                    data,
                    into.dtype as i32,
                    stride,
                    room,
                    bytes,
                    error,
                )
            }
        })
    }

    // ----------------------------------------------------------------------------- drafts ----

    /// Verifies drafted tokens: accepts a prefix of each request's draft, and draws one token
    /// after it.
    ///
    /// `input` has n rows, one for each node of the drafts.
    ///
    /// # Errors
    /// Those of [`sample`](Device::sample); [`Status::Unsupported`](crate::Status::Unsupported) if
    /// the device does not support the rule.
    pub fn verify<'s>(
        &self,
        input: &impl Input,
        sampling: &Sampling<'_>,
        draft: &Draft<'_>,
        out: &mut Verified<'_>,
        space: impl Into<Space<'s>>,
        stream: Stream,
    ) -> Result<()> {
        let (check, space) = (self.check(), space.into());
        check.space(&space)?;
        let mut lowered = VerifyC::new(&check, input, sampling, draft, out)?;
        let pointers = lowered.link();
        // SAFETY: as in sample().
        call_library(|error| unsafe {
            let (device, queue) = (self.as_raw(), stream.0);
            let (data, bytes) = (space.data, space.bytes);
            if pointers.head.is_null() {
                ffi::gumbel_verify_logits(
                    device,
                    queue,
                    pointers.logits,
                    pointers.sampling,
                    pointers.draft,
                    pointers.verified,
                    data,
                    bytes,
                    error,
                )
            } else {
                ffi::gumbel_verify(
                    device,
                    queue,
                    pointers.head,
                    pointers.sampling,
                    pointers.draft,
                    pointers.verified,
                    data,
                    bytes,
                    error,
                )
            }
        })
    }
}
