//! A request as plugins see and change it.

use crate::body::{BodyChanges, Direction};
use crate::consumers::{Attached, Consumers};
use crate::facts::{Facts, join};
use crate::flow::{Flow, QueueFull};
use crate::record::{NodeTries, Record, RequestId, push_recorded};
use crate::settled::Settled;
use crate::worker::Worker;
use std::any::Any;
use std::net::IpAddr;
use stillgate_route::{Lookup, RECORDED_EARLY, Variable};
use stillgate_wire::{Edits, FieldName, FieldValue, OwnedLine, RequestEdits};

const USERNAME: FieldName<'static> = FieldName::constant("X-Consumer-Username");
const CREDENTIAL: FieldName<'static> = FieldName::constant("X-Credential-Identifier");
const CUSTOM_ID_LABEL: &str = "custom_id";
const CUSTOM_ID: FieldName<'static> = FieldName::constant("X-Consumer-Custom-ID");

/// A request on its way to the node. What was changed is what later plugins read.
pub struct Request<'a> {
    /// The request as it came.
    pub facts: Facts<'a>,
    /// What the node gets in place of it.
    pub edits: &'a mut RequestEdits,
    /// Changes of the body on its way to the node.
    pub body: &'a mut BodyChanges,
    /// The body as it came, where all of it is here; `None`: [`crate::Flow::body`] waits for it.
    pub received: Option<&'a [u8]>,
    /// What is settled of the request besides its head and its body.
    pub settled: &'a mut Settled,
    /// Fields that the response will have, whether a node answers or we do. A field that is set here takes the place of the
    /// node's own of that name.
    pub response: &'a mut Edits,
    /// Who asks, as far as a plugin has found out.
    pub consumer: &'a mut Option<Attached>,
    /// All consumers.
    pub consumers: &'a Consumers,
    /// Its id in all logs, made where something first asks for it.
    pub id: &'a RequestId,
    /// What the worker keeps for plugins.
    pub worker: &'a Worker,
    /// Of `plugin_metadata`, for [`Request::metadata`].
    pub metadata: &'a crate::definition::MetadataTable,
}

impl<'a> Request<'a> {
    /// The value of a header field, with what plugins have changed; several are joined by `, ` in `buffer`.
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

    /// The same with a line that is written already.
    pub fn set_line(&mut self, line: &OwnedLine) {
        self.edits.fields.set_line(&self.facts.request.fields, self.facts.head, line);
    }

    /// Adds a line to the request's header.
    pub fn add_header(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        self.edits.fields.add(name, value);
    }

    /// Takes all lines of a name out of the request's header.
    pub fn remove_header(&mut self, name: FieldName<'_>) {
        self.edits.fields.remove(&self.facts.request.fields, self.facts.head, name);
    }

    /// Path and query that the node will get.
    pub fn target(&self) -> &[u8] {
        self.edits.target().unwrap_or_else(|| self.facts.path_and_query())
    }

    /// The whole body that the node will get; `None`: it is not here yet, or a filter will change it.
    pub fn whole_body(&self) -> Option<&[u8]> {
        match self.body.is_empty() {
            true => self.received,
            false => self.body.replaced(),
        }
    }

    /// The same, given away for another to be put in its place. Where it is held for this request alone it is not copied: as long as
    /// it takes memory, that is counted once.
    pub fn take_whole_body(&mut self) -> Vec<u8> {
        self.body.take_replaced().unwrap_or_else(|| {
            // What a filter is to change is here as it came.
            self.whole_body().or(self.received).unwrap_or_default().to_vec()
        })
    }

    /// Has work done with the whole body by a thread that serves no requests. The body is not copied either, so where there is no
    /// room for work it is gone, and `then` has to answer.
    pub fn offload_with_body<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&[u8]) -> T + Send + 'static,
        then: impl FnOnce(Result<T, QueueFull>, &mut Request<'_>) -> Flow + 'static,
    ) -> Flow {
        let body = self.take_whole_body();
        let work = move || (work(&body), body);
        Flow::offload(work, move |done, request| {
            let done = done.map(|(done, body)| {
                request.body.give_back(body);
                done
            });
            then(done, request)
        })
    }

    /// Says who asks: for all plugins behind this one, for the node (`X-Real-IP`, `X-Forwarded-For`), for logs and metrics.
    pub fn set_client(&mut self, ip: IpAddr, port: Option<u16>) {
        let ip = ip.to_canonical();
        self.facts.client = ip;
        self.facts.client_port = port.unwrap_or(self.facts.client_port);
        self.settled.client = Some((ip, port));
    }

    /// Keeps `guard` until the request has ended, whatever becomes of it; then it is dropped.
    pub fn hold(&mut self, guard: impl Any) {
        self.settled.held.push(Box::new(guard));
    }

    /// Says who asks, to the node too: its name, the id of its credential and its label `custom_id`. What the client
    /// has sent under these names is taken out.
    pub fn attach(&mut self, found: Attached) {
        let consumer = self.consumers.of(found);
        self.introduce(found, consumer.label(CUSTOM_ID_LABEL));
    }

    /// [`Request::attach`] for a consumer that stands for those who are not known. As in APISIX, its `custom_id` is not told.
    pub fn attach_anonymous(&mut self, found: Attached) {
        self.introduce(found, None);
    }

    fn introduce(&mut self, found: Attached, custom_id: Option<&str>) {
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

    /// What is known of a record from the beginning.
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

    /// `plugin_metadata` of a plugin.
    pub fn metadata<T: 'static>(&self, plugin: &str) -> Option<&'a T> {
        self.metadata.get(plugin)
    }

    /// Which way the body goes whose changes are in [`Request::body`].
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
            Variable::Recorded(name) if RECORDED_EARLY.contains(name) => self.record(name, buffer),
            _ => self.facts.value(variable, buffer),
        }
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.edits.fields.each(&self.facts.request.fields, self.facts.head, visit);
    }
}
