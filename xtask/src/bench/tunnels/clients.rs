//! The process of the clients, both its sides: the role, which reads one command per line and answers each with a line, and the
//! bench's handle for it.
//!
//! A separate process, since it has its own limit of descriptors and its own CPU.

use super::super::OTHER_CPU;
use super::counted::Counted;
use super::fleet::{Fleet, Pace};
use crate::Result;
use crate::args::Args;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The word on the command line.
pub(in crate::bench) const ROLE: &str = "tunnel-clients";

/// Executes commands until its standard input ends.
pub(in crate::bench) fn run(args: Args) -> Result {
    args.finish()?;
    let mut fleet = Fleet::new()?;
    for line in std::io::stdin().lines() {
        let answer = obey(&mut fleet, &line?).unwrap_or_else(|error| json!({ "error": error.to_string() }));
        println!("{answer}");
    }
    Ok(())
}

fn obey(fleet: &mut Fleet, line: &str) -> Result<Value> {
    let words: Vec<&str> = line.split(' ').collect();
    let pace = match words.as_slice() {
        ["open", address, path, count] => {
            fleet.open(address.parse()?, path, count.parse()?)?;
            return Ok(json!({}));
        }
        ["close"] => {
            fleet.close();
            return Ok(json!({}));
        }
        ["clock", per_second, _] => Pace::Clock(per_second.parse()?),
        ["answers", at_once, _] => Pace::Answers(at_once.parse()?),
        _ => return Err(format!("not a command: {line}").into()),
    };
    let counted = fleet.run(pace, Duration::from_millis(words[2].parse()?))?;
    Ok(counted.to_json())
}

/// The running process; it ends when this is dropped.
pub(in crate::bench) struct Clients {
    child: Child,
    /// `None` makes it end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Clients {
    pub(in crate::bench) fn start() -> Result<Self> {
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &OTHER_CPU.to_string()]).arg(std::env::current_exe()?).args(["bench", ROLE]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        Ok(Self { input: child.stdin.take(), output, child })
    }

    pub(in crate::bench) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(in crate::bench) fn open(&mut self, address: SocketAddr, path: &str, count: usize) -> Result {
        self.ask(&format!("open {address} {path} {count}"))?;
        Ok(())
    }

    pub(in crate::bench) fn close(&mut self) -> Result {
        self.ask("close")?;
        Ok(())
    }

    /// Pings for this long.
    pub(in crate::bench) fn run(&mut self, pace: Pace, duration: Duration) -> Result<Counted> {
        let milliseconds = duration.as_millis();
        let answer = match pace {
            Pace::Clock(per_second) => self.ask(&format!("clock {per_second} {milliseconds}"))?,
            Pace::Answers(at_once) => self.ask(&format!("answers {at_once} {milliseconds}"))?,
        };
        Counted::from_json(&answer)
    }

    fn ask(&mut self, command: &str) -> Result<Value> {
        let input = self.input.as_mut().ok_or("told to end")?;
        writeln!(input, "{command}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let answer: Value = serde_json::from_str(&line).map_err(|_| format!("the clients ended at {command:?}"))?;
        match answer["error"].as_str() {
            None => Ok(answer),
            Some(error) => Err(error.into()),
        }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.input = None;
        // It fails only if the process has ended, which is the aim.
        let _ = self.child.wait();
    }
}
