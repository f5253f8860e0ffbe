//! An entry without `log_format`: everything that is known of a request, in APISIX's form.

use super::format::{EntryFormat, FinishedRequest};
use super::logger::Bodies;
use std::io::Write;
use stillgate_plugin_api::query::decoded;
use stillgate_plugin_api::record::written::{push_ip, push_json_string, push_number};
use stillgate_plugin_api::record::{AccessValue, RecordScratch, push_value};
use stillgate_route::path::target_path;
use stillgate_route::{Lookup, Variable};

/// Most header fields, and most arguments, of an entry; APISIX's limit.
const NAMES_MAX: usize = 100;

/// Writes an object with everything that is known, and with `extra`, which overrides it. `unmatched`: the route id for
/// a request that matched no route.
pub(super) fn write(
    finished: &FinishedRequest<'_, '_>,
    bodies: Bodies<'_>,
    extra: Option<&EntryFormat>,
    unmatched: Option<&str>,
    scratch: &mut RecordScratch,
    out: &mut Vec<u8>,
) {
    let is_extra = |name: &str| extra.is_some_and(|extra| extra.has(name));
    out.push(b'{');
    let mut object = Object { out, is_first: true };
    if !is_extra("request") {
        object.push_key("request");
        write_request(finished, bodies.request, scratch, object.out);
    }
    if !is_extra("response") {
        object.push_key("response");
        write_response(finished, bodies.response, object.out);
    }
    if !is_extra("server") {
        object.push_key("server");
        let mut server = Object::begin(object.out);
        server.text("hostname", finished.record.process.hostname.as_bytes());
        server.text("version", finished.record.process.version.as_bytes());
        server.end();
    }
    if !finished.record.tries.shown().is_empty() && !is_extra("upstream") {
        object.push_key("upstream");
        push_value(&AccessValue::UpstreamAddr, &finished.record, usize::MAX, scratch, object.out);
    }
    write_rest(finished, &is_extra, unmatched, &mut object);
    let is_first = object.is_first;
    if let Some(extra) = extra {
        extra.write(finished, &|_| false, is_first, scratch, out);
    }
    out.push(b'}');
}

fn write_rest(
    finished: &FinishedRequest<'_, '_>,
    is_extra: &dyn Fn(&str) -> bool,
    unmatched: Option<&str>,
    object: &mut Object<'_>,
) {
    let (record, facts) = (&finished.record, &finished.response.facts);
    let service = match record.route_id {
        Some(_) => record.service_id.unwrap_or_default().as_bytes(),
        None => facts.host,
    };
    if !is_extra("service_id") {
        object.text("service_id", service);
    }
    if let Some(route) = record.route_id.or(unmatched).filter(|_| !is_extra("route_id")) {
        object.text("route_id", route.as_bytes());
    }
    if let Some(consumer) = finished.response.consumer.filter(|_| !is_extra("consumer")) {
        object.push_key("consumer");
        let mut names = Object::begin(object.out);
        names.text("username", finished.response.consumers.of(consumer).name.as_bytes());
        names.end();
    }
    if !is_extra("client_ip") {
        object.push_key("client_ip");
        object.out.push(b'"');
        push_ip(record.client, object.out);
        object.out.push(b'"');
    }
    if !is_extra("start_time") {
        object.number("start_time", record.start_unix_us() / 1000);
    }
    let upstream = record.node_time_us;
    let own = record.request_time_us.saturating_sub(upstream.unwrap_or_default());
    for (name, time_us) in
        [("latency", Some(record.request_time_us)), ("upstream_latency", upstream), ("apisix_latency", Some(own))]
    {
        if let Some(time_us) = time_us.filter(|_| !is_extra(name)) {
            object.push_key(name);
            push_millis(time_us, object.out);
        }
    }
}

fn write_request(
    finished: &FinishedRequest<'_, '_>,
    body: Option<&[u8]>,
    scratch: &mut RecordScratch,
    out: &mut Vec<u8>,
) {
    let facts = &finished.response.facts;
    let target = finished.response.settled.redacted_target(facts);
    let mut object = Object::begin(out);
    let url = &mut scratch.value;
    url.clear();
    let port = facts.local.port();
    url.extend_from_slice(facts.scheme.as_bytes());
    url.extend_from_slice(b"://");
    url.extend_from_slice(facts.host);
    write!(url, ":{port}").expect("writing to a Vec cannot fail");
    url.extend_from_slice(target);
    object.text("url", url);
    object.text("uri", target);
    object.text("method", facts.method());
    object.push_key("headers");
    let (fields, head) = (&facts.request.fields, facts.head);
    let edits = finished.response.request_edits;
    write_many(object.out, &mut |visit| edits.each(fields, head, &mut |name, value| visit(name, Some(value))), true);
    object.push_key("querystring");
    let query = target_path(target).1.unwrap_or_default();
    write_many(
        object.out,
        &mut |visit| {
            for pair in query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
                let at = pair.iter().position(|byte| *byte == b'=');
                let (name, value) = at.map_or((pair, None), |at| (&pair[..at], Some(&pair[at + 1..])));
                let name: Vec<u8> = decoded(name).collect();
                let value: Option<Vec<u8>> = value.map(|value| decoded(value).collect());
                visit(&name, value.as_deref());
            }
        },
        false,
    );
    object.number("size", finished.record.bytes_received);
    if let Some(body) = body.filter(|body| !body.is_empty()) {
        object.text("body", body);
    }
    object.end();
}

fn write_response(finished: &FinishedRequest<'_, '_>, body: Option<&[u8]>, out: &mut Vec<u8>) {
    let response = finished.response;
    let mut object = Object::begin(out);
    object.number("status", finished.record.status);
    object.push_key("headers");
    write_many(
        object.out,
        &mut |visit| {
            response.each_sent(&mut |name, value| visit(name, Some(value)));
        },
        true,
    );
    object.number("size", finished.record.bytes_sent);
    if let Some(body) = body.filter(|body| !body.is_empty()) {
        object.push_key("body");
        if !finished.coded.as_ref().is_some_and(|coded| coded.leave(object.out)) {
            push_json_string(body, usize::MAX, object.out);
        }
    }
    object.end();
}

/// Takes names with their values; one without a value is `true`.
type Visit<'v> = dyn FnMut(&[u8], Option<&[u8]>) + 'v;

/// Writes an object of names; several values of one name are a list.
fn write_many(out: &mut Vec<u8>, each: &mut dyn FnMut(&mut Visit<'_>), lowers: bool) {
    // Positions of values in `texts`, by name. A few dozen at most: linear search is enough.
    let mut texts = Vec::new();
    let mut found: Vec<(std::ops::Range<usize>, Option<std::ops::Range<usize>>)> = Vec::new();
    each(&mut |name, value| {
        if found.len() < NAMES_MAX {
            let start = texts.len();
            texts.extend_from_slice(name);
            if lowers {
                texts[start..].make_ascii_lowercase();
            }
            let end = texts.len();
            let value = value.map(|value| {
                texts.extend_from_slice(value);
                end..texts.len()
            });
            found.push((start..end, value));
        }
    });
    let mut object = Object::begin(out);
    for (index, (name, value)) in found.iter().enumerate() {
        let is_same = |other: &(std::ops::Range<usize>, _)| texts[other.0.clone()] == texts[name.clone()];
        if found[..index].iter().any(is_same) {
            continue;
        }
        object.push_bytes_key(&texts[name.clone()]);
        let push = |value: &Option<std::ops::Range<usize>>, out: &mut Vec<u8>| match value {
            Some(value) => push_json_string(&texts[value.clone()], usize::MAX, out),
            None => out.extend_from_slice(b"true"),
        };
        let mut others = found[index + 1..].iter().filter(|other| is_same(other)).peekable();
        if others.peek().is_none() {
            push(value, object.out);
            continue;
        }
        object.out.push(b'[');
        push(value, object.out);
        for (_, value) in others {
            object.out.push(b',');
            push(value, object.out);
        }
        object.out.push(b']');
    }
    object.end();
}

/// Milliseconds, with a fraction if there is one.
fn push_millis(time_us: u64, out: &mut Vec<u8>) {
    push_number(time_us / 1000, out);
    if !time_us.is_multiple_of(1000) {
        write!(out, ".{:03}", time_us % 1000).expect("writing to a Vec cannot fail");
    }
}

/// An object being written.
struct Object<'a> {
    out: &'a mut Vec<u8>,
    is_first: bool,
}

impl Object<'_> {
    fn begin(out: &mut Vec<u8>) -> Object<'_> {
        out.push(b'{');
        Object { out, is_first: true }
    }

    fn push_key(&mut self, name: &str) {
        self.push_bytes_key(name.as_bytes());
    }

    fn push_bytes_key(&mut self, name: &[u8]) {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(b',');
        }
        push_json_string(name, usize::MAX, self.out);
        self.out.push(b':');
    }

    fn text(&mut self, name: &str, value: &[u8]) {
        self.push_key(name);
        push_json_string(value, usize::MAX, self.out);
    }

    fn number(&mut self, name: &str, number: impl Into<u64>) {
        self.push_key(name);
        push_number(number.into(), self.out);
    }

    fn end(self) {
        self.out.push(b'}');
    }
}

/// The value of `$host`.
pub(super) fn host<'a>(finished: &'a FinishedRequest<'_, '_>, buffer: &'a mut Vec<u8>) -> &'a [u8] {
    finished.response.facts.value(&Variable::Host, buffer).unwrap_or_default()
}
