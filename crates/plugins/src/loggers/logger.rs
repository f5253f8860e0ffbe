//! Common behaviour of loggers: captures the bodies of a request if configured, sends an entry, and encodes batches of them: as a
//! JSON array, as lines, or one behind the other.

use super::coded::{BodyDecoding, CodedBody};
use super::entry;
use super::format::{EntryFormat, FinishedRequest};
use super::keys::{Contents, LoggerMetadata, SharedKeys};
use std::sync::Arc;
use stillgate_plugin_api::outbox::{Encode, Entries, Outlet};
use stillgate_plugin_api::record::RecordScratch;
use stillgate_plugin_api::record::written::push_json_string;
use stillgate_plugin_api::{Compile, Filter, Phase, Phases, Record, Request, Response};
use stillgate_route::vars::Expr;
use stillgate_schema::{At, Fault};

/// The phases of a logger.
pub(crate) const PHASES: Phases = Phases::of(&[Phase::BeforeProxy, Phase::HeaderFilter, Phase::Log]);

/// A logger without its receiver.
pub(crate) struct Logger {
    log_format: Option<EntryFormat>,
    extra: Option<EntryFormat>,
    request: Option<LoggedBody>,
    response: Option<LoggedBody>,
    /// `route_id` of a request that matched no route.
    pub(super) unmatched: Option<&'static str>,
}

/// The metadata of a plugin.
pub(super) fn of_metadata<'a, M: LoggerMetadata>(plugin: &str, response: &Response<'a>) -> SharedKeys<'a> {
    let metadata: Option<&'a M> = response.metadata.get(plugin);
    metadata.map_or(SharedKeys::NONE, M::shared)
}

/// A body that is logged.
struct LoggedBody {
    bytes_max: usize,
    condition: Option<Filter>,
}

/// The logged parts of a request's bodies.
#[derive(Default, Clone, Copy)]
pub(super) struct Bodies<'a> {
    pub(super) request: Option<&'a [u8]>,
    pub(super) response: Option<&'a [u8]>,
}

impl Logger {
    /// Compiles the content of entries.
    pub(super) fn new(contents: Contents, cx: &mut Compile<'_>) -> Option<Logger> {
        let request = body(contents.request_body, contents.request_body_expr, "include_req_body_expr", cx)?;
        let response = body(contents.response_body, contents.response_body_expr, "include_resp_body_expr", cx)?;
        let (log_format, extra) = (contents.log_format, contents.log_format_extra);
        // As in APISIX, the variable does not need `include_req_body`; that of the response's body does.
        let reads = [&log_format, &extra].into_iter().flatten().any(|format| format.reads("request_body"));
        let request = match request {
            None if reads => Some(LoggedBody { bytes_max: contents.request_bytes_max, condition: None }),
            request => request,
        };
        Some(Logger { log_format, extra, request, response, unmatched: None })
    }

    /// Wraps an encoder, to decode bodies if there are coded ones.
    pub(super) fn encode(&self, encode: impl Encode + 'static) -> Box<dyn Encode> {
        match self.response {
            Some(_) => Box::new(BodyDecoding(encode)),
            None => Box::new(encode),
        }
    }

    /// The phases that this configuration needs.
    pub(super) fn phases(&self) -> Phases {
        let mut phases = Phases::of(&[Phase::Log]);
        if self.request.is_some() {
            phases = phases.or(Phases::of(&[Phase::BeforeProxy]));
        }
        if self.response.is_some() {
            phases = phases.or(Phases::of(&[Phase::HeaderFilter]));
        }
        phases
    }

    pub(super) fn before_proxy(&self, request: &mut Request<'_>) {
        if let Some(body) = &self.request {
            request.body.capture(body.bytes_max);
        }
    }

    pub(super) fn header_filter(&self, response: &mut Response<'_>) {
        if let Some(body) = &self.response
            && body.condition.as_ref().is_none_or(|condition| condition.holds(&response.facts, response))
        {
            response.body.capture(body.bytes_max);
        }
    }

    /// Sends an entry: the output of `before`, the object, and the output of `after`.
    pub(super) fn log(
        &self,
        SharedKeys { log_format, extra, pending_entries_max }: SharedKeys<'_>,
        outlet: &Arc<Outlet>,
        response: &Response<'_>,
        before: impl FnOnce(&FinishedRequest<'_, '_>, &mut RecordScratch, &mut Vec<u8>),
        after: &[u8],
    ) {
        let Some(ended) = response.ended else { return };
        outlet.set_pending_entries_max(pending_entries_max);
        let log_format = self.log_format.as_ref().or(log_format.filter(|format| !format.is_empty()));
        let extra = self.extra.as_ref().or(extra);
        let bodies = Bodies {
            request: logged_part(&self.request, ended.request_body, response),
            response: logged_part(&self.response, ended.response_body, response),
        };
        let coded = self.response.as_ref().zip(bodies.response);
        let coded = coded.and_then(|(of, bytes)| CodedBody::of(response, bytes, of.bytes_max));
        let finished = FinishedRequest { response, record: Record { vars: response, ..ended.record }, coded };
        response.worker.send(outlet, |scratch, out| {
            let start = out.len();
            before(&finished, scratch, out);
            match log_format {
                Some(format) => self.write(&finished, format, scratch, out),
                None => entry::write(&finished, bodies, extra, self.unmatched, scratch, out),
            }
            out.extend_from_slice(after);
            if let Some(coded) = &finished.coded {
                coded.append(start, out);
            }
        });
    }

    /// The members of `log_format`, and the ids of route and service.
    fn write(
        &self,
        finished: &FinishedRequest<'_, '_>,
        custom: &EntryFormat,
        scratch: &mut RecordScratch,
        out: &mut Vec<u8>,
    ) {
        let ids =
            [("service_id", finished.record.service_id), ("route_id", finished.record.route_id.or(self.unmatched))];
        let has_id = |name: &str| ids.iter().any(|(id, value)| *id == name && value.is_some());
        out.push(b'{');
        let mut is_first = custom.write(finished, &has_id, true, scratch, out);
        for (name, value) in ids {
            let Some(value) = value else { continue };
            if !std::mem::take(&mut is_first) {
                out.push(b',');
            }
            out.push(b'"');
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":");
            push_json_string(value.as_bytes(), usize::MAX, out);
        }
        out.push(b'}');
    }
}

/// The logged part of a body.
fn logged_part<'a>(body: &Option<LoggedBody>, bytes: Option<&'a [u8]>, response: &Response<'_>) -> Option<&'a [u8]> {
    let (body, bytes) = body.as_ref().zip(bytes)?;
    let holds = body.condition.as_ref().is_none_or(|condition| condition.holds(&response.facts, response));
    holds.then(|| &bytes[..bytes.len().min(body.bytes_max)])
}

/// The outer `None`: it cannot be compiled.
fn body(
    bytes_max: Option<usize>,
    condition: Option<At<Expr>>,
    key: &str,
    cx: &mut Compile<'_>,
) -> Option<Option<LoggedBody>> {
    let condition = match condition {
        None => None,
        Some(condition) => Some(compiled(condition, key, cx)?),
    };
    Some(bytes_max.map(|bytes_max| LoggedBody { bytes_max, condition }))
}

/// Compiles a condition under a key.
pub(super) fn compiled(condition: At<Expr>, key: &str, cx: &mut Compile<'_>) -> Option<Filter> {
    Filter::new(condition.value)
        .map_err(|error| cx.sink.error(condition.at, &cx.path.key(key), Fault::new(error.to_string())))
        .ok()
}

/// The phases of a logger whose entry is the object alone.
macro_rules! plugin_of_logger {
    ($name:ident, $metadata:ident) => {
        impl stillgate_plugin_api::Plugin for $name {
            fn before_proxy(&self, request: &mut stillgate_plugin_api::Request<'_>) -> stillgate_plugin_api::Flow {
                self.logger.before_proxy(request);
                stillgate_plugin_api::Flow::Continue
            }

            fn header_filter(&self, response: &mut stillgate_plugin_api::Response<'_>) {
                self.logger.header_filter(response);
            }

            fn log(&self, response: &mut stillgate_plugin_api::Response<'_>) {
                self.send(response);
            }

            fn phases(&self) -> stillgate_plugin_api::Phases {
                self.logger.phases()
            }
        }

        impl stillgate_plugin_api::Metadata for $name {
            type Metadata = $metadata;
        }
    };
}

pub(crate) use plugin_of_logger;

/// A JSON array of the entries; for a batch of one entry, that entry alone.
pub(super) struct JsonArray {
    pub(super) is_single: bool,
}

impl Encode for JsonArray {
    fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
        match self.is_single {
            true => join(entries, b"", out),
            false => write_array(entries, out),
        }
    }
}

/// The entries, separated by line ends.
pub(super) struct LineEncoding;

impl Encode for LineEncoding {
    fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
        join(entries, b"\n", out);
    }
}

/// The concatenated entries, which have their own ends.
pub(super) struct Concatenation;

impl Encode for Concatenation {
    fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
        join(entries, b"", out);
    }
}

/// Writes an array of JSON entries.
pub(crate) fn write_array(entries: &Entries, out: &mut Vec<u8>) {
    out.push(b'[');
    join(entries, b",", out);
    out.push(b']');
}

fn join(entries: &Entries, separator: &[u8], out: &mut Vec<u8>) {
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(entry);
    }
}
