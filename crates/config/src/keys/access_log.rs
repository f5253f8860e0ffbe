//! The keys of `gateway.access_log`: where lines go and what is in them.

use crate::values::{AccessField, AccessFormat, AccessLog, AccessValue, LogDestination};
use serde_json::{Value as Json, json};
use std::collections::HashSet;
use stillgate_plugin_api::record;
use stillgate_schema::description::Definitions;
use stillgate_schema::kind::{
    At, Choice, Kind, List, LocatedKind, TEXT, Text, Then, read, report_expected, some, text,
};
use stillgate_schema::object;
use stillgate_schema::object::{Map, map};
use stillgate_schema::text::diagnostic::{Fault, Path, Sink, shortened};
use stillgate_schema::text::tree::{Entry, Node, Value};

object! {
    /// How requests are logged.
    pub(crate) struct AccessLogKeys {
        /// File to append to, reopened on SIGUSR1; `-` or `stdout` for standard output.
        path: LogDestination = DESTINATION => default(LogDestination::Stdout);
        /// `combined`, as in Apache and nginx, or `json`: one object per line.
        format: LogFormat = FORMAT => default(LogFormat::Combined);
        /// With `format: json`, the fields of a line, in order: each a variable name, or `{KEY: name}` to set its key,
        /// as in `{method: request_method}`. Names are nginx's request variables and those in
        /// [access-log.md](access-log.md). The default is time, remote_addr, request_method, host, request_uri, status,
        /// bytes_received, bytes_sent, request_time, route_id, upstream_addr, upstream_response_time and
        /// http_user_agent.
        fields: At<Vec<AccessField>> = LocatedKind(FIELDS) => optional;
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum LogFormat {
    Combined,
    Json,
}

const FORMAT: Choice<LogFormat> =
    Choice { words: &[("combined", LogFormat::Combined), ("json", LogFormat::Json)], unbuilt: &[] };

const DESTINATION: Destination = Destination;

/// The kind of `gateway.access_log`.
pub(crate) const ACCESS_LOG: Then<Map<AccessLogKeys>, AccessLog> = Then {
    kind: map::<AccessLogKeys>(),
    make: |keys, _, path, sink| {
        let format = match (keys.format, keys.fields) {
            (LogFormat::Combined, None) => AccessFormat::Combined,
            (LogFormat::Combined, Some(fields)) => {
                let fault = Fault::new("the combined format has fixed fields");
                sink.error(fields.at, &path.key("fields"), fault.hint("write `format: json`, or remove the key"));
                AccessFormat::Combined
            }
            (LogFormat::Json, Some(fields)) => AccessFormat::Json(fields.value),
            (LogFormat::Json, None) => AccessFormat::Json(default_fields()),
        };
        Some(AccessLog { destination: keys.path, format })
    },
};

/// What a JSON line has unless `fields` says otherwise.
const DEFAULT_FIELDS: [&str; 13] = [
    "time",
    "remote_addr",
    "request_method",
    "host",
    "request_uri",
    "status",
    "bytes_received",
    "bytes_sent",
    "request_time",
    "route_id",
    "upstream_addr",
    "upstream_response_time",
    "http_user_agent",
];

fn default_fields() -> Vec<AccessField> {
    let field = |name: &&str| {
        let value = access_value(name).ok()?;
        Some(AccessField { name: (*name).to_owned(), value })
    };
    DEFAULT_FIELDS.iter().filter_map(field).collect()
}

fn access_value(name: &str) -> Result<AccessValue, Fault> {
    record::access_value(name, false)
}

/// What to say of `{request_method: method}`, which most read as the value and what to call it.
fn turned_round(entry: &Entry) -> Option<Fault> {
    let Value::Scalar(scalar) = &entry.value.value else { return None };
    let (key, text) = (&*entry.key, &*scalar.text);
    (access_value(text).is_err() && access_value(key).is_ok()).then(|| {
        Fault::new(format!("{:?} is not a value; the key comes first, then the value", shortened(text)))
            .hint(format!("write {{{}: {key}}}", shortened(text)))
    })
}

struct Destination;

impl Kind for Destination {
    type Out = LogDestination;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<LogDestination> {
        match read(&TEXT, node, path, sink)?.as_str() {
            "" => {
                report_expected("a file, or `-` for standard output", node, path, sink);
                None
            }
            "-" | "stdout" => Some(LogDestination::Stdout),
            file => Some(LogDestination::File(file.into())),
        }
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "string"})
    }

    fn show(&self, value: &LogDestination) -> Json {
        match value {
            LogDestination::Stdout => json!("-"),
            LogDestination::File(path) => json!(path.to_string_lossy()),
        }
    }
}

const VALUE: Text<AccessValue> = text("the name of a value", access_value);

const FIELDS: Then<List<AccessFieldKind>, Vec<AccessField>> = Then {
    kind: some(AccessFieldKind),
    make: |fields, node, path, sink| {
        let mut names = HashSet::with_capacity(fields.len());
        for field in &fields {
            if !names.insert(&field.name) {
                let message = format!("{:?} is listed twice", shortened(&field.name));
                sink.error(node.at, path, Fault::new(message).hint("remove one"));
            }
        }
        Some(fields)
    },
};

/// A value's name, or a map of one key to a value's name.
struct AccessFieldKind;

impl Kind for AccessFieldKind {
    type Out = AccessField;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<AccessField> {
        match &node.value {
            Value::Map(entries) => match &**entries {
                [entry] => {
                    let path = path.key(&entry.key);
                    if let Some(fault) = turned_round(entry) {
                        sink.error(entry.value.at, &path, fault);
                        return None;
                    }
                    Some(AccessField { value: read(&VALUE, &entry.value, &path, sink)?, name: entry.key.to_string() })
                }
                _ => {
                    sink.error(node.at, path, Fault::new("expected one key").hint("begin a new item for each field"));
                    None
                }
            },
            Value::Scalar(scalar) => {
                Some(AccessField { value: read(&VALUE, node, path, sink)?, name: scalar.text.to_string() })
            }
            _ => {
                report_expected("the name of a value, or a map of a key to one", node, path, sink);
                None
            }
        }
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"anyOf": [
            {"type": "string"},
            {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": {"type": "string"}},
        ]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_documented_is_all_there_is() {
        let page = include_str!("../../../../docs/access-log.md");
        let (names, table) = page.split_once("## Values").unwrap();
        let names = names.split_once("Without `fields` a line has").unwrap().1.split_once(".\n").unwrap().0;
        assert_eq!(names.split('`').skip(1).step_by(2).collect::<Vec<_>>(), DEFAULT_FIELDS);
        for name in record::own_names() {
            assert!(table.contains(&format!("`{name}`")), "{name}");
        }
        let example = page.split_once("```yaml\n").unwrap().1.split_once("```").unwrap().0;
        let loaded = crate::load(format!("{example}routes: []\n"), &|_| None).unwrap();
        assert!(
            matches!(loaded.config.gateway.access_log.unwrap().format, AccessFormat::Json(fields) if fields.len() == 6)
        );
    }
}
