//! Strict doubles of Loki and Elasticsearch, by their documented APIs: a request that breaks a rule is a fault, and is refused.

use super::ReceivedLogs;
use serde_json::Value;
use std::sync::{Arc, Mutex};
use stillgate_testkit::{BufferedSocket, Head, Upstream};

/// The answers of a double: its requests are counted from 0.
pub(crate) type Script = fn(usize) -> (u16, &'static str);

/// A double.
pub(crate) struct Strict {
    pub(crate) upstream: Upstream,
    pub(crate) seen: ReceivedLogs,
    faults: Arc<Mutex<Vec<String>>>,
}

impl Strict {
    fn start(
        script: Script,
        check: fn(&Head, &[u8]) -> Result<(), String>,
        own: fn(&Head) -> Option<String>,
    ) -> Strict {
        let (seen, faults) = (ReceivedLogs::default(), Arc::<Mutex<Vec<String>>>::default());
        let (noted, wrong) = (seen.clone(), faults.clone());
        let serve = move |connection: &mut BufferedSocket| {
            while let Ok(request) = connection.read_request() {
                let (status, body) = match own(&request.head) {
                    Some(body) => (200, body),
                    None => match check(&request.head, &request.body) {
                        Ok(()) => {
                            let mut got = noted.got.lock().expect("no panic");
                            got.push((request.head, request.body));
                            let (status, body) = script(got.len() - 1);
                            (status, body.to_owned())
                        }
                        Err(why) => {
                            wrong.lock().expect("no panic").push(why.clone());
                            (400, why)
                        }
                    },
                };
                let length = if status == 204 { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
                if connection.try_send(format!("HTTP/1.1 {status} Status\r\n{length}\r\n{body}")).is_err() {
                    return;
                }
            }
        };
        Strict { upstream: Upstream::serve(serve), seen, faults }
    }

    /// `POST /loki/api/v1/push` of Loki 3.
    pub(crate) fn loki(script: Script) -> Strict {
        Strict::start(script, check_push, |_| None)
    }

    /// `GET /` and `POST /_bulk` of Elasticsearch 8.
    pub(crate) fn elasticsearch(script: Script) -> Strict {
        Strict::start(script, check_bulk, |head| {
            (head.method_and_target() == ("GET", "/"))
                .then(|| r#"{"name":"n","version":{"number":"8.15.1"},"tagline":"You Know, for Search"}"#.to_owned())
        })
    }

    /// Broken rules; must stay empty.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.faults.lock().expect("no panic").clone()
    }
}

fn media_type(head: &Head) -> &str {
    head.get("content-type").unwrap_or_default().split(';').next().unwrap_or_default().trim()
}

fn check_push(head: &Head, body: &[u8]) -> Result<(), String> {
    if head.method_and_target() != ("POST", "/loki/api/v1/push") {
        return Err(format!("404 page not found: {}", head.start));
    }
    if media_type(head) != "application/json" {
        return Err(format!("the content type {:?} is protobuf's, and this is none", head.get("content-type")));
    }
    if head.get("x-scope-orgid").is_none_or(str::is_empty) {
        return Err("no org id".to_owned());
    }
    let push: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let keys: Vec<&String> = push.as_object().ok_or("no object")?.keys().collect();
    if keys != ["streams"] {
        return Err(format!("unknown keys: {keys:?}"));
    }
    let streams = push["streams"].as_array().filter(|streams| !streams.is_empty()).ok_or("no streams")?;
    streams.iter().try_for_each(check_stream)
}

fn check_stream(stream: &Value) -> Result<(), String> {
    let labels = stream["stream"].as_object().filter(|labels| !labels.is_empty());
    for (name, value) in labels.ok_or("at least one label pair is required per stream")? {
        let is_name =
            |(at, byte): (usize, u8)| byte.is_ascii_alphabetic() || byte == b'_' || at > 0 && byte.is_ascii_digit();
        if name.is_empty() || !name.bytes().enumerate().all(is_name) {
            return Err(format!("the label name {name:?}"));
        }
        value.as_str().ok_or_else(|| format!("the label {name} is not a text"))?;
    }
    let values = stream["values"].as_array().filter(|values| !values.is_empty());
    for value in values.ok_or("a stream without entries")? {
        let texts = |value: &Value| value.as_str().map(str::to_owned);
        let (Some(time), Some(line), None) = (texts(&value[0]), texts(&value[1]), value.get(2)) else {
            return Err(format!("no pair of texts: {value}"));
        };
        let time: u64 = time.parse().map_err(|_| format!("the time {time:?} is not a number in a text"))?;
        // Nanoseconds since 1970: from 2020 to 2100.
        if !(1_577_836_800_000_000_000..4_102_444_800_000_000_000).contains(&time) {
            return Err(format!("{time} are not nanoseconds of the present"));
        }
        if line.is_empty() || serde_json::from_str::<Value>(&line).is_err() {
            return Err(format!("the line {line:?}"));
        }
    }
    let is_whole = stream.as_object().is_some_and(|stream| stream.len() == 2);
    is_whole.then_some(()).ok_or_else(|| format!("more than a stream has: {stream}"))
}

fn check_bulk(head: &Head, body: &[u8]) -> Result<(), String> {
    if head.method_and_target() != ("POST", "/_bulk") {
        return Err(format!("no handler found for {}", head.start));
    }
    if media_type(head) != "application/x-ndjson" {
        return Err(format!("Content-Type header {:?} is not supported", head.get("content-type")));
    }
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    let lines = text.strip_suffix('\n').ok_or("The bulk request must be terminated by a newline [\\n]")?;
    let lines: Vec<&str> = lines.split('\n').collect();
    if !lines.len().is_multiple_of(2) {
        return Err(format!("{} lines are not pairs", lines.len()));
    }
    for pair in lines.chunks(2) {
        let action: Value = serde_json::from_str(pair[0]).map_err(|error| format!("{error}: {}", pair[0]))?;
        let index = action["create"]["_index"].as_str().ok_or_else(|| format!("no create with an index: {action}"))?;
        let is_bad = |c: char| c.is_uppercase() || c.is_whitespace() || "\\/*?\"<>|,#:".contains(c);
        if index.is_empty() || index.starts_with(['-', '_', '+']) || index.contains(is_bad) || index.len() > 255 {
            return Err(format!("invalid_index_name_exception: {index:?}"));
        }
        let entry: Value = serde_json::from_str(pair[1]).map_err(|error| format!("{error}: {}", pair[1]))?;
        entry.as_object().ok_or_else(|| format!("a document is an object: {entry}"))?;
    }
    Ok(())
}
