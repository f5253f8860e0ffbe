//! `referer-restriction`: admits only requests from pages of some hosts, or refuses those from some.
//!
//! It distinguishes pages of other sites from one's own, and nothing more: a client other than a browser can send any
//! value.

use crate::access_list::{AccessList, MESSAGE};
use std::borrow::Cow;
use stillgate_plugin_api::{Answer, Compile, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_schema::{Fault, Flag, Text, object, some, text};
use stillgate_wire::FieldName;

object! {
    /// Admits only requests from pages of some hosts, or refuses those from some.
    pub(crate) struct RefererRestrictionKeys {
        /// Hosts whose pages may send requests, and no others: `a.example`, or `*.example` for all names with that
        /// suffix. Cannot be combined with `blacklist`.
        whitelist: Vec<String> = some(PATTERN) => optional;
        /// Hosts whose pages may not send requests.
        blacklist: Vec<String> = some(PATTERN) => optional;
        /// Whether requests without `Referer`, or with an invalid one, are admitted.
        bypass_missing: bool = Flag => default(false);
        /// `message` of the answer.
        message: String = MESSAGE => default("Your referer host is not allowed".to_owned());
        any_of { "there is no list": whitelist | blacklist; }
    }
}

/// A host, or `*` and a suffix of hosts; in lower case.
const PATTERN: Text<String> = text("a host name", |text| {
    let name = text.strip_prefix('*').unwrap_or(text);
    match !name.is_empty() && name.bytes().all(is_host) {
        true => {
            Ok(text.strip_suffix('.').filter(|text| !matches!(*text, "" | "*")).unwrap_or(text).to_ascii_lowercase())
        }
        false => Err(Fault::new(format!("{text:?} is not a host name"))
            .hint("write it like \"a.example\", or like \"*.example\" for all names with that suffix")),
    }
})
.pattern(r"^\*?[0-9a-zA-Z\-._\[\]:]+$");

fn is_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'[' | b']' | b':')
}

/// The plugin.
pub(crate) struct RefererRestriction {
    hosts: AccessList<Hosts>,
    bypasses_missing: bool,
    rejected: Answer,
}

/// Names, and suffixes of names.
struct Hosts {
    /// Sorted.
    names: Box<[Box<[u8]>]>,
    /// The texts after `*`.
    ends: Box<[Box<[u8]>]>,
}

impl Define for RefererRestriction {
    type Keys = RefererRestrictionKeys;
    const NAME: &'static str = "referer-restriction";
    const PRIORITY: i32 = 2990;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: RefererRestrictionKeys, cx: &mut Compile<'_>) -> Option<RefererRestriction> {
        let listed = AccessList::of(("whitelist", keys.whitelist), ("blacklist", keys.blacklist), cx)?;
        Some(RefererRestriction {
            hosts: listed.try_map(|patterns| Some(Hosts::new(&patterns)))?,
            bypasses_missing: keys.bypass_missing,
            rejected: Answer::object(403, "message", &keys.message),
        })
    }
}

const REFERER: FieldName<'static> = FieldName::constant("Referer");

impl Plugin for RefererRestriction {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let is_admitted = match request.first_header(REFERER).and_then(host_of) {
            // An invalid port makes the field invalid, and does not hide the host.
            Some((host, is_valid)) => {
                (is_valid || self.bypasses_missing) && self.hosts.admits(|hosts| hosts.have(&host))
            }
            None => self.bypasses_missing,
        };
        if is_admitted { Flow::Continue } else { Flow::Answer(self.rejected.clone()) }
    }
}

impl Hosts {
    fn new(patterns: &[String]) -> Hosts {
        let (mut names, mut ends) = (Vec::new(), Vec::new());
        for pattern in patterns {
            match pattern.strip_prefix('*') {
                Some(end) => ends.push(Box::from(end.as_bytes())),
                None => names.push(Box::from(pattern.as_bytes())),
            }
        }
        names.sort_unstable();
        Hosts { names: names.into(), ends: ends.into() }
    }

    /// `host` may be in any case.
    fn have(&self, host: &[u8]) -> bool {
        let ends_so =
            |end: &[u8]| host.len().checked_sub(end.len()).is_some_and(|from| host[from..].eq_ignore_ascii_case(end));
        let in_order = |name: &[u8]| name.iter().copied().cmp(host.iter().map(u8::to_ascii_lowercase));
        self.names.binary_search_by(|name| in_order(name)).is_ok() || self.ends.iter().any(|end| ends_so(end))
    }
}

/// The host of a URL, and whether the port behind it is valid; `None`: it is not an HTTP URL.
///
/// Parsed like browsers do (WHATWG URL): a scheme in any case, any number of slashes or backslashes, a name and a
/// password up to the last `@`, a host that may be percent-encoded or end with a dot. As in APISIX, `//a.example/b` is
/// a URL, too. Characters that are invalid in a host, which could hide another one, make it invalid.
fn host_of(referer: &[u8]) -> Option<(Cow<'_, [u8]>, bool)> {
    let is_slash = |byte: &u8| matches!(byte, b'/' | b'\\');
    let rest = match without_scheme(referer) {
        Some(rest) => &rest[rest.iter().take_while(|byte| is_slash(byte)).count()..],
        None => referer.strip_prefix(b"//")?,
    };
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'\\' | b'?' | b'#')).unwrap_or(rest.len());
    let authority = match memchr::memrchr(b'@', &rest[..end]) {
        Some(at) => &rest[at + 1..end],
        None => &rest[..end],
    };
    let host = match authority.first()? {
        b'[' => &authority[..=authority.iter().position(|byte| *byte == b']')?],
        _ => &authority[..authority.iter().position(|byte| *byte == b':').unwrap_or(authority.len())],
    };
    let port = &authority[host.len()..];
    let is_port = port.is_empty() || port[0] == b':' && port[1..].iter().all(u8::is_ascii_digit);
    let host = decoded(host)?;
    let is_sound = |host: &[u8]| !host.is_empty() && host.iter().all(|byte| is_host(*byte) || !byte.is_ascii());
    let host = match host {
        Cow::Borrowed(host) => Cow::Borrowed(without_dot(host)),
        Cow::Owned(host) => Cow::Owned(without_dot(&host).to_vec()),
    };
    is_sound(&host).then_some((host, is_port))
}

/// The rest after `http:` or `https:`.
fn without_scheme(url: &[u8]) -> Option<&[u8]> {
    let colon = url.iter().take(b"https:".len()).position(|byte| *byte == b':')?;
    let is_http = url[..colon].eq_ignore_ascii_case(b"http") || url[..colon].eq_ignore_ascii_case(b"https");
    is_http.then_some(&url[colon + 1..])
}

/// A name with a trailing dot is the same name.
fn without_dot(host: &[u8]) -> &[u8] {
    host.strip_suffix(b".").unwrap_or(host)
}

/// A host with decoded `%XX`; `None`: a `%` without two digits.
fn decoded(host: &[u8]) -> Option<Cow<'_, [u8]>> {
    if !host.contains(&b'%') {
        return Some(Cow::Borrowed(host));
    }
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut out = Vec::with_capacity(host.len());
    let mut rest = host.iter();
    while let Some(byte) = rest.next() {
        out.push(match byte {
            b'%' => (digit(rest.next())? * 16 + digit(rest.next())?) as u8,
            byte => *byte,
        });
    }
    Some(Cow::Owned(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_urls() {
        let check = |referer: &str, expected: Option<&str>| {
            let found = host_of(referer.as_bytes()).filter(|(_, is_valid)| *is_valid);
            assert_eq!(found.as_ref().map(|(host, _)| &**host), expected.map(str::as_bytes), "{referer}");
        };
        for rest in ["", "/", "/a?b", "?b", "#c", ":80", ":8080/a", ":/a"] {
            for scheme in ["http:", "https:", "", "HTTP:", "hTTps:"] {
                check(&format!("{scheme}//A.example{rest}"), Some("A.example"));
            }
        }
        check("http://[::1]:80/a", Some("[::1]"));
        check("https://bücher.example/", Some("bücher.example"));
        let none = [
            "",
            "a.example",
            "http",
            "http:",
            "http://",
            "http://@",
            "ftp://a.example",
            "httpss://a.example",
            "/a",
            "http://.",
        ];
        let hidden = [
            "http://a%zz.example",
            "http://a%2",
            "http://a%00.example",
            "http://a%2fb.example",
            "http://a.example:80:b.example",
            "http://a.example:x/",
            "http://[::1",
            "http://[::1]x",
            "http://a example/",
            "http://a.example\u{7f}/",
        ];
        for referer in none.into_iter().chain(hidden) {
            check(referer, None);
        }
        for same in [
            "http://b.example#.a.example",
            "http://a.example@b.example/",
            "http://u:p@b.example:80/",
            "http://a.example@x@b.example/",
            "http://b.example\\.a.example/",
            "http://b.example\\@a.example/",
            "http://b.example/@a.example",
            "http:\\\\b.example",
            "http:b.example",
            "http:///b.example",
            "http://b.example./",
            "http://%62.example%2E",
        ] {
            check(same, Some("b.example"));
        }
        check("http://b.example?.a.example", Some("b.example"));
    }

    #[test]
    fn hosts_in_lists() {
        let hosts = Hosts::new(&["b.example", "a.example", "*.c.example", "*d.example"].map(str::to_owned));
        for host in ["a.example", "B.Example", "x.c.example", "x.Y.C.example", ".c.example", "d.example", "xd.example"]
        {
            assert!(hosts.have(host.as_bytes()), "{host}");
        }
        for host in ["", "c.example", "xa.example", "a.exampl", "a.example.", "xc.example", "example"] {
            assert!(!hosts.have(host.as_bytes()), "{host}");
        }
    }
}
