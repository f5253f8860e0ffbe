//! Header fields of responses that the access log shows.
//!
//! When a line is written, its response is out and its memory is in other use. So the values that some field of the log needs are
//! noted when the head passes; if none does, nothing is.

use stillgate_config::{AccessFormat, AccessValue};
use stillgate_route::HeaderName;
use stillgate_wire::ResponseHead;

/// The side whose response it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseSide {
    /// The response as sent to the client.
    Sent,
    /// The response as received from the node.
    Node,
}

/// The fields that the log needs, in the order in which they are in a line.
#[derive(Debug, Clone, Default)]
pub(crate) struct WantedFields(Box<[(ResponseSide, HeaderName)]>);

/// Their values in one response, in the same order. Its memory is reused from request to request.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResponseFields {
    text: Vec<u8>,
    /// Their positions in `text`; `None`: the response has no such field. Empty: none has been noted.
    values: Vec<Option<(usize, usize)>>,
}

impl WantedFields {
    pub(crate) fn new(format: &AccessFormat) -> WantedFields {
        let AccessFormat::Json(fields) = format else { return WantedFields::default() };
        let wanted = fields.iter().filter_map(|field| match &field.value {
            AccessValue::SentHeader(name) => Some((ResponseSide::Sent, name.clone())),
            AccessValue::UpstreamHeader(name) => Some((ResponseSide::Node, name.clone())),
            _ => None,
        });
        WantedFields(wanted.collect())
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl ResponseFields {
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.values.clear();
    }

    /// Notes the fields of a node's response, and of the head that we have made of it for the client.
    #[inline]
    pub(crate) fn note_response(&mut self, wanted: &WantedFields, response: &ResponseHead, head: &[u8], sent: &[u8]) {
        if !wanted.is_empty() {
            let fields = response.fields.iter().map(|field| (field.name.of(head), field.value.of(head)));
            self.note(wanted, ResponseSide::Node, fields);
            self.note(wanted, ResponseSide::Sent, fields_of(sent));
        }
    }

    /// Notes the fields of an answer of our own.
    pub(crate) fn note_answer(&mut self, wanted: &WantedFields, sent: &[u8]) {
        if !wanted.is_empty() {
            self.note(wanted, ResponseSide::Sent, fields_of(sent));
        }
    }

    /// Notes the wanted fields of a response, replacing what was noted for that side before.
    fn note<'a>(
        &mut self,
        wanted: &WantedFields,
        side: ResponseSide,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) {
        self.values.resize(wanted.0.len(), None);
        for (slot, (_, name)) in wanted.0.iter().enumerate().filter(|(_, (of, _))| *of == side) {
            let start = self.text.len();
            let mut values = fields.clone().filter(|(field, _)| name.matches(field)).map(|(_, value)| value);
            self.values[slot] = values.next().map(|first| {
                self.text.extend_from_slice(first);
                for value in values {
                    self.text.extend_from_slice(b", ");
                    self.text.extend_from_slice(value);
                }
                (start, self.text.len())
            });
        }
    }

    /// The value of the `slot`th field in a line.
    pub(crate) fn get(&self, slot: usize) -> Option<&[u8]> {
        let (start, end) = (*self.values.get(slot)?)?;
        self.text.get(start..end)
    }
}

/// The fields of a head that we have written ourselves.
fn fields_of(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
    let lines = head.split(|byte| *byte == b'\n').skip(1);
    lines.filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_config::AccessField;

    #[test]
    fn the_values_of_a_response() {
        let name = |name: &str| HeaderName::from_variable(name).unwrap();
        let values = [
            AccessValue::SentHeader(name("x_a")),
            AccessValue::Status,
            AccessValue::UpstreamHeader(name("x_a")),
            AccessValue::SentHeader(name("set_cookie")),
            AccessValue::SentHeader(name("none")),
        ];
        let field = |value: AccessValue| AccessField { name: String::new(), value };
        let wanted = WantedFields::new(&AccessFormat::Json(values.into_iter().map(field).collect()));
        let mut noted = ResponseFields::default();
        let shown = |noted: &ResponseFields| -> Vec<Option<String>> {
            (0..4).map(|slot| noted.get(slot).map(|value| String::from_utf8(value.to_vec()).unwrap())).collect()
        };
        assert_eq!(shown(&noted), [None, None, None, None]);
        noted.note(&wanted, ResponseSide::Node, [(&b"X-a"[..], &b"node"[..])].into_iter());
        let head = b"HTTP/1.1 200 OK: yes\r\nX-A:  us \r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n\r\n";
        noted.note(&wanted, ResponseSide::Sent, fields_of(head));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(shown(&noted), [some("us"), some("node"), some("a=1, b=2"), None]);
        noted.note(&wanted, ResponseSide::Sent, fields_of(b"HTTP/1.1 502 Bad Gateway\r\nx-a: again\r\n\r\n"));
        assert_eq!(shown(&noted), [some("again"), some("node"), None, None]);
        noted.clear();
        assert_eq!(shown(&noted), [None, None, None, None]);
    }
}
