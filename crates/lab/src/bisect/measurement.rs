//! One measurement: a run of one of the user's commands, within a time limit, and the number that it prints.
//!
//! Only the end of its outputs is kept: it has the measured number, or the error messages. The number is the last one
//! on standard output, with the unit after it.
//!
//! Times and binary sizes are converted (`980us` and `1.03ms` become 980 and 1030 us), so that a measurement may change
//! its unit. Other units are kept by name only, and comparing measurements with different ones is an error: `KB` has
//! two meanings, and so has `M`. A number within a word (`p99`) does not count. Ambiguous output is refused: a
//! measurement that is off by a factor of a thousand looks like a regression.

use crate::error::{Error, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use stillgate_rig::group::{self, Outcome};

/// How much is kept of the end of each output.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024;

/// Lines of its error messages that are shown.
const LINES_SHOWN_MAX: usize = 12;

/// Where commands about a commit or a version run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandContext {
    pub(crate) folder: PathBuf,
    /// Identifies the commit or version to the commands.
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

/// Where a command runs, and its time limit.
pub(crate) struct CommandOptions<'a> {
    pub(crate) place: &'a CommandContext,
    pub(crate) limit: Duration,
    /// Set when the user interrupts.
    pub(crate) stop: &'a AtomicBool,
}

/// How it ended.
#[derive(Debug)]
pub(crate) enum CommandOutcome {
    /// It exited by itself.
    Ended { status: ExitStatus, stdout: String, stderr: String },
    /// It exceeded its time limit.
    TimedOut,
    /// The user interrupted it.
    Stopped,
}

/// Runs it in the shell, as if it were typed there.
pub(crate) fn run_command(words: &str, manner: &CommandOptions<'_>) -> Result<CommandOutcome> {
    let cannot = |error: std::io::Error| Error::new(format!("cannot run {words:?}: {error}"));
    let (mut out, mut err) = (tempfile::tempfile().map_err(cannot)?, tempfile::tempfile().map_err(cannot)?);
    let mut command = Command::new("sh");
    command
        .args(["-c", words])
        .current_dir(&manner.place.folder)
        // From this version for all commits: the measuring code must not change with the measured code.
        .envs(std::env::current_exe().map(|own| ("STILLGATE_LAB", own)))
        .envs(manner.place.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(out.try_clone().map_err(cannot)?)
        .stderr(err.try_clone().map_err(cannot)?);
    // When run from a git hook, these name the hook's repository.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(variable);
    }
    Ok(match group::run(&mut command, Some(manner.limit), manner.stop).map_err(cannot)? {
        Outcome::Exit(status) => CommandOutcome::Ended { status, stdout: end_of(&mut out), stderr: end_of(&mut err) },
        Outcome::Timeout => CommandOutcome::TimedOut,
        Outcome::Interrupt => CommandOutcome::Stopped,
    })
}

/// The last lines of a text.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(LINES_SHOWN_MAX)..].join("\n")
}

fn end_of(file: &mut File) -> String {
    let mut read = || -> std::io::Result<Vec<u8>> {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_BYTES_MAX)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    // An output that cannot be read has no number in it, which is reported later.
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// A measurement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PrintedNumber {
    /// Above 0.
    pub(crate) value: f64,
    /// `us` for times, `B` for sizes, `us/op` for times per something, any other as it was printed; `None` for a plain
    /// number.
    pub(crate) unit: Option<String>,
}

/// Names of units of time, with their length in microseconds.
const TIMES: [(&[&str], f64); 6] = [
    (&["ns", "nsec", "nsecs", "nanosecond", "nanoseconds"], 1e-3),
    // The second and the third look alike: the micro sign and the Greek letter.
    (&["us", "\u{b5}s", "\u{3bc}s", "usec", "usecs", "microsecond", "microseconds"], 1.0),
    (&["ms", "msec", "msecs", "millisecond", "milliseconds"], 1e3),
    (&["s", "sec", "secs", "second", "seconds"], 1e6),
    (&["m", "min", "mins", "minute", "minutes"], 60e6),
    (&["h", "hr", "hrs", "hour", "hours"], 3600e6),
];

/// Names of sizes that have one meaning, with their number of bytes.
const SIZES: [(&[&str], f64); 5] = [
    (&["B", "byte", "bytes"], 1.0),
    (&["KiB"], 1024.0),
    (&["MiB"], 1_048_576.0),
    (&["GiB"], 1_073_741_824.0),
    (&["TiB"], 1_099_511_627_776.0),
];

/// Words that are units when they follow a number by themselves, with prefixes of SI and IEC. Other words are plain
/// words.
const WORDS: [&str; 22] = [
    "b",
    "B",
    "bit",
    "bits",
    "bps",
    "byte",
    "bytes",
    "Hz",
    "op",
    "ops",
    "rps",
    "qps",
    "req",
    "reqs",
    "request",
    "requests",
    "cycle",
    "cycles",
    "instruction",
    "instructions",
    "insn",
    "insns",
];
const PREFIXES: [&str; 9] = ["k", "K", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];

/// The measurement in a command's output, or what is wrong with it.
pub(super) fn last_number(output: &str) -> Result<PrintedNumber, String> {
    let (word, next) = output.lines().rev().find_map(numeric).ok_or("it printed no number")?;
    let bare = stripped(word);
    if bare[..start(bare)].strip_suffix(':').is_some_and(|before| before.ends_with(|c: char| c.is_ascii_digit())) {
        return Err(format!("it printed {word:?}, which is not a number; write a time in seconds"));
    }
    let text = &bare[start(bare)..];
    let end = (1..=text.len())
        .rev()
        .find(|&end| text.is_char_boundary(end) && text[..end].parse::<f64>().is_ok())
        .ok_or_else(|| format!("it printed {word:?}, which is not a number"))?;
    let suffix = text[end..].trim_end_matches('.');
    if suffix.starts_with(',') {
        return Err(format!("it printed {word:?}; write numbers without commas"));
    }
    if suffix.contains(|c: char| c.is_ascii_digit()) {
        return Err(format!("it printed {word:?}; write one number with one unit"));
    }
    let value = match text[..end].parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => value,
        _ => return Err(format!("it printed {word:?}; a measurement is a number above 0")),
    };
    let unit = match suffix {
        "" => next.map(|word| stripped(word).trim_end_matches('.')).filter(|word| is_unit(word)),
        suffix => Some(suffix),
    };
    Ok(match unit {
        None => PrintedNumber { value, unit: None },
        Some(unit) => {
            let (name, factor) = converted(unit);
            PrintedNumber { value: value * factor, unit: Some(name) }
        }
    })
}

impl PrintedNumber {
    /// The reason why it cannot be compared with measurements in this unit, if any.
    pub(crate) fn differs(&self, unit: Option<&str>) -> Option<String> {
        let named = |unit: Option<&str>| unit.map_or("no unit".to_owned(), |unit| format!("the unit {unit}"));
        (self.unit.as_deref() != unit).then(|| {
            format!(
                "its number has {}, earlier ones have {}; print all in the same unit",
                named(self.unit.as_deref()),
                named(unit)
            )
        })
    }
}

/// The last number of a line, and the word after it.
fn numeric(line: &str) -> Option<(&str, Option<&str>)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().rposition(|word| is_numeric(word))?;
    Some((words[at], words.get(at + 1).copied()))
}

/// Whether a word is a number or one of the names of "not a number".
fn is_numeric(word: &str) -> bool {
    let bare = stripped(word);
    let number = &bare[start(bare)..];
    number.starts_with(|c: char| c.is_ascii_digit())
        || number.starts_with(['+', '-', '.']) && number[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.')
        || ["nan", "inf", "infinity"].contains(&number.trim_start_matches(['+', '-']).to_ascii_lowercase().as_str())
}

/// Without surrounding brackets and punctuation.
fn stripped(word: &str) -> &str {
    word.trim_matches(|c: char| !c.is_alphanumeric() && !"+-.%".contains(c))
}

/// The index after `name=` or `name:`.
fn start(word: &str) -> usize {
    word.rfind(['=', ':']).map_or(0, |at| at + 1)
}

/// Whether a word by itself is a unit, or a unit per something.
fn is_unit(word: &str) -> bool {
    let (unit, _) = per(word);
    let known = |name: &str| {
        let mut all = TIMES.iter().chain(&SIZES).flat_map(|(names, _)| names.iter());
        WORDS.contains(&name) || all.any(|known| *known == name)
    };
    let prefixed = PREFIXES.iter().filter_map(|prefix| unit.strip_prefix(prefix)).any(|rest| WORDS.contains(&rest));
    unit == "%" || known(unit) || prefixed
}

/// Splits `us/op` into `us` and `op`.
fn per(unit: &str) -> (&str, Option<&str>) {
    unit.split_once('/').map_or((unit, None), |(unit, each)| (unit, Some(each)))
}

/// The unit that it is converted to, and the factor.
fn converted(unit: &str) -> (String, f64) {
    let (of, each) = per(unit);
    let find =
        |units: &[(&[&str], f64)]| units.iter().find(|(names, _)| names.contains(&of)).map(|(_, factor)| *factor);
    let (name, factor) = match (find(&TIMES), find(&SIZES)) {
        (Some(factor), _) => ("us", factor),
        (None, Some(factor)) => ("B", factor),
        (None, None) => (of, 1.0),
    };
    let each = each.map(|each| if TIMES[3].0.contains(&each) { "s" } else { each });
    (each.map_or(name.to_owned(), |each| format!("{name}/{each}")), factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn done(words: &str, limit: Duration, stop: bool) -> CommandOutcome {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(stop);
        run_command(words, &CommandOptions { place: &place(folder.path()), limit, stop: &stop }).unwrap()
    }

    fn place(folder: &Path) -> CommandContext {
        CommandContext { folder: folder.to_owned(), environment: vec![("STILLGATE_COMMIT", "abc".into())] }
    }

    #[test]
    fn outputs_are_kept_apart() {
        let done = done("echo $STILLGATE_COMMIT; echo no >&2; exit 7", Duration::from_secs(60), false);
        let CommandOutcome::Ended { status, stdout, stderr } = done else { panic!("{done:?}") };
        assert_eq!((status.code(), stdout.as_str(), stderr.as_str()), (Some(7), "abc\n", "no\n"));
    }

    #[test]
    fn a_wish_to_end_is_heard() {
        let done = done("exec sleep 600", Duration::from_secs(600), true);
        assert!(matches!(done, CommandOutcome::Stopped), "{done:?}");
    }

    #[test]
    fn the_last_number_counts() {
        let check = |output: &str, value: f64| {
            assert_eq!(last_number(output), Ok(PrintedNumber { value, unit: None }), "{output:?}");
        };
        check("12.5\n", 12.5);
        check("warming up 3\n1e-3\n", 1e-3);
        check("1\n2\n", 2.0);
        check("p99=12.5 (p99)\n", 12.5);
        check("12.5 on a1b2c3d\n", 12.5);
        check("12.5\nms\n", 12.5);
    }

    #[test]
    fn units_are_read() {
        let check = |output: &str, value: f64, unit: &str| {
            let printed = last_number(output).unwrap();
            let is_near = (printed.value / value - 1.0).abs() < 1e-12;
            assert!(is_near && printed.unit.as_deref() == Some(unit), "{output:?}: {printed:?}");
        };
        check("time: 12.5ms\n", 12_500.0, "us");
        check("time=12.5ms (p99)\n", 12_500.0, "us");
        check("latency p99 7 us\n", 7.0, "us");
        check("latency p99 7 \u{b5}s,\n", 7.0, "us");
        check("  99%  980.00us\n", 980.0, "us");
        check("  99%  1.03ms\n", 1030.0, "us");
        check("took (3.5s)", 3.5e6, "us");
        check("took 3.5 seconds.", 3.5e6, "us");
        check("3.5E-2s", 3.5e4, "us");
        check("1.5m", 90e6, "us");
        check("640 ns/op", 0.64, "us/op");
        check("2 KiB", 2048.0, "B");
        check("1.5GiB", 1.5 * 1_073_741_824.0, "B");
        check("7 B/sec", 7.0, "B/s");
        check("7 MiB/s", 7.0 * 1_048_576.0, "B/s");
        check("5%.", 5.0, "%");
        check("5 %", 5.0, "%");
        // Kept by name.
        check("Transfer/sec:      1.98MB\n", 1.98, "MB");
        check("1.98 MB/sec\n", 1.98, "MB/s");
        check("Req/Sec    12.34k", 12.34, "k");
        check("12.34 kcycles", 12.34, "kcycles");
        check("7 requests", 7.0, "requests");
        check("7x", 7.0, "x");
    }

    #[test]
    fn a_second_unit_is_refused() {
        let check = |output: &str, unit: Option<&str>, why: Option<&str>| {
            let differs = last_number(output).unwrap().differs(unit);
            assert_eq!(differs.is_some(), why.is_some(), "{output:?}: {differs:?}");
            assert!(why.is_none_or(|why| differs.as_ref().unwrap().contains(why)), "{output:?}: {differs:?}");
        };
        check("980us", Some("us"), None);
        check("1.03 ms", Some("us"), None);
        check("1.03", None, None);
        check("1.03", Some("us"), Some("no unit, earlier ones have the unit us"));
        check("1.03ms", None, Some("the unit us, earlier ones have no unit"));
        check("1.01MB", Some("KB"), Some("the unit MB"));
        check("1.01MB", Some("B"), Some("the unit MB"));
        check("1.01k", None, Some("the unit k"));
        check("12%", None, Some("the unit %"));
        check("12 us/op", Some("us"), Some("the unit us/op"));
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        let check = |output: &str, why: &str| {
            let error = last_number(output).unwrap_err();
            assert!(error.contains(why), "{output:?}: {error}");
        };
        check("", "no number");
        check("done p99", "no number");
        check("3\nNaN\n", "above 0");
        check("-inf", "above 0");
        check("0", "above 0");
        check("0ms", "above 0");
        check("-4", "above 0");
        check("1e999", "above 0");
        check("1,234", "without commas");
        check("1m30s", "one number with one unit");
        check("elapsed 1:02.50", "a time in seconds");
    }
}
