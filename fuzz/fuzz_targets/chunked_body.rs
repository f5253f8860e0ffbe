//! Fuzzes `stillgate_wire::checks::chunked_body`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stillgate_wire::checks::chunked_body(bytes));
