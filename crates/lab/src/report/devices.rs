//! The result of a run of mock devices, or of rounds of two gateways: the text of the command, laid out as tables.

use super::compare::{ReportInput, Section, Tone};
use super::provenance;
use super::tables::{self, Cell, figures, words};
use crate::devices::words as told;
use crate::error::Result;
use crate::result::devices::{DevicesDecision, DevicesResult, DevicesRun};

pub(crate) fn section(prefix: &str, source: &ReportInput, result: &DevicesResult) -> Result<Section> {
    let (tone, word, sentence) = verdict(result);
    let mut section = Section {
        tone,
        word,
        sentence,
        details: String::new(),
        title: format!("Devices of {}", result.design.url),
        entries: Vec::new(),
        body: String::new(),
    };
    if let Some(run) = &result.run {
        section.part(&format!("{prefix}-connects"), "Connects", &connects(prefix, run));
    }
    if let Some(analysis) = &result.analysis {
        let rows: Vec<Vec<Cell>> = analysis
            .measures
            .iter()
            .map(|of| {
                let percent = |share: f64| format!("{:+.1}%", share * 100.0);
                let interval = format!("{} to {}", percent(of.low), percent(of.high));
                vec![
                    Cell::Words(of.measure.clone()),
                    Cell::Figure(format!("{:.1} {}", of.a, of.unit)),
                    Cell::Figure(format!("{:.1} {}", of.b, of.unit)),
                    Cell::Figure(percent(of.effect)),
                    Cell::Figure(interval),
                ]
            })
            .collect();
        let heads = [words("measure"), figures("A"), figures("B"), figures("change"), figures("interval")];
        let table = tables::draw(&format!("{prefix}-m"), "Medians over the rounds", &heads, &rows);
        section.part(&format!("{prefix}-measures"), "CPU time", &table);
    }
    let lines: Vec<Vec<Cell>> =
        told::text(result).lines().map(|line| vec![Cell::Words(line.trim_start().to_owned())]).collect();
    let table = tables::draw(&format!("{prefix}-l"), "As the command prints it", &[words("what was seen")], &lines);
    section.part(&format!("{prefix}-lines"), "All of it", &table);
    let design = &result.design;
    let rows: provenance::Rows = vec![
        ("devices", Some(design.devices.to_string())),
        ("connects per second", Some(design.connect_rate.to_string())),
        ("messages per second", design.message_rate.map(|rate| rate.to_string())),
        ("acknowledgement", Some(design.ack.clone())),
        ("seed", Some(design.seed.to_string())),
    ];
    provenance::parts(&mut section, prefix, source, &rows);
    Ok(section)
}

fn verdict(result: &DevicesResult) -> (Tone, &'static str, String) {
    match (&result.run, &result.analysis) {
        (_, Some(analysis)) => {
            let (tone, word) = match analysis.decision {
                DevicesDecision::NotWorse => (Tone::Same, "not worse"),
                DevicesDecision::Worse => (Tone::Worse, "worse"),
                DevicesDecision::Undecided => (Tone::Undecided, "undecided"),
                DevicesDecision::Void => (Tone::Void, "void"),
            };
            (tone, word, analysis.sentence.clone())
        }
        (Some(run), None) if run.broken_promises() > 0 => {
            let sentence = format!("The gateway broke its guarantees for {} messages.", run.broken_promises());
            (Tone::Worse, "broken promises", sentence)
        }
        (Some(run), None) if !run.void.is_empty() => (Tone::Void, "void", run.void.join("; ")),
        (Some(run), None) => {
            let sent = run.messages.as_ref().map_or(0, |messages| messages.sent);
            let sentence =
                format!("{} devices connected; {sent} messages, no guarantee broken.", result.design.devices);
            (Tone::Plain, "valid", sentence)
        }
        (None, None) => (Tone::Void, "void", "Nothing was measured.".to_owned()),
    }
}

fn connects(prefix: &str, run: &DevicesRun) -> String {
    let rows: Vec<Vec<Cell>> = run
        .connects
        .iter()
        .map(|step| {
            let known = |figure: Option<String>| Cell::Figure(figure.unwrap_or_else(|| "–".to_owned()));
            vec![
                Cell::Figure(step.devices.to_string()),
                Cell::Figure(step.connects.to_string()),
                known(step.cpu_us_per_connect.map(|us| format!("{us:.1}"))),
                known(step.rss_kib.map(|kib| format!("{:.1}", kib as f64 / 1024.0))),
                Cell::Figure(format!("{:.2}", step.handshake.p99 / 1e3)),
            ]
        })
        .collect();
    let heads = [
        figures("devices"),
        figures("connects"),
        figures("CPU each, us"),
        figures("memory, MiB"),
        figures("handshake p99, ms"),
    ];
    tables::draw(&format!("{prefix}-c"), "Connects by step", &heads, &rows)
}
