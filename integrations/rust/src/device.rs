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

/// A summary of a part of a vocabulary, plain data that may be copied, sent and stored.
pub type Summary = ffi::gumbel_summary;

/// The stream of a GPU that a call is queued on. Default: none, as on a CPU.
#[derive(Clone, Copy, Debug)]
pub struct Stream(pub(crate) *mut c_void);

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
    text.map(CString::new).transpose().map_err(|_| Error::argument(field, "it has a NUL in it"))
}

fn c_pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

impl Device {
    /// Open a device.
    ///
    /// # Errors
    /// Options out of range, a device that is not available, no memory, a driver that refuses.
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

    /// The C interface's device, which stays this one's.
    pub fn as_raw(&self) -> *mut ffi::gumbel_device {
        self.raw.as_ptr()
    }

    /// Whether data are in host memory, and not on a GPU.
    pub fn in_host_memory(&self) -> bool {
        self.host
    }

    pub(crate) fn check(&self) -> Check {
        Check { host: self.host, reads: true }
    }

    fn sizes_alone(&self) -> Check {
        Check { host: self.host, reads: false }
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
            screens: 0,
            reserved: 0,
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
}
