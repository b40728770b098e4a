// SPDX-License-Identifier: Apache-2.0
use crate::ffi;
use std::ffi::CStr;
use std::fmt;
use std::os::raw::c_char;

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// A field is out of range, missing or contradicts another.
    Argument,
    /// The workspace is missing, too small or not aligned.
    Workspace,
    /// The device or build does not support the call.
    Unsupported,
    /// Memory or threads are exhausted.
    Memory,
    /// The device's driver failed.
    Device,
    /// A status that this crate does not know.
    Other(i32),
}

impl Status {
    fn from_code(code: i32) -> Status {
        match code {
            10 => Status::Argument,
            20 => Status::Workspace,
            30 => Status::Unsupported,
            40 => Status::Memory,
            50 => Status::Device,
            other => Status::Other(other),
        }
    }
}

/// The error of a call. A call that fails writes no output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    field: String,
    message: String,
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(status: Status, field: &str, message: impl Into<String>) -> Error {
        Error { status, field: field.to_owned(), message: message.into() }
    }

    pub(crate) fn argument(field: &str, message: impl Into<String>) -> Error {
        Error::new(Status::Argument, field, message)
    }

    /// The kind of the error.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The name of the invalid argument, such as `sampling.temperature[3]`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// A sentence that states the value found and the values allowed.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.field, self.message)
        }
    }
}

impl std::error::Error for Error {}

/// The text in a C array, up to its NUL or its end.
pub(crate) fn read_c_text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Text in static storage of the library.
pub(crate) fn read_static_text(text: *const c_char) -> &'static str {
    // SAFETY: the library's phrases are static, end in NUL, and are never NULL.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("unknown")
}

/// Calls a function of the library that takes a `gumbel_error`; converts its status to a result.
pub(crate) fn call_library(make: impl FnOnce(*mut ffi::gumbel_error) -> i32) -> Result<()> {
    let mut strings = std::mem::MaybeUninit::<ffi::gumbel_error>::uninit();
    let strings_at = strings.as_mut_ptr();
    // SAFETY: the two bytes are in the struct; writing them makes both strings empty.
    unsafe {
        std::ptr::addr_of_mut!((*strings_at).field).cast::<c_char>().write(0);
        std::ptr::addr_of_mut!((*strings_at).message).cast::<c_char>().write(0);
    }
    match make(strings_at) {
        ffi::GUMBEL_OK => Ok(()),
        code => Err(make_error(code, strings_at)),
    }
}

#[cold]
fn make_error(code: i32, strings: *const ffi::gumbel_error) -> Error {
    // SAFETY: both strings end in NUL, whether the call wrote them or not.
    let (field, message) = unsafe {
        let field = std::ptr::addr_of!((*strings).field).cast();
        let message = std::ptr::addr_of!((*strings).message).cast();
        (CStr::from_ptr(field), CStr::from_ptr(message))
    };
    let mut message = message.to_string_lossy().into_owned();
    if message.is_empty() {
        // SAFETY: the function accepts any value.
        message = read_static_text(unsafe { ffi::gumbel_status_string(code) }).to_owned();
    }
    Error::new(Status::from_code(code), &field.to_string_lossy(), message)
}
