//! A plugin's view of a response, from a node or the gateway itself, which it can change.

use crate::body::BodyChanges;
use crate::consumers::{ConsumerRef, Consumers};
use crate::facts::{Facts, argument_of, format_into, join};
use crate::record::Record;
use crate::request_state::RequestState;
use crate::worker::Worker;
use stillgate_route::{Lookup, Variable};
use stillgate_wire::{Edits, FieldName, FieldValue, Fields, OwnedLine, ResponseEdits};

/// A response on its way to the client.
pub struct Response<'a> {
    /// The request as it came.
    pub facts: Facts<'a>,
    /// Plugins' changes of the request's header.
    pub request_edits: &'a Edits,
    /// The original status.
    pub came_with: u16,
    /// Whether a node has answered; `false`: it is a local reply.
    pub is_of_node: bool,
    /// The status of the last attempt at a node, or of its failure, even if the gateway answered in the end. `None`: no node was
    /// asked, the attempt ended before either, or it failed for what the client sent or asked for.
    pub node_status: Option<u16>,
    /// The node's header fields; empty for a local reply, whose fields are edits.
    pub fields: &'a Fields,
    /// The bytes of these fields.
    pub head: &'a [u8],
    /// Length of the incoming body, if it is known in advance.
    pub length: Option<u64>,
    /// Its edits, for the client.
    pub edits: &'a mut ResponseEdits,
    /// Changes of the body. In the phase `log` they have no effect.
    pub body: &'a mut BodyChanges,
    /// The authenticated consumer.
    pub consumer: Option<ConsumerRef>,
    /// All consumers.
    pub consumers: &'a Consumers,
    /// Other state of the request that plugins set in earlier phases.
    pub settled: &'a mut RequestState,
    /// In the phase `log`, the values that are known only then.
    pub ended: Option<&'a LogValues<'a>>,
    /// The outcome of the request, as far as it is known: resolves [`Variable::Recorded`].
    pub recorded: &'a dyn Lookup,
    /// The worker's state for plugins.
    pub worker: &'a Worker,
    /// The content of `plugin_metadata`.
    pub metadata: &'a crate::metadata::MetadataTable,
}

/// Values of a request that are known only in the phase `log`.
pub struct LogValues<'a> {
    /// Times, sizes, nodes.
    pub record: Record<'a>,
    /// The beginning of the request's body, as the node got it; `None`: no plugin requested it.
    pub request_body: Option<&'a [u8]>,
    /// Whether that is the whole body.
    pub request_is_whole: bool,
    /// The beginning of the response's body, as the client got it; `None`: no plugin requested it.
    pub response_body: Option<&'a [u8]>,
}

impl Response<'_> {
    /// The status for the client.
    pub fn status(&self) -> u16 {
        self.edits.status().unwrap_or(self.came_with)
    }

    /// The value of a header field, with plugins' changes; several are joined by `, ` in `buffer`.
    pub fn header<'b>(&'b self, name: FieldName<'_>, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        join(self.edits.fields.values(self.fields, self.head, name), buffer)
    }

    /// Calls `visit` with name and value of every line of the header that the client got. For a local reply this
    /// excludes lines that frame it and those added to every response.
    pub fn each_sent(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.edits.fields.each(self.fields, self.head, visit);
        self.edits.fields.appended_lines().for_each(|(name, value)| visit(name, value));
    }

    /// The value of a header field as the client got it; several are joined by `, ` in `buffer`. See [`Response::each_sent`].
    pub fn sent_header<'b>(&'b self, name: FieldName<'_>, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let fields = &self.edits.fields;
        let appended = fields.appended_lines().filter(|(of, _)| name.is(of)).map(|(_, value)| value);
        join(fields.values(self.fields, self.head, name).chain(appended), buffer)
    }

    /// The value of a header field as the node has sent it; several are joined by `, ` in `buffer`.
    pub fn node_header<'b>(&'b self, name: FieldName<'_>, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let fields = self.fields.iter().filter(|field| name.is(field.name.of(self.head)));
        join(fields.map(|field| field.value.of(self.head)), buffer)
    }

    /// Replaces a header field.
    pub fn set_header(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        self.edits.fields.set(self.fields, self.head, name, value);
    }

    /// Replaces a header field by a prepared line.
    pub fn set_line(&mut self, line: &OwnedLine) {
        self.edits.fields.set_line(self.fields, self.head, line);
    }

    /// Adds a line to the header.
    pub fn add_header(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        self.edits.fields.add(name, value);
    }

    /// Removes all lines of a name from the header.
    pub fn remove_header(&mut self, name: FieldName<'_>) {
        self.edits.fields.remove(self.fields, self.head, name);
    }
}

impl Lookup for Response<'_> {
    fn value<'b>(&'b self, variable: &Variable, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        match variable {
            Variable::Status => Some(format_into(buffer, self.status())),
            Variable::ConsumerName => self.consumer.map(|of| self.consumers.of(of).name.as_bytes()),
            Variable::ConsumerGroupId => {
                self.consumer.and_then(|of| self.consumers.of(of).group.as_deref()).map(str::as_bytes)
            }
            Variable::PostArg(_) | Variable::BodyArg(_) => self.settled.arguments.value(variable),
            // As in `Request`: a hidden key does not come back behind the node.
            Variable::Args if self.settled.query.is_some() => self.settled.query.as_deref(),
            Variable::IsArgs if self.settled.query.is_some() => {
                Some(if self.settled.query.as_ref().is_some_and(|query| !query.is_empty()) { b"?" } else { b"" })
            }
            Variable::Arg(name) if self.settled.query.is_some() => {
                argument_of(self.settled.query.as_deref()?, name, buffer)
            }
            Variable::Recorded("request_body") => self.ended?.request_body.filter(|body| !body.is_empty()),
            Variable::Recorded("resp_body") => Some(self.ended?.response_body.unwrap_or_default()),
            Variable::Recorded(_) => self.recorded.value(variable, buffer),
            Variable::SentHeader(name) => self.sent_header(FieldName::sought(name.as_str().as_bytes()).ok()?, buffer),
            Variable::UpstreamHeader(name) => {
                self.node_header(FieldName::sought(name.as_str().as_bytes()).ok()?, buffer)
            }
            Variable::Header(name) if self.request_edits.is_changed() => {
                let name = FieldName::sought(name.as_str().as_bytes()).ok()?;
                join(self.request_edits.values(&self.facts.request.fields, self.facts.head, name), buffer)
            }
            _ => self.facts.value(variable, buffer),
        }
    }

    /// The request's header, for variables.
    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.request_edits.each(&self.facts.request.fields, self.facts.head, visit);
    }
}
