//! The request for a broadcast, from a back-end or by way of another node.

use super::jobs::{Match, NoJob};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use stillgate_devices::protocol::Body;

/// The body of the request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BroadcastRequest {
    #[serde(default, rename = "match")]
    of: RequestedMatch,
    body: Box<RawValue>,
    encoding: Option<BodyEncoding>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RequestedMatch {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    label: BTreeMap<String, String>,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum BodyEncoding {
    Base64,
}

/// Parses the body of a request: its devices and its message.
pub(super) fn parse(bytes: &[u8], bytes_max: usize) -> Result<(Match, Body<'static>), NoJob> {
    let asked: BroadcastRequest =
        serde_json::from_slice(bytes).map_err(|why| NoJob::Asked(format!("the body: {why}")))?;
    let decoded;
    let body = match asked.encoding {
        None => Body::of_request(Some("application/json"), asked.body.get().as_bytes()),
        Some(BodyEncoding::Base64) => {
            let text = serde_json::from_str::<String>(asked.body.get()).ok();
            let bytes = text.and_then(|text| STANDARD.decode(text).ok());
            let wrong = || NoJob::Asked("\"body\" must be padded base64, as \"encoding\" says".to_owned());
            decoded = bytes.ok_or_else(wrong)?;
            Body::of_request(None, &decoded)
        }
    };
    let body = body.map_err(NoJob::Body)?;
    if body.bytes().len() > bytes_max {
        return Err(NoJob::TooLong);
    }
    let of = Match { prefix: asked.of.prefix, labels: asked.of.label.into_iter().collect() };
    Ok((of, body.into_owned()))
}
