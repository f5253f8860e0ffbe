//! Writes to stillgate's Admin API, with its resources in a store or in etcd, one by one at a constant rate.
//!
//! A write is answered when it is served, which a request that only the new version takes verifies. Afterwards, with
//! etcd, another client writes to it, and the route is asked for until it is served. The target is started once with
//! the same resources in a file: that is what its start and its memory are compared with.
//!
//! An etcd is filled and written to over its JSON gateway, as by a program other than stillgate. The resources are
//! there both as a file and as documents in the layout of APISIX.

use super::{Change, ChangeOptions, Mode, Requests, micros, only_of_stillgate, repeat_at_pace, stillgate_head};
use crate::client::Client;
use crate::error::Result;
use crate::result::Durations;
use crate::result::run::Placement;
use crate::target::{RunningTarget, Spec};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use stillgate_rig::{Running, ports, schedule};

const ADMIN_KEY: &str = "the-admin-key-of-the-laboratory";
/// The longest time until a start or a write is served.
const SERVED_TIMEOUT: Duration = Duration::from_secs(120);
/// Operations in a batch.
const BATCH: usize = 128;
/// Writes per second of another client.
const FOREIGN_PER_SECOND: u32 = 20;

/// Where stillgate has its resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WriteSource {
    /// Its own store
    Store,
    /// An etcd, which is started
    Etcd,
}

struct Write {
    resources: Resources,
    source: WriteSource,
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
    fn started(&self, name: &str, target: &mut RunningTarget) -> Result<String> {
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
            let reply =
                client.send("POST", "/v1/batch?wait=stored", &admin_key(), &Value::from(operations).to_string())?;
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
            WriteSource::Store => format!("{{source: store, store: \"{folder}/config.redb\"}}"),
            WriteSource::Etcd => {
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
        if self.source == WriteSource::Store {
            let filled = spec.start(upstream, placement)?;
            self.fill(filled.admin.ok_or("the configuration has {admin}")?, upstream)?;
            filled.stop();
        }
        Ok(())
    }

    fn begin(&mut self, target: &mut RunningTarget) -> Result {
        self.admin = target.admin;
        let name = match self.source {
            WriteSource::Store => "its store",
            WriteSource::Etcd => "etcd",
        };
        let started = self.started(name, target)?;
        self.notes.push(started);
        Ok(())
    }

    fn change_until_over(&mut self, target: &mut RunningTarget, mode: Mode, over: &AtomicBool) -> Result<u64> {
        schedule::make_own_thread_idle()?;
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
        repeat_at_pace(rate, over, || {
            let (key_of, document, path) = change(self.next);
            self.next += 1;
            let begin = Instant::now();
            if mode == Mode::Follow {
                put_key(&mut writer, &key_of, &document)?;
                self.etcd_us.push(micros(begin));
                client.wait_for(&path, SERVED_TIMEOUT)?;
                self.foreign_us.push(micros(begin));
                return Ok(());
            }
            let reply = writer.send("PUT", &format!("/apisix/admin/{key_of}"), &admin_key(), &document.to_string())?;
            self.answered_us.push(micros(begin));
            reply.expect(200, "a write")?;
            client.get(&path)?.expect(200, "a write was answered, and a request for it is not").map(drop)
        })
    }

    fn follows(&self) -> bool {
        self.source == WriteSource::Etcd
    }

    fn durations(&mut self) -> Vec<Durations> {
        let take = |of: &str, us: &mut Vec<u64>| Durations { of: of.to_owned(), us: std::mem::take(us) };
        let mut all = vec![take("a write, which is answered when it is served", &mut self.answered_us)];
        if self.source == WriteSource::Etcd {
            all.push(take("a write of another program to etcd, until it is served", &mut self.foreign_us));
            all.push(take("of these, until etcd has answered", &mut self.etcd_us));
        }
        all
    }

    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

fn admin_key() -> String {
    format!("X-API-KEY: {ADMIN_KEY}\r\n")
}

/// The default limit of operations in a transaction.
const OPERATIONS_MAX: usize = 128;

/// One member. It syncs to the disk, as in production.
struct Etcd {
    address: SocketAddr,
    /// Held only to be dropped.
    _process: Running,
}

impl Etcd {
    fn start(folder: &Path, cpus: &[usize]) -> Result<Etcd> {
        let ports = ports::free(IpAddr::V4(Ipv4Addr::LOCALHOST), 2)?;
        let (address, peer) = (ports[0], ports[1]);
        let words = [
            "etcd".to_owned(),
            format!("--data-dir={}", folder.join("etcd").display()),
            format!("--listen-client-urls=http://{address}"),
            format!("--advertise-client-urls=http://{address}"),
            format!("--listen-peer-urls=http://{peer}"),
            format!("--initial-advertise-peer-urls=http://{peer}"),
            format!("--initial-cluster=default=http://{peer}"),
            "--log-level=warn".to_owned(),
        ];
        let mut process = Running::spawn("etcd", &words, cpus, &folder.join("etcd.log"), Stdio::null())?;
        process.wait_for(address, Running::START_TIMEOUT).map_err(|failed| failed.error)?;
        Ok(Etcd { address, _process: process })
    }

    /// Writes many keys.
    fn fill(&self, pairs: &[(String, Value)]) -> Result {
        let mut client = Client::new(self.address);
        for some in pairs.chunks(OPERATIONS_MAX) {
            let operations: Vec<Value> =
                some.iter().map(|(key, value)| json!({"request_put": pair(key, value)})).collect();
            post(&mut client, "/v3/kv/txn", &json!({"success": operations}))?;
        }
        Ok(())
    }
}

/// Writes one key.
fn put_key(client: &mut Client, key: &str, value: &Value) -> Result {
    post(client, "/v3/kv/put", &pair(key, value))
}

fn post(client: &mut Client, path: &str, body: &Value) -> Result {
    client.send("POST", path, "", &body.to_string())?.expect(200, "etcd").map(drop)
}

fn pair(key: &str, value: &Value) -> Value {
    json!({"key": STANDARD.encode(format!("/apisix/{key}")), "value": STANDARD.encode(value.to_string())})
}

/// Number of routes that change, besides the others.
const CHANGING: u64 = 100;

/// The number of resources by kind.
#[derive(Debug, Clone, Copy)]
struct Resources {
    routes: usize,
    consumers: usize,
}

impl Resources {
    /// The resources as a part of a file.
    fn yaml(self, upstream: SocketAddr) -> String {
        let mut text = format!("upstreams:\n  - {{id: u, type: roundrobin, nodes: {{\"{upstream}\": 1}}}}\nroutes:\n");
        for (id, uri) in self.routes() {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "  - {{id: {id}, uri: {uri}, upstream_id: u}}");
        }
        text.push_str(if self.consumers == 0 { "" } else { "consumers:\n" });
        for number in 0..self.consumers {
            let _ =
                writeln!(text, "  - {{username: c{number}, plugins: {{key-auth: {{key: {}}}}}}}", consumer_key(number));
        }
        text
    }

    /// The resources as documents, by kind and id.
    fn documents(self, upstream: SocketAddr) -> Vec<(String, Value)> {
        let nodes = json!({ upstream.to_string(): 1 });
        let mut all = vec![("upstreams/u".to_owned(), json!({"id": "u", "type": "roundrobin", "nodes": nodes}))];
        all.extend(self.routes().map(|(id, uri)| (format!("routes/{id}"), route(&id, &uri))));
        all.extend((0..self.consumers).map(|number| {
            let name = format!("c{number}");
            let plugins = json!({"key-auth": {"key": consumer_key(number)}});
            (format!("consumers/{name}"), json!({"username": name, "plugins": plugins}))
        }));
        all
    }

    fn routes(self) -> impl Iterator<Item = (String, String)> {
        let changing = (0..CHANGING).map(|number| (format!("changing-{number}"), uri_of(number)));
        (0..self.routes).map(|number| (format!("r{number}"), format!("/service-{number}/v1/*"))).chain(changing)
    }

    /// Paths that are taken whatever changes.
    fn fixed_paths(self) -> Vec<String> {
        (0..self.routes).map(|number| format!("/service-{number}/v1/x")).collect()
    }
}

/// The change with this number, from [`FIRST_CHANGE`] on: kind and id, document, and a path that only it takes.
fn change(number: u64) -> (String, Value, String) {
    let id = format!("changing-{}", number % CHANGING);
    (format!("routes/{id}"), route(&id, &uri_of(number)), format!("/changing/v{number}/x"))
}

/// The number of the first change.
const FIRST_CHANGE: u64 = CHANGING;

fn uri_of(number: u64) -> String {
    format!("/changing/v{number}/*")
}

fn route(id: &str, uri: &str) -> Value {
    json!({"id": id, "uri": uri, "upstream_id": "u"})
}

fn consumer_key(number: usize) -> String {
    format!("key-of-the-consumer-{number:08}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_and_documents_have_the_same_resources() {
        let (resources, upstream) = (Resources { routes: 3, consumers: 2 }, SocketAddr::from(([127, 0, 0, 1], 80)));
        let (yaml, documents) = (resources.yaml(upstream), resources.documents(upstream));
        assert_eq!(documents.len(), 1 + 3 + CHANGING as usize + 2);
        for id in ["r2", "changing-99"] {
            let (_, document) = documents.iter().find(|(key, _)| *key == format!("routes/{id}")).unwrap();
            assert!(yaml.contains(&format!("id: {id}, uri: {},", document["uri"].as_str().unwrap())), "{id}");
        }
        assert!(yaml.contains("username: c1, plugins: {key-auth: {key: key-of-the-consumer-00000001}}"));
    }

    #[test]
    fn a_change_is_of_a_route_that_is_there() {
        let (key, document, path) = change(FIRST_CHANGE + 7);
        assert_eq!(
            (key.as_str(), document["uri"].as_str(), path.as_str()),
            ("routes/changing-7", Some("/changing/v107/*"), "/changing/v107/x")
        );
    }
}
