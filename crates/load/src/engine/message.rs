//! A request as HTTP/2 sends it, made of the bytes that HTTP/1 would send.
//!
//! A mix is composed in one form only. An entry without variables is translated once, before the run; parts that HTTP/2
//! does not have are refused there by name.

use super::error::LoadError;
use crate::mix::{ComposedRequest, Entry};
use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use memchr::memmem;

/// Fields of a connection (RFC 9113 section 8.2.2).
const CONNECTION_FIELDS: [&str; 5] = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// A request and its body.
pub(super) type Message = (Request<()>, Bytes);

/// Translates the requests of a mix.
#[derive(Debug)]
pub(super) struct Messages {
    scheme: Scheme,
    /// By entry, those without variables.
    fixed: Vec<Option<Message>>,
}

impl Messages {
    /// Translates these entries, with TLS or without.
    pub(super) fn new(entries: &[Entry], is_secure: bool) -> Result<Messages, LoadError> {
        let scheme = if is_secure { Scheme::HTTPS } else { Scheme::HTTP };
        let fixed = entries.iter().map(|entry| {
            let untranslatable = |reason| LoadError::NotHttp2 { request: entry.name.clone(), reason };
            let is_connections =
                |name: &&String| CONNECTION_FIELDS.iter().any(|field| name.eq_ignore_ascii_case(field));
            if let Some(field) = entry.fields.iter().find(is_connections) {
                return Err(untranslatable(format!(
                    "the field {field} belongs to HTTP/1 connections, and HTTP/2 forbids it; remove it"
                )));
            }
            entry.fixed().map(|bytes| translate(bytes, &scheme).map_err(untranslatable)).transpose()
        });
        Ok(Messages { fixed: fixed.collect::<Result<_, _>>()?, scheme })
    }

    /// Translates a composed request.
    pub(super) fn of(&self, composed: &ComposedRequest<'_>) -> Result<Message, String> {
        match &self.fixed[composed.entry] {
            Some(message) => Ok(message.clone()),
            None => translate(composed.bytes, &self.scheme),
        }
    }
}

fn translate(bytes: &[u8], scheme: &Scheme) -> Result<Message, String> {
    let words = |error: http::Error| error.to_string();
    let (head, body) = split_at(bytes, b"\r\n\r\n").ok_or("no end of its head")?;
    let (line, mut fields) = split_at(head, b"\r\n").unwrap_or((head, b""));
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let (method, path) = parts.next().zip(parts.next()).ok_or("no request line")?;
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(method).map_err(|error| words(error.into()))?;
    let mut authority: &[u8] = b"";
    while !fields.is_empty() {
        let (field, rest) = split_at(fields, b"\r\n").unwrap_or((fields, b""));
        fields = rest;
        let (name, value) = split_at(field, b":").ok_or("a field without a colon")?;
        let value = value.trim_ascii();
        if name.eq_ignore_ascii_case(b"host") {
            authority = value;
            continue;
        }
        let name = HeaderName::from_bytes(name).map_err(|error| words(error.into()))?;
        request.headers_mut().append(name, HeaderValue::from_bytes(value).map_err(|error| words(error.into()))?);
    }
    let uri = Uri::builder().scheme(scheme.clone()).authority(authority).path_and_query(path);
    *request.uri_mut() = uri.build().map_err(words)?;
    Ok((request, Bytes::copy_from_slice(body)))
}

/// The parts before and behind the first separator.
fn split_at<'a>(bytes: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = memmem::find(bytes, separator)?;
    Some((&bytes[..at], &bytes[at + separator.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::Mix;

    fn messages(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Result<Messages, LoadError> {
        let headers: Vec<(String, String)> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mix = Mix::single(method, path, "a.example:81", &headers, body.as_bytes().to_vec()).unwrap();
        Messages::new(mix.entries(), true)
    }

    #[test]
    fn method_target_fields_and_body() {
        let made =
            messages("POST", "/a?b=[c]|{d}^", &[("X-Ä".trim_end_matches('Ä'), "1"), ("x-b", "2")], "body").unwrap();
        let (request, body) = made.fixed[0].clone().unwrap();
        assert_eq!((request.method(), body.as_ref()), (&Method::POST, b"body".as_slice()));
        assert_eq!(request.uri(), "https://a.example:81/a?b=[c]|{d}^");
        assert_eq!(
            (&request.headers()["x-"], &request.headers()["x-b"]),
            (&"1".parse().unwrap(), &"2".parse().unwrap())
        );
        assert_eq!(request.headers()["content-length"], "4");
        let made = messages("GET", "/", &[("Host", "b.example")], "").unwrap();
        assert_eq!(made.fixed[0].as_ref().unwrap().0.uri(), "https://b.example/");
    }

    #[test]
    fn what_http2_does_not_know_is_named() {
        let check = |headers: &[(&str, &str)], words: &str| {
            let error = messages("GET", "/", headers, "").unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("GET /"), "{error}");
        };
        check(&[("Connection", "close")], "the field Connection");
        check(&[("Upgrade", "websocket")], "the field Upgrade");
        check(&[("Host", "a b")], "invalid");
    }
}
