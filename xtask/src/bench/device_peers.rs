//! `cargo xtask bench device-peers`: the cost of a connection that back-ends can address, compared with nchan, Pushpin and
//! mosquitto.
//!
//! Each round starts each server again on its CPU; clients, back-ends and Pushpin's origin share the other. All do the same:
//! connect N clients with unique names, leave them idle, then send messages to one after the other. A back-end waits for the
//! server's response and for the message at its client before it sends the next. The features of `device-gateway` that each server
//! lacks are listed in docs/devices-scale.md: these are not the same products.

use super::GATEWAY_CPU;
use super::statistics::median;
use super::{open_files_max, settled_memory};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, MOSQUITTO, NGINX, NGINX_NCHAN, PUSHPIN};
use client::{Clients, Kind};
use serde_json::json;
use servers::Server;
use std::fs;
use std::thread::sleep;
use std::time::Duration;
use stillgate_rig::Running;

mod client;
mod origin;
mod servers;

/// The default number of clients.
const CLIENTS: usize = 10_000;
/// Number of back-ends, each with one message in flight.
const BACK_ENDS: usize = 32;
/// Descriptors of this program besides the clients'.
const OTHER_FILES: u64 = 512;
/// Clients that are connected and closed first, so that one-time allocations are not charged to the others.
const WARM_UP: usize = 100;

/// The lines of the table.
const LINES: [&str; 6] = [
    "memory before, MiB (PSS)",
    "bytes a connection (PSS)",
    "CPU us a connect",
    "idle: CPU us a second",
    "CPU us a message",
    "messages per CPU second",
];

pub(super) fn run(mut args: Args) -> Result {
    let clients: usize = args.value("--clients")?.unwrap_or(CLIENTS).max(BACK_ENDS);
    let rounds: usize = args.value("--rounds")?.unwrap_or(3).max(1);
    let messages: usize = args.value("--messages")?.unwrap_or(40_000).max(BACK_ENDS);
    let json: Option<String> = args.value("--json")?;
    let binary = super::binary(&mut args)?;
    args.finish()?;
    packages::ensure(&[NGINX, NGINX_NCHAN, PUSHPIN, MOSQUITTO])?;
    let files = open_files_max();
    if files < clients as u64 + OTHER_FILES {
        return Err(
            format!("{clients} clients need more than the {files} files of `ulimit -Hn`; fewer --clients").into()
        );
    }
    let binary = binary.path()?;
    let subjects = [
        Server::Stillgate { binary: &binary, is_acknowledged: false },
        Server::Stillgate { binary: &binary, is_acknowledged: true },
        Server::Nchan,
        Server::Pushpin,
        Server::Mosquitto,
    ];
    println!(
        "{rounds} rounds; {clients} clients, {messages} messages of {} bytes, {BACK_ENDS} under way; servers on CPU {GATEWAY_CPU}\n",
        client::BODY.len()
    );
    let mut samples: Vec<Vec<[f64; LINES.len()]>> = vec![Vec::new(); subjects.len()];
    let mut has_failed = vec![false; subjects.len()];
    for round in 1..=rounds {
        for ((subject, samples), has_failed) in subjects.iter().zip(&mut samples).zip(&mut has_failed) {
            let name = subject.name();
            if *has_failed {
                continue;
            }
            // One server that fails does not stop the bench.
            match measure(subject, clients, messages) {
                Ok(sample) => {
                    println!("{name:20} {}", sample.map(|value| format!("{value:11.1}")).join(" "));
                    samples.push(sample);
                }
                Err(error) => {
                    println!("{name:20} failed in round {round}, and is left out from here on: {error}");
                    *has_failed = true;
                }
            }
        }
    }
    let rows = report(&subjects, &samples);
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&json!({ "clients": clients, "rows": rows }))?)?;
        println!("\nwritten to {path}");
    }
    Ok(())
}

/// Runs one server from start to end.
fn measure(subject: &Server<'_>, count: usize, messages: usize) -> Result<[f64; LINES.len()]> {
    let dir = tempfile::tempdir()?;
    let mut started = subject.start(dir.path(), count + WARM_UP)?;
    drop(Clients::open(&started.address, "warm", WARM_UP, BACK_ENDS)?);
    let server = &mut started.running;
    let before = settled_memory(server)?;
    let (mut clients, connect_us) = {
        let cpu = server.thread_times()?;
        let clients = Clients::open(&started.address, "d", count, BACK_ENDS)?;
        (clients, server.thread_times()?.since(&cpu))
    };
    let with = settled_memory(server)?;
    let idle_us = idle(server)?;
    // Connections of back-ends, and allocations of the first message to a client, come before the count.
    clients.send(&started.address, BACK_ENDS * 4)?;
    let cpu = server.thread_times()?;
    let sent = clients.send(&started.address, messages)?;
    let message_us = server.thread_times()?.since(&cpu) / sent as f64;
    server.alive()?;
    Ok([
        before.pss_kib as f64 / 1024.0,
        (with.pss_kib as f64 - before.pss_kib as f64) * 1024.0 / count as f64,
        connect_us / count as f64,
        idle_us,
        message_us,
        1e6 / message_us,
    ])
}

/// CPU µs per second while nothing is sent.
fn idle(server: &Running) -> Result<f64> {
    const IDLE: Duration = Duration::from_secs(3);
    let before = server.thread_times()?;
    sleep(IDLE);
    Ok(server.thread_times()?.since(&before) / IDLE.as_secs_f64())
}

/// Prints the medians; returns the rows with every round.
fn report(subjects: &[Server<'_>], samples: &[Vec<[f64; LINES.len()]>]) -> Vec<serde_json::Value> {
    print!("\n{:26}", "(medians)");
    subjects.iter().for_each(|subject| print!(" {:>18}", subject.name()));
    println!();
    let mut rows = Vec::new();
    for (at, line) in LINES.iter().enumerate() {
        print!("{line:26}");
        for samples in samples {
            match samples.is_empty() {
                true => print!(" {:>18}", "failed"),
                false => print!(" {:18.1}", median(samples.iter().map(|sample| sample[at]))),
            }
        }
        println!();
        let values: Vec<Vec<f64>> =
            samples.iter().map(|samples| samples.iter().map(|sample| sample[at]).collect()).collect();
        let names: Vec<&str> = subjects.iter().map(|subject| subject.name()).collect();
        rows.push(json!({ "line": line, "servers": names, "rounds": values }));
    }
    rows
}

/// The addresses for clients and for back-ends.
pub(super) struct Address {
    kind: Kind,
    clients: std::net::SocketAddr,
    back_ends: std::net::SocketAddr,
}
