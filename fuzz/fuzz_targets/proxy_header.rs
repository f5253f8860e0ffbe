//! Fuzzes `stillgate_wire::checks::proxy_header`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stillgate_wire::checks::proxy_header(bytes));
