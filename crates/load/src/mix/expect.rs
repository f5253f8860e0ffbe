//! The expected answer; any other counts as an error.

use super::errors::quoted;
use memchr::memmem;
use regex::bytes::Regex;
use std::sync::Arc;

/// The expectations of an answer. By default a status of 200 to 399 and any body.
#[derive(Debug, Clone, Default)]
pub struct Expect {
    pub(super) statuses: Statuses,
    pub(super) body: Option<BodyCheck>,
}

impl Expect {
    /// Whether this is one of the expected statuses.
    #[inline]
    pub fn status(&self, status: u16) -> bool {
        self.statuses.contains(status)
    }

    /// Whether the body has to be kept for [`Expect::body`].
    #[inline]
    pub fn needs_body(&self) -> bool {
        self.body.is_some()
    }

    /// Whether this is the expected body.
    pub fn body(&self, body: &[u8]) -> bool {
        match &self.body {
            None => true,
            Some(BodyCheck::Equals(want)) => **want == *body,
            Some(BodyCheck::Contains(want)) => memmem::find(body, want).is_some(),
            Some(BodyCheck::Matches(regex)) => regex.is_match(body),
        }
    }
}

/// One check of a body.
#[derive(Debug, Clone)]
pub(super) enum BodyCheck {
    Equals(Arc<[u8]>),
    Contains(Arc<[u8]>),
    Matches(Regex),
}

/// The valid forms, for messages.
pub(super) const STATUSES_WANTED: &str = "a status of 100 to 599 like 200, a class like 2xx, or a range like 301-303";

/// The first and the last of `200`, `2xx` or `301-303`.
pub(super) fn status_range(text: &str) -> Option<(u16, u16)> {
    let status = |text: &str| text.parse().ok().filter(|n| text.len() == 3 && (STATUS_MIN..=STATUS_MAX).contains(n));
    if let Some(class) = text.strip_suffix("xx").or(text.strip_suffix("XX")) {
        let first = status(&format!("{class}00"))?;
        return Some((first, first + 99));
    }
    match text.split_once('-') {
        Some((from, to)) => Some((status(from)?, status(to)?)).filter(|(from, to)| from <= to),
        None => status(text).map(|status| (status, status)),
    }
}

/// A set of status codes, 100 to 599.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Statuses([u64; WORDS]);

pub(super) const STATUS_MIN: u16 = 100;
pub(super) const STATUS_MAX: u16 = 599;
const WORDS: usize = (STATUS_MAX - STATUS_MIN) as usize / 64 + 1;

impl Statuses {
    pub(super) const EMPTY: Statuses = Statuses([0; WORDS]);

    #[inline]
    fn contains(&self, status: u16) -> bool {
        let bit = usize::from(status.wrapping_sub(STATUS_MIN));
        self.0.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Parses a list like `200,301-303,4xx`; the error is a message.
    pub(super) fn parse(list: &str) -> Result<Statuses, String> {
        let mut statuses = Statuses::EMPTY;
        for item in list.split(',') {
            let (from, to) = status_range(item.trim())
                .ok_or_else(|| format!("{} is here; write {STATUSES_WANTED}", quoted(item)))?;
            statuses.add(from, to);
        }
        Ok(statuses)
    }

    /// Adds the statuses of a range; numbers outside of 100 to 599 are ignored.
    pub(super) fn add(&mut self, from: u16, to: u16) {
        for status in from.max(STATUS_MIN)..=to.min(STATUS_MAX) {
            let bit = usize::from(status - STATUS_MIN);
            self.0[bit / 64] |= 1 << (bit % 64);
        }
    }

    /// Adds the statuses of another set.
    pub(super) fn merge(&mut self, other: &Statuses) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
    }
}

impl Default for Statuses {
    fn default() -> Self {
        let mut statuses = Statuses::EMPTY;
        statuses.add(200, 399);
        statuses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read_or_refused() {
        let check = |list: &str, yes: &[u16], no: &[u16]| {
            let expect = Expect { statuses: Statuses::parse(list).unwrap(), body: None };
            assert!(yes.iter().all(|&status| expect.status(status)), "{list}");
            assert!(no.iter().all(|&status| !expect.status(status)), "{list}");
        };
        check("200", &[200], &[199, 201, 0, 100, 599, 65535]);
        check("100,599", &[100, 599], &[99, 101, 598, 600, 611, 0]);
        check(" 200 , 301-303,4XX", &[200, 301, 302, 303, 400, 499], &[201, 300, 304, 399, 500]);
        check("1xx,2xx,3xx,4xx,5xx", &(100..600).collect::<Vec<_>>(), &[0, 99, 600, 999]);
        let default = Expect::default();
        assert!((0..=u16::MAX).all(|status| default.status(status) == (200..400).contains(&status)));
        for list in [
            "", "20", "2000", "099", "600", "6xx", "0xx", "xx", "2x", "+20", "-200", "303-301", "200-", "200,,201",
            "2xx-3xx", "ok",
        ] {
            let error = Statuses::parse(list).unwrap_err();
            assert!(
                error.ends_with("write a status of 100 to 599 like 200, a class like 2xx, or a range like 301-303"),
                "{error}"
            );
        }
    }

    #[test]
    fn bodies_are_checked() {
        let check = |body: Option<BodyCheck>, bytes: &[u8], want: bool| {
            let expect = Expect { body, ..Expect::default() };
            assert_eq!(expect.body(bytes), want, "{expect:?} {bytes:?}");
        };
        check(None, b"anything", true);
        check(Some(BodyCheck::Equals(b"ok"[..].into())), b"ok", true);
        check(Some(BodyCheck::Equals(b"ok"[..].into())), b"ok\n", false);
        check(Some(BodyCheck::Contains(b"\xff\x00"[..].into())), b"a\xff\x00b", true);
        check(Some(BodyCheck::Contains(b"id"[..].into())), b"i d", false);
        check(Some(BodyCheck::Contains(b""[..].into())), b"", true);
        check(Some(BodyCheck::Matches(Regex::new("^[0-9]+$").unwrap())), b"123", true);
        check(Some(BodyCheck::Matches(Regex::new("^[0-9]+$").unwrap())), b"\xff123", false);
        assert!(!Expect::default().needs_body());
    }
}
