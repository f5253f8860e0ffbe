//! Keys that several loggers share, and the types of their values.

use super::format::EntryFormat;
use serde_json::json;
use std::time::Duration;
use stillgate_plugin_api::Secret;
use stillgate_plugin_api::outbox::{BatchPolicy, PENDING_BYTES_MAX, Url};
use stillgate_schema::{Definitions, Fault, Json, Kind, Node, Path, Sink, Text, Value, report_expected, text};
use stillgate_wire::{FieldName, FieldValue};

/// A table of keys that ends with those of all loggers: the content of an entry.
macro_rules! logger_keys {
    (
        $(#[doc = $doc:literal])+
        pub(crate) struct $name:ident {
            $($own:tt)*
        }
    ) => {
        stillgate_schema::object! {
            $(#[doc = $doc])+
            pub(crate) struct $name {
                $($own)*
                /// Content of an entry: names, each with a value, a variable such as `$remote_addr`, or an object of
                /// them. Overrides the plugin's metadata.
                log_format: $crate::loggers::format::EntryFormat = $crate::loggers::format::FormatKind => optional;
                /// Members that are added to, or override, those of an entry without `log_format`.
                log_format_extra: $crate::loggers::format::EntryFormat = $crate::loggers::format::FormatKind => optional;
                /// Log the request's body.
                include_req_body: bool = stillgate_schema::Flag => default(false);
                /// Log it only if these conditions hold, as in `vars` of a route.
                include_req_body_expr: stillgate_schema::At<stillgate_route::vars::Expr> = stillgate_schema::LocatedKind(stillgate_schema::kind::NonEmptyList(stillgate_schema::LateVars)) => optional;
                /// Log the response's body.
                include_resp_body: bool = stillgate_schema::Flag => default(false);
                /// Log it only if these conditions hold, as in `vars` of a route.
                include_resp_body_expr: stillgate_schema::At<stillgate_route::vars::Expr> = stillgate_schema::LocatedKind(stillgate_schema::kind::NonEmptyList(stillgate_schema::LateVars)) => optional;
                /// Most bytes of a request's body that are logged; the rest is cut.
                max_req_body_bytes: usize = stillgate_schema::int(1, $crate::loggers::keys::BODY_BYTES_MAX) => default(524_288);
                /// Most bytes of a response's body that are logged; the rest is cut.
                max_resp_body_bytes: usize = stillgate_schema::int(1, $crate::loggers::keys::BODY_BYTES_MAX) => default(524_288);
            }
        }

        impl $name {
            /// The content of an entry.
            fn contents(&mut self) -> $crate::loggers::keys::Contents {
                $crate::loggers::keys::Contents {
                    log_format: self.log_format.take(),
                    log_format_extra: self.log_format_extra.take(),
                    request_bytes_max: self.max_req_body_bytes,
                    request_body: self.include_req_body.then_some(self.max_req_body_bytes),
                    request_body_expr: self.include_req_body_expr.take(),
                    response_body: self.include_resp_body.then_some(self.max_resp_body_bytes),
                    response_body_expr: self.include_resp_body_expr.take(),
                }
            }
        }
    };
}

/// The table with the additional keys of a batch.
macro_rules! batching_logger_keys {
    (
        $(#[doc = $doc:literal])+
        pub(crate) struct $name:ident named $called:literal {
            $($own:tt)*
        }
    ) => {
        $crate::loggers::keys::logger_keys! {
            $(#[doc = $doc])+
            pub(crate) struct $name {
                $($own)*
                /// Name in messages.
                name: String = stillgate_schema::TEXT.shown() => default($called.to_owned());
                /// Number of entries that are sent at once.
                batch_max_size: usize = stillgate_schema::int(1, $crate::loggers::keys::BATCH_ENTRIES_MAX) => default(1000);
                /// Seconds without a new entry after which the batch is sent.
                inactive_timeout: u64 = stillgate_schema::int(1, $crate::loggers::keys::SECONDS_MAX) => default(5);
                /// Seconds after the first entry by which the batch is sent.
                buffer_duration: u64 = stillgate_schema::int(1, $crate::loggers::keys::SECONDS_MAX) => default(60);
                /// Number of retries of a failed batch.
                max_retry_count: u32 = stillgate_schema::int(0, $crate::loggers::keys::RETRIES_MAX) => default(0);
                /// Delay of the first retry in seconds; doubled for each further one, up to a minute.
                retry_delay: u64 = stillgate_schema::int(0, $crate::loggers::keys::SECONDS_MAX) => default(1);
            }
        }

        impl $name {
            /// When entries are sent.
            fn batching(&self) -> stillgate_plugin_api::outbox::BatchPolicy {
                $crate::loggers::keys::batching(
                    self.batch_max_size,
                    [self.inactive_timeout, self.buffer_duration, self.retry_delay],
                    self.max_retry_count,
                )
            }
        }
    };
}

/// Longest body in an entry; an entry is at most four times as long.
pub(super) const BODY_BYTES_MAX: i64 = 1024 * 1024;
/// The largest batch.
pub(super) const BATCH_ENTRIES_MAX: i64 = 1_000_000;
/// The longest time: a day.
pub(super) const SECONDS_MAX: i64 = 86_400;
/// Most entries that wait, unless the logger's metadata says otherwise; APISIX's default.
pub(crate) const PENDING_ENTRIES_MAX: usize = 8192;
/// Most retries.
pub(super) const RETRIES_MAX: i64 = 1_000_000;

/// The content of an entry, as it was written.
pub(super) struct Contents {
    pub(super) log_format: Option<EntryFormat>,
    pub(super) log_format_extra: Option<EntryFormat>,
    pub(super) request_bytes_max: usize,
    /// Limit in bytes.
    pub(super) request_body: Option<usize>,
    pub(super) request_body_expr: Option<stillgate_schema::At<stillgate_route::vars::Expr>>,
    pub(super) response_body: Option<usize>,
    pub(super) response_body_expr: Option<stillgate_schema::At<stillgate_route::vars::Expr>>,
}

/// `seconds`: inactive timeout, buffer duration, and retry delay.
pub(super) fn batching(entries_max: usize, seconds: [u64; 3], retries_max: u32) -> BatchPolicy {
    let [inactive_timeout, buffer_duration, retry_delay] = seconds.map(Duration::from_secs);
    BatchPolicy {
        entries_max,
        inactive_timeout,
        buffer_duration,
        retries_max,
        retry_delay,
        pending_bytes_max: PENDING_BYTES_MAX,
        pending_entries_max: PENDING_ENTRIES_MAX,
    }
}

/// The table of a logger's metadata. Each logger has its own, since the schema distinguishes them by name.
macro_rules! logger_metadata {
    ($name:ident { $($own:tt)* }) => {
        stillgate_schema::object! {
            /// Defaults for all configurations of the logger.
            pub(crate) struct $name {
                /// Default of the plugin's `log_format`.
                log_format: $crate::loggers::format::EntryFormat = $crate::loggers::format::FormatKind => optional;
                /// Default of the plugin's `log_format_extra`.
                log_format_extra: $crate::loggers::format::EntryFormat = $crate::loggers::format::FormatKind => optional;
                /// Most entries of one configuration that wait, 8192 without the key; further ones are lost and
                /// counted.
                max_pending_entries: usize = stillgate_schema::int(1, i64::MAX) => optional;
                $($own)*
            }
        }

        impl $crate::loggers::keys::LoggerMetadata for $name {
            fn shared(&self) -> $crate::loggers::keys::SharedKeys<'_> {
                $crate::loggers::keys::SharedKeys {
                    log_format: self.log_format.as_ref(),
                    extra: self.log_format_extra.as_ref(),
                    pending_entries_max: self.max_pending_entries.unwrap_or($crate::loggers::keys::PENDING_ENTRIES_MAX),
                }
            }
        }
    };
}

pub(crate) use {batching_logger_keys, logger_keys, logger_metadata};

/// Metadata of a logger.
pub(crate) trait LoggerMetadata: 'static {
    /// The keys that all configurations of the logger share.
    fn shared(&self) -> SharedKeys<'_>;
}

/// The keys that the metadata of each logger has.
#[derive(Clone, Copy)]
pub(crate) struct SharedKeys<'a> {
    pub(crate) log_format: Option<&'a EntryFormat>,
    pub(crate) extra: Option<&'a EntryFormat>,
    pub(crate) pending_entries_max: usize,
}

impl SharedKeys<'_> {
    /// The keys of a logger without metadata.
    pub(crate) const NONE: SharedKeys<'static> =
        SharedKeys { log_format: None, extra: None, pending_entries_max: PENDING_ENTRIES_MAX };
}

/// An HTTP URL.
pub(crate) const URL: Text<UrlText> = text("an address such as http://127.0.0.1:8080/logs", parse_url);

pub(super) fn parse_url(text: &str) -> Result<UrlText, Fault> {
    let fault = |error: String| Fault::new(format!("not an address: {error}")).hint("write http://HOST:PORT/PATH");
    Url::parse(text).map(UrlText).map_err(fault)
}

/// A parsed HTTP URL.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct UrlText(pub(crate) Url);

/// The name or address of a host.
pub(super) const HOST: Text<String> = text("a host's name or address", |text| {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    match !bare.is_empty() && bare.bytes().all(is_good) {
        true => Ok(bare.to_owned()),
        false => Err(Fault::new("not a host's name or address")),
    }
});

/// The secret value of a header field; an empty text counts as absent.
pub(crate) struct HeaderSecret;

impl Kind for HeaderSecret {
    type Out = Option<Secret>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Option<Secret>> {
        let text = match &node.value {
            Value::Scalar(scalar) => scalar.as_text(),
            _ => None,
        };
        match text {
            Some("") => Some(None),
            // A value that is read from a file often ends in a line break, which is not part of the secret.
            Some(text) if FieldValue::new(text.trim_ascii().as_bytes()).is_ok() => {
                Some(Some(Secret::new(text.trim_ascii())))
            }
            Some(_) => {
                sink.error(node.at, path, Fault::new("this is not a valid value of a header field"));
                None
            }
            None => {
                report_expected("a text", node, path, sink);
                None
            }
        }
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "string"})
    }
}

/// Header fields with secret values.
pub(crate) struct HeaderSecrets;

impl Kind for HeaderSecrets {
    type Out = Vec<(String, Secret)>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<(String, Secret)>> {
        let Value::Map(entries) = &node.value else {
            report_expected("a map of header fields", node, path, sink);
            return None;
        };
        let mut fields = Vec::with_capacity(entries.len());
        for entry in entries.iter() {
            let path = path.key(&entry.key);
            if let Err(error) = FieldName::new(entry.key.as_bytes()) {
                sink.error(entry.key_at, &path, Fault::new(error.to_string()));
                return None;
            }
            let text = match &entry.value.value {
                Value::Scalar(scalar) => &scalar.text,
                _ => {
                    report_expected("a text", &entry.value, &path, sink);
                    return None;
                }
            };
            if FieldValue::new(text.trim_ascii().as_bytes()).is_err() {
                sink.error(entry.value.at, &path, Fault::new("this is not a valid value of a header field"));
                return None;
            }
            fields.push((entry.key.to_string(), Secret::new(text.trim_ascii())));
        }
        Some(fields)
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}})
    }
}
