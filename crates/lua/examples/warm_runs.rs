//! Runs a function of a file a given number of times after warm-up, and prints the time of a run:
//! `target/release/examples/warm_runs FILE 200000`.
//!
//! With a third word, `steps`, it prints instructions instead: another process does the runs, in single steps. That is
//! repeated forty times, since the addresses of LuaJIT's tables and the traces that it tries differ, and the mean is
//! printed.

#![allow(clippy::unwrap_used, reason = "an example may stop at the first error")]

use std::process::Command;
use std::time::Instant;
use stillgate_lua::jit::steps;
use stillgate_lua::{CallKind, Context, HeaderChange, Host, MessageSide, NginxLevel, Program, RunOutcome, run};

/// Until then LuaJIT has blacklisted the code that it does not compile.
const WARM_UP_RUNS: usize = 200_000;

/// Number of processes whose steps are counted.
const COUNTS: usize = 40;

/// A request whose host costs next to nothing.
struct Thin;

impl Host for Thin {
    fn phase(&self) -> &'static str {
        "access"
    }

    fn variable(&self, name: &str, out: &mut Vec<u8>) -> Result<bool, String> {
        out.extend_from_slice(match name {
            "host" => b"shop.example",
            "request_method" => b"GET",
            "scheme" => b"http",
            _ => b"/orders/7",
        });
        Ok(true)
    }

    fn set_variable(&mut self, _: &str, _: &[u8]) -> Result<bool, String> {
        Ok(false)
    }

    fn field(&self, _: MessageSide, _: &[u8], _: &mut dyn FnMut(&[u8])) {}

    fn each_field(&self, _: MessageSide, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn change_field(&mut self, _: MessageSide, _: &[u8], _: HeaderChange<'_>) -> Result<(), String> {
        Ok(())
    }

    fn target(&self) -> &[u8] {
        b"/orders/7"
    }

    fn is_logged(&self, _: NginxLevel) -> bool {
        false
    }

    fn log(&self, _: NginxLevel, _: &str) {}

    fn now_ms(&self) -> u64 {
        1_795_703_940_000
    }
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [own, file, runs, more @ ..] = &words[..] else { panic!("FILE RUNS") };
    let count: usize = runs.parse().unwrap();
    match more.first().map(String::as_str) {
        Some("steps") => {
            let counted = || steps::count(Command::new(own).args([file, runs, "traced"])).unwrap();
            // The mean rather than the median: counts come in lumps, and a median would jump between them.
            let all: u64 = (0..COUNTS).map(|_| counted()).sum();
            println!("{:.0} instructions a run", all as f64 / (COUNTS * count) as f64);
        }
        Some("traced") => {
            warm(file, count, steps::begin);
            steps::end();
        }
        _ => {
            let mut began = Instant::now();
            warm(file, count, || began = Instant::now());
            println!("{:.0} ns a run", began.elapsed().as_nanos() as f64 / count as f64);
        }
    }
}

/// Runs the function until LuaJIT is done with it, and then `runs` times.
fn warm(file: &str, runs: usize, is_warm: impl FnOnce()) {
    let source = std::fs::read_to_string(file).unwrap();
    let program = Program::new(file.to_owned(), vec![source], serde_json::json!({}), CallKind::Plugin);
    let once = || {
        let outcome = run(&program, &mut Thin, &mut Context::default());
        assert!(matches!(outcome, RunOutcome::Done(_) | RunOutcome::Answer { .. }), "{outcome:?}");
    };
    (0..WARM_UP_RUNS).for_each(|_| once());
    is_warm();
    (0..runs).for_each(|_| once());
}
