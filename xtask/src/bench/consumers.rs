//! `cargo xtask bench consumers`: memory of consumers with a key each, and how soon an added one is served.
//!
//! One gateway is started with no consumers and with all of them; the difference divided by their number is the cost of one.
//! Then consumers are added to the file one by one. The time is measured from the rename of the new file to the first request with
//! the new key that is answered with 200; nothing else loads the gateway.

use super::served::Asker;
use super::statistics::median;
use super::{check, free_port, peers, settled_memory, start};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, NGINX};
use serde_json::json;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;
use stillgate_rig::Running;
use stillgate_rig::proc::Memory;

const PATH: &str = "/item";

/// A gateway whose route requires a key.
struct Gateway {
    process: Running,
    config: Config,
}

/// The configuration file.
struct Config {
    address: SocketAddr,
    file: PathBuf,
    /// Where the next version is written before it is renamed to the file.
    next: PathBuf,
    text: String,
    consumers: usize,
}

pub(super) fn run(mut args: Args) -> Result {
    let consumers: usize = args.value("--consumers")?.unwrap_or(100_000).max(1);
    let additions: usize = args.value("--additions")?.unwrap_or(10).max(1);
    let json: Option<String> = args.value("--json")?;
    let binary = super::binary(&mut args)?;
    args.finish()?;
    packages::ensure(&[NGINX])?;
    let binary = binary.path()?;
    let dir = tempfile::tempdir()?;
    let (_node, node) = peers::start_upstream(dir.path())?;
    let without = Config::create(&dir.path().join("without"), node, 0)?;
    let with = Config::create(&dir.path().join("with"), node, consumers)?;
    for config in [&without, &with] {
        if let Some(reason) = check::refused(&binary, &config.file)? {
            return Err(format!("stillgate refuses a configuration with consumers: {reason}").into());
        }
    }
    println!("{:38} {:>10} {:>10}", "", "RSS KiB", "peak KiB");
    let none = Gateway::start(&binary, without)?.memory("no consumers")?;
    let mut gateway = Gateway::start(&binary, with)?;
    let all = gateway.memory(&format!("{consumers} consumers, {:.1} MB", gateway.config.text.len() as f64 / 1e6))?;
    let took_ms = gateway.add(additions)?;
    let added = gateway.memory(&format!("after {additions} more, one at a time"))?;
    let each = |memory: Memory| (memory.rss_kib as f64 - none.rss_kib as f64) * 1024.0 / consumers as f64;
    let longest = took_ms.iter().copied().fold(0.0, f64::max);
    println!("\n{:.0} bytes each; {:.0} after the additions", each(all), each(added));
    println!(
        "one more is served after {:.1} ms (median of {additions}; longest {longest:.1})",
        median(took_ms.clone())
    );
    if let Some(path) = json {
        let result = json!({
            "consumers": consumers, "bytes_each": each(all), "bytes_each_after": each(added), "added_ms": took_ms,
        });
        fs::write(&path, serde_json::to_string_pretty(&result)?)?;
        println!("written to {path}");
    }
    Ok(())
}

impl Gateway {
    /// Starts it on both CPUs: the second one is for reading a file while serving.
    fn start(binary: &Path, config: Config) -> Result<Self> {
        let words = peers::stillgate_command(binary, &config.file);
        let mut process = start(&words, &[], &config.file.with_extension("log"))?;
        process.wait_for(config.address, Running::START_TIMEOUT)?;
        Ok(Self { process, config })
    }

    /// Adds consumers one by one; returns how long each took to be served, in ms.
    fn add(&mut self, additions: usize) -> Result<Vec<f64>> {
        let mut asker = Asker::connect(self.config.address)?;
        let mut took_ms = Vec::new();
        for _ in 0..additions {
            let key = [format!("apikey: {}", key(self.config.consumers))];
            let early = asker.get(PATH, &key)?.status;
            if early != 401 {
                return Err(format!("a key that nobody has is answered {early}, and not 401").into());
            }
            let begin = self.config.add()?;
            asker.wait_for(PATH, &key)?;
            took_ms.push(begin.elapsed().as_secs_f64() * 1e3);
            self.process.alive()?;
        }
        Ok(took_ms)
    }

    /// Prints its current memory.
    fn memory(&mut self, name: &str) -> Result<Memory> {
        let memory = settled_memory(&mut self.process)?;
        println!("{name:38} {:10} {:10}", memory.rss_kib, self.process.peak_rss_kib()?);
        Ok(memory)
    }
}

impl Config {
    /// Writes a file with this many consumers into `dir`, which it creates.
    fn create(dir: &Path, node: SocketAddr, consumers: usize) -> Result<Self> {
        // In a separate folder, so that only the complete file is seen to change.
        let beside = dir.join("next");
        fs::create_dir_all(&beside)?;
        let address = free_port()?;
        let mut text = peers::stillgate_head(address, None, (node, "http"), "");
        // Writing to a `String` cannot fail.
        let _ = write!(text, "  - id: r\n    uri: /*\n    upstream_id: u\n    plugins: {{key-auth: {{}}}}\n");
        text.push_str(if consumers == 0 { "" } else { "consumers:\n" });
        (0..consumers).for_each(|number| push(&mut text, number));
        let config =
            Self { address, file: dir.join("stillgate.yaml"), next: beside.join("stillgate.yaml"), text, consumers };
        fs::write(&config.file, &config.text)?;
        Ok(config)
    }

    /// Replaces the file by one with another consumer; returns when.
    fn add(&mut self) -> Result<Instant> {
        push(&mut self.text, self.consumers);
        self.consumers += 1;
        fs::write(&self.next, &self.text)?;
        let begin = Instant::now();
        fs::rename(&self.next, &self.file)?;
        Ok(begin)
    }
}

fn push(text: &mut String, number: usize) {
    // Writing to a `String` cannot fail.
    let _ = writeln!(text, "  - {{username: consumer_{number}, plugins: {{key-auth: {{key: {}}}}}}}", key(number));
}

fn key(number: usize) -> String {
    format!("key-of-the-consumer-{number:08}")
}
