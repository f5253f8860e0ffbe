//! `redirect`: answers with another location.
//!
//! Values from the request are checked when the location is assembled: if they could split the head, the answer is 500.
//! Unlike APISIX, `X-Forwarded-Proto` is used only from trusted proxies, and the port of `http_to_https` is never that
//! of one of our own listeners, which clients may be unable to reach.

use crate::encoding::{Percent, encode};
use crate::patterns::{Flags, GroupsRegex};
use crate::variable_texts::{
    Groups, Language, Replacement, ReplacementPart as Group, group_max, warn_of_group, warn_of_unknown,
};
use regex::bytes::CaptureLocations;
use stillgate_plugin_api::{Answer, Compile, Define, Flow, Metadata, PerWorker, Phase, Phases, Plugin, Request};
use stillgate_route::regex::TooMuchWork;
use stillgate_route::{Lookup, Variable};
use stillgate_schema::kind::list;
use stillgate_schema::{At, Fault, Flag, LocatedKind, Position, TEXT, Text, int, object, text};
use stillgate_wire::{FieldName, FieldValue};

object! {
    /// Redirects requests. Exactly one of `http_to_https`, `uri` and `regex_uri` is needed.
    pub(crate) struct RedirectKeys {
        /// Requests over HTTP are redirected to the same location over HTTPS: GET and HEAD with 301, others with 308.
        http_to_https: bool = Flag => optional;
        /// The location, with variables. `\$name` is literal.
        uri: At<String> = LocatedKind(URI) => optional;
        /// A regular expression, and the replacement of its match in the path; `$1` is a group, `$$` a dollar. A
        /// request whose path does not match continues.
        regex_uri: At<Vec<String>> = LocatedKind(list(TEXT)) => optional;
        /// The status. `http_to_https` has its own.
        ret_code: u16 = int(200, 599) => default(302);
        /// Whether characters that are not allowed in a path are percent-encoded.
        encode_uri: bool = Flag => default(false);
        /// Whether the query of the request is appended, after `&` if the location has a query.
        append_query_string: bool = Flag => default(false);
        any_of {
            "there is no location": http_to_https | uri | regex_uri;
        }
    }
}

object! {
    /// Settings of all redirects; `plugin_attr.redirect` in APISIX.
    pub(crate) struct RedirectMetadata {
        /// The port of `http_to_https`, instead of that of the first listener with TLS; 443 is left out.
        https_port: u16 = int(1, 65535) => optional;
    }
}

const URI: Text<String> = text("a place to go to", |text| match text.len() >= 2 {
    true => Ok(text.to_owned()),
    false => Err(Fault::new("a place to go to has at least two characters")),
});

/// The plugin.
pub(crate) struct Redirect {
    to: To,
    status: u16,
    encodes: bool,
    adds_query: bool,
    own: PerWorker<Search>,
}

enum To {
    /// `http_to_https: false`
    Nowhere,
    Https,
    Location(Box<[RedirectPart]>),
    Matched(Box<(GroupsRegex, Replacement)>),
}

#[derive(Debug, PartialEq)]
enum RedirectPart {
    Text(Box<[u8]>),
    Variable(Variable),
}

/// A worker's state for assembling locations.
struct Search {
    /// A copy of the plugin's, since searching takes memory.
    regex: Option<(GroupsRegex, CaptureLocations)>,
    place: RedirectLocation,
    buffer: Vec<u8>,
}

/// A location being assembled.
#[derive(Default)]
struct RedirectLocation {
    text: Vec<u8>,
    has_query: bool,
    encodes: bool,
}

const LOCATION: FieldName<'static> = FieldName::constant("Location");

impl Define for Redirect {
    type Keys = RedirectKeys;
    const NAME: &'static str = "redirect";
    const PRIORITY: i32 = 900;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(keys: RedirectKeys, cx: &mut Compile<'_>) -> Option<Redirect> {
        let to = match (keys.http_to_https, keys.uri, keys.regex_uri) {
            (Some(true), None, None) if keys.append_query_string => {
                let what = "only one of `http_to_https` and `append_query_string` can be configured";
                return refuse("append_query_string", cx.at, what, "the query is kept without it", cx);
            }
            (Some(true), None, None) => To::Https,
            (_, None, None) => To::Nowhere,
            (None, Some(uri), None) => To::Location(parse(&uri, cx)),
            (None, None, Some(pair)) => To::Matched(Box::new(by_regex(&pair, cx)?)),
            _ => {
                let what = "only one of `http_to_https`, `uri` and `regex_uri` can be configured";
                cx.sink.error(cx.at, cx.path, Fault::new(what).hint("keep one of them"));
                return None;
            }
        };
        Some(Redirect {
            to,
            status: keys.ret_code,
            encodes: keys.encode_uri,
            adds_query: keys.append_query_string,
            own: PerWorker::new(),
        })
    }
}

impl Metadata for Redirect {
    type Metadata = RedirectMetadata;
}

fn refuse<T>(key: &'static str, at: Position, what: &str, hint: &str, cx: &mut Compile<'_>) -> Option<T> {
    cx.sink.error(at, &cx.path.key(key), Fault::new(what).hint(hint));
    None
}

fn by_regex(pair: &At<Vec<String>>, cx: &mut Compile<'_>) -> Option<(GroupsRegex, Replacement)> {
    let [regex, replacement] = &pair.value[..] else {
        let hint = "write a regular expression and what takes the place of its match";
        return refuse("regex_uri", pair.at, "`regex_uri` has two items", hint, cx);
    };
    let path = cx.path.key("regex_uri");
    let regex = GroupsRegex::compile(regex, Flags::default(), &cx.sink.budget());
    let replacement = Replacement::parse(replacement, Language::Substitution, &mut |_| {}).map_err(Fault::new);
    match (regex, replacement) {
        (Ok(regex), Ok(replacement)) => {
            let groups = regex.regex().captures_len() - 1;
            warn_of_group(group_max(replacement.0.iter()), groups, pair.at, &path.index(1), cx.sink);
            return Some((regex, replacement));
        }
        (Err(fault), _) => cx.sink.error(pair.at, &path.index(0), fault),
        (_, Err(fault)) => cx.sink.error(pair.at, &path.index(1), fault),
    }
    None
}

/// Unlike in other texts with variables, `\$name` keeps its backslash, and other backslashes are removed.
fn parse(uri: &At<String>, cx: &mut Compile<'_>) -> Box<[RedirectPart]> {
    let (mut parts, mut plain) = (Vec::new(), String::new());
    let mut rest = &*uri.value;
    while let Some(at) = rest.find(['$', '\\']) {
        plain.push_str(&rest[..at]);
        let (sign, behind) = (rest.as_bytes()[at], &rest[at + 1..]);
        let escaped = behind.strip_prefix('$').map(|behind| split_name(behind).0).filter(|name| !name.is_empty());
        let braced = behind
            .strip_prefix('{')
            .map(split_name)
            .and_then(|(name, after)| after.strip_prefix('}').filter(|_| !name.is_empty()).map(|after| (name, after)));
        let bare = Some(split_name(behind)).filter(|(name, _)| !name.is_empty());
        rest = match (sign, escaped, braced.or(bare)) {
            (b'\\', Some(name), _) => {
                plain.push_str(&rest[at..at + 2 + name.len()]);
                &rest[at + 2 + name.len()..]
            }
            (b'\\', None, _) => behind,
            (_, _, Some((name, after))) => {
                parts.extend(text_part(&mut plain));
                match Variable::parse_late(name) {
                    Ok(variable) => parts.push(RedirectPart::Variable(variable)),
                    Err(error) => warn_of_unknown(&error, uri.at, &cx.path.key("uri"), cx.sink),
                }
                after
            }
            _ => {
                plain.push('$');
                behind
            }
        };
    }
    plain.push_str(rest);
    parts.extend(text_part(&mut plain));
    parts.into()
}

fn split_name(text: &str) -> (&str, &str) {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.split_at(text.bytes().position(|byte| !is_name(byte)).unwrap_or(text.len()))
}

fn text_part(plain: &mut String) -> Option<RedirectPart> {
    let text = std::mem::take(plain);
    (!text.is_empty()).then(|| RedirectPart::Text(text.into_bytes().into()))
}

impl Plugin for Redirect {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        self.own.with(|| self.search(), |search| self.redirect(request, search))
    }
}

impl Redirect {
    fn search(&self) -> Search {
        let regex = match &self.to {
            To::Matched(matched) => Some((matched.0.clone(), matched.0.regex().capture_locations())),
            _ => None,
        };
        Search { regex, place: RedirectLocation::default(), buffer: Vec::new() }
    }

    fn redirect(&self, request: &mut Request<'_>, search: &mut Search) -> Flow {
        let Search { regex, place, buffer } = search;
        place.begin(self.encodes);
        let status = match &self.to {
            To::Nowhere => return Flow::Continue,
            To::Https if request.facts.scheme_of_client() == b"http" => {
                place.put_https(request, buffer);
                if matches!(request.facts.method(), b"GET" | b"HEAD") { 301 } else { 308 }
            }
            To::Https => return Flow::Continue,
            To::Location(parts) => {
                place.put_parts(parts, request, buffer);
                self.status
            }
            To::Matched(matched) => {
                let (regex, locations) = regex.as_mut().expect("made with the plugin's");
                let mut decoded = Vec::new();
                let path = request.facts.path.map_or(&b"/"[..], |path| path.text(&mut decoded));
                let found = match regex.find(locations, path) {
                    Ok(Some(found)) => found,
                    Ok(None) => return Flow::Continue,
                    Err(TooMuchWork) => return Flow::Answer(Answer::page(400)),
                };
                place.put_path(&path[..found.start()]);
                place.put_groups(&matched.1, &Groups::of(locations, path));
                place.put_path(&path[found.end()..]);
                self.status
            }
        };
        if let Some(query) = request.facts.query().filter(|query| self.adds_query && !query.is_empty()) {
            place.text.push(if place.has_query { b'&' } else { b'?' });
            place.text.extend_from_slice(query);
        }
        match FieldValue::new(&place.text) {
            Ok(value) => request.response.add(LOCATION, value),
            Err(_) => return Flow::Answer(Answer::page(500)),
        }
        Flow::Answer(Answer::page(status))
    }
}

impl RedirectLocation {
    fn begin(&mut self, encodes: bool) {
        self.text.clear();
        (self.has_query, self.encodes) = (false, encodes);
    }

    /// Appends a text. Everything after the first `?` is never encoded.
    fn put(&mut self, text: &[u8], percent: Percent) {
        let path = match text.iter().position(|byte| *byte == b'?') {
            _ if self.has_query => 0,
            Some(end) => end,
            None => text.len(),
        };
        match self.encodes {
            true => encode(&text[..path], percent, &mut self.text),
            false => self.text.extend_from_slice(&text[..path]),
        }
        self.text.extend_from_slice(&text[path..]);
        self.has_query |= path < text.len();
    }

    /// Appends a part of the path, which is decoded: it stays one, whatever its characters mean in a location.
    fn put_path(&mut self, text: &[u8]) {
        encode(text, Percent::Encoded, &mut self.text);
    }

    fn put_parts(&mut self, parts: &[RedirectPart], request: &Request<'_>, buffer: &mut Vec<u8>) {
        for part in parts {
            match part {
                RedirectPart::Text(text) => self.put(text, Percent::Encoded),
                RedirectPart::Variable(variable) => {
                    let value = request.value(variable, buffer).unwrap_or_default();
                    match variable {
                        Variable::RouteParam(_) | Variable::Uri => self.put_path(value),
                        _ => self.put(value, Percent::Encoded),
                    }
                }
            }
        }
    }

    fn put_groups(&mut self, replacement: &Replacement, groups: &Groups<'_>) {
        for part in &replacement.0 {
            match part {
                Group::Text(text) => self.put(text, Percent::Encoded),
                Group::Group(group) => self.put_path(groups.get(*group)),
                Group::Variable(..) => {}
            }
        }
    }

    fn put_https(&mut self, request: &Request<'_>, buffer: &mut Vec<u8>) {
        self.text.extend_from_slice(b"https://");
        self.put(request.facts.host, Percent::Kept);
        let of_metadata = request.metadata::<RedirectMetadata>(Redirect::NAME).and_then(|metadata| metadata.https_port);
        if let Some(port) = of_metadata.or(request.facts.https_port).filter(|port| *port != 443) {
            self.text.extend_from_slice(format!(":{port}").as_bytes());
        }
        self.put(request.value(&Variable::RequestUri, buffer).unwrap_or_default(), Percent::Kept);
    }
}
