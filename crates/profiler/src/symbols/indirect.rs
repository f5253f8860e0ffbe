//! Names of functions that a library chooses at its start by the processor, as `memcpy`.
//!
//! The chosen variant (`__memmove_avx_unaligned_erms`) is a local symbol, which distributions strip. But the dynamic linker knows
//! which one was chosen for which name.

#![expect(unsafe_code, reason = "the dynamic linker has no safe interface")]

use std::ffi::CString;

/// Where the function of this name begins in memory, as the dynamic linker has it.
pub(crate) fn address_of(name: &str) -> Option<u64> {
    let name = CString::new(name).ok()?;
    // SAFETY: a name that ends with zero; nothing is called.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address as u64)
}
