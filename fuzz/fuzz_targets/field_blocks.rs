//! Fuzzes `stillgate_wire::checks::field_blocks`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stillgate_wire::checks::field_blocks(bytes));
