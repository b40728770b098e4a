// SPDX-License-Identifier: Apache-2.0
use crate::error::{Error, Result, Status};
use crate::ffi;
use std::alloc::{alloc, dealloc, Layout};
use std::marker::PhantomData;
use std::os::raw::c_void;
use std::ptr;

/// The kind of memory that a view refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Absent,
    Host,
    Device,
}

/// Elements that a call reads: a slice, or GPU memory. The default is empty: an optional argument
/// is then not passed.
#[derive(Debug)]
pub struct View<'a, T> {
    data: *const T,
    len: usize,
    memory: Memory,
    lifetime: PhantomData<&'a [T]>,
}

/// Elements that a call writes: a slice, or GPU memory. The default is empty: an optional output is
/// then not computed.
///
/// The borrow checker ensures that the data outlive the view and are not borrowed twice:
///
/// ```compile_fail,E0597
/// let mut out = gumbel::Output::default();
/// {
///     let mut tokens = vec![0; 4];
///     out.tokens = (&mut tokens).into();
/// }
/// out.num_top = 0;
/// ```
/// ```compile_fail,E0499
/// let mut floats = vec![0.0; 4];
/// let mut out = gumbel::Output::default();
/// out.logprobs = (&mut floats).into();
/// out.scores = (&mut floats).into();
/// ```
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    data: *mut T,
    len: usize,
    memory: Memory,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: a view is Send and Sync if its slice is; GPU memory is accessed by calls only.
unsafe impl<T: Sync> Send for View<'_, T> {}
unsafe impl<T: Sync> Sync for View<'_, T> {}
unsafe impl<T: Send> Send for ViewMut<'_, T> {}
unsafe impl<T: Sync> Sync for ViewMut<'_, T> {}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for View<'_, T> {}

impl<T> Default for View<'_, T> {
    fn default() -> Self {
        View { data: ptr::null(), len: 0, memory: Memory::Absent, lifetime: PhantomData }
    }
}

impl<T> Default for ViewMut<'_, T> {
    fn default() -> Self {
        ViewMut { data: ptr::null_mut(), len: 0, memory: Memory::Absent, lifetime: PhantomData }
    }
}

impl<'a, T, S: AsRef<[T]> + ?Sized> From<&'a S> for View<'a, T> {
    fn from(from: &'a S) -> Self {
        let slice = from.as_ref();
        View { data: slice.as_ptr(), len: slice.len(), memory: Memory::Host, lifetime: PhantomData }
    }
}

impl<'a, T, S: AsMut<[T]> + ?Sized> From<&'a mut S> for ViewMut<'a, T> {
    fn from(from: &'a mut S) -> Self {
        let slice = from.as_mut();
        ViewMut {
            data: slice.as_mut_ptr(),
            len: slice.len(),
            memory: Memory::Host,
            lifetime: PhantomData,
        }
    }
}

impl<'a, T> View<'a, T> {
    /// A view of `len` elements in GPU memory.
    ///
    /// # Safety
    /// The memory must belong to the GPU of every call with this view. The memory must stay
    /// allocated, and nothing else may write to it, until the stream has executed the call.
    pub unsafe fn device(data: *const T, len: usize) -> Self {
        View { data, len, memory: Memory::Device, lifetime: PhantomData }
    }

    pub(crate) fn pointer(&self) -> *const T {
        self.data
    }
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    pub(crate) fn memory(&self) -> Memory {
        self.memory
    }
    /// The slice of a view in host memory.
    pub(crate) fn on_host(&self) -> Option<&[T]> {
        match self.memory {
            // SAFETY: the view comes from a slice that lifetime for 'a.
            Memory::Host => Some(unsafe { std::slice::from_raw_parts(self.data, self.len) }),
            _ => None,
        }
    }
}

impl<'a, T> ViewMut<'a, T> {
    /// A view of `len` elements in GPU memory.
    ///
    /// # Safety
    /// As for [`View::device`]; nothing else may read or write the memory until the call is
    /// executed.
    pub unsafe fn device(data: *mut T, len: usize) -> Self {
        ViewMut { data, len, memory: Memory::Device, lifetime: PhantomData }
    }

    pub(crate) fn pointer(&self) -> *mut T {
        self.data
    }
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    pub(crate) fn memory(&self) -> Memory {
        self.memory
    }
}

/// Types of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE binary32.
    Float32 = 1,
    /// IEEE binary16.
    Float16 = 2,
    /// bfloat16: the upper half of a binary32.
    Bfloat16 = 3,
}

/// A row-major matrix that a call reads. The default is empty.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    pub(crate) data: *const c_void,
    pub(crate) len: usize,
    pub(crate) memory: Memory,
    pub(crate) dtype: Dtype,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: as a slice of numbers.
unsafe impl Send for Tensor<'_> {}
unsafe impl Sync for Tensor<'_> {}

impl Default for Tensor<'_> {
    fn default() -> Self {
        Tensor::of(View::<f32>::default(), Dtype::Float32, 0, 0)
    }
}

impl<'a> Tensor<'a> {
    fn of<T>(data: View<'a, T>, dtype: Dtype, rows: usize, cols: usize) -> Self {
        Tensor {
            data: data.data.cast(),
            len: data.len,
            memory: data.memory,
            dtype,
            rows,
            cols,
            stride: 0,
            lifetime: PhantomData,
        }
    }

    /// A view of `of` for a call that reads and overwrites it while `of` is borrowed.
    pub(crate) fn in_place(of: &MatrixMut<'_>) -> Self {
        Tensor {
            data: of.data,
            len: of.len,
            memory: of.memory,
            dtype: of.dtype,
            rows: of.rows,
            cols: of.cols,
            stride: of.stride,
            lifetime: PhantomData,
        }
    }

    /// A float32 matrix `[rows, cols]`.
    pub fn float32(data: impl Into<View<'a, f32>>, rows: usize, cols: usize) -> Self {
        Tensor::of(data.into(), Dtype::Float32, rows, cols)
    }

    /// A float16 matrix, from the bits of its elements.
    pub fn float16(bits: impl Into<View<'a, u16>>, rows: usize, cols: usize) -> Self {
        Tensor::of(bits.into(), Dtype::Float16, rows, cols)
    }

    /// A bfloat16 matrix, from the bits of its elements.
    pub fn bfloat16(bits: impl Into<View<'a, u16>>, rows: usize, cols: usize) -> Self {
        Tensor::of(bits.into(), Dtype::Bfloat16, rows, cols)
    }

    /// Sets the row stride in elements, `cols` or more.
    pub fn strided(mut self, stride: usize) -> Self {
        self.stride = stride;
        self
    }
}

/// A matrix that a call writes.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    pub(crate) data: *mut c_void,
    pub(crate) len: usize,
    pub(crate) memory: Memory,
    pub(crate) dtype: Dtype,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
    lifetime: PhantomData<&'a mut [u8]>,
}

// SAFETY: as a slice of numbers.
unsafe impl Send for MatrixMut<'_> {}
unsafe impl Sync for MatrixMut<'_> {}

impl<'a> MatrixMut<'a> {
    fn of<T>(data: ViewMut<'a, T>, dtype: Dtype, rows: usize, cols: usize) -> Self {
        MatrixMut {
            data: data.data.cast(),
            len: data.len,
            memory: data.memory,
            dtype,
            rows,
            cols,
            stride: 0,
            lifetime: PhantomData,
        }
    }

    /// A float32 matrix `[rows, cols]`.
    pub fn new(data: impl Into<ViewMut<'a, f32>>, rows: usize, cols: usize) -> Self {
        MatrixMut::of(data.into(), Dtype::Float32, rows, cols)
    }

    /// A float16 matrix, which receives the bits of its elements.
    pub fn float16(bits: impl Into<ViewMut<'a, u16>>, rows: usize, cols: usize) -> Self {
        MatrixMut::of(bits.into(), Dtype::Float16, rows, cols)
    }

    /// A bfloat16 matrix, which receives the bits of its elements.
    pub fn bfloat16(bits: impl Into<ViewMut<'a, u16>>, rows: usize, cols: usize) -> Self {
        MatrixMut::of(bits.into(), Dtype::Bfloat16, rows, cols)
    }

    /// Sets the row stride in elements, `cols` or more.
    pub fn strided(mut self, stride: usize) -> Self {
        self.stride = stride;
        self
    }
}

/// A parameter with a value for each row, or for each slot if the call has slots.
#[derive(Clone, Copy, Debug, Default)]
pub enum Rows<'a, T> {
    /// The default value of the parameter.
    #[default]
    Default,
    /// One value for all rows. Not supported on a GPU, because it is in host memory.
    Value(T),
    /// One value for each row.
    Each(View<'a, T>),
    /// One value for all rows, in the device's memory.
    Same(View<'a, T>),
    /// One value for each row, at a stride in elements, at least 1.
    Strided(View<'a, T>, usize),
}

macro_rules! rows_of_values {
    ($($element:ty)*) => {$(
        impl From<$element> for Rows<'_, $element> {
            fn from(value: $element) -> Self {
                Rows::Value(value)
            }
        }
    )*};
}
rows_of_values!(f32 i32 u32 u64);

impl<'a, T, S: AsRef<[T]> + ?Sized> From<&'a S> for Rows<'a, T> {
    fn from(values: &'a S) -> Self {
        Rows::Each(values.into())
    }
}

/// The workspace of a call: a [`Workspace`], a slice of bytes aligned to 64, or GPU memory.
#[derive(Debug)]
pub struct Space<'a> {
    pub(crate) data: *mut c_void,
    pub(crate) bytes: usize,
    pub(crate) memory: Memory,
    lifetime: PhantomData<&'a mut [u8]>,
}

impl<'a> Space<'a> {
    /// A workspace of `bytes` in GPU memory.
    ///
    /// # Safety
    /// As for [`ViewMut::device`].
    pub unsafe fn device(data: *mut c_void, bytes: usize) -> Self {
        Space { data, bytes, memory: Memory::Device, lifetime: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for Space<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Space {
            data: bytes.as_mut_ptr().cast(),
            bytes: bytes.len(),
            memory: Memory::Host,
            lifetime: PhantomData,
        }
    }
}

impl<'a> From<&'a mut Workspace> for Space<'a> {
    fn from(workspace: &'a mut Workspace) -> Self {
        Space {
            data: workspace.data.cast(),
            bytes: workspace.bytes,
            memory: Memory::Host,
            lifetime: PhantomData,
        }
    }
}

/// Aligned host memory for workspaces. Only [`reserve`](Workspace::reserve) allocates.
#[derive(Debug)]
pub struct Workspace {
    data: *mut u8,
    bytes: usize,
}

// SAFETY: a workspace owns its memory, and lends it only by &mut.
unsafe impl Send for Workspace {}
unsafe impl Sync for Workspace {}

impl Default for Workspace {
    fn default() -> Self {
        Workspace::new()
    }
}

impl Workspace {
    /// An empty workspace.
    pub const fn new() -> Self {
        Workspace { data: ptr::null_mut(), bytes: 0 }
    }

    /// Ensures a size of at least `bytes`. The contents are lost if the workspace grows.
    ///
    /// # Errors
    /// [`Status::Memory`]: no memory is available; the workspace is unchanged.
    pub fn reserve(&mut self, bytes: usize) -> Result<()> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let out_of_memory = || {
            let message = format!("{} bytes could not be allocated", bytes);
            Error::new(Status::Memory, "workspace", message)
        };
        let layout = Layout::from_size_align(bytes, ffi::GUMBEL_WORKSPACE_ALIGNMENT)
            .map_err(|_| out_of_memory())?;
        // SAFETY: the layout is not empty.
        let data = unsafe { alloc(layout) };
        if data.is_null() {
            return Err(out_of_memory());
        }
        self.free();
        self.data = data;
        self.bytes = bytes;
        Ok(())
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn free(&mut self) {
        if self.bytes > 0 {
            // SAFETY: reserve() allocated it with this layout, which was valid.
            unsafe {
                let align = ffi::GUMBEL_WORKSPACE_ALIGNMENT;
                dealloc(self.data, Layout::from_size_align_unchecked(self.bytes, align));
            }
        }
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        self.free();
    }
}
