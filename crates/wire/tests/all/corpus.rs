//! Replays the fuzzing seeds, and every cut of them, through the checks: a finding stays found on every `cargo test`.

use std::fs;
use std::path::Path;
use stillgate_wire::checks;

fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut seeds = 0;
    for entry in fs::read_dir(folder).expect("the corpus is committed") {
        let path = entry.expect("the corpus is readable").path();
        let bytes = fs::read(&path).expect("a seed is a file");
        // The test's output names the seed a failure belongs to.
        println!("{}", path.display());
        for end in 0..=bytes.len() {
            check(&bytes[..end]);
        }
        seeds += 1;
    }
    assert!(seeds >= 10, "only {seeds} seeds for {target}");
}

#[test]
fn request_heads() {
    replay("request_head", checks::request_head);
}

#[test]
fn response_heads() {
    replay("response_head", checks::response_head);
}

#[test]
fn chunked_bodies() {
    replay("chunked_body", checks::chunked_body);
}

#[test]
fn proxy_headers() {
    replay("proxy_header", checks::proxy_header);
}

#[test]
fn field_blocks() {
    replay("field_blocks", checks::field_blocks);
}
