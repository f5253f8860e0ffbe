//! Writes to stillgate's Admin API, with its resources in a store or in etcd, one by one at a constant rate.
//!
//! A write is answered when it is served, which a request that only the new version takes verifies. Afterwards, with etcd, another
//! client writes to it, and the route is asked for until it is served. The target is started once with the same resources in a
//! file: that is what its start and its memory are compared with.

mod etcd;
mod resources;

use super::{Change, ChangeOptions, Mode, Requests, micros, only_of_stillgate, paced, stillgate_head};
use crate::client::Client;
use crate::error::Result;
use crate::result::Durations;
use crate::result::run::Placement;
use crate::target::{Spec, Started};
use clap::ValueEnum;
use etcd::Etcd;
use resources::{FIRST_CHANGE, Resources, change};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use stillgate_rig::schedule;

const ADMIN_KEY: &str = "the-admin-key-of-the-laboratory";
/// The longest time until a start or a write is served.
const SERVED_TIMEOUT: Duration = Duration::from_secs(120);
/// Operations in a batch.
const BATCH: usize = 128;
/// Writes per second of another client.
const FOREIGN_PER_SECOND: u32 = 20;

/// Where stillgate has its resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// Its own store
    Store,
    /// An etcd, which is started
    Etcd,
}

struct Write {
    resources: Resources,
    source: Source,
    per_second: u32,
    etcd: Option<Etcd>,
    admin: Option<SocketAddr>,
    next: u64,
    answered_us: Vec<u64>,
    foreign_us: Vec<u64>,
    etcd_us: Vec<u64>,
    notes: Vec<String>,
}

pub(super) fn make(options: &ChangeOptions, spec: &mut Spec) -> Result<Box<dyn Change>> {
    only_of_stillgate(spec, "write")?;
    if spec.configuration.is_some() {
        return Err("--write makes the configuration itself; leave --config out".into());
    }
    Ok(Box::new(Write {
        resources: Resources { routes: options.routes, consumers: options.consumers },
        source: options.source,
        per_second: options.per_second,
        etcd: None,
        admin: None,
        next: FIRST_CHANGE,
        answered_us: Vec::new(),
        foreign_us: Vec::new(),
        etcd_us: Vec::new(),
        notes: Vec::new(),
    }))
}

/// The file of a gateway whose resources are in `source`, or in this file.
fn configuration(source: &str, resources: &str) -> String {
    format!(
        "{}  admin: {{address: \"{{admin}}\", key: {ADMIN_KEY}}}\n  metrics: {{address: \"{{metrics}}\"}}\n{source}{resources}",
        stillgate_head()
    )
}

impl Write {
    fn last_path(&self) -> String {
        format!("/service-{}/v1/x", self.resources.routes.saturating_sub(1))
    }

    /// The start and the memory of a target, in words.
    fn started(&self, name: &str, target: &mut Started) -> Result<String> {
        let begin = Instant::now();
        Client::new(target.address).wait_for(&self.last_path(), SERVED_TIMEOUT)?;
        let start_s = (target.listening_after + begin.elapsed()).as_secs_f64();
        let process = target.process()?;
        let (memory, is_settled) = process.settled_memory()?;
        let [settled, peak] = [memory.rss_kib, process.peak_rss_kib()?].map(|kib| kib as f64 / 1024.0);
        let unsettled = if is_settled { "" } else { " (it does not settle)" };
        Ok(format!(
            "resources in {name}: first answer after {start_s:.2} s, {settled:.1} MiB once settled{unsettled}, {peak:.1} MiB at most"
        ))
    }

    /// Writes all resources through the Admin API.
    fn fill(&self, admin: SocketAddr, upstream: SocketAddr) -> Result {
        let mut client = Client::new(admin);
        for some in self.resources.documents(upstream).chunks(BATCH) {
            let put = |(key, value): &(String, Value)| json!({"method": "PUT", "path": format!("/apisix/admin/{key}"), "body": value});
            let operations: Vec<Value> = some.iter().map(put).collect();
            let reply = client.send("POST", "/v1/batch?wait=stored", &key(), &Value::from(operations).to_string())?;
            reply.expect(200, "a batch of resources")?;
        }
        Ok(())
    }
}

impl Change for Write {
    fn requests(&self) -> Requests {
        Requests::Paths(self.resources.fixed_paths())
    }

    fn prepare(&mut self, spec: &mut Spec, upstream: SocketAddr, placement: &Placement) -> Result {
        spec.configuration = Some(configuration("", &self.resources.yaml(upstream)));
        let mut by_file = spec.start(upstream, placement)?;
        self.notes.push(self.started("a file", &mut by_file)?);
        by_file.stop();
        let folder = spec.directory.display();
        let source = match self.source {
            Source::Store => format!("{{source: store, store: \"{folder}/config.redb\"}}"),
            Source::Etcd => {
                let etcd = Etcd::start(&spec.directory, &placement.load_cpus)?;
                etcd.fill(&self.resources.documents(upstream))?;
                let endpoint = etcd.address;
                self.etcd = Some(etcd);
                format!(
                    "{{source: etcd, etcd: {{endpoints: [\"http://{endpoint}\"], snapshot: \"{folder}/snapshot\"}}}}"
                )
            }
        };
        spec.configuration = Some(configuration(&format!("  config: {source}\n"), ""));
        if self.source == Source::Store {
            let filled = spec.start(upstream, placement)?;
            self.fill(filled.admin.ok_or("the configuration has {admin}")?, upstream)?;
            filled.stop();
        }
        Ok(())
    }

    fn begin(&mut self, target: &mut Started) -> Result {
        self.admin = target.admin;
        let name = match self.source {
            Source::Store => "its store",
            Source::Etcd => "etcd",
        };
        let started = self.started(name, target)?;
        self.notes.push(started);
        Ok(())
    }

    fn during(&mut self, target: &mut Started, mode: Mode, over: &AtomicBool) -> Result<u64> {
        schedule::own_last()?;
        let mut client = Client::new(target.address);
        let mut writer = match (mode, &self.etcd, self.admin) {
            (Mode::With, _, Some(admin)) => Client::new(admin),
            (Mode::Follow, Some(etcd), _) => Client::new(etcd.address),
            _ => {
                super::wait_for_end(over);
                return Ok(0);
            }
        };
        let rate = if mode == Mode::Follow { FOREIGN_PER_SECOND } else { self.per_second };
        paced(rate, over, || {
            let (key_of, document, path) = change(self.next);
            self.next += 1;
            let begin = Instant::now();
            if mode == Mode::Follow {
                etcd::put(&mut writer, &key_of, &document)?;
                self.etcd_us.push(micros(begin));
                client.wait_for(&path, SERVED_TIMEOUT)?;
                self.foreign_us.push(micros(begin));
                return Ok(());
            }
            let reply = writer.send("PUT", &format!("/apisix/admin/{key_of}"), &key(), &document.to_string())?;
            self.answered_us.push(micros(begin));
            reply.expect(200, "a write")?;
            client.get(&path)?.expect(200, "a write was answered, and a request for it is not").map(drop)
        })
    }

    fn follows(&self) -> bool {
        self.source == Source::Etcd
    }

    fn durations(&mut self) -> Vec<Durations> {
        let take = |of: &str, us: &mut Vec<u64>| Durations { of: of.to_owned(), us: std::mem::take(us) };
        let mut all = vec![take("a write, which is answered when it is served", &mut self.answered_us)];
        if self.source == Source::Etcd {
            all.push(take("a write of another program to etcd, until it is served", &mut self.foreign_us));
            all.push(take("of these, until etcd has answered", &mut self.etcd_us));
        }
        all
    }

    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

fn key() -> String {
    format!("X-API-KEY: {ADMIN_KEY}\r\n")
}
