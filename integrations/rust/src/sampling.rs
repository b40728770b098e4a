// SPDX-License-Identifier: Apache-2.0
//! Calls of a device that draw or transform logits.
use crate::device::{Device, Stream, Summary};
use crate::drafts::{Draft, Verified};
use crate::error::{call, Result};
use crate::ffi;
use crate::lowering::int64;
use crate::lowering_calls::{CallC, Input, VerifyC};
use crate::parameters::*;
use crate::views::{MatrixMut, Space, Tensor, ViewMut};
use std::os::raw::c_void;

type CFill = unsafe extern "C" fn(
    *mut ffi::gumbel_device,
    *mut c_void,
    *const ffi::gumbel_logits,
    *const ffi::gumbel_sampling,
    *mut f32,
    i64,
    *mut c_void,
    usize,
    *mut ffi::gumbel_error,
) -> i32;

impl Device {
    // --------------------------------------------------------------------------- sampling ----

    /// Draw tokens from hidden states and an LM head in one pass, or from logits.
    ///
    /// # Errors
    /// An argument is out of range, a view or the workspace is too small, or a GPU's driver fails.
    /// On an error no output has been written.
    pub fn sample<'s>(
        &self,
        input: &impl Input,
        how: &Sampling<'_>,
        out: &mut Output<'_>,
        space: impl Into<Space<'s>>,
        stream: Stream,
    ) -> Result<()> {
        let (check, space) = (self.check(), space.into());
        check.space(&space)?;
        let mut to = CallC::new(&check, input, how, Some(out))?;
        let at = to.link();
        // SAFETY: every view has at least the elements of its shape, in this device's memory;
        // outputs and workspace are borrowed for writing.
        call(|error| unsafe {
            let (device, on) = (self.as_raw(), stream.0);
            let (data, bytes) = (space.data, space.bytes);
            if at.head.is_null() {
                ffi::gumbel_sample_logits(
                    device,
                    on,
                    at.logits,
                    at.sampling,
                    at.output,
                    data,
                    bytes,
                    error,
                )
            } else {
                ffi::gumbel_sample(device, on, at.head, at.sampling, at.output, data, bytes, error)
            }
        })
    }

    /// Summaries `[B, S]` of one shard of the vocabulary, from hidden states or logits.
    pub fn partial<'a, 's>(
        &self,
        input: &impl Input,
        how: &Sampling<'_>,
        summaries: impl Into<ViewMut<'a, Summary>>,
        space: impl Into<Space<'s>>,
        stream: Stream,
    ) -> Result<()> {
        let (check, space, summaries) = (self.check(), space.into(), summaries.into());
        check.space(&space)?;
        let mut to = CallC::new(&check, input, how, None)?;
        let into = check.required_mut("summaries", &summaries, to.sizes.draws())?;
        let at = to.link();
        // SAFETY: as in sample().
        call(|error| unsafe {
            let (device, on) = (self.as_raw(), stream.0);
            let (data, bytes) = (space.data, space.bytes);
            if at.head.is_null() {
                ffi::gumbel_partial_logits(
                    device,
                    on,
                    at.logits,
                    at.sampling,
                    into,
                    data,
                    bytes,
                    error,
                )
            } else {
                ffi::gumbel_partial(device, on, at.head, at.sampling, into, data, bytes, error)
            }
        })
    }

    /// The transformed logits of a draw, -inf for removed tokens.
    pub fn process_logits<'s>(
        &self,
        logits: &Logits<'_>,
        how: &Sampling<'_>,
        into: &mut MatrixMut<'_>,
        space: impl Into<Space<'s>>,
        stream: Stream,
    ) -> Result<()> {
        let call = ffi::gumbel_process_logits;
        self.fill(call, "processed", logits, how, into, space.into(), stream)
    }

    /// The probabilities of a draw.
    pub fn softmax<'s>(
        &self,
        logits: &Logits<'_>,
        how: &Sampling<'_>,
        into: &mut MatrixMut<'_>,
        space: impl Into<Space<'s>>,
        stream: Stream,
    ) -> Result<()> {
        let call = ffi::gumbel_softmax;
        self.fill(call, "probabilities", logits, how, into, space.into(), stream)
    }

    /// [`process_logits`](Device::process_logits) into the logits themselves.
    pub fn process_logits_in_place<'s>(
        &self,
        logits: &mut LogitsMut<'_>,
        how: &Sampling<'_>,
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
        let call = ffi::gumbel_process_logits;
        let into = &mut logits.values;
        self.fill(call, "processed", &read, how, into, space.into(), stream)
    }

    #[allow(clippy::too_many_arguments)]
    fn fill(
        &self,
        c_call: CFill,
        field: &str,
        logits: &Logits<'_>,
        how: &Sampling<'_>,
        into: &mut MatrixMut<'_>,
        space: Space<'_>,
        stream: Stream,
    ) -> Result<()> {
        let check = self.check();
        check.space(&space)?;
        let mut to = CallC::new(&check, logits, how, None)?;
        let data = check.matrix(field, into, logits.values.rows, logits.values.cols)?;
        let stride = int64(field, into.stride)?;
        let at = to.link();
        // SAFETY: as in sample(); the matrix is borrowed for writing.
        call(|error| unsafe {
            c_call(
                self.as_raw(),
                stream.0,
                at.logits,
                at.sampling,
                data,
                stride,
                space.data,
                space.bytes,
                error,
            )
        })
    }

    // ----------------------------------------------------------------------------- drafts ----

    /// Draw from n rows of hidden states or logits, and accept drafts.
    ///
    /// # Errors
    /// As [`sample`](Device::sample); or the rule is not supported.
    pub fn verify<'s>(
        &self,
        input: &impl Input,
        how: &Sampling<'_>,
        draft: &Draft<'_>,
        out: &mut Verified<'_>,
        space: impl Into<Space<'s>>,
        stream: Stream,
    ) -> Result<()> {
        let (check, space) = (self.check(), space.into());
        check.space(&space)?;
        let mut to = VerifyC::new(&check, input, how, draft, out)?;
        let at = to.link();
        // SAFETY: as in sample().
        call(|error| unsafe {
            let (device, on) = (self.as_raw(), stream.0);
            let (data, bytes) = (space.data, space.bytes);
            if at.head.is_null() {
                ffi::gumbel_verify_logits(
                    device,
                    on,
                    at.logits,
                    at.sampling,
                    at.draft,
                    at.verified,
                    data,
                    bytes,
                    error,
                )
            } else {
                ffi::gumbel_verify(
                    device,
                    on,
                    at.head,
                    at.sampling,
                    at.draft,
                    at.verified,
                    data,
                    bytes,
                    error,
                )
            }
        })
    }
}
