//! What measuring costs, beside the libraries one would take otherwise.
//!
//! `cargo bench -p stillgate-metrics -- [scrape|write|insert|memory] [--quick] [--alone]`; without a part, all of them.
//! `--alone` leaves the peers out: for comparing two states of the engine, whose processes take turns then.
//!
//! Everything is the thread's own CPU time, so that other programs on the machine count little; the libraries take turns,
//! round by round, and a cell is the median of the rounds with the least of them in brackets. All have one counter family
//! with four labels of ten bytes each. Peers write into one buffer that is used again; they use the system's allocator,
//! as everything here does. Nothing is asserted: times are for comparing within one run.

#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod insert;
mod library;
mod memory;
mod ours;
mod peers;
mod scrape;
mod table;
mod write;

use library::Extent;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [flag, library, series] = &arguments[..]
        && flag == memory::CHILD
    {
        memory::child(library, series.parse().unwrap());
        return ExitCode::SUCCESS;
    }
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let extent = Extent { is_quick: has("--quick"), is_alone: has("--alone") };
    let parts = arguments.iter().map(String::as_str).filter(|argument| !["--quick", "--alone"].contains(argument));
    let parts: Vec<&str> = parts.collect();
    let all = [
        ("scrape", scrape::run as fn(Extent)),
        ("write", write::run),
        ("insert", insert::run),
        ("memory", memory::run),
    ];
    if let Some(unknown) = parts.iter().find(|part| all.iter().all(|(name, _)| name != *part)) {
        eprintln!("{unknown}: there are the parts scrape, write, insert and memory");
        return ExitCode::FAILURE;
    }
    table::head();
    for (_, run) in all.iter().filter(|(name, _)| parts.is_empty() || parts.contains(name)) {
        run(extent);
    }
    ExitCode::SUCCESS
}
