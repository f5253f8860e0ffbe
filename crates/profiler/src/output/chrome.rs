//! Chrome's trace format, which Perfetto reads: one lane per thread, with the functions over time.
//!
//! Samples are points. A function that is in consecutive samples of a thread at the same depth is drawn as one slice;
//! if samples are further apart than a few periods, the thread did not use the CPU, and the slice ends.

use crate::profile::{Profile, Sample};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::fmt;

/// Periods between two samples of a thread that still count as consecutive.
const PERIODS_APART: i64 = 4;

/// The samples have no times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingTimes;

impl fmt::Display for MissingTimes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(
            "a trace needs the times of samples, which only CPU profiles have, and not if there are very many samples",
        )
    }
}

impl std::error::Error for MissingTimes {}

/// A slice that has not ended.
struct OpenSlice {
    function: usize,
    from_ns: i64,
}

/// Writes a profile whose samples have times.
pub fn write(profile: &Profile) -> Result<String, MissingTimes> {
    let mut threads: BTreeMap<&str, Vec<(i64, &Sample)>> = BTreeMap::new();
    for sample in &profile.samples {
        threads.entry(sample.thread()).or_default().push((sample.time_ns().ok_or(MissingTimes)?, sample));
    }
    let mut events =
        vec![json!({"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "stillgate"}})];
    for (number, (thread, mut samples)) in threads.into_iter().enumerate() {
        let lane = number + 1;
        samples.sort_by_key(|(time, _)| *time);
        events.push(json!({"ph": "M", "name": "thread_name", "pid": 1, "tid": lane, "args": {"name": thread}}));
        lay_out(profile, lane, &samples, &mut events);
    }
    let notes = profile.notes.join("; ");
    Ok(json!({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"notes": notes}}).to_string())
}

fn lay_out(profile: &Profile, lane: usize, samples: &[(i64, &Sample)], events: &mut Vec<Json>) {
    let period = profile.period.1.max(1);
    let mut open: Vec<OpenSlice> = Vec::new();
    let mut close = |open: &mut Vec<OpenSlice>, down_to: usize, at_ns: i64| {
        while open.len() > down_to {
            let Some(slice) = open.pop() else { break };
            let function = &profile.functions[slice.function];
            events.push(json!({
                "ph": "X",
                "name": function.name,
                "cat": "cpu",
                "pid": 1,
                "tid": lane,
                "ts": slice.from_ns as f64 / 1000.0,
                "dur": (at_ns - slice.from_ns) as f64 / 1000.0,
                "args": {"file": function.file},
            }));
        }
    };
    let mut last_ns = 0;
    for (time, sample) in samples {
        // A sample represents the time before it.
        let begins = (time - weight(sample, period)).max(last_ns);
        if begins - last_ns > PERIODS_APART * period {
            close(&mut open, 0, last_ns);
        }
        let stack: Vec<usize> = profile.functions_of(sample).map(|line| line.function).collect();
        let same = open.iter().zip(&stack).take_while(|(open, function)| open.function == **function).count();
        close(&mut open, same, begins.max(last_ns));
        open.extend(stack[same..].iter().map(|function| OpenSlice { function: *function, from_ns: begins }));
        last_ns = *time;
    }
    close(&mut open, 0, last_ns);
}

fn weight(sample: &Sample, period: i64) -> i64 {
    sample.values.get(1).copied().unwrap_or(period).max(1)
}
