//! System calls of running processes, counted by `strace -c`.

use crate::error::{Error, Result};
use crate::running::send;
use rustix::process::Signal;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

/// The calls that transfer a message's bytes.
const DATA: &[&str] =
    &["read", "readv", "recvfrom", "recvmsg", "write", "writev", "sendto", "sendmsg", "sendfile", "splice"];

/// Calls per unit of work.
#[derive(Debug)]
pub struct Calls {
    /// Calls that transfer bytes.
    pub data: f64,
    /// All calls.
    pub all: f64,
    /// The most frequent ones, with their numbers.
    most: Vec<(String, f64)>,
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} data system calls, {:.2} in all:", self.data, self.all)?;
        for (name, calls) in &self.most {
            write!(f, " {name} {calls:.2}")?;
        }
        Ok(())
    }
}

/// Counts the calls of processes while `work` is done, which returns how many units it has done.
pub fn count<E: From<Error>>(pids: &[u32], work: impl FnOnce() -> Result<u64, E>) -> Result<Calls, E> {
    let failed = |error: std::io::Error| Error::new(format!("strace: {error}"));
    let each = pids.iter().map(|pid| format!("--attach={pid}"));
    let mut strace = Command::new("strace")
        .args(["-c", "-f"])
        .args(each)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Error::new(format!("strace: {error}; install the package strace")))?;
    let stderr = strace.stderr.take().ok_or_else(|| Error::new("strace: no standard error"))?;
    let mut stderr = BufReader::new(stderr);
    // "strace: Process 1 attached", once for each: calls are counted only from now on.
    let mut text = String::new();
    for _ in pids {
        stderr.read_line(&mut text).map_err(failed)?;
    }
    let done = work();
    send(strace.id(), Signal::INT)?;
    stderr.read_to_string(&mut text).map_err(failed)?;
    strace.wait().map_err(failed)?;
    if !text.contains("attached") {
        return Err(Error::new(format!("strace may not attach here:\n{text}")).into());
    }
    Ok(parse(&text, done?))
}

/// Parses strace's table: `% time, seconds, usecs/call, calls, [errors,] syscall`.
fn parse(text: &str, units: u64) -> Calls {
    let mut calls: Vec<(String, f64)> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = fields.get(3).and_then(|field| field.parse::<f64>().ok());
        let name = fields.last().filter(|name| **name != "total");
        if let (Some(number), Some(name), 5 | 6) = (number, name, fields.len()) {
            calls.push(((*name).to_owned(), number / units as f64));
        }
    }
    calls.sort_by(|a, b| b.1.total_cmp(&a.1));
    let data = calls.iter().filter(|(name, _)| DATA.contains(&name.as_str()));
    Calls {
        data: data.map(|(_, calls)| calls).sum(),
        all: calls.iter().map(|(_, calls)| calls).sum(),
        most: calls.iter().filter(|(_, calls)| *calls >= 0.01).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_table() {
        let text = "strace: Process 7 attached\n\
            % time     seconds  usecs/call     calls    errors syscall\n\
            ------ ----------- ----------- --------- --------- ----------------\n \
            57.14    0.000040           4       200           writev\n \
            42.86    0.000030           3       210        10 recvfrom\n  \
            0.00    0.000000           0        50           epoll_wait\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
            100.00    0.000070           3       460        10 total\n";
        let counted = parse(text, 100);
        assert_eq!(counted.data, 4.1);
        assert_eq!(counted.all, 4.6);
        assert_eq!(counted.most[0].0, "recvfrom");
    }
}
