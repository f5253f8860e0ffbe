//! A few seconds of mixed load; `cargo run -p stillgate-testkit --example soak` is the long version.

use std::time::Duration;
use stillgate_testkit::{SoakPlan, soak};

#[test]
fn mixed_load_brings_no_wrong_byte_no_leak_no_panic() {
    let plan = SoakPlan {
        duration: Duration::from_secs(4),
        clients: 8,
        body_bytes_max: 1024 * 1024,
        upstream_period: Duration::from_millis(400),
        seed: 1,
    };
    let report = soak(env!("CARGO_BIN_EXE_stillgate"), &plan);
    assert!(report.faults.is_empty(), "{report:#?}");
    assert!(report.checked > 50 && report.aborted > 5, "too little happened: {report:#?}");
}
