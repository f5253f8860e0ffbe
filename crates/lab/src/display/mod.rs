//! Progress of long operations on standard error: live lines on a terminal, plain ones otherwise.
//!
//! Nothing here goes to standard output, which is for results.

mod progress;

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
pub(crate) use progress::{Progress, rough};
use std::io::IsTerminal;
use std::time::Duration;
use stillgate_load::plan::DURATION_UNBOUNDED;
use stillgate_load::present::units;
use stillgate_load::{Interval, Load, Pace, Protocol, outcome};

// The display of a running load.
//
// On a terminal there are three live lines: the current activity with the time left, the last interval, and the
// totals. Otherwise one line per interval.

/// The display; the terminal is cleared when it is dropped.
#[derive(Debug)]
pub(crate) struct LoadDisplay {
    /// `None` if standard error is not a terminal.
    bar: Option<ProgressBar>,
    /// Corrected latencies so far.
    total: Histogram<u64>,
    requests: u64,
    errors: u64,
    /// Set if requests are counted and not time.
    requests_max: Option<u64>,
}

const TEMPLATE: &str = "{prefix} [{bar:24}] {msg}";

impl LoadDisplay {
    pub(crate) fn new(load: &Load) -> LoadDisplay {
        let bar = std::io::stderr().is_terminal().then(|| {
            let length = load.requests.unwrap_or(milliseconds(load.duration));
            let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template(TEMPLATE).expect("a constant template, tried by a test");
            bar.set_style(style.progress_chars("=> "));
            bar.set_prefix(units::shortened(&load.target.url).into_owned());
            bar
        });
        match &bar {
            Some(bar) => bar.set_message(beginning(load)),
            None => eprintln!("{}: {}", units::shortened(&load.target.url), beginning(load)),
        }
        LoadDisplay { bar, total: outcome::histogram(), requests: 0, errors: 0, requests_max: load.requests }
    }

    /// Shows the next interval.
    pub(crate) fn show(&mut self, interval: &Interval<'_>) {
        let end = interval.start + interval.length;
        let latencies = &interval.latencies.corrected;
        self.requests += interval.requests;
        self.errors += interval.errors;
        if self.bar.is_some() && self.total.add(latencies).is_err() {
            debug_assert!(false, "all histograms have the same bounds");
        }
        let last = figures(interval.requests, interval.errors, interval.length, latencies);
        match &self.bar {
            Some(bar) => {
                let total = figures(self.requests, self.errors, end, &self.total);
                let (done, left) = match self.requests_max {
                    Some(max) => (self.requests, format!("{} requests", max.saturating_sub(self.requests))),
                    None => {
                        let left = interval.of.saturating_sub(end);
                        (milliseconds(end), format!("{} s", left.as_secs_f64().round()))
                    }
                };
                bar.set_position(done);
                bar.set_message(format!("{left} left\n  now    {last}\n  so far {total}"));
            }
            None => eprintln!("{:>6.1} s  {last}", end.as_secs_f64()),
        }
    }
}

impl Drop for LoadDisplay {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The announcement of the run.
fn beginning(load: &Load) -> String {
    let pace = match load.pace {
        Pace::Closed => "as fast as it answers".to_owned(),
        Pace::Open(schedule) if schedule.rate == schedule.rate_end => format!("{} requests/s", schedule.rate),
        Pace::Open(schedule) => format!("{} to {} requests/s", schedule.rate, schedule.rate_end),
    };
    let warm_up = match load.warm_up.is_zero() {
        true => String::new(),
        false => format!(" after {:?} of warm-up", load.warm_up),
    };
    let length = match load.requests {
        Some(requests) => format!("{requests} requests, "),
        None => String::new(),
    };
    let time = if load.duration < DURATION_UNBOUNDED { format!(" for {:?}", load.duration) } else { String::new() };
    let streams = match load.protocol {
        Protocol::Http1 => String::new(),
        Protocol::Http2 { streams } => format!(" of HTTP/2, streams on each: {streams}"),
    };
    let Load { connections, threads, .. } = load;
    format!("{length}{pace}{time}{warm_up}, connections: {connections}{streams}, threads: {threads}")
}

/// `  19998/s  p50 1.20 ms  p99 3.40 ms  max 8.10 ms  0 errors`
fn figures(requests: u64, errors: u64, time: Duration, latencies: &Histogram<u64>) -> String {
    let rate = requests as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE);
    let quantile = |share| units::latency(latencies.value_at_quantile(share));
    format!(
        "{rate:>9.0}/s  p50 {:>8}  p99 {:>8}  max {:>8}  {errors} errors",
        quantile(0.5),
        quantile(0.99),
        units::latency(latencies.max())
    )
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_one() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
