//! `stillgate-lab respond`: a bare HTTP/1.1 server, as an upstream of experiments and as a server of known latency.

use crate::command_line;
use crate::error::{self, Error, Result};
use crate::output::show;
use crate::responder::{Latency, Responder, ResponderTotals, Setup};
use crate::result::histogram;
use clap::Args;
use hdrhistogram::Histogram;
use std::fmt::Write;
use std::net::SocketAddr;
use stillgate_rig::cpus;

/// A longer body does not suit a bare responder.
const BODY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// `stillgate-lab respond`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Prints `listening on ADDRESS` once it listens. Serves until SIGTERM or SIGINT, then prints how much it has served; with --latency also the delays it drew and the actual ones, in microseconds, and the actual ones as an HdrHistogram of nanoseconds (V2, base64).

Examples:
  An upstream that costs as little as can be, on CPU 1:
    stillgate-lab respond --address 127.0.0.1:9000 --cpu 1
  A server of known latency, to try a load generator on:
    stillgate-lab respond --latency lognormal:2ms,0.5 --seed 7")]
pub(crate) struct Respond {
    /// Address to listen at; port 0 chooses a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    address: SocketAddr,
    /// Length of every body
    #[arg(long, value_name = "N", default_value = "100", value_parser = body_bytes)]
    body_bytes: usize,
    /// Delay of each request: none, fixed:2ms, uniform:1ms,3ms, exponential:1ms (the mean), lognormal:1ms,0.5 (median,
    /// sigma), bimodal:1ms,20ms,1% (usual, other, share of the other)
    #[arg(long, value_name = "DISTRIBUTION", default_value = "none")]
    latency: Latency,
    /// Seed of the delays: the same seed draws the same ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The CPU to run on; by default the system places it
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Most concurrent connections; by default as many as the descriptor limit allows
    #[arg(long, value_name = "N", value_parser = command_line::positive)]
    connections_max: Option<usize>,
    /// End when standard input ends, so that a program that starts this one through a pipe never leaves it behind
    #[arg(long)]
    until_stdin_closes: bool,
}

pub(crate) fn run(arguments: &Respond) -> Result<u8> {
    // Before the address is printed: its reader may send a signal at once.
    let stop = error::stop_stream()?;
    if let Some(cpu) = arguments.cpu {
        cpus::pin(&[cpu]).map_err(|error| Error::from(error).context(format_args!("--cpu {cpu}")))?;
    }
    let responder = Responder::bind(&Setup {
        address: arguments.address,
        body_bytes: arguments.body_bytes,
        latency: arguments.latency,
        seed: arguments.seed,
        connections_max: arguments.connections_max,
    })?;
    responder.end_when_readable(&stop)?;
    if arguments.until_stdin_closes {
        let pipe = "--until-stdin-closes: standard input must be a pipe, a socket or a terminal";
        responder.end_when_closed(std::io::stdin()).map_err(|error| error.context(pipe))?;
    }
    show(format_args!("listening on {}\n", responder.address))?;
    let served = responder.run()?;
    show(summary(&served)?)?;
    Ok(0)
}

fn body_bytes(text: &str) -> Result<usize, String> {
    match command_line::count(text)? {
        bytes if bytes <= BODY_BYTES_MAX => usize::try_from(bytes).map_err(|error| error.to_string()),
        _ => Err(format!("at most {BODY_BYTES_MAX}")),
    }
}

fn summary(served: &ResponderTotals) -> Result<String> {
    let mut text = format!("answered {} requests\n", served.answered);
    if let Some((drawn, kept)) = &served.delays {
        text.push_str(&line("drawn", drawn));
        text.push_str(&line("kept", kept));
        text.push_str(&format!("kept histogram: {}\n", histogram::encode(kept)?));
    }
    Ok(text)
}

/// `drawn us: p50=1386.5 …`
fn line(name: &str, delays: &Histogram<u64>) -> String {
    let mut text = format!("{name} us:");
    for (label, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
        let us = delays.value_at_quantile(quantile) as f64 / 1e3;
        // Writing to a `String` cannot fail.
        let _ = write!(text, " {label}={us:.1}");
    }
    text.push('\n');
    text
}
