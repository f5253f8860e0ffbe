//! A plugin's view of a request, which it can change.

use crate::body::{BodyChanges, Direction};
use crate::calls::{Call, CallError, Reply};
use crate::consumers::{ConsumerRef, Consumers};
use crate::facts::{Facts, argument_of, join};
use crate::query::{write_query_without, write_without};
use crate::record::{NodeTries, Record, RequestId, push_recorded};
use crate::request_state::RequestState;
use crate::work::LocalFuture;
use crate::worker::Worker;
use std::any::Any;
use std::net::IpAddr;
use stillgate_route::path::target_path;
use stillgate_route::{Lookup, RECORDED_EARLY, Variable};
use stillgate_wire::{EditError, Edits, FieldName, FieldValue, OwnedLine, RequestEdits};

const USERNAME: FieldName<'static> = FieldName::constant("X-Consumer-Username");
const CREDENTIAL: FieldName<'static> = FieldName::constant("X-Credential-Identifier");
const CUSTOM_ID_LABEL: &str = "custom_id";
const CUSTOM_ID: FieldName<'static> = FieldName::constant("X-Consumer-Custom-ID");

/// A request before it is forwarded. Later plugins see the changes of earlier ones.
pub struct Request<'a> {
    /// The request as it came.
    pub facts: Facts<'a>,
    /// Its edits, for the node.
    pub edits: &'a mut RequestEdits,
    /// Changes of the body sent to the node.
    pub body: &'a mut BodyChanges,
    /// The received body, if it is complete; `None`: [`crate::Flow::body`] waits for it.
    pub received: Option<&'a [u8]>,
    /// Other state of the request that plugins set.
    pub settled: &'a mut RequestState,
    /// Header fields of the response, whether it comes from a node or is a local reply. A field that is set here
    /// replaces the node's.
    pub response: &'a mut Edits,
    /// The authenticated consumer.
    pub consumer: &'a mut Option<ConsumerRef>,
    /// All consumers.
    pub consumers: &'a Consumers,
    /// Its id in all logs, generated on first use.
    pub id: &'a RequestId,
    /// The worker's state for plugins.
    pub worker: &'a Worker,
    /// The content of `plugin_metadata`, for [`Request::metadata`].
    pub metadata: &'a crate::metadata::MetadataTable,
}

impl<'a> Request<'a> {
    /// Calls a server for this request.
    pub fn call(&self, mut call: Call) -> LocalFuture<Result<Reply, CallError>> {
        call.client = Some(self.facts.client);
        self.worker.io().call(call)
    }

    /// The value of a header field, with plugins' changes; several are joined by `, ` in `buffer`.
    pub fn header<'b>(&'b self, name: FieldName<'_>, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let fields = &self.facts.request.fields;
        join(self.edits.fields.values(fields, self.facts.head, name), buffer)
    }

    /// The value of the first line of a header field.
    pub fn first_header(&self, name: FieldName<'_>) -> Option<&[u8]> {
        self.edits.fields.first(&self.facts.request.fields, self.facts.head, name)
    }

    /// Replaces a header field of the request.
    pub fn set_header(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        self.edits.fields.set(&self.facts.request.fields, self.facts.head, name, value);
    }

    /// Replaces a header field by a prepared line.
    pub fn set_line(&mut self, line: &OwnedLine) {
        self.edits.fields.set_line(&self.facts.request.fields, self.facts.head, line);
    }

    /// Adds a line to the request's header.
    pub fn add_header(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        self.edits.fields.add(name, value);
    }

    /// Removes all lines of a name from the request's header.
    pub fn remove_header(&mut self, name: FieldName<'_>) {
        self.edits.fields.remove(&self.facts.request.fields, self.facts.head, name);
    }

    /// Path and query for the node.
    pub fn target(&self) -> &[u8] {
        self.edits.target().unwrap_or_else(|| self.facts.path_and_query())
    }

    /// The query with plugins' changes, without `?`. A plugin that replaces the path keeps it.
    pub fn query(&self) -> Option<&[u8]> {
        self.edited_query().or_else(|| self.facts.query())
    }

    /// [`Request::query`], if it is another than the client's.
    pub fn edited_query(&self) -> Option<&[u8]> {
        self.settled.query.as_deref()
    }

    /// Replaces path and query for the node. Unlike a change of `edits` alone, the query also holds where a later plugin replaces
    /// the path.
    pub fn replace_target(&mut self, target: &[u8]) -> Result<(), EditError> {
        self.edits.set_target(target)?;
        let query = target_path(target).1.unwrap_or_default();
        if self.query().unwrap_or_default() != query {
            self.settled.query = Some(query.to_vec());
        }
        Ok(())
    }

    /// Removes the arguments of a name from the query for the node and from [`RequestState::redacted_target`]. Everything around
    /// them is unchanged. `buffer`: for its work.
    pub fn hide_argument(&mut self, name: &[u8], buffer: &mut Vec<u8>) {
        // The target may have been rewritten, with the query or without.
        buffer.clear();
        write_without(self.target(), name, buffer);
        if buffer.len() < self.target().len() {
            // An absolute target may have no path: `http://host?key=value`.
            if !buffer.starts_with(b"/") {
                buffer.insert(0, b'/');
            }
            self.edits.set_target(buffer).expect("a part of a good target is good");
        }
        let query = self.query().unwrap_or_default();
        buffer.clear();
        write_query_without(query, name, buffer);
        if buffer.len() < query.len() {
            self.settled.query = Some(buffer.clone());
        }
        let shown = self.settled.redacted_target(&self.facts);
        buffer.clear();
        write_without(shown, name, buffer);
        if buffer.len() < shown.len() {
            self.settled.redacted_target = Some(buffer.clone());
        }
    }

    /// The whole body for the node; `None`: it has not arrived yet, or a filter will change it.
    pub fn whole_body(&self) -> Option<&[u8]> {
        match self.body.is_empty() {
            true => self.received,
            false => self.body.replaced(),
        }
    }

    /// Takes the whole body, for a replacement. A body that is held for this request alone is not copied: its memory is
    /// counted once for as long as it exists.
    pub fn take_whole_body(&mut self) -> Vec<u8> {
        self.body.take_replaced().unwrap_or_else(|| {
            // A body that a filter will change is returned as it came.
            self.whole_body().or(self.received).unwrap_or_default().to_vec()
        })
    }

    /// Sets the client's address: for all later plugins, for the node (`X-Real-IP`, `X-Forwarded-For`), for logs and
    /// metrics.
    pub fn set_client(&mut self, ip: IpAddr, port: Option<u16>) {
        let ip = ip.to_canonical();
        self.facts.client = ip;
        self.facts.client_port = port.unwrap_or(self.facts.client_port);
        self.settled.client = Some((ip, port));
    }

    /// Holds `guard` until the request has ended in any way; then it is dropped.
    pub fn hold(&mut self, guard: impl Any) {
        self.settled.held.push(Box::new(guard));
    }

    /// Sets the authenticated consumer, and the headers for the node: its name, the id of its credential and its label
    /// `custom_id`. Headers of the client with these names are removed.
    pub fn attach(&mut self, found: ConsumerRef) {
        let consumer = self.consumers.of(found);
        self.introduce(found, consumer.label(CUSTOM_ID_LABEL));
    }

    /// Like [`Request::attach`], for the anonymous consumer. As in APISIX, its `custom_id` is not sent.
    pub fn attach_anonymous(&mut self, found: ConsumerRef) {
        self.introduce(found, None);
    }

    fn introduce(&mut self, found: ConsumerRef, custom_id: Option<&str>) {
        let consumer = self.consumers.of(found);
        *self.consumer = Some(found);
        let credential = found.credential.and_then(|place| consumer.credentials.get(usize::from(place)));
        let about =
            [(USERNAME, Some(&*consumer.name)), (CREDENTIAL, credential.map(|id| &**id)), (CUSTOM_ID, custom_id)];
        let names = about.map(|(name, _)| name);
        self.edits.fields.remove_each(&self.facts.request.fields, self.facts.head, &names);
        for (name, value) in about {
            if let Some(Ok(value)) = value.map(|value| FieldValue::new(value.as_bytes())) {
                self.add_header(name, value);
            }
        }
    }

    /// The values of a record that are known from the beginning.
    fn record<'b>(&self, name: &str, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let Facts { request, head, .. } = self.facts;
        let none = NodeTries::default();
        let record = Record {
            end_unix_ms: self.worker.now_ms(),
            status: 0,
            bytes_sent: 0,
            body_bytes_sent: 0,
            bytes_received: 0,
            request_time_us: 0,
            upstream_time_us: None,
            asked_us: None,
            node_time_us: None,
            tries: &none,
            route_id: None,
            service_id: None,
            method: request.method_bytes(head),
            target: request.target.of(head),
            version: self.facts.protocol,
            client: self.facts.client,
            vars: &self.facts,
            trace: self.settled.trace,
            id: self.id,
            given_id: &self.settled.request_id,
            process: self.worker.process(),
        };
        buffer.clear();
        let seed = [self.worker.random(), self.worker.random()];
        push_recorded(name, &record, seed, buffer).then_some(buffer)
    }

    /// The `plugin_metadata` of a plugin.
    pub fn metadata<T: 'static>(&self, plugin: &str) -> Option<&'a T> {
        self.metadata.get(plugin)
    }

    /// The direction of the body whose changes are in [`Request::body`].
    pub const BODY: Direction = Direction::Request;
}

impl Lookup for Request<'_> {
    fn value<'b>(&'b self, variable: &Variable, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        match variable {
            Variable::ConsumerName => self.consumer.map(|of| self.consumers.of(of).name.as_bytes()),
            Variable::ConsumerGroupId => {
                self.consumer.and_then(|of| self.consumers.of(of).group.as_deref()).map(str::as_bytes)
            }
            Variable::Header(name) if self.edits.fields.is_changed() => {
                match FieldName::sought(name.as_str().as_bytes()) {
                    Ok(name) => self.header(name, buffer),
                    Err(_) => None,
                }
            }
            Variable::PostArg(_) | Variable::BodyArg(_) => self.settled.arguments.value(variable),
            Variable::Args if self.settled.query.is_some() => self.query(),
            Variable::IsArgs if self.settled.query.is_some() => {
                Some(if self.query().is_some_and(|query| !query.is_empty()) { b"?" } else { b"" })
            }
            Variable::Arg(name) if self.settled.query.is_some() => argument_of(self.query()?, name, buffer),
            Variable::Recorded(name) if RECORDED_EARLY.contains(name) => self.record(name, buffer),
            _ => self.facts.value(variable, buffer),
        }
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.edits.fields.each(&self.facts.request.fields, self.facts.head, visit);
    }
}
