// SPDX-License-Identifier: Apache-2.0
use crate::drafts::{Draft, Verified};
use crate::enums::Isa;
use crate::error::{call, text_of, Error, Result};
use crate::ffi;
use crate::lowering::{int32, int64, Check};
use crate::lowering_calls::{CallC, Input, VerifyC};
use crate::parameters::*;
use std::ffi::CString;
use std::mem::size_of;
use std::os::raw::{c_char, c_void};
use std::ptr::{self, NonNull};

/// The partial result of a draw over a shard: plain data that may be copied, sent and stored.
pub type Summary = ffi::gumbel_summary;

/// The GPU stream on which a call is queued. Default: none, as on a CPU.
#[derive(Clone, Copy, Debug)]
pub struct Stream(pub(crate) *mut c_void);

impl Default for Stream {
    fn default() -> Self {
        Stream::NONE
    }
}

impl Stream {
    /// The default stream; required on a CPU.
    pub const NONE: Stream = Stream(ptr::null_mut());

    /// A stream from a `CUstream` or `cudaStream_t`.
    ///
    /// # Safety
    /// The pointer must be a stream of the GPU of every call that uses it. The stream must exist
    /// until it has executed those calls.
    pub unsafe fn from_raw(stream: *mut c_void) -> Self {
        Stream(stream)
    }
}

/// A CPU or a GPU on which calls run. Threads may make calls concurrently.
///
/// A call on a CPU is complete when it returns. On a GPU it is queued; its views come from unsafe
/// functions, whose callers guarantee that the memory outlives the stream's work.
pub struct Device {
    raw: NonNull<ffi::gumbel_device>,
    host: bool,
    // The pool that the device calls, boxed for a thin pointer in C; dropped after the device.
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

/// Run a call's tasks on the engine's pool. A panic must not unwind through C.
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
        // SAFETY: a ThreadPool guarantees what the library requires: each index once, in this call.
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
    /// Open a device.
    ///
    /// # Errors
    /// Options are out of range, the device is not available, memory is short, or the driver fails.
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
        let mut device = Device { raw, host: true, _pool: pool };
        device.host = !device.describe()?.name.starts_with("cuda");
        Ok(device)
    }

    /// The device of the C interface, which this one still owns.
    pub fn as_raw(&self) -> *mut ffi::gumbel_device {
        self.raw.as_ptr()
    }

    /// Whether the device's data are in host memory.
    pub fn in_host_memory(&self) -> bool {
        self.host
    }

    pub(crate) fn check(&self) -> Check {
        Check { host: self.host, reads: true }
    }

    fn sizes_alone(&self) -> Check {
        Check { host: self.host, reads: false }
    }

    /// A description of this device.
    pub fn describe(&self) -> Result<DeviceInfo> {
        let mut info = ffi::gumbel_device_info {
            struct_size: size_of::<ffi::gumbel_device_info>(),
            ..Default::default()
        };
        // SAFETY: the device is open, and the struct has its size set.
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

    /// Workspace size of a call with these arguments, in bytes; without an output, the largest of
    /// all calls with the other arguments. Reads no data.
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

    /// Workspace size sufficient for every call within these limits, in bytes.
    pub fn workspace_most(&self, limits: &Limits) -> Result<usize> {
        let to = ffi::gumbel_limits {
            struct_size: size_of::<ffi::gumbel_limits>(),
            batch: int64("limits.batch", limits.batch)?,
            vocab_size: int64("limits.vocab_size", limits.vocab_size)?,
            hidden_size: int64("limits.hidden_size", limits.hidden_size)?,
            num_samples: int32("limits.num_samples", limits.num_samples)?,
            requests: limits.requests as i32,
            screens: 0,
            reserved: 0,
        };
        let mut bytes = 0;
        // SAFETY: the struct is whole.
        call(|error| unsafe { ffi::gumbel_workspace_most(self.as_raw(), &to, &mut bytes, error) })?;
        Ok(bytes)
    }

    /// Workspace size of a verification with these arguments, in bytes. Reads no data.
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

    /// Explains which kernels serve a call with these arguments, and why others do not.
    pub fn explain(
        &self,
        input: &impl Input,
        how: &Sampling<'_>,
        out: Option<&Output<'_>>,
    ) -> Result<String> {
        let mut to = CallC::new(&self.sizes_alone(), input, how, out)?;
        let at = to.link();
        let mut text: [c_char; 2048] = [0; 2048];
        // SAFETY: as in workspace_size(); the library truncates the text to the array.
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
}
