// SPDX-License-Identifier: Apache-2.0
use crate::drafts::{Draft, Verified};
use crate::enums::Isa;
use crate::error::{call, text_of, Error, Result};
use crate::ffi;
use crate::lowering::{extent, int32, int64, places_of, times, Check, Shape};
use crate::lowering_calls::{CallC, Input, RowsOf, SamplingC, VerifyC};
use crate::parameters::*;
use crate::views::{MatrixMut, Space, Tensor, View, ViewMut};
use std::ffi::CString;
use std::mem::size_of;
use std::os::raw::{c_char, c_void};
use std::ptr::{self, NonNull};

/// A summary of a part of a vocabulary, plain data that may be copied, sent and stored.
pub type Summary = ffi::gumbel_summary;

/// The stream of a GPU that a call is queued on. Default: none, as on a CPU.
#[derive(Clone, Copy, Debug)]
pub struct Stream(*mut c_void);

impl Default for Stream {
    fn default() -> Self {
        Stream::NONE
    }
}

impl Stream {
    /// The default stream, and the only one of a CPU.
    pub const NONE: Stream = Stream(ptr::null_mut());

    /// A `CUstream` or `cudaStream_t`.
    ///
    /// # Safety
    /// It is one, of the GPU that every call with it is made for, and lives until it has passed
    /// those calls.
    pub unsafe fn from_raw(stream: *mut c_void) -> Self {
        Stream(stream)
    }
}

/// A CPU, or a GPU, that samples. Calls may run side by side, on any threads.
///
/// A call on a CPU is done when it returns. On a GPU it is queued: its views are made by unsafe
/// functions, whose callers promise that the memory outlives the stream's work.
pub struct Device {
    raw: NonNull<ffi::gumbel_device>,
    host: bool,
    // The pool that the device calls, behind a thin pointer that C can hold; dropped after it.
    _pool: Option<Box<Box<dyn ParallelFor>>>,
}

// SAFETY: "Calls on one device may run at the same time if their outputs and workspaces differ"
// (gumbel.h); both are behind &mut. Nothing is bound to the thread that opened it.
unsafe impl Send for Device {}
unsafe impl Sync for Device {}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: it is open, and no call runs, as calls borrow it.
        unsafe { ffi::gumbel_close(self.raw.as_ptr()) }
    }
}

/// Hand a call's pieces to the engine's pool. A panic must not pass through C.
unsafe extern "C" fn run_pool(
    context: *mut c_void,
    count: i32,
    task: ffi::gumbel_task,
    argument: *mut c_void,
) {
    struct Argument(*mut c_void);
    // SAFETY: the library calls its own task with it from any threads.
    unsafe impl Sync for Argument {}
    impl Argument {
        fn get(&self) -> *mut c_void {
            self.0
        }
    }
    let argument = Argument(argument);
    // SAFETY: `context` is the box that Device::open() made, which outlives the device.
    let pool: &dyn ParallelFor = unsafe { &**context.cast::<Box<dyn ParallelFor>>() };
    let run = std::panic::AssertUnwindSafe(|| {
        // SAFETY: the pool's promise is the library's: each index once, while this call runs.
        pool.run(count, &|index| unsafe { task(argument.get(), index) })
    });
    if std::panic::catch_unwind(run).is_err() {
        std::process::abort();
    }
}

fn c_string(field: &str, text: Option<&str>) -> Result<Option<CString>> {
    text.map(CString::new)
        .transpose()
        .map_err(|_| Error::argument(field, "it has a NUL in it"))
}

fn c_pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

impl Device {
    /// Open a device.
    ///
    /// # Errors
    /// Options out of range, a device that is not to be had, no memory, a driver that refuses.
    pub fn open(options: DeviceOptions<'_>) -> Result<Device> {
        let name = c_string("options.device", options.device)?;
        let rungs = c_string("options.rungs", options.rungs)?;
        let pool = options.parallel_for.map(Box::new);
        let context: *const Box<dyn ParallelFor> = pool.as_ref().map_or(ptr::null(), |p| &**p);
        let to = ffi::gumbel_device_options {
            struct_size: size_of::<ffi::gumbel_device_options>(),
            device: c_pointer(&name),
            isa: options.isa.unwrap_or(Isa::Auto) as i32,
            threads: options.threads,
            tile: options.tile,
            parallel_for: pool.as_ref().map(|_| run_pool as ffi::gumbel_parallel_for),
            parallel_context: context as *mut c_void,
            rungs: c_pointer(&rungs),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the strings and the pool outlive the call, the pool the device, too.
        call(|error| unsafe { ffi::gumbel_open(&to, &mut raw, error) })?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::argument("device", "none was opened"))?;
        let mut device = Device {
            raw,
            host: true,
            _pool: pool,
        };
        device.host = !device.describe()?.name.starts_with("cuda");
        Ok(device)
    }

    /// The C interface's device, which stays this one's.
    pub fn as_raw(&self) -> *mut ffi::gumbel_device {
        self.raw.as_ptr()
    }

    /// Whether data are in host memory, and not on a GPU.
    pub fn in_host_memory(&self) -> bool {
        self.host
    }

    fn check(&self) -> Check {
        Check {
            host: self.host,
            reads: true,
        }
    }

    fn sizes_alone(&self) -> Check {
        Check {
            host: self.host,
            reads: false,
        }
    }

    /// What this device is.
    pub fn describe(&self) -> Result<DeviceInfo> {
        let mut info = ffi::gumbel_device_info {
            struct_size: size_of::<ffi::gumbel_device_info>(),
            ..Default::default()
        };
        // SAFETY: the device is open, the struct has its size.
        call(|_| unsafe { ffi::gumbel_describe(self.as_raw(), &mut info) })?;
        Ok(DeviceInfo {
            isa: Isa::from_raw(info.isa),
            threads: info.threads,
            tile: info.tile,
            name: text_of(&info.name),
            description: text_of(&info.description),
        })
    }

    // ------------------------------------------------------------------------- workspaces ----

    /// Bytes of workspace that one call with these arguments takes; without an output, the most of
    /// every call that takes the others. No data are read.
    pub fn workspace_size(
        &self,
        input: &impl Input,
        how: &Sampling<'_>,
        out: Option<&Output<'_>>,
    ) -> Result<usize> {
        let mut to = CallC::new(&self.sizes_alone(), input, how, out)?;
        let (at, mut bytes) = (to.link(), 0);
        // SAFETY: the structs are whole; data pointers are not followed.
        call(|error| unsafe {
            ffi::gumbel_workspace_size(
                self.as_raw(),
                at.head,
                at.logits,
                at.sampling,
                at.output,
                &mut bytes,
                error,
            )
        })?;
        Ok(bytes)
    }

    /// Bytes that every call within these limits has enough with.
    pub fn workspace_most(&self, limits: &Limits) -> Result<usize> {
        let to = ffi::gumbel_limits {
            struct_size: size_of::<ffi::gumbel_limits>(),
            batch: int64("limits.batch", limits.batch)?,
            vocab_size: int64("limits.vocab_size", limits.vocab_size)?,
            hidden_size: int64("limits.hidden_size", limits.hidden_size)?,
            num_samples: int32("limits.num_samples", limits.num_samples)?,
            requests: limits.requests as i32,
        };
        let mut bytes = 0;
        // SAFETY: the struct is whole.
        call(|error| unsafe { ffi::gumbel_workspace_most(self.as_raw(), &to, &mut bytes, error) })?;
        Ok(bytes)
    }

    /// Bytes of workspace that a verification with these arguments takes. No data are read.
    pub fn verify_workspace_size(
        &self,
        input: &impl Input,
        how: &Sampling<'_>,
        draft: &Draft<'_>,
        out: &Verified<'_>,
    ) -> Result<usize> {
        let mut to = VerifyC::new(&self.sizes_alone(), input, how, draft, out)?;
        let (at, mut bytes) = (to.link(), 0);
        // SAFETY: the structs are whole; data pointers are not followed.
        call(|error| unsafe {
            ffi::gumbel_verify_workspace_size(
                self.as_raw(),
                at.head,
                at.logits,
                at.sampling,
                at.draft,
                at.verified,
                &mut bytes,
                error,
            )
        })?;
        Ok(bytes)
    }

    /// Which kernels would serve a call with these arguments, and why others would not.
    pub fn explain(
        &self,
        input: &impl Input,
        how: &Sampling<'_>,
        out: Option<&Output<'_>>,
    ) -> Result<String> {
        let mut to = CallC::new(&self.sizes_alone(), input, how, out)?;
        let at = to.link();
        let mut text: [c_char; 2048] = [0; 2048];
        // SAFETY: as in workspace_size(); the text is cut where the array ends.
        call(|error| unsafe {
            ffi::gumbel_explain(
                self.as_raw(),
                at.head,
                at.logits,
                at.sampling,
                at.output,
                text.as_mut_ptr(),
                text.len(),
                error,
            )
        })?;
        Ok(text_of(&text))
    }

    // --------------------------------------------------------------------------- sampling ----

    /// Draw tokens, from hidden states and LM head by one pass, or from logits.
    ///
    /// # Errors
    /// An argument out of range or a view that is too small, a workspace that is, or what a GPU's
    /// driver says; no output has been touched then.
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
        // SAFETY: every view has at least the elements that the shapes say, in this device's
        // memory; outputs and workspace are borrowed for writing.
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
                ffi::gumbel_sample(
                    device,
                    on,
                    at.head,
                    at.sampling,
                    at.output,
                    data,
                    bytes,
                    error,
                )
            }
        })
    }

    /// Summaries `[B, S]` of one shard or chunk of the vocabulary, from hidden states or logits.
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

    /// What the draw sees: transformed logits, -inf where removed.
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

    /// The probabilities that the draw draws with.
    pub fn softmax<'s>(
        &self,
        logits: &Logits<'_>,
        how: &Sampling<'_>,
        into: &mut MatrixMut<'_>,
        space: impl Into<Space<'s>>,
        stream: Stream,
    ) -> Result<()> {
        let call = ffi::gumbel_softmax;
        self.fill(
            call,
            "probabilities",
            logits,
            how,
            into,
            space.into(),
            stream,
        )
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
    /// As [`sample`](Device::sample); and where a rule is not to be had.
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

    // ----------------------------------------------------------------------- decode steps ----

    /// Store the tokens just drawn in the ring, and move positions on.
    pub fn advance(&self, step: &mut Step<'_>, stream: Stream) -> Result<()> {
        let to = self.check().step(step)?;
        // SAFETY: every view has at least the elements that the shapes say.
        call(|error| unsafe { ffi::gumbel_advance(self.as_raw(), stream.0, &to, error) })
    }

    /// Forget everything of `batch` rows, and count prompts and outputs.
    pub fn history_start(
        &self,
        history: &mut History<'_>,
        batch: usize,
        slots: &Slots<'_>,
        prompts: &TokenLists<'_>,
        outputs: &TokenLists<'_>,
        stream: Stream,
    ) -> Result<()> {
        let check = self.check();
        let at = check.slots("slots", slots, batch)?;
        let into = check.history("history", history, places_of(slots, batch))?;
        let before = check.lists("prompts", prompts, batch)?;
        let after = check.lists("outputs", outputs, batch)?;
        let rows = int64("batch", batch)?;
        // SAFETY: every view has at least the elements that the shapes say.
        call(|error| unsafe {
            ffi::gumbel_history_start(
                self.as_raw(),
                stream.0,
                &into,
                rows,
                &at,
                &before,
                &after,
                error,
            )
        })
    }

    /// Count more tokens of output: of each of `batch` rows of `tokens`, `stride` apart, the first
    /// `counts`; absent: one.
    #[allow(clippy::too_many_arguments)]
    pub fn history_update<'a, 'b>(
        &self,
        history: &mut History<'_>,
        batch: usize,
        slots: &Slots<'_>,
        tokens: impl Into<View<'a, i32>>,
        stride: usize,
        counts: impl Into<View<'b, i32>>,
        stream: Stream,
    ) -> Result<()> {
        let (check, tokens, counts) = (self.check(), tokens.into(), counts.into());
        let at = check.slots("slots", slots, batch)?;
        let into = check.history("history", history, places_of(slots, batch))?;
        let many = check.view("counts", &counts, batch)?;
        let stride = stride.max(1);
        let width = if many.is_null() { 1 } else { stride };
        let of = check.required("tokens", &tokens, extent(batch, width, stride))?;
        let (rows, stride) = (int64("batch", batch)?, int64("stride", stride)?);
        // SAFETY: every view has at least the elements that the shapes say.
        call(|error| unsafe {
            ffi::gumbel_history_update(
                self.as_raw(),
                stream.0,
                &into,
                rows,
                &at,
                of,
                stride,
                many,
                error,
            )
        })
    }

    // -------------------------------------------------------------------------- summaries ----

    /// `into[i] = merge(into[i], from[i])`, in this device's memory; both are of one size.
    pub fn merge<'a, 'b>(
        &self,
        into: impl Into<ViewMut<'a, Summary>>,
        from: impl Into<View<'b, Summary>>,
        stream: Stream,
    ) -> Result<()> {
        let check = self.check();
        merge_by(self.as_raw(), check, &into.into(), &from.into(), stream)
    }

    /// Turn the summaries `[parts, B, S]` of all parts of a vocabulary into outputs.
    pub fn finish<'a>(
        &self,
        summaries: impl Into<View<'a, Summary>>,
        parts: usize,
        batch: usize,
        num_samples: usize,
        out: &mut Output<'_>,
        stream: Stream,
    ) -> Result<()> {
        let (check, summaries) = (self.check(), summaries.into());
        let mut sizes = Shape::new(batch, 0, 0);
        sizes.samples = num_samples;
        let of = check.required("summaries", &summaries, times(parts, sizes.draws()))?;
        let to = check.output(out, &sizes)?;
        let parts = int32("parts", parts)?;
        let (rows, samples) = (int64("batch", batch)?, int32("num_samples", num_samples)?);
        // SAFETY: every view has at least the elements that the shapes say.
        call(|error| unsafe {
            ffi::gumbel_finish(
                self.as_raw(),
                stream.0,
                of,
                parts,
                rows,
                samples,
                &to,
                error,
            )
        })
    }

    /// The noise `[B, S, count]` of a coming step, at `stride` elements a draw, 0: `count`.
    #[allow(clippy::too_many_arguments)]
    pub fn prepare_noise<'a>(
        &self,
        how: &Sampling<'_>,
        batch: usize,
        first_token: usize,
        count: usize,
        noise: impl Into<ViewMut<'a, f32>>,
        stride: usize,
        stream: Stream,
    ) -> Result<()> {
        let (check, noise) = (self.check(), noise.into());
        let mut sizes = Shape::new(batch, count, first_token);
        let of = RowsOf {
            batch,
            places: batch,
            mask_rows: None,
        };
        let mut to = SamplingC::new(&check, how, &mut sizes, of)?;
        let all = extent(sizes.draws(), count, stride);
        let into = check.required_mut("noise", &noise, all)?;
        let (rows, count) = (int64("batch", batch)?, int64("count", count)?);
        let (first, stride) = (int64("first_token", first_token)?, int64("stride", stride)?);
        let sampling = to.link();
        // SAFETY: every view has at least the elements that the shapes say.
        call(|error| unsafe {
            ffi::gumbel_prepare_noise(
                self.as_raw(),
                stream.0,
                sampling,
                rows,
                first,
                count,
                into,
                stride,
                error,
            )
        })
    }
}

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

/// [`Device::merge`], without a device for summaries in host memory.
pub(crate) fn merge_by(
    device: *mut ffi::gumbel_device,
    check: Check,
    into: &ViewMut<'_, Summary>,
    from: &View<'_, Summary>,
    stream: Stream,
) -> Result<()> {
    let to = check.required_mut("into", into, from.len())?;
    let of = check.required("from", from, into.len())?;
    let count = int64("into", into.len())?;
    // SAFETY: both have as many elements, in the device's memory.
    call(|error| unsafe { ffi::gumbel_merge(device, stream.0, to, of, count, error) })
}
