//! A run as text, in the form that users of wrk and wrk2 know.
//!
//! In a void run every line with figures is marked, so that neither a reader nor a script takes them for a result.

use super::units::{bytes, counted, latency, shortened};
use crate::outcome::{ErrorKind, Outcome};
use crate::plan::{Arrivals, Load, Pace, Protocol, Schedule};
use hdrhistogram::Histogram;

/// Percentiles of a distribution, as wrk2 prints them.
const DISTRIBUTION: [f64; 8] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0];

/// Columns of the phases of a request.
const PHASES: [(&str, f64); 4] = [("50%", 50.0), ("99%", 99.0), ("99.9%", 99.9), ("max", 100.0)];

const VOID_MARK: &str = "void | ";

/// The whole text; ends with a newline.
pub fn table(outcome: &Outcome, load: &Load) -> String {
    let mut text = heading(load);
    text.push_str(&interruption(outcome, load));
    text.push_str(&void_banner(outcome));
    text.push_str(&notes(outcome));
    let figures = figures(load, outcome);
    if outcome.void.is_empty() {
        text.push_str(&figures);
    } else {
        figures.lines().for_each(|line| text.push_str(&format!("{}\n", format!("{VOID_MARK}{line}").trim_end())));
    }
    text
}

fn heading(load: &Load) -> String {
    let length = match load.requests {
        Some(requests) => counted(requests, "request"),
        None => format!("{:?} test", load.duration),
    };
    let mut text = format!("Running {length} @ {}\n", shortened(&load.target.url));
    let threads = counted(load.threads as u64, "thread");
    let connections = counted(load.connections as u64, "connection");
    let streams = match load.protocol {
        Protocol::Http1 => String::new(),
        Protocol::Http2 { streams } => format!(" of HTTP/2 with {} each", counted(streams as u64, "stream")),
    };
    text.push_str(&format!("  {threads} and {connections}{streams}, {}\n", pace(&load.pace)));
    if let [_, _, ..] = load.mix.entries() {
        text.push_str(&format!("  a mix of {} requests\n", load.mix.entries().len()));
    }
    text
}

fn pace(pace: &Pace) -> String {
    match pace {
        Pace::Closed => "closed loop".to_owned(),
        Pace::Open(Schedule { rate, rate_end, arrivals }) => {
            let rate = match rate == rate_end {
                true => format!("{rate} requests/s"),
                false => format!("{rate} to {rate_end} requests/s"),
            };
            match arrivals {
                Arrivals::Uniform => format!("open loop of {rate}"),
                Arrivals::Poisson => format!("open loop of {rate}, Poisson arrivals"),
            }
        }
    }
}

fn void_banner(outcome: &Outcome) -> String {
    if outcome.void.is_empty() {
        return String::new();
    }
    let mut text = "\n*** VOID: this run says nothing about the target ***\n".to_owned();
    outcome.void.iter().for_each(|void| text.push_str(&format!("  - {void}\n")));
    text.push('\n');
    text
}

fn interruption(outcome: &Outcome, load: &Load) -> String {
    let elapsed_s = outcome.elapsed.as_secs_f64();
    match outcome.interrupted {
        false => String::new(),
        true if outcome.elapsed < load.duration => {
            let of = if load.requests.is_some() { String::new() } else { format!(" of {:?}", load.duration) };
            format!("  interrupted after {elapsed_s:.2}s{of}: the figures are of that time\n")
        }
        true => "  interrupted while waiting for the last answers\n".to_owned(),
    }
}

fn notes(outcome: &Outcome) -> String {
    if outcome.notes.is_empty() {
        return String::new();
    }
    let mut text = "\n".to_owned();
    outcome.notes.iter().for_each(|note| text.push_str(&format!("  NOTE: {note}\n")));
    text.push('\n');
    text
}

fn figures(load: &Load, outcome: &Outcome) -> String {
    let mut text = String::new();
    let latencies = &outcome.latencies;
    if load.pace == Pace::Closed {
        // In a closed loop both are equal.
        text.push_str(&distribution("Latency", &latencies.uncorrected));
    } else {
        text.push_str(&distribution("Corrected Latency (from the intended start)", &latencies.corrected));
        text.push('\n');
        text.push_str(&distribution("Uncorrected Latency (from the send)", &latencies.uncorrected));
    }
    text.push('\n');
    text.push_str(&phases(outcome));
    text.push('\n');
    text.push_str(&counts(outcome));
    text.push_str(&errors(outcome));
    text.push_str(&format!("Requests/sec: {:>10.2}", outcome.rate_achieved));
    let elapsed_s = outcome.elapsed.as_secs_f64();
    if let Some(intended) = outcome.rate_intended {
        text.push_str(&format!(" of {intended:.2} intended"));
        // In a short run, whole requests give a slightly different rate than the intended one.
        let due = outcome.self_watch.lateness.len();
        if (due as f64 - intended * elapsed_s).abs() > 0.01 * due as f64 {
            text.push_str(&format!(" ({} in this time)", counted(due, "start")));
        }
    }
    let per_second = if elapsed_s > 0.0 { (outcome.bytes_received as f64 / elapsed_s) as u64 } else { 0 };
    text.push_str(&format!("\nTransfer/sec: {:>10}\n", bytes(per_second)));
    text.push_str(&generator(load, outcome));
    text
}

/// The results of the requests, each in one line.
fn counts(outcome: &Outcome) -> String {
    let (elapsed_s, read) = (outcome.elapsed.as_secs_f64(), bytes(outcome.bytes_received));
    let mut text = format!("  {} in {elapsed_s:.2}s, {read} read\n", counted(outcome.answered_in_time, "request"));
    let refused = outcome.answered_in_time.saturating_sub(outcome.good_in_time);
    if refused > 0 {
        text.push_str(&format!("  {} of them good, {refused} refused by a check", outcome.good_in_time));
        if !outcome.refused.is_empty() {
            let (median, p99) = (at(&outcome.refused, 50.0), at(&outcome.refused, 99.0));
            text.push_str(&format!(" (50% within {median}, 99% within {p99})"));
        }
        text.push('\n');
    }
    let after = outcome.requests.saturating_sub(outcome.answered_in_time);
    if after > 0 {
        let drain = u64::try_from(outcome.drain.as_nanos()).unwrap_or(u64::MAX);
        text.push_str(&format!("  {after} more answered after that, up to {} later\n", latency(drain)));
    }
    let missed = outcome.self_watch.missed_starts;
    if missed > 0 {
        text.push_str(&format!("  {missed} never started, because no connection became free: {AT_LEAST}\n"));
    }
    if outcome.cut_off > 0 {
        text.push_str(&format!("  {} still under way when the run ended: {AT_LEAST}\n", outcome.cut_off));
    }
    text
}

/// For requests without an answer.
const AT_LEAST: &str = "corrected latency has the time they waited, the least it can be";

fn distribution(title: &str, histogram: &Histogram<u64>) -> String {
    let mut text = format!("  Latency Distribution (HdrHistogram - {title})\n");
    if histogram.is_empty() {
        text.push_str("  nothing was measured\n");
        return text;
    }
    for percentile in DISTRIBUTION {
        text.push_str(&format!("{percentile:>7.3}% {:>9}\n", at(histogram, percentile)));
    }
    text
}

fn at(histogram: &Histogram<u64>, percentile: f64) -> String {
    latency(histogram.value_at_percentile(percentile))
}

fn phases(outcome: &Outcome) -> String {
    let mut text = "  Phase     ".to_owned();
    PHASES.iter().for_each(|(name, _)| text.push_str(&format!("{name:>10}")));
    text.push('\n');
    let rows = [("connect", &outcome.connect), ("send", &outcome.send), ("first byte", &outcome.first_byte)];
    for (name, histogram) in rows {
        text.push_str(&format!("  {name:<10}"));
        for (_, percentile) in PHASES {
            let cell = if histogram.is_empty() { "-".to_owned() } else { at(histogram, percentile) };
            text.push_str(&format!("{cell:>10}"));
        }
        text.push('\n');
    }
    text
}

fn errors(outcome: &Outcome) -> String {
    let errors = &outcome.errors;
    if errors.total() == 0 {
        return String::new();
    }
    let kinds = ErrorKind::ALL.iter().zip(errors.counts).filter(|(_, count)| *count > 0);
    let kinds: Vec<String> = kinds.map(|(kind, count)| format!("{} {count}", kind.name())).collect();
    let mut text = format!("  {}: {}\n", counted(errors.total(), "error"), kinds.join(", "));
    for example in &errors.examples {
        // A server's text may contain anything.
        let example: String = example.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        text.push_str(&format!("    {example}\n"));
    }
    text
}

fn generator(load: &Load, outcome: &Outcome) -> String {
    let watch = &outcome.self_watch;
    let mut text = "Generator:".to_owned();
    if load.pace != Pace::Closed && !watch.lateness.is_empty() {
        let (tail, max) = (at(&watch.lateness, 99.9), latency(watch.lateness.max()));
        text.push_str(&format!(" start lateness {tail} at 99.9%, {max} at most;"));
    }
    text.push_str(&format!(" {:.2} CPUs, busiest thread {:.0}%", watch.cpu_cores, watch.cpu_share_max * 100.0));
    if let Some(wait) = watch.cpu_wait_share_max {
        text.push_str(&format!(", kept waiting {:.1}%", wait * 100.0));
    }
    if watch.realtime {
        text.push_str("; real-time priority");
    }
    text.push('\n');
    text
}
