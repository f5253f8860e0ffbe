//! Runs a function of a file so many times after LuaJIT has done what it does, and prints the time of a run:
//! `target/release/examples/warm_runs FILE 200000`.
//!
//! With a third word, `traps`, it raises SIGTRAP before and after these runs, for a tracer that counts steps between. Valgrind is of
//! no use here: LuaJIT finds no room for machine code in it, and interprets all.

#![allow(unsafe_code, reason = "raising a signal")]
#![allow(clippy::unwrap_used, reason = "an example may stop at the first error")]

use std::time::Instant;
use stillgate_lua::{Change, Context, Host, Kind, Level, Outcome, Program, Side, run};

/// LuaJIT has given up by then what it does not compile.
const WARM_UP_RUNS: usize = 200_000;

/// A request that costs next to nothing.
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

    fn field(&self, _: Side, _: &[u8], _: &mut dyn FnMut(&[u8])) {}

    fn each_field(&self, _: Side, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn change_field(&mut self, _: Side, _: &[u8], _: Change<'_>) -> Result<(), String> {
        Ok(())
    }

    fn target(&self) -> &[u8] {
        b"/orders/7"
    }

    fn is_logged(&self, _: Level) -> bool {
        false
    }

    fn log(&self, _: Level, _: &str) {}

    fn now_ms(&self) -> u64 {
        1_795_703_940_000
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().expect("FILE RUNS");
    let runs: usize = arguments.next().expect("FILE RUNS").parse().unwrap();
    let source = std::fs::read_to_string(&file).unwrap();
    let program = Program::new(file, vec![source], serde_json::json!({}), Kind::Plugin);
    let once = || {
        let outcome = run(&program, &mut Thin, &mut Context::default());
        assert!(matches!(outcome, Outcome::Done(_) | Outcome::Answer { .. }), "{outcome:?}");
    };
    let has_traps = arguments.next().as_deref() == Some("traps");
    let trap = || {
        if has_traps {
            // SAFETY: raises a signal, which ends the process unless somebody traces it.
            unsafe { libc::raise(libc::SIGTRAP) };
        }
    };
    (0..WARM_UP_RUNS).for_each(|_| once());
    trap();
    let began = Instant::now();
    (0..runs).for_each(|_| once());
    let took = began.elapsed();
    trap();
    println!("{:.0} ns a run", took.as_nanos() as f64 / runs as f64);
}
