//! `elasticsearch-logger`: writes entries to Elasticsearch with its bulk API.

use super::format::FinishedRequest;
use super::keys::{HeaderSecrets, UrlText, batching_logger_keys, logger_metadata, parse_url};
use super::logger::{Concatenation, Logger, PHASES, of_metadata, plugin_of_logger};
use crate::variable_texts::{Unknown, warn_of_unknown};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::outbox::{HttpReceiver, Outlet, Question, Receiver};
use stillgate_plugin_api::record::RecordScratch;
use stillgate_plugin_api::record::written::push_json_string;
use stillgate_plugin_api::secrets::{SECRET, VeiledKind};
use stillgate_plugin_api::{Compile, Define, Phases, Response, Secret, Template};
use stillgate_schema::{At, Fault, Flag, LocatedKind, TEXT, Text, int, map, object, some, text};

const NAME: &str = "elasticsearch-logger";

/// How long a connection is kept for the next batch.
const KEEPALIVE: Duration = Duration::from_secs(60);

batching_logger_keys! {
    /// Writes entries to Elasticsearch.
    pub(crate) struct ElasticsearchLoggerKeys named "elasticsearch-logger" {
        /// Address of Elasticsearch. Write `endpoint_addrs` instead.
        endpoint_addr: At<UrlText> = LocatedKind(ADDRESS) => optional;
        /// Addresses of Elasticsearch, such as `http://127.0.0.1:9200`. Each batch goes to one of them.
        endpoint_addrs: Vec<UrlText> = some(ADDRESS) => optional;
        /// The destination of entries.
        field: ElasticsearchField = map::<ElasticsearchField>() => required;
        /// User name and password.
        auth: ElasticsearchAuth = VeiledKind(map::<ElasticsearchAuth>()) => optional;
        /// Further header fields.
        headers: Vec<(String, Secret)> = VeiledKind(HeaderSecrets) => optional;
        /// Whether the server's certificate is verified.
        ssl_verify: bool = Flag => default(true);
        /// Timeout of one request, in seconds.
        timeout: u64 = int(1, 3600) => default(10);
    }
}

/// An address without a trailing slash: `/_bulk` is appended.
const ADDRESS: Text<UrlText> = text("an address such as http://127.0.0.1:9200", |text| match text.ends_with('/') {
    true => Err(Fault::new("the address ends in \"/\"").hint("leave it out")),
    false => parse_url(text),
});

object! {
    /// The destination of entries.
    pub(crate) struct ElasticsearchField {
        /// The index. It may have variables, and the time of the request in braces: `service-$host-{%Y.%m.%d}`.
        index: At<String> = LocatedKind(TEXT) => required;
    }
}

object! {
    /// User name and password.
    pub(crate) struct ElasticsearchAuth {
        /// The user's name.
        username: Secret = SECRET => required;
        /// The password.
        password: Secret = SECRET => required;
    }
}

/// A part of an index's name.
enum IndexPart {
    Text(Template),
    /// In the format of `strftime`.
    Time(Box<[TimePart]>),
}

enum TimePart {
    Text(Box<str>),
    /// Start and end in `2026-11-21T00:27:13`.
    Digits(usize, usize),
}

/// The plugin.
pub(crate) struct ElasticsearchLogger {
    logger: Logger,
    index: Box<[IndexPart]>,
    outlet: Arc<Outlet>,
}

impl Define for ElasticsearchLogger {
    type Keys = ElasticsearchLoggerKeys;
    const NAME: &'static str = NAME;
    const PRIORITY: i32 = 413;
    const PHASES: Phases = PHASES;

    fn compile(mut keys: ElasticsearchLoggerKeys, cx: &mut Compile<'_>) -> Option<ElasticsearchLogger> {
        let logger = Logger::new(keys.contents(), cx)?;
        let index = &keys.field.index;
        let field = cx.path.key("field");
        let index =
            index_of(&index.value, &mut |error| warn_of_unknown(&error, index.at, &field.key("index"), cx.sink));
        let index = match index {
            Ok(index) => index,
            Err(fault) => {
                cx.sink.error(keys.field.index.at, &field.key("index"), fault);
                return None;
            }
        };
        let urls = match (keys.endpoint_addr.take(), keys.endpoint_addrs.take()) {
            (Some(one), None) => vec![one.value],
            (None, Some(several)) => several,
            _ => {
                let fault = Fault::new("there must be one of `endpoint_addr` and `endpoint_addrs`");
                cx.sink.error(cx.at, cx.path, fault.hint("write `endpoint_addrs`"));
                return None;
            }
        };
        let mut headers: Vec<(String, String)> = Vec::new();
        if let Some(auth) = &keys.auth {
            let both = format!("{}:{}", auth.username.reveal(), auth.password.reveal());
            headers.push(("Authorization".to_owned(), format!("Basic {}", BASE64_STANDARD.encode(both))));
        }
        let own = keys.headers.take().unwrap_or_default();
        headers.extend(own.into_iter().map(|(name, value)| (name, value.reveal().to_owned())));
        let mut urls: Vec<_> = urls.into_iter().map(|url| url.0).collect();
        for url in &mut urls {
            url.target = format!("{}/_bulk", url.target.trim_end_matches('/'));
        }
        let (batching, name) = (keys.batching(), (NAME, keys.name));
        let receiver = Receiver::Http(Box::new(HttpReceiver {
            urls,
            headers,
            verifies: keys.ssl_verify,
            timeout: Duration::from_secs(keys.timeout),
            keepalive: Some(KEEPALIVE),
            status_below: 201,
            question: Some(Question { target: "/".to_owned(), learn: compatible }),
            refused: Some(refused),
        }));
        let outlet = Outlet::new(name, cx.identity, batching, receiver, logger.encode(Concatenation));
        Some(ElasticsearchLogger { logger, index, outlet: Arc::new(outlet) })
    }
}

impl ElasticsearchLogger {
    fn send(&self, response: &Response<'_>) {
        let write = |finished: &FinishedRequest<'_, '_>, scratch: &mut RecordScratch, out: &mut Vec<u8>| {
            out.extend_from_slice(b"{\"create\":{\"_index\":");
            self.write_index(finished, scratch, out);
            out.extend_from_slice(b"}}\n");
        };
        self.logger.log(
            of_metadata::<ElasticsearchLoggerMetadata>(NAME, response),
            &self.outlet,
            response,
            write,
            b"\n",
        );
    }

    fn write_index(&self, finished: &FinishedRequest<'_, '_>, scratch: &mut RecordScratch, out: &mut Vec<u8>) {
        let mut name = Vec::new();
        for part in &self.index {
            match part {
                IndexPart::Text(template) => {
                    template.write(finished.response, &mut name, &mut scratch.value);
                }
                IndexPart::Time(parts) => {
                    let digits = scratch.stamp.digits(finished.record.end_unix_ms);
                    for part in parts {
                        match part {
                            TimePart::Text(text) => name.extend_from_slice(text.as_bytes()),
                            TimePart::Digits(from, to) => name.extend_from_slice(&digits[*from..*to]),
                        }
                    }
                }
            }
        }
        push_json_string(&name, usize::MAX, out);
    }
}

/// The header fields that a version of Elasticsearch requires.
fn compatible(body: &[u8]) -> Result<Vec<(&'static str, String)>, String> {
    let body: serde_json::Value =
        serde_json::from_slice(body).map_err(|_| "the answer to the request for its version is not JSON".to_owned())?;
    let number = body["version"]["number"].as_str().and_then(|number| number.split_once('.'));
    let Some((major, _)) = number else { return Err("its version is missing in the answer".to_owned()) };
    let compatible = match major {
        "8" => ";compatible-with=7",
        "9" => ";compatible-with=8",
        _ => "",
    };
    Ok(vec![
        ("Content-Type", format!("application/x-ndjson{compatible}")),
        ("Accept", format!("application/vnd.elasticsearch+json{compatible}")),
    ])
}

/// The answer to a bulk request.
#[derive(Deserialize)]
struct Bulk {
    errors: bool,
    #[serde(default)]
    items: Vec<BulkItem>,
}

#[derive(Deserialize)]
struct BulkItem {
    create: BulkResult,
}

#[derive(Deserialize)]
struct BulkResult {
    status: u16,
}

/// Number of entries of a bulk request that were not written; 0 if the answer is not Elasticsearch's.
fn refused(body: &[u8]) -> u64 {
    let bulk = serde_json::from_slice::<Bulk>(body).ok().filter(|bulk| bulk.errors);
    bulk.map_or(0, |bulk| bulk.items.iter().filter(|item| item.create.status >= 300).count() as u64)
}

/// The parts of an index's name.
fn index_of(text: &str, unknown: &mut Unknown<'_>) -> Result<Box<[IndexPart]>, Fault> {
    let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
    let mut take = |plain: &mut String, parts: &mut Vec<IndexPart>| {
        parts.push(IndexPart::Text(Template::parse_lenient(&std::mem::take(plain), unknown)));
    };
    while let Some(at) = rest.find('{') {
        let Some(end) = rest[at..].find('}') else { break };
        // `${name}` is a variable.
        if rest[..at].ends_with('$') {
            plain.push_str(&rest[..at + end + 1]);
        } else {
            plain.push_str(&rest[..at]);
            take(&mut plain, &mut parts);
            parts.push(IndexPart::Time(time_parts(&rest[at + 1..at + end])?));
        }
        rest = &rest[at + end + 1..];
    }
    plain.push_str(rest);
    take(&mut plain, &mut parts);
    Ok(parts.into())
}

fn time_parts(text: &str) -> Result<Box<[TimePart]>, Fault> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((before, behind)) = rest.split_once('%') {
        parts.push(TimePart::Text(before.into()));
        let mut characters = behind.chars();
        parts.push(match characters.next() {
            Some('Y') => TimePart::Digits(0, 4),
            Some('y') => TimePart::Digits(2, 4),
            Some('m') => TimePart::Digits(5, 7),
            Some('d') => TimePart::Digits(8, 10),
            Some('F') => TimePart::Digits(0, 10),
            Some('H') => TimePart::Digits(11, 13),
            Some('M') => TimePart::Digits(14, 16),
            Some('S') => TimePart::Digits(17, 19),
            Some('%') => TimePart::Text("%".into()),
            _ => return Err(Fault::new("a part of the time is not known").hint("write %Y, %y, %m, %d, %F, %H, %M or %S")),
        });
        rest = characters.as_str();
    }
    parts.push(TimePart::Text(rest.into()));
    Ok(parts.into())
}

logger_metadata!(ElasticsearchLoggerMetadata {});
plugin_of_logger!(ElasticsearchLogger, ElasticsearchLoggerMetadata);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_bulk_refuses_is_counted() {
        let check = |body: &str, expected| assert_eq!(refused(body.as_bytes()), expected, "{body}");
        check(r#"{"errors":false,"items":[{"create":{"status":400}}]}"#, 0);
        check(r#"{"errors":true,"items":[{"create":{"status":201}},{"create":{"status":429,"error":{}}}]}"#, 1);
        check(r#"{"errors":true}"#, 0);
        check("", 0);
        check("[]", 0);
    }
}
