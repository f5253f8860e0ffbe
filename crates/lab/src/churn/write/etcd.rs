//! An etcd, filled and written to over its JSON gateway, as by a program other than stillgate.

use crate::client::Client;
use crate::error::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use stillgate_rig::{Running, ports};

/// The default limit of operations in a transaction.
const OPERATIONS_MAX: usize = 128;

/// One member. It syncs to the disk, as in production.
pub(super) struct Etcd {
    pub(super) address: SocketAddr,
    /// Held only to be dropped.
    _process: Running,
}

impl Etcd {
    pub(super) fn start(folder: &Path, cpus: &[usize]) -> Result<Etcd> {
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
    pub(super) fn fill(&self, pairs: &[(String, Value)]) -> Result {
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
pub(super) fn put(client: &mut Client, key: &str, value: &Value) -> Result {
    post(client, "/v3/kv/put", &pair(key, value))
}

fn post(client: &mut Client, path: &str, body: &Value) -> Result {
    client.send("POST", path, "", &body.to_string())?.expect(200, "etcd").map(drop)
}

fn pair(key: &str, value: &Value) -> Value {
    json!({"key": STANDARD.encode(format!("/apisix/{key}")), "value": STANDARD.encode(value.to_string())})
}
