//! `referer-restriction`: lets requests that come from pages of some hosts in only, or keeps those of some out.
//!
//! It tells pages of other sites from one's own, and nothing more: a client that is no browser sends what it likes.

use crate::lists::{Listed, MESSAGE};
use stillgate_plugin::{Answer, Compile, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_schema::{Fault, Flag, Text, object, some, text};
use stillgate_wire::FieldName;

object! {
    /// Lets requests from pages of some hosts in only, or keeps those of some out.
    pub(crate) struct RefererRestrictionKeys {
        /// Hosts whose pages may ask, and no others: `a.example`, or `*.example` for all names that end so. Not beside
        /// `blacklist`.
        whitelist: Vec<String> = some(PATTERN) => optional;
        /// Hosts whose pages may not ask.
        blacklist: Vec<String> = some(PATTERN) => optional;
        /// Whether requests without `Referer`, or with one that is no URL, are let in.
        bypass_missing: bool = Flag => default(false);
        /// `message` of the answer.
        message: String = MESSAGE => default("Your referer host is not allowed".to_owned());
        any_of { "there is no list": whitelist | blacklist; }
    }
}

/// A host, or `*` and the end of hosts; in lower case.
const PATTERN: Text<String> = text("a host name", |text| {
    let name = text.strip_prefix('*').unwrap_or(text);
    match !name.is_empty() && name.bytes().all(is_host) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(Fault::new(format!("{text:?} is not a host name"))
            .hint("write it like \"a.example\", or like \"*.example\" for all names that end so")),
    }
})
.pattern(r"^\*?[0-9a-zA-Z\-._\[\]:]+$");

fn is_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'[' | b']' | b':')
}

/// The plugin.
pub(crate) struct RefererRestriction {
    hosts: Listed<Hosts>,
    bypasses_missing: bool,
    rejected: Answer,
}

/// Names, and ends of names.
struct Hosts {
    /// Sorted.
    names: Box<[Box<[u8]>]>,
    /// What stands behind `*`.
    ends: Box<[Box<[u8]>]>,
}

impl Define for RefererRestriction {
    type Keys = RefererRestrictionKeys;
    const NAME: &'static str = "referer-restriction";
    const PRIORITY: i32 = 2990;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: RefererRestrictionKeys, cx: &mut Compile<'_>) -> Option<RefererRestriction> {
        let listed = Listed::of(("whitelist", keys.whitelist), ("blacklist", keys.blacklist), cx)?;
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
            Some(host) => self.hosts.admits(|hosts| hosts.have(host)),
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

    /// `host` in any case.
    fn have(&self, host: &[u8]) -> bool {
        let ends_so =
            |end: &[u8]| host.len().checked_sub(end.len()).is_some_and(|from| host[from..].eq_ignore_ascii_case(end));
        let in_order = |name: &[u8]| name.iter().copied().cmp(host.iter().map(u8::to_ascii_lowercase));
        self.names.binary_search_by(|name| in_order(name)).is_ok() || self.ends.iter().any(|end| ends_so(end))
    }
}

/// The host of a URL; `None`: it is no URL of HTTP.
///
/// As APISIX reads it, `//a.example/b` is one. What a browser never sends is none: a name and a password before the host, or
/// what cannot be in a host, behind which another could be hidden.
fn host_of(referer: &[u8]) -> Option<&[u8]> {
    let after_scheme = referer.strip_prefix(b"http:").or_else(|| referer.strip_prefix(b"https:")).unwrap_or(referer);
    let rest = after_scheme.strip_prefix(b"//")?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    let authority = &rest[..end];
    let host = match authority.first()? {
        b'[' => &authority[..=authority.iter().position(|byte| *byte == b']')?],
        _ => &authority[..authority.iter().position(|byte| *byte == b':').unwrap_or(authority.len())],
    };
    let port = &authority[host.len()..];
    let is_port = port.is_empty() || port[0] == b':' && port[1..].iter().all(u8::is_ascii_digit);
    let is_sound = !host.is_empty() && host.iter().all(|byte| is_host(*byte) || !byte.is_ascii());
    (is_port && is_sound).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_urls() {
        let check = |referer: &str, expected: Option<&str>| {
            assert_eq!(host_of(referer.as_bytes()), expected.map(str::as_bytes), "{referer}");
        };
        for rest in ["", "/", "/a?b", "?b", "#c", ":80", ":8080/a", ":/a"] {
            for scheme in ["http:", "https:", ""] {
                check(&format!("{scheme}//A.example{rest}"), Some("A.example"));
            }
        }
        check("http://[::1]:80/a", Some("[::1]"));
        check("https://bücher.example/", Some("bücher.example"));
        let none =
            ["", "a.example", "http:a.example", "http://", "http:///a", "HTTP://a.example", "ftp://a.example", "/a"];
        let hidden = [
            "http://a.example@b.example/",
            "http://u:p@b.example/",
            "http://b.example\\.a.example/",
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
        check("http://b.example#.a.example", Some("b.example"));
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
