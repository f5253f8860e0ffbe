//! Replays the fuzzing seeds, and every cut of them, through the check: a finding stays found on every `cargo test`.

use crate::oracle;
use std::fs;
use std::path::Path;

#[test]
fn expressions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/expression");
    let mut seeds = 0;
    for entry in fs::read_dir(folder).expect("the corpus is committed") {
        let path = entry.expect("the corpus is readable").path();
        let bytes = fs::read(&path).expect("a seed is a file");
        // The test's output names the seed a failure belongs to.
        println!("{}", path.display());
        for end in 0..=bytes.len() {
            oracle::fuzzed::check(&bytes[..end]);
        }
        seeds += 1;
    }
    assert!(seeds >= 10, "only {seeds} seeds");
}
