//! A few seconds of mixed load; `cargo run -p stillgate-testkit --example soak` is the long version.

use std::time::Duration;
use stillgate_testkit::{PATIENCE, SoakPlan, eventually_within, soak};

#[test]
fn mixed_load_brings_no_wrong_byte_no_leak_no_panic() {
    let plan = SoakPlan {
        duration: Duration::from_secs(4),
        clients: 8,
        body_bytes_max: 1024 * 1024,
        upstream_period: Duration::from_millis(400),
        seed: 1,
    };
    let (mut checked, mut aborted) = (0, 0);
    // Within the plan's time a machine with much else to do may get little done.
    eventually_within(10 * PATIENCE, "enough to happen", || {
        let report = soak(env!("CARGO_BIN_EXE_stillgate"), &plan);
        assert!(report.faults.is_empty() && report.profiles > 0, "{report:#?}");
        (checked, aborted) = (checked + report.checked, aborted + report.aborted);
        checked > 50 && aborted > 5
    });
}
