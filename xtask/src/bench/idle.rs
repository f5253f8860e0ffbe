//! `cargo xtask bench idle`: the memory that an idle keep-alive connection costs the process, and whether it is freed.
//!
//! Every connection has had one request answered, so all state of a used connection is in the figure. Memory of the kernel
//! (sockets) is not: no gateway can change that.

use super::{GATEWAY_CPU, free_port, open_files_max, peers, settled_memory, start};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, NGINX};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use stillgate_rig::Running;
use stillgate_rig::proc::Memory;

/// Descriptors this program needs besides its connections.
const OTHER_FILES: u64 = 64;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

const REQUEST: &[u8] = b"GET /service-1/v1/idle HTTP/1.1\r\nHost: idle.example\r\nUser-Agent: xtask\r\n\r\n";

/// Connections that are opened and closed first, so that one-time allocations (stacks, tables) are not charged to the others.
const WARM_UP: usize = 100;

pub(super) fn run(mut args: Args) -> Result {
    let connections: usize = args.value("--connections")?.unwrap_or(10_000);
    let binary = super::binary(&mut args)?;
    args.finish()?;
    packages::ensure(&[NGINX])?;
    check_open_files(connections as u64 + OTHER_FILES)?;
    let binary = binary.path()?;
    let dir = tempfile::tempdir()?;
    let (_upstream, upstream) = peers::start_upstream(dir.path())?;
    let address = free_port()?;
    let config = dir.path().join("stillgate.yaml");
    let limits =
        format!("  limits:\n    connections_per_worker: {}\n  timeouts:\n    keepalive: 1h\n", connections + WARM_UP);
    fs::write(&config, peers::stillgate_config(address, None, upstream, 1000, &limits))?;
    let words = peers::stillgate_command(&binary, &config);
    let mut gateway = start(&words, &[GATEWAY_CPU], &dir.path().join("log"))?;
    gateway.wait_for(address, Running::START_TIMEOUT)?;

    drop(open(address, WARM_UP)?);
    let before = settled_memory(&mut gateway)?;
    println!("{:34} {:>10} {:>10}", "", "RSS KiB", "PSS KiB");
    line("before", before);
    let begin = Instant::now();
    let held = open(address, connections)?;
    let opened = begin.elapsed().as_secs_f64();
    let with = settled_memory(&mut gateway)?;
    line(&format!("with {connections} idle connections"), with);
    let again = exchange_all(held)?;
    let twice = settled_memory(&mut gateway)?;
    line("after a second request on each", twice);
    drop(again);
    let after = settled_memory(&mut gateway)?;
    line("after closing them", after);
    // Memory that was kept for reuse must be reused.
    let held = open(address, connections)?;
    line("with as many new ones", settled_memory(&mut gateway)?);
    drop(held);
    line("after closing those", settled_memory(&mut gateway)?);
    let each = |memory: Memory| (memory.pss_kib as f64 - before.pss_kib as f64) * 1024.0 / connections as f64;
    println!(
        "\n{:.0} bytes each (PSS); {:.0} after the second request; {:.0} left after closing; opened in {opened:.1} s",
        each(with),
        each(twice),
        each(after)
    );
    Ok(())
}

fn line(name: &str, memory: Memory) {
    println!("{name:34} {:10} {:10}", memory.rss_kib, memory.pss_kib);
}

/// Opens connections one by one, each with one answered request.
fn open(address: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    let streams: std::io::Result<Vec<_>> = (0..count).map(|_| TcpStream::connect(address)).collect();
    exchange_all(streams?)
}

/// Sends one request on each connection; all must be answered.
fn exchange_all(mut streams: Vec<TcpStream>) -> Result<Vec<TcpStream>> {
    for (number, stream) in streams.iter_mut().enumerate() {
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.write_all(REQUEST)?;
        let mut buffer = [0; 4096];
        let length = stream.read(&mut buffer)?;
        if !buffer[..length].starts_with(b"HTTP/1.1 200") {
            let text = String::from_utf8_lossy(&buffer[..length]);
            return Err(format!("connection {number}: not answered 200 but {text:?}").into());
        }
    }
    Ok(streams)
}

/// Fails if a process may not open this many files.
fn check_open_files(needed: u64) -> Result {
    let allowed = open_files_max();
    if allowed < needed {
        return Err(format!(
            "{needed} open files are needed and {allowed} allowed; `ulimit -Hn`, or fewer --connections"
        )
        .into());
    }
    Ok(())
}
