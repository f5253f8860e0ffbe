//! Composing requests allocates nothing once its buffers have grown.

use std::path::Path;
use stillgate_load::mix::Composer;
use stillgate_load::{Mix, Target};

#[test]
fn composing_allocates_nothing_in_the_steady_state() {
    let target = Target::parse("http://example.test:8080/").unwrap();
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/good-all.yaml"));
    let mix = Mix::from_file(file, &target).unwrap();
    let mut composer = Composer::new(&mix, 3, 0, 1);
    let mut bytes = 0;
    let mut compose = |times: usize| {
        for _ in 0..times {
            bytes += composer.compose().bytes.len();
        }
    };
    compose(10_000);
    let counted = allocation_counter::measure(|| compose(10_000));
    assert_eq!(counted.count_total, 0, "{counted:?}");
    assert!(bytes > 0);
}
