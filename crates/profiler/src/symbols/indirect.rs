//! Names of functions that a library chooses at its start by the processor, such as `memcpy`.
//!
//! The chosen variant (`__memmove_avx_unaligned_erms`) is a local symbol, which distributions strip. But the dynamic
//! linker knows which variant was chosen for a name.

#![expect(unsafe_code, reason = "the dynamic linker has no safe interface")]

use std::ffi::CString;

/// The address of the function of this name, according to the dynamic linker.
pub(crate) fn address_of(name: &str) -> Option<u64> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with zero; nothing is called.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address as u64)
}
