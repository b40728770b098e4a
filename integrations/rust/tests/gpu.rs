// SPDX-License-Identifier: Apache-2.0
//! The unsafe interface with memory of a GPU and a stream: `cargo test --test gpu -- --ignored`.
mod problem;

use gumbel::{
    Device, DeviceOptions, Head, Output, Rows, Sampling, Space, Stream, Tensor, View, ViewMut,
};
use problem::{draw, open, space, Problem, B, D, V};
use std::ffi::CString;
use std::mem::{size_of_val, transmute};
use std::os::raw::{c_char, c_int, c_void};
use std::ptr;

extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Functions of the CUDA driver.
struct Driver {
    library: *mut c_void,
    stream: *mut c_void,
}

impl Driver {
    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        let symbol = unsafe { dlsym(self.library, name.as_ptr()) };
        assert!(!symbol.is_null(), "the driver has no {:?}", name);
        symbol
    }

    /// Makes the primary context of GPU 0 current on this thread, and creates a stream.
    fn open() -> Driver {
        let name = CString::new("libcuda.so.1").unwrap();
        let mut driver =
            Driver { library: unsafe { dlopen(name.as_ptr(), 2) }, stream: ptr::null_mut() };
        assert!(!driver.library.is_null());
        let mut context = ptr::null_mut();
        type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
        type Current = unsafe extern "C" fn(*mut c_void) -> c_int;
        type Create = unsafe extern "C" fn(*mut *mut c_void, u32) -> c_int;
        unsafe {
            let retain: Retain = transmute(driver.symbol("cuDevicePrimaryCtxRetain"));
            assert_eq!(retain(&mut context, 0), 0);
            let current: Current = transmute(driver.symbol("cuCtxSetCurrent"));
            assert_eq!(current(context), 0);
            let create: Create = transmute(driver.symbol("cuStreamCreate"));
            assert_eq!(create(&mut driver.stream, 1), 0);
        }
        driver
    }

    fn allocate(&self, bytes: usize) -> *mut c_void {
        type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
        let mut at = 0;
        let allocate: Allocate = unsafe { transmute(self.symbol("cuMemAlloc_v2")) };
        assert_eq!(unsafe { allocate(&mut at, bytes) }, 0);
        at as *mut c_void
    }

    fn upload<T>(&self, values: &[T]) -> *const T {
        type Copy = unsafe extern "C" fn(u64, *const c_void, usize) -> c_int;
        let at = self.allocate(size_of_val(values));
        let copy: Copy = unsafe { transmute(self.symbol("cuMemcpyHtoD_v2")) };
        assert_eq!(unsafe { copy(at as u64, values.as_ptr().cast(), size_of_val(values)) }, 0);
        at.cast()
    }

    /// The contents after all work of the stream.
    fn download<T>(&self, into: &mut [T], from: *const T) {
        type Synchronize = unsafe extern "C" fn(*mut c_void) -> c_int;
        type Copy = unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int;
        unsafe {
            let synchronize: Synchronize = transmute(self.symbol("cuStreamSynchronize"));
            assert_eq!(synchronize(self.stream), 0);
            let copy: Copy = transmute(self.symbol("cuMemcpyDtoH_v2"));
            assert_eq!(copy(into.as_mut_ptr().cast(), from as u64, size_of_val(into)), 0);
        }
    }
}

#[test]
#[ignore = "it needs a GPU, and a library with kernels"]
fn a_gpu_draws_from_its_own_memory_alone() {
    let options = DeviceOptions { device: Some("cuda:0"), ..DeviceOptions::default() };
    let device = Device::open(options).unwrap();
    assert!(!device.in_host_memory());
    let (problem, driver) = (Problem::new(), Driver::open());
    let how = Sampling {
        temperature: 0.8.into(),
        seed: 42.into(),
        position: 7.into(),
        ..Default::default()
    };
    let (expected, _, _) = draw(&open(), &problem.head(), &how);

    // SAFETY: the memory is the GPU's and is never freed; the stream is its own.
    let (head, there, stream) = unsafe {
        let hidden = View::device(driver.upload(&problem.hidden), B * D);
        let weight = View::device(driver.upload(&problem.weight), V * D);
        let head = Head::new(Tensor::float32(hidden, B, D), Tensor::float32(weight, V, D));
        let there = Sampling {
            temperature: Rows::Same(View::device(driver.upload(&[0.8]), 1)),
            seed: Rows::Same(View::device(driver.upload(&[42]), 1)),
            position: Rows::Same(View::device(driver.upload(&[7]), 1)),
            ..Sampling::default()
        };
        (head, there, Stream::from_raw(driver.stream))
    };
    let bytes = device.workspace_size(&head, &there, None).unwrap();
    let room = driver.allocate(bytes.max(1));
    let placed: *mut i32 = driver.allocate(4 * B).cast();
    let sample = |head: &Head<'_>, how: &Sampling<'_>| {
        // SAFETY: as above.
        let (tokens, room) = unsafe { (ViewMut::device(placed, B), Space::device(room, bytes)) };
        let mut out = Output { tokens, ..Output::default() };
        device.sample(head, how, &mut out, room, stream)
    };
    sample(&head, &there).unwrap();
    let mut tokens = vec![-2; B];
    driver.download(&mut tokens, placed);
    assert_eq!(tokens, expected);

    assert_eq!(sample(&problem.head(), &there).unwrap_err().field(), "head.hidden");
    assert_eq!(sample(&head, &how).unwrap_err().field(), "sampling.temperature");
    let mut own = [77; B];
    let mut out = Output { tokens: (&mut own).into(), ..Output::default() };
    let mut host_room = space(bytes);
    let host = device.sample(&head, &there, &mut out, &mut host_room, stream).unwrap_err();
    assert_eq!((host.field(), own), ("workspace", [77; B]));
}
