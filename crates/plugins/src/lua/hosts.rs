//! The request and the response of a plugin's phase, in the form that functions see.

use super::request_copy::{RequestCopy, Wishes};
use super::timers::ScheduledTimers;
use super::variables;
use crate::jwt_auth::claims_of;
use crate::request_validation::check_json;
use serde_json::{Value as Json, json};
use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;
use stillgate_lua::{HeaderChange, Host, MessageSide, NginxLevel, RequestDocument};
use stillgate_plugin_api::facts::RouteFacts;
use stillgate_plugin_api::{
    ConsumerRef, Consumers, Facts, Io, LogLevel, MetadataTable, Phase, Request, RequestState, Response,
};
use stillgate_route::RouteMatch;
use stillgate_wire::{EditError, Edits, FieldName, FieldValue, Fields};

/// The host for phases before the request is forwarded.
pub(super) struct RequestHost<'r, 'a> {
    pub(super) request: &'r mut Request<'a>,
    pub(super) phase: Phase,
    pub(super) plugin: &'static str,
    pub(super) timers: ScheduledTimers,
    matched: Option<String>,
}

/// The host for `header_filter` and `log`.
pub(super) struct ResponseHost<'r, 'a> {
    pub(super) response: &'r mut Response<'a>,
    pub(super) phase: Phase,
    pub(super) plugin: &'static str,
    pub(super) timers: ScheduledTimers,
    matched: Option<String>,
}

/// The host for `body_filter`: it has the piece, the fields that functions have kept in `ctx`, and a copy of the rest.
pub(super) struct PieceHost<'a> {
    pub(super) io: Rc<dyn Io>,
    pub(super) plugin: &'static str,
    pub(super) piece: Vec<u8>,
    pub(super) is_last: bool,
    /// Functions have made it the last piece.
    pub(super) ends_body: bool,
    pub(super) timers: ScheduledTimers,
    /// Created when the head is final, which is before its body is sent.
    pub(super) seen: &'a OnceCell<RequestCopy>,
    pub(super) wishes: &'a Wishes,
}

impl<'r, 'a> RequestHost<'r, 'a> {
    pub(super) fn new(request: &'r mut Request<'a>, phase: Phase, plugin: &'static str) -> Self {
        RequestHost { request, phase, plugin, timers: ScheduledTimers::default(), matched: None }
    }
}

impl<'r, 'a> ResponseHost<'r, 'a> {
    pub(super) fn new(response: &'r mut Response<'a>, phase: Phase, plugin: &'static str) -> Self {
        ResponseHost { response, phase, plugin, timers: ScheduledTimers::default(), matched: None }
    }
}

pub(super) fn level_of(level: NginxLevel) -> LogLevel {
    match level {
        NginxLevel::Error => LogLevel::Error,
        NginxLevel::Warn => LogLevel::Warn,
        NginxLevel::Notice | NginxLevel::Info => LogLevel::Info,
        NginxLevel::Debug => LogLevel::Debug,
    }
}

/// The values of a field, from a head with its edits. Framing fields cannot be changed, but can be read.
fn values(edits: &Edits, fields: &Fields, head: &[u8], name: &[u8], visit: &mut dyn FnMut(&[u8])) {
    match FieldName::new(name) {
        Ok(name) => edits.values(fields, head, name).for_each(visit),
        Err(_) => edits.each(fields, head, &mut |of, value| {
            if of.eq_ignore_ascii_case(name) {
                visit(value);
            }
        }),
    }
}

/// Changes one head. Framing fields are the gateway's: removing one is not an error, as functions that change a body do
/// that.
fn change(
    edits: &mut Edits,
    fields: &Fields,
    head: &[u8],
    name: &[u8],
    change: HeaderChange<'_>,
) -> Result<(), String> {
    let said = |error: EditError| format!("{:?}: {error}", String::from_utf8_lossy(name));
    let name = match FieldName::new(name) {
        Err(EditError::Framing) if change == HeaderChange::Remove => return Ok(()),
        name => name.map_err(said)?,
    };
    match change {
        HeaderChange::Set(value) => edits.set(fields, head, name, FieldValue::new(value).map_err(said)?),
        HeaderChange::Add(value) => edits.add(name, FieldValue::new(value).map_err(said)?),
        HeaderChange::Remove => edits.remove(fields, head, name),
    }
    Ok(())
}

/// The path pattern that has matched.
pub(super) fn pattern_of(route: RouteFacts<'_>) -> Option<String> {
    match &route.matcher.specs()[route.found.route].takes {
        RouteMatch::Uri(uri) => uri.paths.get(route.found.path).map(ToString::to_string),
        RouteMatch::Expression(_) => None,
    }
}

/// The available part of APISIX's `ctx.consumer`.
pub(super) fn consumer_of(found: ConsumerRef, consumers: &Consumers) -> Json {
    let consumer = consumers.of(found);
    let credential = found.credential.and_then(|place| consumer.credentials.get(usize::from(place)));
    let labels = consumer.labels.iter().map(|(name, value)| (name.to_string(), Json::from(&**value))).collect();
    let mut known = json!({"username": consumer.name, "consumer_name": consumer.name, "labels": Json::Object(labels)});
    let others = [
        ("group_id", consumer.group.as_deref()),
        ("credential_id", credential.map(|id| &**id)),
        ("custom_id", consumer.label("custom_id")),
    ];
    for (key, value) in others.iter().filter_map(|(key, value)| Some((key, (*value)?))) {
        known[key] = value.into();
    }
    known
}

pub(super) fn document_of<'a>(facts: &Facts<'a>, settled: &'a RequestState, of: RequestDocument) -> Option<&'a Json> {
    let documents = || facts.route?.documents;
    match of {
        RequestDocument::Route => Some(&documents()?.route),
        RequestDocument::Service => documents()?.service.as_ref(),
        RequestDocument::Claims => claims_of(settled),
    }
}

/// The metadata of a plugin in the prelude's form. Its number is exact in Lua.
pub(super) fn metadata_of<'a>(table: &'a MetadataTable, plugin: &str) -> Option<(u64, &'a Json)> {
    let item = table.item(plugin)?;
    Some((item.identity.0 as u64 >> (u64::BITS - f64::MANTISSA_DIGITS), &*item.written))
}

impl Host for RequestHost<'_, '_> {
    fn phase(&self) -> &'static str {
        self.phase.name()
    }

    fn variable(&self, name: &str, out: &mut Vec<u8>) -> Result<bool, String> {
        match name {
            "upstream_uri" => out.extend_from_slice(self.request.target()),
            "upstream_host" => out.extend_from_slice(self.request.edits.host().unwrap_or(self.request.facts.host)),
            "proxy_add_x_forwarded_for" => {
                let Request { edits, facts, settled, .. } = &*self.request;
                variables::append_forwarded_for(&edits.fields, facts, settled.client.is_some(), out);
            }
            name => return Ok(variables::append(name, &*self.request, out)),
        }
        Ok(true)
    }

    fn set_variable(&mut self, name: &str, value: &[u8]) -> Result<bool, String> {
        variables::set(name, value, self.request)
    }

    fn field(&self, side: MessageSide, name: &[u8], visit: &mut dyn FnMut(&[u8])) {
        let facts = &self.request.facts;
        match side {
            MessageSide::Request => values(&self.request.edits.fields, &facts.request.fields, facts.head, name, visit),
            MessageSide::Response => values(self.request.response, &Fields::default(), &[], name, visit),
        }
    }

    fn each_field(&self, side: MessageSide, visit: &mut dyn FnMut(&[u8], &[u8])) {
        let facts = &self.request.facts;
        match side {
            MessageSide::Request => self.request.edits.fields.each(&facts.request.fields, facts.head, visit),
            MessageSide::Response => self.request.response.each(&Fields::default(), &[], visit),
        }
    }

    fn change_field(&mut self, side: MessageSide, name: &[u8], what: HeaderChange<'_>) -> Result<(), String> {
        let facts = self.request.facts;
        match (side, what) {
            (MessageSide::Request, HeaderChange::Set(value)) if name.eq_ignore_ascii_case(b"host") => {
                self.request.edits.set_host(value).map_err(|error| error.to_string())
            }
            (MessageSide::Request, what) => {
                change(&mut self.request.edits.fields, &facts.request.fields, facts.head, name, what)
            }
            (MessageSide::Response, what) => change(self.request.response, &Fields::default(), &[], name, what),
        }
    }

    fn set_method(&mut self, method: &[u8]) -> Result<(), String> {
        self.request.edits.set_method(method).map_err(|error| error.to_string())
    }

    fn target(&self) -> &[u8] {
        self.request.target()
    }

    fn rewritten_path(&self, out: &mut Vec<u8>) -> bool {
        self.request.edits.target().map(|target| out.extend_from_slice(variables::path_of(target))).is_some()
    }

    fn set_target(&mut self, target: &[u8]) -> Result<(), String> {
        self.request.replace_target(target).map_err(|error| error.to_string())
    }

    fn start_timer(&mut self, delay: Duration) -> Result<Option<u64>, String> {
        Ok(self.timers.add(delay))
    }

    fn consumer(&self) -> Option<Json> {
        self.request.consumer.map(|found| consumer_of(found, self.request.consumers))
    }

    fn body(&self) -> Result<Option<&[u8]>, String> {
        match self.request.whole_body() {
            Some(body) => Ok(Some(body)),
            None if self.request.body.is_empty() => Ok(None),
            None => Err("the body cannot be read: another plugin changes it piece by piece".to_owned()),
        }
    }

    fn set_body(&mut self, body: &[u8]) -> Result<(), String> {
        self.request.body.replace(body);
        Ok(())
    }

    fn can_wait(&self) -> bool {
        matches!(self.phase, Phase::Rewrite | Phase::Access)
    }

    fn can_answer(&self) -> bool {
        true
    }

    fn is_logged(&self, level: NginxLevel) -> bool {
        self.request.worker.io().is_logged(level_of(level))
    }

    fn log(&self, level: NginxLevel, text: &str) {
        self.request.worker.io().log(self.plugin, level_of(level), text);
    }

    fn now_ms(&self) -> u64 {
        self.request.worker.now_ms()
    }

    fn matched_path(&mut self) -> Option<&str> {
        if self.matched.is_none() {
            self.matched = self.request.facts.route.and_then(pattern_of);
        }
        self.matched.as_deref()
    }

    fn document(&self, of: RequestDocument) -> Option<&Json> {
        document_of(&self.request.facts, self.request.settled, of)
    }

    fn metadata(&self, plugin: &str) -> Result<Option<(u64, &Json)>, String> {
        Ok(metadata_of(self.request.metadata, plugin))
    }

    fn check_schema(&self, schema: &Json, value: Json) -> Result<Json, String> {
        check_json(schema, value)
    }
}

impl Host for ResponseHost<'_, '_> {
    fn phase(&self) -> &'static str {
        self.phase.name()
    }

    fn variable(&self, name: &str, out: &mut Vec<u8>) -> Result<bool, String> {
        if name == "proxy_add_x_forwarded_for" {
            let Response { request_edits, facts, settled, .. } = &*self.response;
            variables::append_forwarded_for(request_edits, facts, settled.client.is_some(), out);
            return Ok(true);
        }
        Ok(variables::append(name, &*self.response, out))
    }

    fn rewritten_path(&self, out: &mut Vec<u8>) -> bool {
        variables::append_rewritten(self.response, out)
    }

    fn start_timer(&mut self, delay: Duration) -> Result<Option<u64>, String> {
        Ok(self.timers.add(delay))
    }

    fn consumer(&self) -> Option<Json> {
        self.response.consumer.map(|found| consumer_of(found, self.response.consumers))
    }

    fn set_variable(&mut self, _: &str, _: &[u8]) -> Result<bool, String> {
        Ok(false)
    }

    fn field(&self, side: MessageSide, name: &[u8], visit: &mut dyn FnMut(&[u8])) {
        match side {
            MessageSide::Request => self.each_field(side, &mut |of, value| {
                if of.eq_ignore_ascii_case(name) {
                    visit(value);
                }
            }),
            MessageSide::Response => {
                values(&self.response.edits.fields, self.response.fields, self.response.head, name, visit);
            }
        }
    }

    fn each_field(&self, side: MessageSide, visit: &mut dyn FnMut(&[u8], &[u8])) {
        let facts = &self.response.facts;
        match (side, self.response.ended) {
            (MessageSide::Request, _) => self.response.request_edits.each(&facts.request.fields, facts.head, visit),
            (MessageSide::Response, None) => {
                self.response.edits.fields.each(self.response.fields, self.response.head, visit);
            }
            (MessageSide::Response, Some(_)) => self.response.each_sent(visit),
        }
    }

    fn change_field(&mut self, side: MessageSide, name: &[u8], what: HeaderChange<'_>) -> Result<(), String> {
        if side == MessageSide::Request {
            return Err(format!("the request cannot be changed in the phase {}", self.phase.name()));
        }
        if self.phase == Phase::Log {
            return Err("the response was sent: its header cannot be changed in the phase log".to_owned());
        }
        change(&mut self.response.edits.fields, self.response.fields, self.response.head, name, what)
    }

    fn status(&self) -> Option<u16> {
        Some(self.response.status())
    }

    fn set_status(&mut self, status: u16) -> Result<(), String> {
        match self.phase {
            Phase::Log => Err("the response was sent: its status cannot be changed in the phase log".to_owned()),
            _ => self.response.edits.set_status(status).map_err(|error| error.to_string()),
        }
    }

    fn target(&self) -> &[u8] {
        self.response.facts.path_and_query()
    }

    fn is_logged(&self, level: NginxLevel) -> bool {
        self.response.worker.io().is_logged(level_of(level))
    }

    fn log(&self, level: NginxLevel, text: &str) {
        self.response.worker.io().log(self.plugin, level_of(level), text);
    }

    fn now_ms(&self) -> u64 {
        self.response.worker.now_ms()
    }

    fn matched_path(&mut self) -> Option<&str> {
        if self.matched.is_none() {
            self.matched = self.response.facts.route.and_then(pattern_of);
        }
        self.matched.as_deref()
    }

    fn document(&self, of: RequestDocument) -> Option<&Json> {
        document_of(&self.response.facts, self.response.settled, of)
    }

    fn metadata(&self, plugin: &str) -> Result<Option<(u64, &Json)>, String> {
        Ok(metadata_of(self.response.metadata, plugin))
    }

    fn check_schema(&self, schema: &Json, value: Json) -> Result<Json, String> {
        check_json(schema, value)
    }
}

const NO_HEAD: &str = "the head of the response is not final yet";

impl PieceHost<'_> {
    fn request_copy(&self) -> Result<&RequestCopy, String> {
        self.seen.get().ok_or_else(|| NO_HEAD.to_owned())
    }
}

impl Host for PieceHost<'_> {
    fn phase(&self) -> &'static str {
        Phase::BodyFilter.name()
    }

    fn no_request_reason(&self) -> Option<&'static str> {
        self.seen.get().is_none().then_some(NO_HEAD)
    }

    fn variable(&self, name: &str, out: &mut Vec<u8>) -> Result<bool, String> {
        self.request_copy()?.variable(self.wishes, name, out)
    }

    fn set_variable(&mut self, name: &str, _: &[u8]) -> Result<bool, String> {
        match variables::changes_request(name) {
            true => Err(format!("{name}: the request cannot be changed in the phase body_filter")),
            false => Ok(false),
        }
    }

    fn each_field(&self, side: MessageSide, visit: &mut dyn FnMut(&[u8], &[u8])) {
        if let Some(seen) = self.seen.get() {
            seen.each_field(side, visit);
        }
    }

    fn change_field(&mut self, _: MessageSide, _: &[u8], _: HeaderChange<'_>) -> Result<(), String> {
        Err("the head is being sent: it cannot be changed in the phase body_filter".to_owned())
    }

    fn status(&self) -> Option<u16> {
        self.seen.get().map(RequestCopy::status)
    }

    fn target(&self) -> &[u8] {
        self.seen.get().map_or(b"/", RequestCopy::target)
    }

    fn rewritten_path(&self, out: &mut Vec<u8>) -> bool {
        let path = self.seen.get().map(RequestCopy::rewritten_path).filter(|path| !path.is_empty());
        path.map(|path| out.extend_from_slice(path)).is_some()
    }

    fn start_timer(&mut self, delay: Duration) -> Result<Option<u64>, String> {
        Ok(self.timers.add(delay))
    }

    fn matched_path(&mut self) -> Option<&str> {
        self.seen.get()?.matched_path()
    }

    fn consumer(&self) -> Option<Json> {
        self.seen.get()?.consumer().cloned()
    }

    fn document(&self, of: RequestDocument) -> Option<&Json> {
        self.seen.get()?.document(of)
    }

    fn metadata(&self, plugin: &str) -> Result<Option<(u64, &Json)>, String> {
        self.request_copy()?.metadata(plugin)
    }

    fn check_schema(&self, schema: &Json, value: Json) -> Result<Json, String> {
        check_json(schema, value)
    }

    fn piece(&self) -> Option<(&[u8], bool)> {
        Some((&self.piece, self.is_last))
    }

    fn set_piece(&mut self, piece: &[u8]) -> Result<(), String> {
        self.piece.clear();
        self.piece.extend_from_slice(piece);
        Ok(())
    }

    fn end_body(&mut self) -> Result<(), String> {
        self.ends_body = true;
        Ok(())
    }

    fn is_logged(&self, level: NginxLevel) -> bool {
        self.io.is_logged(level_of(level))
    }

    fn log(&self, level: NginxLevel, text: &str) {
        self.io.log(self.plugin, level_of(level), text);
    }
}
