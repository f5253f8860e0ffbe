//! The result of one run of `stillgate-lab load`.
//!
//! The only verdict on a single run is whether it is valid. Everything else is for the reader to judge.

use super::compare::{ReportInput, Section, Tone, together};
use super::plots::{self, Curve};
use super::tables::{self, Cell, figures, words};
use super::time_series::{self, PlotSegment};
use super::{number, provenance};
use crate::error::Result;
use crate::result::histogram;
use crate::result::load::LoadResult;
use hdrhistogram::Histogram;

pub(crate) fn section(prefix: &str, source: &ReportInput, result: &LoadResult) -> Result<Section> {
    let run = &result.run;
    let corrected = together("corrected latencies", [&run.corrected])?;
    let uncorrected = together("uncorrected latencies", [&run.uncorrected])?;
    let lateness = together("lateness", [&run.lateness])?;
    let (tone, word) = if run.void.is_empty() { (Tone::Plain, "valid") } else { (Tone::Void, "void") };
    let mut section = Section {
        tone,
        word,
        sentence: sentence(result, &corrected),
        details: String::new(),
        title: format!("Load on {}", result.url),
        entries: Vec::new(),
        body: String::new(),
    };
    let open = result.pace != "closed";
    let mut curves = vec![Curve { name: "from the intended start", style: 1, histogram: &corrected }];
    if open {
        curves.insert(0, Curve { name: "from the send", style: 0, histogram: &uncorrected });
    } else {
        curves[0] = Curve { name: "from the send", style: 0, histogram: &uncorrected };
    }
    let plot = plots::draw_percentiles(&format!("{prefix}-p"), "Latency by percentile".to_owned(), &curves);
    let caption = "Latency; the time that requests wait behind a slow answer is in the corrected one only";
    let sides = (("uncorrected", &uncorrected), ("corrected", &corrected));
    let table = plots::percentile_table(&format!("{prefix}-d"), caption, &[sides.0, sides.1]);
    let parts = parts(prefix, result);
    section.part(&format!("{prefix}-latency"), "Latency", &(plot + &table + &parts));
    let segment = PlotSegment {
        name: "the run".to_owned(),
        length_s: run.elapsed_s,
        scraped: false,
        remarks: Vec::new(),
        scrapes: &[],
        points: &result.points,
    };
    let series = time_series::draw(&format!("{prefix}-s"), "Latency over the run".to_owned(), &[segment]);
    if !series.is_empty() {
        section.part(&format!("{prefix}-time"), "Over time", &series);
    }
    let watched = time_series::watched(prefix, &result.watched);
    if !watched.is_empty() {
        section.part(&format!("{prefix}-watched"), "The watched process", &watched);
    }
    let errors = errors(prefix, result) + &generator(prefix, result, &lateness);
    section.part(&format!("{prefix}-errors"), "Errors and the generator itself", &errors);
    provenance::parts(&mut section, prefix, source, &design_rows(result));
    Ok(section)
}

fn sentence(result: &LoadResult, corrected: &Histogram<u64>) -> String {
    let run = &result.run;
    if !run.void.is_empty() {
        return format!(
            "This run is void and shows nothing about the target: {}.",
            run.void.join("; ").trim_end_matches('.')
        );
    }
    let rate = number::plain(run.rate_achieved);
    let at = |share| number::time(histogram::quantile_us(corrected, share));
    if run.good() == 0 {
        return format!("None of {} answers was good.", number::count(run.requests));
    }
    let failed = match run.errors {
        0 => "none failed".to_owned(),
        1 => "one failed".to_owned(),
        some => format!("{} failed", number::count(some)),
    };
    let slowest = number::time(histogram::max_us(corrected));
    format!(
        "At {rate} good answers/s, half came within {}, 99% within {}, 99.9% within {}, all within {slowest}; {failed}.",
        at(0.5),
        at(0.99),
        at(0.999)
    )
}

/// The parts of a request's time.
fn parts(prefix: &str, result: &LoadResult) -> String {
    let heads = [
        words("part"),
        figures("50%"),
        figures("90%"),
        figures("99%"),
        figures("99.9%"),
        figures("99.99%"),
        figures("100%"),
    ];
    let parts = [
        ("connecting", &result.connect),
        ("sending", &result.send),
        ("from the send to the first byte", &result.first_byte),
    ];
    // Older files do not have them.
    let known = parts.iter().filter(|(_, part)| part.max > 0.0);
    let rows = known.map(|(name, part)| {
        let all = [part.p50, part.p90, part.p99, part.p99_9, part.p99_99, part.max];
        let figures = all.into_iter().map(|us| Cell::Figure(number::time(us)));
        std::iter::once(Cell::Words((*name).to_owned())).chain(figures).collect()
    });
    let rows: Vec<Vec<Cell>> = rows.collect();
    if rows.is_empty() {
        String::new()
    } else {
        tables::draw(&format!("{prefix}-f"), "Parts of a request", &heads, &rows)
    }
}

fn errors(prefix: &str, result: &LoadResult) -> String {
    let run = &result.run;
    if run.errors == 0 {
        return format!("<p>All {} requests were answered; none failed.</p>\n", number::count(run.requests));
    }
    let rows = run.errors_by_kind.iter();
    let rows = rows.map(|(kind, count)| vec![Cell::Words(kind.clone()), Cell::Figure(number::count(*count))]);
    let rows: Vec<_> = rows.collect();
    let caption = format!("{} of {} failed", number::count(run.errors), number::count(run.requested()));
    let mut out = tables::draw(&format!("{prefix}-k"), &caption, &[words("kind"), figures("count")], &rows);
    if run.refused.is_some() && run.refusals() > 0 {
        out.push_str(&format!(
            "<p>A check refused {} answers; rate and latencies are of the {} good ones.</p>\n",
            number::count(run.refusals()),
            number::count(run.good())
        ));
    }
    if !run.error_examples.is_empty() {
        let items = run.error_examples.iter().map(|example| format!("<li>{}</li>", super::markup::Text(example)));
        out.push_str(&format!("<p>The first of them:</p><ul class=\"errors\">{}</ul>\n", items.collect::<String>()));
    }
    out
}

/// The generator's observations of itself.
fn generator(prefix: &str, result: &LoadResult, lateness: &Histogram<u64>) -> String {
    let run = &result.run;
    let late = |share| number::time(histogram::quantile_us(lateness, share));
    let rows = vec![
        ("CPU", Some(format!("{:.2} cores", run.generator_cpu_cores))),
        ("busiest thread", run.generator_cpu_share_max.map(|share| format!("{} of its CPU", number::percent(share)))),
        ("real-time priority", run.generator_realtime.map(|is| if is { "yes" } else { "no" }.to_owned())),
        ("waited for a CPU", run.generator_cpu_wait_share.map(number::percent)),
        (
            "started requests late by",
            (!lateness.is_empty()).then(|| {
                let slowest = number::time(histogram::max_us(lateness));
                format!("median {}, 99.9% {}, at most {slowest}", late(0.5), late(0.999))
            }),
        ),
        (
            "starts that were missed",
            run.missed_starts.filter(|missed| *missed > 0).map(|missed| {
                format!(
                    "{}; they count with the time since they were due, the least they would have waited",
                    number::count(missed)
                )
            }),
        ),
        (
            "verdict on itself",
            Some(if run.void.is_empty() { "the run is valid".to_owned() } else { run.void.join("; ") }),
        ),
    ];
    tables::facts(&format!("{prefix}-g"), "The load generator itself", rows)
}

fn design_rows(result: &LoadResult) -> provenance::Rows {
    let (run, design) = (&result.run, result.design.as_ref());
    vec![
        ("URL", Some(result.url.clone())),
        ("pace", Some(format!("{} loop", result.pace))),
        ("rate by the schedule", run.rate_intended.map(|rate| format!("{}/s", number::plain(rate)))),
        ("rate of good answers", Some(format!("{}/s", number::plain(run.rate_achieved)))),
        ("measured time", Some(number::seconds(run.elapsed_s))),
        ("protocol", design.and_then(|design| design.protocol.clone())),
        ("requests to be made", design.and_then(|design| design.requests).map(number::count)),
        ("connections", Some(number::count(result.connections as u64))),
        ("streams on each", design.and_then(|design| design.streams).map(|streams| number::count(streams as u64))),
        ("threads", Some(number::count(result.threads as u64))),
        ("received", (result.bytes_received > 0).then(|| number::bytes(result.bytes_received as f64))),
        ("seed", Some(result.seed.to_string())),
        ("arrivals", design.and_then(|design| design.arrivals.clone())),
        ("rate at the end", design.and_then(|design| design.rate_end).map(|rate| format!("{}/s", number::plain(rate)))),
        ("load before", design.map(|design| number::seconds(design.warm_up_s))),
        ("time-out", design.map(|design| number::seconds(design.timeout_s))),
        (
            "void where later",
            design.map(|design| {
                let share = number::percent(design.late_share_max);
                format!("than {} were more than {share} of all starts", number::seconds(design.late_s))
            }),
        ),
        ("CPUs of the generator", design.map(|design| list(&design.cpus, "any"))),
        ("source addresses", design.map(|design| list(&design.sources, "the system's choice"))),
        ("SHA-256 of the mix", design.and_then(|design| design.mix_sha256.clone())),
    ]
}

fn list<T: ToString>(items: &[T], none: &str) -> String {
    match items {
        [] => none.to_owned(),
        some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}
