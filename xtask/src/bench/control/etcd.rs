//! An etcd for the bench, filled and written to over its JSON gateway, like a program other than Stillgate.

use super::super::served::Asker;
use super::super::{OTHER_CPU, free_port, start};
use crate::Result;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use stillgate_rig::Running;

/// The default limit of operations in a transaction.
const OPERATIONS_MAX: usize = 128;

/// One member with a temporary folder. It syncs to the disk, as in production.
pub(super) struct Etcd {
    pub(super) address: SocketAddr,
    _process: Running,
}

impl Etcd {
    pub(super) fn start(dir: &Path) -> Result<Etcd> {
        let (address, peer) = (free_port()?, free_port()?);
        let words = [
            "etcd".to_owned(),
            format!("--data-dir={}", dir.join("etcd").display()),
            format!("--listen-client-urls=http://{address}"),
            format!("--advertise-client-urls=http://{address}"),
            format!("--listen-peer-urls=http://{peer}"),
            format!("--initial-advertise-peer-urls=http://{peer}"),
            format!("--initial-cluster=default=http://{peer}"),
            "--log-level=warn".to_owned(),
        ];
        let mut process = start(&words, &[OTHER_CPU], &dir.join("etcd.log"))?;
        process.wait_for(address, Running::START_TIMEOUT)?;
        Ok(Etcd { address, _process: process })
    }

    /// Writes many keys.
    pub(super) fn fill(&self, pairs: &[(String, Value)]) -> Result {
        let mut asker = Asker::connect(self.address)?;
        for some in pairs.chunks(OPERATIONS_MAX) {
            let put = |(key, value): &(String, Value)| json!({ "request_put": pair(key, value) });
            let operations: Vec<Value> = some.iter().map(put).collect();
            post(&mut asker, "/v3/kv/txn", &json!({ "success": operations }))?;
        }
        Ok(())
    }
}

/// Writes one key.
pub(super) fn put(asker: &mut Asker, key: &str, value: &Value) -> Result {
    post(asker, "/v3/kv/put", &pair(key, value))
}

fn post(asker: &mut Asker, path: &str, body: &Value) -> Result {
    match asker.request("POST", path, &[], &body.to_string())?.status {
        200 => Ok(()),
        status => Err(format!("etcd: {path}: {status}").into()),
    }
}

fn pair(key: &str, value: &Value) -> Value {
    json!({ "key": base64(format!("/apisix/{key}").as_bytes()), "value": base64(value.to_string().as_bytes()) })
}

/// Base64, as the JSON gateway requires for bytes; a dozen lines are not worth a dependency.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = char::from(DIGITS[(bits >> (18 - 6 * place)) as usize & 63]);
            text.push(if place <= three.len() { digit } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_the_rfc() {
        // The examples of RFC 4648, section 10.
        let texts = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(texts, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }
}
