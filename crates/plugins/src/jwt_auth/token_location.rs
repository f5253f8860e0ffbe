//! Where a request carries its token, and how it is removed.

use stillgate_plugin::Request;
use stillgate_plugin::query::{Argument, argument, decoded, write_without};
use stillgate_route::path::target_path;
use stillgate_wire::{FieldName, FieldValue, OwnedFieldName};

/// The places where tokens are searched.
pub(super) struct TokenLocations {
    header: OwnedFieldName,
    query: Box<[u8]>,
    cookie: Box<str>,
}

/// Result of the search in a request.
pub(super) enum LocatedToken<'a> {
    Nothing,
    /// Something that cannot be a token.
    Unreadable,
    Token(&'a [u8]),
}

const COOKIE: FieldName<'static> = FieldName::constant("Cookie");

impl TokenLocations {
    /// Creates it with the names of the places.
    pub(super) fn new(header: String, query: String, cookie: String) -> TokenLocations {
        let header = OwnedFieldName::new(header.as_bytes()).expect("checked when it was read");
        TokenLocations { header, query: query.into_bytes().into(), cookie: cookie.into() }
    }

    /// The name of the header field.
    pub(super) fn header(&self) -> &[u8] {
        self.header.name().bytes()
    }

    /// The first of these: the header field, the query, the cookie.
    pub(super) fn find<'a>(&self, request: &'a Request<'_>, buffer: &'a mut Vec<u8>) -> LocatedToken<'a> {
        if let Some(value) = request.first_header(self.header.name()) {
            let token = value.strip_prefix(b"Bearer ").or_else(|| value.strip_prefix(b"bearer "));
            return LocatedToken::Token(token.unwrap_or(value));
        }
        let query = target_path(request.target()).1.unwrap_or_default();
        match argument(query, &self.query) {
            Argument::Absent => {}
            Argument::Other => return LocatedToken::Unreadable,
            Argument::One(value) => {
                buffer.clear();
                buffer.extend(decoded(value));
                return LocatedToken::Token(buffer);
            }
        }
        match request.facts.cookie(&self.cookie) {
            Some(token) => LocatedToken::Token(token),
            None => LocatedToken::Nothing,
        }
    }

    /// Removes tokens from the request for the node, wherever one may be: beside the one that was found there may be another.
    /// Everything around them is unchanged.
    pub(super) fn hide(&self, request: &mut Request<'_>, buffer: &mut Vec<u8>) {
        request.remove_header(self.header.name());
        buffer.clear();
        write_without(request.target(), &self.query, buffer);
        if buffer.len() < request.target().len() {
            request.edits.set_target(buffer).expect("a part of a good target is good");
        }
        let name = self.cookie.as_bytes();
        let lines = || request.edits.fields.values(&request.facts.request.fields, request.facts.head, COOKIE);
        let pairs = || lines().flat_map(|line| line.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
        if !pairs().any(|pair| is_of(pair, name)) {
            return;
        }
        buffer.clear();
        for pair in pairs().filter(|pair| !pair.is_empty() && !is_of(pair, name)) {
            if !buffer.is_empty() {
                buffer.extend_from_slice(b"; ");
            }
            buffer.extend_from_slice(pair);
        }
        request.remove_header(COOKIE);
        if !buffer.is_empty() {
            request.add_header(COOKIE, FieldValue::of_head(buffer));
        }
    }
}

fn is_of(pair: &[u8], name: &[u8]) -> bool {
    pair.strip_prefix(name).is_some_and(|rest| rest.starts_with(b"="))
}
