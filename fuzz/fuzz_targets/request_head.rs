//! Fuzzes `stillgate_wire::checks::request_head`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stillgate_wire::checks::request_head(bytes));
