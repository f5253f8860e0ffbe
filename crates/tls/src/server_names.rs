//! Entries of `ssls` by server name: which one a handshake gets, and which one's demand on clients holds for a host.
//!
//! These are two questions. A wildcard of `ssls` matches one label, as it does in a certificate (RFC 9525 section 6.3); the one in
//! a route's host matches any number of them. So a route may take hosts that no handshake finds a name for, and a name that
//! requests certificates holds for those as well.

use std::collections::HashMap;

/// The entries by kind of name.
#[derive(Debug)]
pub(crate) struct ServerNames<T> {
    exact: HashMap<Box<[u8]>, T>,
    /// Keyed by the part after the first label.
    wildcard: HashMap<Box<[u8]>, T>,
    /// The entry for every name that is not in `exact`, before wildcards and the default.
    unread: Option<T>,
    /// The entry for every name that is neither in `exact` nor in `wildcard`.
    any: Option<T>,
    default: Option<T>,
    /// Most labels of a key of `wildcard`: a client's host may have any number, and no more of them are compared.
    labels_max: usize,
}

impl<T> Default for ServerNames<T> {
    fn default() -> ServerNames<T> {
        let (exact, wildcard) = (HashMap::new(), HashMap::new());
        ServerNames { exact, wildcard, unread: None, any: None, default: None, labels_max: 0 }
    }
}

impl<T> ServerNames<T> {
    /// `name`: in lower case, as `example.com`, `*.example.com` or `*`.
    pub(crate) fn insert(&mut self, name: &str, entry: T) {
        if name == "*" {
            self.any = Some(entry);
            return;
        }
        match name.strip_prefix("*.") {
            Some(parent) => {
                self.labels_max = self.labels_max.max(parent.split('.').count());
                self.wildcard.insert(parent.as_bytes().into(), entry);
            }
            None => {
                self.exact.insert(name.as_bytes().into(), entry);
            }
        }
    }

    /// For clients that ask for a name that no entry has exactly.
    pub(crate) fn set_unread(&mut self, entry: T) {
        self.unread = Some(entry);
    }

    /// For clients that ask for no name, or for one that is not here.
    pub(crate) fn set_default(&mut self, entry: T) {
        self.default = Some(entry);
    }

    /// The entry for a handshake: the one with that name, else the one with a wildcard in place of its first label, else
    /// the one for any name, else the default. `name` is in lower case, without a dot at its end.
    pub(crate) fn find(&self, name: Option<&[u8]>) -> Option<&T> {
        name.and_then(|name| self.named(name).or(self.any.as_ref())).or(self.default.as_ref())
    }

    /// The entry whose demand holds for a host: the one that a handshake for it would get, if it requests certificates. For a
    /// host that no handshake finds a name for, the nearest wildcard above it that requests them, and only then the one for any
    /// name, or the default if there is none.
    pub(crate) fn demanding(&self, host: &[u8], asks: impl Fn(&T) -> bool) -> Option<&T> {
        if let Some(named) = self.named(host) {
            return Some(named).filter(|entry| asks(entry));
        }
        let dots = host.iter().enumerate().rev().filter(|(_, byte)| **byte == b'.').map(|(at, _)| at);
        let above = dots.take(self.labels_max).filter_map(|dot| self.wildcard.get(&host[dot + 1..]));
        let others = self.any.as_ref().or(self.default.as_ref());
        above.filter(|entry| asks(entry)).last().or(others.filter(|entry| asks(entry)))
    }

    fn named(&self, name: &[u8]) -> Option<&T> {
        let by_wildcard = || match name.iter().position(|byte| *byte == b'.') {
            None | Some(0) => None,
            Some(dot) => self.wildcard.get(&name[dot + 1..]),
        };
        self.exact.get(name).or(self.unread.as_ref()).or_else(by_wildcard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An entry's number, and whether it asks for certificates.
    type Entry = (usize, bool);

    fn names(entries: &[(&str, bool)], default: Option<bool>) -> ServerNames<Entry> {
        let mut names = ServerNames::default();
        for (index, (name, asks)) in entries.iter().enumerate() {
            names.insert(name, (index, *asks));
        }
        if let Some(asks) = default {
            names.set_default((entries.len(), asks));
        }
        names
    }

    #[test]
    fn a_wildcard_asks_of_hosts_at_any_depth() {
        let entries = [
            ("sec.example", true),
            ("*.sec.example", true),
            ("*.open.sec.example", false),
            ("free.sec.example", false),
            ("*.deep.open.sec.example", true),
        ];
        let names = names(&entries, Some(false));
        let check = |host: &str, expected: Option<usize>| {
            let found = names.demanding(host.as_bytes(), |entry| entry.1).map(|entry| entry.0);
            assert_eq!(found, expected, "{host}");
        };
        check("sec.example", Some(0));
        check("a.sec.example", Some(1));
        check("b.a.sec.example", Some(1));
        check("e.d.c.b.a.sec.example", Some(1));
        check("free.sec.example", None);
        check("a.free.sec.example", Some(1));
        // The handshake's entry decides; for deeper names, the nearest one that requests certificates.
        check("a.open.sec.example", None);
        check("b.a.open.sec.example", Some(1));
        check("c.b.deep.open.sec.example", Some(4));
        check("example", None);
        check("xsec.example", None);
        check("a.xsec.example", None);
        check("sec.example.org", None);
        check("", None);
        check(&"a.".repeat(30_000), None);
        check(&("a.".repeat(30_000) + "sec.example"), Some(1));
    }

    #[test]
    fn any_name_comes_after_all_others_and_before_the_default() {
        let with = |any_asks, default| names(&[("a.test", false), ("*.b.test", true), ("*", any_asks)], default);
        let found =
            |names: &ServerNames<Entry>, name: Option<&str>| names.find(name.map(str::as_bytes)).map(|entry| entry.0);
        let names = with(false, None);
        assert_eq!(found(&names, Some("a.test")), Some(0));
        assert_eq!(found(&names, Some("x.b.test")), Some(1));
        assert_eq!(found(&names, Some("x.y.b.test")), Some(2));
        assert_eq!(found(&names, Some("")), Some(2));
        // This entry is for clients that ask for a name.
        assert_eq!(found(&names, None), None);
        assert_eq!(found(&with(false, Some(false)), None), Some(3));
        let demanded = |any_asks, default, host: &str| {
            with(any_asks, default).demanding(host.as_bytes(), |entry| entry.1).map(|entry| entry.0)
        };
        assert_eq!(demanded(true, Some(false), "else.test"), Some(2));
        assert_eq!(demanded(false, Some(true), "else.test"), None);
        assert_eq!(demanded(false, None, "x.y.b.test"), Some(1));
        assert_eq!(demanded(true, None, "a.test"), None);
    }

    /// A reference implementation that compares every name label by label.
    fn by_the_book(entries: &[(String, bool)], default: Option<bool>, host: &str) -> Option<usize> {
        let labels: Vec<&str> = host.split('.').collect();
        let depth = |name: &str| match name.strip_prefix("*.") {
            None => (name == host).then_some(0),
            Some(parent) => {
                let parent: Vec<&str> = parent.split('.').collect();
                (labels.len() > parent.len() && labels.ends_with(&parent)).then(|| labels.len() - parent.len())
            }
        };
        let mut covering: Vec<(usize, usize, bool)> = entries
            .iter()
            .enumerate()
            .filter_map(|(index, (name, asks))| depth(name).map(|depth| (depth, index, *asks)))
            .collect();
        covering.sort_unstable();
        match covering.first() {
            Some((0 | 1, index, asks)) => asks.then_some(*index),
            _ => {
                let nearest = covering.iter().find(|(_, _, asks)| *asks).map(|(_, index, _)| *index);
                nearest.or(default.filter(|asks| *asks).map(|_| entries.len()))
            }
        }
    }

    prop_compose! {
        fn name()(labels in prop::collection::vec("[ab]", 1..5)) -> String {
            labels.join(".")
        }
    }

    proptest! {
        #[test]
        fn the_demand_is_that_of_the_model(
            hosts in prop::collection::vec(name(), 1..8),
            written in prop::collection::btree_map((any::<bool>(), name()), any::<bool>(), 0..8),
            default in prop::option::of(any::<bool>()),
        ) {
            let entries: Vec<(String, bool)> = written
                .into_iter()
                .map(|((is_wildcard, name), asks)| (if is_wildcard { format!("*.{name}") } else { name }, asks))
                .collect();
            let borrowed: Vec<(&str, bool)> = entries.iter().map(|(name, asks)| (name.as_str(), *asks)).collect();
            let names = names(&borrowed, default);
            for host in hosts {
                let found = names.demanding(host.as_bytes(), |entry| entry.1).map(|entry| entry.0);
                prop_assert_eq!(found, by_the_book(&entries, default, &host), "{}", host);
                // A client that comes by the host's own name gets the host's demand, unless only routes reach that deep.
                let shaken = names.find(Some(host.as_bytes())).filter(|entry| entry.1).map(|entry| entry.0);
                prop_assert!(shaken == found || (found.is_some() && names.named(host.as_bytes()).is_none()), "{}", host);
            }
        }
    }
}
