//! What predicates read: the fields of Kong's expressions, and variables as nginx and APISIX name them.
//!
//! A field has a type, no value where the request lacks it, and where [`Field::is_multiple`] says so any number of values.

use crate::Variable;
use crate::variable::HeaderName;
use std::fmt;

/// A named value of a request, or several.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Field {
    /// `http.method`: as it came.
    Method,
    /// `http.host`: in lower case, without port; absent where the request has none.
    Host,
    /// `http.path`: normalised, without query.
    Path,
    /// `http.path.segments.N`: one segment of the normalised path, from 0; a slash at the end begins none.
    Segment(u16),
    /// `http.path.segments.N_M`: the segments from N to M, joined by `/`; absent where there is no M.
    Segments(u16, u16),
    /// `http.path.segments.len`: how many there are.
    SegmentCount,
    /// `http.headers.NAME`: the value of every line of that name.
    Header(HeaderName),
    /// `http.queries.NAME`: the value of every `NAME=value` in the query, both decoded (`+` is a blank); empty for `NAME`
    /// alone. Names are case-sensitive.
    Query(Box<str>),
    /// `net.protocol`: `http` or `https`, of the client's connection.
    Protocol,
    /// `net.src.ip`: the client, after trusted proxies were believed.
    SourceIp,
    /// `net.src.port`: that of the connection's peer.
    SourcePort,
    /// `net.dst.ip`: our address of the connection.
    DestinationIp,
    /// `net.dst.port`: our port of the connection.
    DestinationPort,
    /// `tls.sni`: the server name the client asked for; absent without TLS.
    Sni,
    /// A variable that is none of the above.
    Variable(Variable),
}

/// What kind of values a field has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// Bytes, mostly text.
    Text,
    /// A number of 64 bits.
    Int,
    /// An IPv4 or IPv6 address.
    Ip,
}

/// Why a text names no field of the expression language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldError {
    /// There is none of that name.
    Unknown {
        /// The nearest that there is.
        nearest: Option<String>,
    },
    /// Its last part is wrong.
    Name {
        /// What to write.
        write: String,
    },
}

/// Fields without a name part.
const PLAIN: [(&str, Field); 11] = [
    ("http.method", Field::Method),
    ("http.host", Field::Host),
    ("http.path", Field::Path),
    ("http.path.segments.len", Field::SegmentCount),
    ("net.protocol", Field::Protocol),
    ("net.src.ip", Field::SourceIp),
    ("net.src.port", Field::SourcePort),
    ("net.dst.ip", Field::DestinationIp),
    ("net.dst.port", Field::DestinationPort),
    ("tls.sni", Field::Sni),
    // Found by its prefix, never by this name; here for the list of names.
    ("http.path.segments.N", Field::Segment(0)),
];

impl Field {
    /// Parses a field of the expression language.
    pub fn parse(name: &str) -> Result<Field, FieldError> {
        if let Some((_, field)) = PLAIN.iter().find(|(plain, _)| *plain == name) {
            return Ok(field.clone());
        }
        if let Some(index) = name.strip_prefix("http.path.segments.") {
            return segments(index);
        }
        let named = |prefix: &str| name.strip_prefix(prefix).filter(|part| !part.contains('.'));
        if let Some(part) = named("http.headers.") {
            let write = || FieldError::Name { write: "http.headers.x_name".to_owned() };
            return HeaderName::from_variable(part).map(Field::Header).ok_or_else(write);
        }
        if let Some(part) = named("http.queries.") {
            if part.is_empty() {
                return Err(FieldError::Name { write: "http.queries.name".to_owned() });
            }
            return Ok(Field::Query(part.into()));
        }
        Err(unknown(name))
    }

    /// The type of its values.
    pub fn kind(&self) -> FieldKind {
        match self {
            Field::SegmentCount | Field::SourcePort | Field::DestinationPort => FieldKind::Int,
            Field::SourceIp | Field::DestinationIp => FieldKind::Ip,
            _ => FieldKind::Text,
        }
    }

    /// Whether a request may have several values of it.
    pub fn is_multiple(&self) -> bool {
        matches!(self, Field::Header(_) | Field::Query(_))
    }

    /// Whether every request has a value of it.
    pub fn is_always_there(&self) -> bool {
        matches!(self, Field::Method | Field::Path | Field::SegmentCount | Field::SourceIp | Field::Protocol)
    }

    /// Whether its values are ASCII whatever the client sends.
    pub fn is_ascii(&self) -> bool {
        matches!(self, Field::Path | Field::Segment(_) | Field::Segments(..) | Field::Protocol)
    }
}

fn segments(index: &str) -> Result<Field, FieldError> {
    let write = |write: &str| FieldError::Name { write: write.to_owned() };
    let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse::<u16>().ok(),
        false => None,
    };
    let Some((first, last)) = index.split_once('_') else {
        return number(index).map(Field::Segment).ok_or_else(|| write("http.path.segments.0"));
    };
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first < last => Ok(Field::Segments(first, last)),
        (Some(first), Some(last)) if first == last => Err(write(&format!("http.path.segments.{first}"))),
        (Some(first), Some(last)) => Err(write(&format!("http.path.segments.{last}_{first}"))),
        _ => Err(write("http.path.segments.0_1")),
    }
}

fn unknown(name: &str) -> FieldError {
    // The name part of a header or query is free, so it is compared without.
    let stem = |name: &str| match name.match_indices('.').nth(1) {
        Some((at, _)) => (name[..at].to_owned(), name[at..].to_owned()),
        None => (name.to_owned(), String::new()),
    };
    let (head, part) = stem(name);
    let free = ["http.headers", "http.queries"].map(|head| (head.to_owned() + &part, head));
    let candidates = PLAIN
        .iter()
        .map(|(plain, _)| ((*plain).to_owned(), strsim::damerau_levenshtein(name, plain)))
        .chain(free.map(|(whole, known)| {
            let whole = if part.is_empty() { format!("{whole}.NAME") } else { whole };
            (whole, strsim::damerau_levenshtein(&head, known))
        }));
    let nearest = candidates.min_by_key(|(_, distance)| *distance).filter(|(text, distance)| *distance <= text.len() / 3);
    FieldError::Unknown { nearest: nearest.map(|(text, _)| text) }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Field::Segment(index) => write!(f, "http.path.segments.{index}"),
            Field::Segments(first, last) => write!(f, "http.path.segments.{first}_{last}"),
            Field::Header(name) => write!(f, "http.headers.{}", name.as_str().replace('-', "_")),
            Field::Query(name) => write!(f, "http.queries.{name}"),
            Field::Variable(variable) => write!(f, "{variable}"),
            plain => {
                let known = PLAIN.iter().find(|(_, field)| field == plain);
                f.write_str(known.map_or("", |(name, _)| name))
            }
        }
    }
}
