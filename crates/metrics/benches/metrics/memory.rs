//! Memory of a million series, by the engine's own account and by the growth of the process.
//!
//! Each library has a process of its own, so that no memory is reused. A series has four labels of ten bytes; no
//! handles are kept.

use crate::library::{Extent, LabelValues, Library};
use crate::ours::Stillgate;
use crate::peers::{Metrics, Prometheus, PrometheusClient};
use crate::table;
use std::process::Command;

/// Command-line argument of a process that measures one library.
pub const CHILD: &str = "--memory-of";
const SERIES: usize = 1_000_000;
const LIBRARIES: [&str; 4] = ["stillgate", "prometheus-client", "prometheus", "metrics"];

/// What such a process reports, by row.
type Report = Vec<(String, f64)>;

pub fn run(extent: Extent) {
    let series = if extent.is_quick { SERIES / 10 } else { SERIES };
    let is_asked = |library: &str| !extent.is_alone || library == LIBRARIES[0];
    let said = LIBRARIES.map(|library| if is_asked(library) { ask(library, series) } else { Report::new() });
    table::title(&format!("Memory, {series} series (bytes a series)"));
    let row = |what: &str, key: &str, target: Option<f64>| {
        let of = |said: &Report| {
            said.iter().filter(|(name, _)| name == key).map(|(_, bytes)| bytes / series as f64).collect()
        };
        table::row(what, &said.each_ref().map(of), target);
    };
    row("log with epochs", "log", None);
    row("index, with label sets counted", "index", None);
    row("reader's tables", "reader", None);
    row("all of a series", "all", Some(200.0));
    row("kept text", "text", None);
    row("kept gzip", "gzip", None);
    row("growth of the process, written", "rss written", None);
    row("growth of the process, read", "rss read", Some(200.0));
    row("growth of the process, scraped", "rss scraped", None);
    row("growth of the process, scraped with gzip", "rss gzip", None);
}

fn ask(library: &str, series: usize) -> Report {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args([CHILD, library, &series.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| line.split_once('\t').map(|(key, bytes)| (key.to_owned(), bytes.parse().unwrap()));
    text.lines().filter_map(line).collect()
}

/// Measures one library in this process.
pub fn child(library: &str, series: usize) {
    match library {
        "stillgate" => ours(series),
        "prometheus-client" => peer::<PrometheusClient>(series),
        "prometheus" => peer::<Prometheus>(series),
        _ => peer::<Metrics>(series),
    }
}

fn say(key: &str, bytes: f64) {
    println!("{key}\t{bytes}");
}

fn fill<L: Library>(series: usize) -> (L, f64) {
    // One-time initialization and the code are in memory before the measurement.
    let mut warm = L::new(1000);
    (0..1000).for_each(|n| warm.count(&LabelValues::numbered(n).values()));
    warm.scrape(false);
    warm.scrape(true);
    drop(warm);
    let before = resident();
    let mut library = L::new(series);
    (0..series).for_each(|n| library.count(&LabelValues::numbered(n).values()));
    say("rss written", resident() - before);
    (library, before)
}

fn peer<L: Library>(series: usize) {
    let (mut library, before) = fill::<L>(series);
    library.scrape(false);
    say("rss scraped", resident() - before);
}

fn ours(series: usize) {
    let (mut library, before) = fill::<Stillgate>(series);
    assert!(library.sets().unwrap() > series - series / 1000, "the provisioner was too slow");
    let of = |accounts: &[(String, f64)], part: &str| {
        accounts.iter().filter(|(name, _)| name == part).map(|(_, bytes)| bytes).sum::<f64>()
    };
    library.refresh();
    say("rss read", resident() - before);
    // The gauge is set after the refresh that it describes.
    library.accounts();
    let accounts = library.accounts();
    for part in ["log", "index", "reader"] {
        say(part, of(&accounts, part));
    }
    say("all", ["log", "index", "reader"].iter().map(|part| of(&accounts, part)).sum());
    let none = of(&accounts, "cache");
    library.scrape(false);
    say("rss scraped", resident() - before);
    library.accounts();
    let text = of(&library.accounts(), "cache");
    say("text", text - none);
    library.scrape(true);
    say("rss gzip", resident() - before);
    library.accounts();
    say("gzip", of(&library.accounts(), "cache") - text);
}

/// Resident bytes of this process; `statm` would be some hundred pages late.
fn resident() -> f64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}
