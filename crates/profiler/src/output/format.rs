//! The formats of a profile, chosen by the name of its file; and those that other programs read and that are short to write:
//! Chrome's trace, speedscope's, and folded stacks.

use super::{html, pprof, svg};
use crate::profile::{Profile, Sample, ValueType};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    /// pprof's, gzipped.
    Pprof,
    /// A flame graph without scripts.
    Svg,
    /// One page: flame graph, tables, and the difference of two profiles.
    Html,
    /// One line per stack.
    Folded,
    /// speedscope's.
    Speedscope,
    /// Chrome's trace, for Perfetto.
    Trace,
}

/// Forms by the end of a file's name.
const FORMATS: &[(&str, OutputFormat)] = &[
    (".html", OutputFormat::Html),
    (".svg", OutputFormat::Svg),
    (".pb.gz", OutputFormat::Pprof),
    (".folded", OutputFormat::Folded),
    (".speedscope.json", OutputFormat::Speedscope),
    (".trace.json", OutputFormat::Trace),
];

/// A name that implies no format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownFormat(PathBuf);

impl fmt::Display for UnknownFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endings: Vec<&str> = FORMATS.iter().map(|(ending, _)| *ending).collect();
        write!(formatter, "{}: end the name with one of {}", self.0.display(), endings.join(", "))
    }
}

impl std::error::Error for UnknownFormat {}

/// Why a profile cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteError {
    /// This format needs the time of each sample.
    Timeless(MissingTimes),
    /// The base has no value of the profile's kind, so they cannot be compared.
    OtherKind {
        /// The profile's kind and unit.
        profile: ValueType,
        /// The base's kind and unit, of its main value.
        base: Option<ValueType>,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Timeless(timeless) => timeless.fmt(formatter),
            WriteError::OtherKind { profile, base } => {
                let named = |of: &ValueType| format!("{} in {}", of.kind, of.unit);
                let base = base.as_ref().map_or("nothing".to_owned(), named);
                write!(
                    formatter,
                    "the base is a profile of another kind: it has {base}, this one {}; compare two profiles of one kind",
                    named(profile)
                )
            }
        }
    }
}

impl std::error::Error for WriteError {}

impl From<MissingTimes> for WriteError {
    fn from(timeless: MissingTimes) -> WriteError {
        WriteError::Timeless(timeless)
    }
}

impl OutputFormat {
    /// The format of a file with this name.
    pub fn of_name(file: &Path) -> Result<OutputFormat, UnknownFormat> {
        let name = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let format = FORMATS.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| *format);
        format.ok_or_else(|| UnknownFormat(file.to_owned()))
    }

    /// Writes the profile's main value in this format. Only a page compares it with `base`, which must have a
    /// value of that kind.
    pub fn write(self, profile: &Profile, base: Option<&Profile>) -> Result<Vec<u8>, WriteError> {
        let value = profile.main;
        if let (Some(base), Some(of)) = (base, profile.values.get(value))
            && !base.values.contains(of)
        {
            return Err(WriteError::OtherKind { profile: of.clone(), base: base.values.get(base.main).cloned() });
        }
        Ok(match self {
            OutputFormat::Pprof => pprof::write(profile),
            OutputFormat::Svg => svg::write(profile, value).into(),
            OutputFormat::Html => html::write(profile, value, base).into(),
            OutputFormat::Folded => write_folded(profile, value).into(),
            OutputFormat::Speedscope => write_speedscope(profile, value).into(),
            OutputFormat::Trace => write_chrome(profile)?.into(),
        })
    }
}

// Chrome's trace format, which Perfetto reads: one lane per thread, with the functions over time.
//
// Samples are points. A function that is in consecutive samples of a thread at the same depth is drawn as one slice;
// if samples are further apart than a few periods, the thread did not use the CPU, and the slice ends.

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
pub fn write_chrome(profile: &Profile) -> Result<String, MissingTimes> {
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
        let begins = (time - sample_weight(sample, period)).max(last_ns);
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

fn sample_weight(sample: &Sample, period: i64) -> i64 {
    sample.values.get(1).copied().unwrap_or(period).max(1)
}

// The format of speedscope.app: one profile per thread, with samples in the order they were taken.

/// Writes one of the values.
pub fn write_speedscope(profile: &Profile, value: usize) -> String {
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

// One line per stack, functions separated by semicolons, with a value: the input of flame graph
// scripts.

/// Lines of a profile by one of its values, each stack once, below the name of its thread.
pub fn write_folded(profile: &Profile, value: usize) -> String {
    let mut lines: BTreeMap<String, i64> = BTreeMap::new();
    for sample in &profile.samples {
        let mut line = sample.thread().replace(';', ":");
        for of in profile.functions_of(sample) {
            if !line.is_empty() {
                line.push(';');
            }
            line.push_str(&profile.functions[of.function].name.replace(';', ":").replace('\n', " "));
        }
        *lines.entry(line).or_default() += sample.values.get(value).copied().unwrap_or(0);
    }
    lines.into_iter().filter(|(_, value)| *value != 0).map(|(line, value)| format!("{line} {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::svg::example;
    use expect_test::expect;

    #[test]
    fn the_name_says_the_form() {
        let format = |name: &str| OutputFormat::of_name(Path::new(name)).map_err(|unnamed| unnamed.to_string());
        assert_eq!(format("a/b.html"), Ok(OutputFormat::Html));
        assert_eq!(format("b.pb.gz"), Ok(OutputFormat::Pprof));
        assert_eq!(format("b.speedscope.json"), Ok(OutputFormat::Speedscope));
        assert_eq!(format("b.trace.json"), Ok(OutputFormat::Trace));
        assert!(format("b.json").unwrap_err().contains(".speedscope.json, .trace.json"));
        assert!(format("/").is_err());
    }

    #[test]
    fn a_base_of_another_kind_is_refused() {
        let profile = example();
        assert!(OutputFormat::Html.write(&profile, Some(&profile)).is_ok());
        for other in [ValueType::new("cpu", "count"), ValueType::new("inuse_space", "bytes")] {
            let mut base = profile.clone();
            base.values[base.main] = other;
            let why = OutputFormat::Html.write(&profile, Some(&base)).unwrap_err().to_string();
            assert!(why.contains("another kind") && why.contains("cpu in nanoseconds"), "{why}");
        }
        // Its main value may differ.
        let mut base = profile.clone();
        base.main = 0;
        assert!(OutputFormat::Html.write(&profile, Some(&base)).is_ok());
    }

    #[test]
    fn each_form_can_be_written() {
        for (ending, format) in FORMATS {
            assert!(!format.write(&example(), None).unwrap().is_empty(), "{ending}");
        }
    }

    #[test]
    fn each_stack_is_one_line() {
        expect![[r#"
            worker-0;main;route;<&str as Matches>::find 1
            worker-0;main;route;<&str as Matches>::find;memchr 3
            worker-1;main 1
            worker-1;main;</script><b>"é 2
        "#]]
        .assert_eq(&write_folded(&example(), 0));
    }
}
