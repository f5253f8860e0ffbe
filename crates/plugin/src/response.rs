//! A response as plugins see and change it, whether a node gives it or we do.

use crate::body::BodyChanges;
use crate::consumers::{Attached, Consumers};
use crate::facts::{Facts, join, written};
use crate::worker::Worker;
use stillgate_route::{Lookup, Variable};
use stillgate_wire::{FieldName, FieldValue, Fields, ResponseEdits};

/// A response on its way to the client.
pub struct Response<'a> {
    /// The request as it came.
    pub facts: Facts<'a>,
    /// The status, as it came of the node or of us.
    pub came_with: u16,
    /// Whether a node has answered; `false`: we did.
    pub is_of_node: bool,
    /// Whether a node was asked, whoever has answered then.
    pub was_asked: bool,
    /// The node's header fields; of our own answers none: theirs are edits.
    pub fields: &'a Fields,
    /// The bytes they stand in.
    pub head: &'a [u8],
    /// Bytes of the body as it comes, where that is known before it comes.
    pub length: Option<u64>,
    /// What the client gets in place of it.
    pub edits: &'a mut ResponseEdits,
    /// Changes of the body. In the phase `log` they have no effect.
    pub body: &'a mut BodyChanges,
    /// Who asked.
    pub consumer: Option<Attached>,
    /// All consumers.
    pub consumers: &'a Consumers,
    /// What the worker keeps for plugins.
    pub worker: &'a Worker,
    /// Of `plugin_metadata`.
    pub metadata: &'a crate::definition::MetadataTable,
}

impl Response<'_> {
    /// The status that the client gets.
    pub fn status(&self) -> u16 {
        self.edits.status().unwrap_or(self.came_with)
    }

    /// The value of a header field, with what plugins have changed; several are joined by `, ` in `buffer`.
    pub fn header<'b>(&'b self, name: FieldName<'_>, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        join(self.edits.fields.values(self.fields, self.head, name), buffer)
    }

    /// Replaces a header field.
    pub fn set_header(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        self.edits.fields.set(self.fields, self.head, name, value);
    }

    /// Adds a line to the header.
    pub fn add_header(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        self.edits.fields.add(name, value);
    }

    /// Takes all lines of a name out of the header.
    pub fn remove_header(&mut self, name: FieldName<'_>) {
        self.edits.fields.remove(self.fields, self.head, name);
    }
}

impl Lookup for Response<'_> {
    fn value<'b>(&'b self, variable: &Variable, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        match variable {
            Variable::Status => Some(written(buffer, self.status())),
            Variable::ConsumerName => self.consumer.map(|of| self.consumers.of(of).name.as_bytes()),
            Variable::ConsumerGroupId => {
                self.consumer.and_then(|of| self.consumers.of(of).group.as_deref()).map(str::as_bytes)
            }
            _ => self.facts.value(variable, buffer),
        }
    }

    /// Of the request, as variables are.
    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.facts.each_header(visit);
    }
}
