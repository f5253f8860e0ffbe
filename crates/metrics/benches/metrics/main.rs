//! Cost of measuring, beside the libraries that one would use otherwise.
//!
//! `cargo bench -p stillgate-metrics -- [scrape|write|insert|memory] [--quick] [--alone]`; without a part, all of them.
//! `--alone` leaves the peers out, to compare two states of the engine in processes that take turns.
//!
//! All times are the thread's own CPU time, so that other programs on the machine count little. The libraries take
//! turns, round by round; a cell is the median of the rounds, with the minimum in brackets. Every library has one
//! counter family with four labels of ten bytes. Peers write into one buffer that is reused; they use the system's
//! allocator, as all code here does. Nothing is asserted: times are for comparison within one run.

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
