// SPDX-License-Identifier: Apache-2.0
use crate::drafts::{Draft, Verified};
use crate::enums::Isa;
use crate::error::{call_library, read_c_text, Error, Result};
use crate::ffi;
use crate::lowering::{to_i32, to_i64, Check};
use crate::lowering_calls::{CallC, Input, VerifyC};
use crate::parameters::*;
use std::ffi::CString;
use std::mem::size_of;
use std::os::raw::{c_char, c_void};
use std::ptr::{self, NonNull};

/// The partial result of a draw over one shard of the vocabulary: plain data that may be copied,
/// sent to other processes and stored. See [`Device::partial`].
pub type Summary = ffi::gumbel_summary;

/// The GPU stream on which a call is queued. The default is [`Stream::NONE`].
#[derive(Clone, Copy, Debug)]
pub struct Stream(pub(crate) *mut c_void);

impl Default for Stream {
    fn default() -> Self {
        Stream::NONE
    }
}

impl Stream {
    /// The GPU's default stream. A CPU supports no other.
    pub const NONE: Stream = Stream(ptr::null_mut());

    /// Wraps a `CUstream` or `cudaStream_t`.
    ///
    /// # Safety
    /// `stream` must belong to the GPU of every call that it is passed to, and must exist until it
    /// has executed these calls.
    pub unsafe fn from_raw(stream: *mut c_void) -> Self {
        Stream(stream)
    }
}

/// A CPU or a GPU on which calls run. Several threads may call one device at the same time.
///
/// A call on a CPU is complete when it returns. A call on a GPU is queued on a stream; views of GPU
/// memory come from unsafe functions, whose callers guarantee that the memory outlives the stream's
/// work.
pub struct Device {
    raw: NonNull<ffi::gumbel_device>,
    host: bool,
    // The pool that the device calls, boxed for a thin pointer in C. Fields are dropped after
    // drop().
    _pool: Option<Box<Box<dyn ParallelFor>>>,
}

// SAFETY: "Calls on one device may run at the same time if their outputs and workspaces differ"
// (gumbel.h); both are behind &mut. A device is not bound to the thread that opened it.
unsafe impl Send for Device {}
unsafe impl Sync for Device {}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the device is open, and no call runs, as calls borrow the device.
        unsafe { ffi::gumbel_close(self.raw.as_ptr()) }
    }
}

/// Runs a call's tasks on the engine's pool. A panic aborts the process: it must not unwind
/// through C.
unsafe extern "C" fn run_pool(
    context: *mut c_void,
    count: i32,
    task: ffi::gumbel_task,
    argument: *mut c_void,
) {
    struct Argument(*mut c_void);
    // SAFETY: the library allows its tasks to run on any threads.
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
        // SAFETY: a ParallelFor runs each index once, within this call, as the library requires.
        pool.run(count, &|index| unsafe { task(argument.get(), index) })
    });
    if std::panic::catch_unwind(run).is_err() {
        std::process::abort();
    }
}

fn c_string(field: &str, text: Option<&str>) -> Result<Option<CString>> {
    text.map(CString::new).transpose().map_err(|_| Error::argument(field, "it contains a NUL"))
}

fn c_pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// - [`Status::Argument`](crate::Status::Argument): an option is out of range.
    /// - [`Status::Unsupported`](crate::Status::Unsupported): the device is not available.
    /// - [`Status::Memory`](crate::Status::Memory): memory or threads are exhausted.
    /// - [`Status::Device`](crate::Status::Device): the GPU's driver failed.
    pub fn open(options: DeviceOptions<'_>) -> Result<Device> {
        let name = c_string("options.device", options.device)?;
        let rungs = c_string("options.rungs", options.rungs)?;
        let pool = options.parallel_for.map(Box::new);
        let context: *const Box<dyn ParallelFor> = pool.as_ref().map_or(ptr::null(), |p| &**p);
        let lowered = ffi::gumbel_device_options {
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
        call_library(|error| unsafe { ffi::gumbel_open(&lowered, &mut raw, error) })?;
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::argument("device", "the library returned no device"))?;
        let mut device = Device { raw, host: true, _pool: pool };
        device.host = !device.describe()?.name.starts_with("cuda");
        Ok(device)
    }

    /// The device of the C interface. `self` still owns it.
    pub fn as_raw(&self) -> *mut ffi::gumbel_device {
        self.raw.as_ptr()
    }

    /// Whether the device reads and writes host memory: true for a CPU, false for a GPU.
    pub fn in_host_memory(&self) -> bool {
        self.host
    }

    pub(crate) fn check(&self) -> Check {
        Check { host: self.host, reads: true }
    }

    fn size_check(&self) -> Check {
        Check { host: self.host, reads: false }
    }

    /// Compute capability of a GPU, 10 * major + minor; 0 for a CPU.
    ///
    /// Unstable until 1.0.
    pub fn capability(&self) -> i32 {
        // SAFETY: the device is open.
        unsafe { ffi::gumbel_device_capability(self.as_raw()) }
    }

    /// Describes this device.
    pub fn describe(&self) -> Result<DeviceInfo> {
        let mut info = ffi::gumbel_device_info {
            struct_size: size_of::<ffi::gumbel_device_info>(),
            ..Default::default()
        };
        // SAFETY: the device is open, and the struct has its size set.
        call_library(|_| unsafe { ffi::gumbel_describe(self.as_raw(), &mut info) })?;
        Ok(DeviceInfo {
            isa: Isa::from_raw(info.isa),
            threads: info.threads,
            tile: info.tile,
            name: read_c_text(&info.name),
            description: read_c_text(&info.description),
        })
    }

    // ------------------------------------------------------------------------- workspaces ----

    /// Returns the workspace size of a call with these arguments, in bytes.
    ///
    /// With `out` = None, the size suffices for all outputs. Reads no data.
    pub fn workspace_size(
        &self,
        input: &impl Input,
        sampling: &Sampling<'_>,
        out: Option<&Output<'_>>,
    ) -> Result<usize> {
        let mut lowered = CallC::new(&self.size_check(), input, sampling, out)?;
        let (pointers, mut bytes) = (lowered.link(), 0);
        // SAFETY: the structs are whole; data pointers are not followed.
        call_library(|error| unsafe {
            ffi::gumbel_workspace_size(
                self.as_raw(),
                pointers.head,
                pointers.logits,
                pointers.sampling,
                pointers.output,
                &mut bytes,
                error,
            )
        })?;
        Ok(bytes)
    }

    /// Returns a workspace size that suffices for every call within these limits, in bytes.
    pub fn workspace_most(&self, limits: &Limits) -> Result<usize> {
        let lowered = ffi::gumbel_limits {
            struct_size: size_of::<ffi::gumbel_limits>(),
            batch: to_i64("limits.batch", limits.batch)?,
            vocab_size: to_i64("limits.vocab_size", limits.vocab_size)?,
            hidden_size: to_i64("limits.hidden_size", limits.hidden_size)?,
            num_samples: to_i32("limits.num_samples", limits.num_samples)?,
            requests: limits.requests as i32,
            screens: 0,
            max_nodes: to_i32("limits.max_nodes", limits.max_nodes)?,
            token_ids: limits.token_ids as i32,
            reserved: 0,
        };
        let mut bytes = 0;
        // SAFETY: the struct is whole.
        call_library(|error| unsafe {
            ffi::gumbel_workspace_most(self.as_raw(), &lowered, &mut bytes, error)
        })?;
        Ok(bytes)
    }

    /// Returns the workspace size of a verification with these arguments, in bytes. Reads no data.
    pub fn verify_workspace_size(
        &self,
        input: &impl Input,
        sampling: &Sampling<'_>,
        draft: &Draft<'_>,
        out: &Verified<'_>,
    ) -> Result<usize> {
        let mut lowered = VerifyC::new(&self.size_check(), input, sampling, draft, out)?;
        let (pointers, mut bytes) = (lowered.link(), 0);
        // SAFETY: the structs are whole; data pointers are not followed.
        call_library(|error| unsafe {
            ffi::gumbel_verify_workspace_size(
                self.as_raw(),
                pointers.head,
                pointers.logits,
                pointers.sampling,
                pointers.draft,
                pointers.verified,
                &mut bytes,
                error,
            )
        })?;
        Ok(bytes)
    }

    /// Explains which kernels serve a call with these arguments, and why others do not.
    pub fn explain(
        &self,
        input: &impl Input,
        sampling: &Sampling<'_>,
        out: Option<&Output<'_>>,
    ) -> Result<String> {
        let mut lowered = CallC::new(&self.size_check(), input, sampling, out)?;
        let pointers = lowered.link();
        let mut text: [c_char; 2048] = [0; 2048];
        // SAFETY: as in workspace_size(); the library truncates the text to the array.
        call_library(|error| unsafe {
            ffi::gumbel_explain(
                self.as_raw(),
                pointers.head,
                pointers.logits,
                pointers.sampling,
                pointers.output,
                text.as_mut_ptr(),
                text.len(),
                error,
            )
        })?;
        Ok(read_c_text(&text))
    }
}
