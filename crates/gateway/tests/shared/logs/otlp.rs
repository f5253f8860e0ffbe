//! Reads a request of OTLP by hand: field numbers as `opentelemetry-proto` has them, and nothing else is accepted.

use std::collections::BTreeMap;

/// A request with one resource.
#[derive(Debug, Default)]
pub(crate) struct Export {
    pub(crate) resource: BTreeMap<String, String>,
    pub(crate) spans: Vec<Span>,
}

#[derive(Debug, Default)]
pub(crate) struct Span {
    pub(crate) trace_id: String,
    pub(crate) id: String,
    pub(crate) state: String,
    pub(crate) parent: String,
    pub(crate) name: String,
    pub(crate) kind: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) attributes: BTreeMap<String, String>,
    /// The code.
    pub(crate) status: u64,
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn bytes(self) -> &'a [u8] {
        match self {
            Field::Bytes(bytes) => bytes,
            Field::Number(_) => panic!("a number where bytes are expected"),
        }
    }

    fn number(self) -> u64 {
        match self {
            Field::Number(number) => number,
            Field::Bytes(_) => panic!("bytes where a number is expected"),
        }
    }

    fn text(self) -> String {
        String::from_utf8(self.bytes().to_vec()).expect("UTF-8")
    }

    fn hex(self, length: usize) -> String {
        let bytes = self.bytes();
        assert_eq!(bytes.len(), length);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Each field of a message with its number.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => {
                let (number, rest) = bytes.split_first_chunk::<8>().expect("eight bytes");
                bytes = rest;
                Field::Number(u64::from_le_bytes(*number))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (content, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(content)
            }
            other => panic!("the wire type {other}"),
        };
        all.push((tag >> 3, field));
    }
    all
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().expect("a byte");
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return number;
        }
    }
    panic!("a number without an end")
}

/// Reads `ExportTraceServiceRequest`.
pub(crate) fn read(body: &[u8]) -> Export {
    let mut export = Export::default();
    let only = |all: Vec<(u64, Field<'_>)>| {
        all.into_iter().map(|(number, field)| (number, field.bytes().to_vec())).collect::<Vec<_>>()
    };
    let [(1, resource_spans)] = &only(fields(body))[..] else { panic!("one resource") };
    for (number, field) in fields(resource_spans) {
        match number {
            1 => {
                for (number, field) in fields(field.bytes()) {
                    assert_eq!(number, 1);
                    let (key, value) = attribute(field.bytes());
                    export.resource.insert(key, value);
                }
            }
            2 => {
                for (number, field) in fields(field.bytes()) {
                    match number {
                        1 => assert!(!field.bytes().is_empty()),
                        2 => export.spans.push(span(field.bytes())),
                        other => panic!("a scope has no field {other}"),
                    }
                }
            }
            other => panic!("a resource's spans have no field {other}"),
        }
    }
    export
}

fn span(bytes: &[u8]) -> Span {
    let mut span = Span::default();
    for (number, field) in fields(bytes) {
        match number {
            1 => span.trace_id = field.hex(16),
            2 => span.id = field.hex(8),
            3 => span.state = field.text(),
            4 => span.parent = field.hex(8),
            5 => span.name = field.text(),
            6 => span.kind = field.number(),
            7 => span.start = field.number(),
            8 => span.end = field.number(),
            9 => {
                let (key, value) = attribute(field.bytes());
                assert_eq!(span.attributes.insert(key, value), None, "an attribute is there once");
            }
            15 => {
                let status = fields(field.bytes());
                span.status = status.into_iter().find(|(number, _)| *number == 3).map_or(0, |(_, code)| code.number());
            }
            other => panic!("a span has no field {other}"),
        }
    }
    span
}

fn attribute(bytes: &[u8]) -> (String, String) {
    let (mut key, mut value) = (String::new(), String::new());
    for (number, field) in fields(bytes) {
        match number {
            1 => key = field.text(),
            2 => {
                for (number, field) in fields(field.bytes()) {
                    value = match number {
                        1 => field.text(),
                        2 | 3 => field.number().to_string(),
                        4 => f64::from_bits(field.number()).to_string(),
                        other => panic!("a value has no field {other}"),
                    };
                }
            }
            other => panic!("an attribute has no field {other}"),
        }
    }
    (key, value)
}
