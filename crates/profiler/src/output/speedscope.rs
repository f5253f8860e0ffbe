//! The format of speedscope.app: one profile per thread, with samples in the order they were taken.

use crate::profile::Profile;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// Writes one of the values.
pub fn write(profile: &Profile, value: usize) -> String {
    let frame = |function: &crate::profile::Function| match function.file.as_str() {
        "" => json!({"name": function.name}),
        file => json!({"name": function.name, "file": file}),
    };
    let frames: Vec<Json> = profile.functions.iter().map(frame).collect();
    let unit = match profile.values.get(value).map_or("", |of| &of.unit) {
        "nanoseconds" => "nanoseconds",
        "bytes" => "bytes",
        _ => "none",
    };
    let mut threads: BTreeMap<&str, (Vec<Vec<usize>>, Vec<i64>)> = BTreeMap::new();
    for sample in &profile.samples {
        let Some(amount) = sample.values.get(value).copied().filter(|amount| *amount > 0) else { continue };
        let (samples, weights) = threads.entry(sample.thread()).or_default();
        samples.push(profile.functions_of(sample).map(|line| line.function).collect());
        weights.push(amount);
    }
    let profiles: Vec<Json> = threads
        .into_iter()
        .map(|(thread, (samples, weights))| {
            json!({
                "type": "sampled",
                "name": if thread.is_empty() { "all threads" } else { thread },
                "unit": unit,
                "startValue": 0,
                "endValue": weights.iter().sum::<i64>(),
                "samples": samples,
                "weights": weights,
            })
        })
        .collect();
    json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": concat!("stillgate ", env!("CARGO_PKG_VERSION")),
        "name": profile.notes.first().map_or("", String::as_str),
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": profiles,
    })
    .to_string()
}
