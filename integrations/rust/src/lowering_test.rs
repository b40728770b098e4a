// SPDX-License-Identifier: Apache-2.0
//! Errors for memory of the wrong kind of device, tested without a GPU.
use crate::lowering::Check;
use crate::{History, Rows, Sampling, Stream, Tensor, View};

const GPU: Check = Check { host: false, reads: true };

#[test]
fn a_gpu_takes_no_memory_of_the_host() {
    let values = [0.5f32; 4];
    let refused = GPU.tensor("head.hidden", &Tensor::float32(&values, 2, 2)).err().unwrap();
    assert_eq!(refused.field(), "head.hidden");
    for rows in [Rows::Value(0.8), Rows::Each((&values).into()), Rows::Same((&values).into())] {
        assert!(GPU.rows_f32("sampling.temperature", &rows, 4).is_err());
    }
    // SAFETY: no call follows the pointer.
    let there = unsafe { View::device(values.as_ptr(), 3) };
    assert!(GPU.rows_f32("sampling.temperature", &Rows::Each(there), 4).is_err());
    let taken = GPU.rows_f32("sampling.temperature", &Rows::Each(there), 3).unwrap();
    assert_eq!(taken.data, values.as_ptr());
}

/// Compiles only if the types are `Send` and `Sync` as documented.
#[test]
fn types_are_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<crate::Device>();
    shared::<crate::Workspace>();
    shared::<crate::Output<'_>>();
    shared::<Sampling<'_>>();
    shared::<History<'_>>();
    assert!(std::mem::size_of::<Stream>() == std::mem::size_of::<usize>());
}
