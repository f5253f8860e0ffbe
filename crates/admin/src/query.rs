//! The arguments of a query, parsed once.
//!
//! Unknown arguments are ignored, as in APISIX. If a name occurs twice, the first value counts; of what decides about a write
//! that is an error.

use crate::answer::Answer;
use crate::control::Wait;
use axum::http::StatusCode;

/// The most arguments that are read, as in nginx. More are ignored, except for a write.
const ARGUMENTS_MAX: usize = 100;

/// The arguments that decide about a write.
const OF_WRITES: [&str; 4] = ["dry_run", "force", "ttl", "wait"];

/// The longest time to live that etcd accepts.
const TTL_SECONDS_MAX: f64 = 9_000_000_000.0;

/// The page sizes that APISIX allows.
const PAGE_SIZES: std::ops::RangeInclusive<f64> = 10.0..=500.0;

/// The decoded names and values of a query.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
    /// Whether there are more, one of which may change the effect of a write.
    has_more: bool,
}

/// The requested part of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    /// The page, from 1.
    pub(crate) number: usize,
    pub(crate) size: usize,
}

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Query {
        let mut rest = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        let pairs = rest.by_ref().take(ARGUMENTS_MAX).map(|(name, value)| (name.into_owned(), value.into_owned()));
        Query { pairs: pairs.collect(), has_more: rest.next().is_some() }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn is(&self, name: &str, value: &str) -> bool {
        self.get(name) == Some(value)
    }

    /// Whether a write is only checked. An unknown value is an error, since its sender does not expect a write.
    pub(crate) fn dry_run(&self) -> Result<bool, Answer> {
        if let Some(name) = self.mentions_dry_run().filter(|name| *name != "dry_run") {
            return Err(Answer::bad(format!("{name}: dry_run should be an argument of its own, written dry_run=true")));
        }
        self.check_unambiguous_write()?;
        match self.get("dry_run") {
            _ if self.has_more => Err(Answer::bad(format!("a write has at most {ARGUMENTS_MAX} arguments"))),
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Answer::bad("invalid argument dry_run: should be true or false")),
        }
    }

    /// The name of an argument that is meant to be dry_run, or in whose value it is: it may be misspelt, behind a semicolon, or have
    /// an encoded `=`.
    pub(crate) fn mentions_dry_run(&self) -> Option<&str> {
        let mentions = |text: &str| {
            let letters = text.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase());
            letters.collect::<String>().contains("dryrun")
        };
        let is_meant = |(name, value): &&(String, String)| mentions(name) || (name != "api_key" && mentions(value));
        let mut meant = self.pairs.iter().filter(is_meant).map(|(name, _)| name.as_str());
        let first = meant.next()?;
        // A name that is wrong counts more than one that is right.
        Some(std::iter::once(first).chain(meant).find(|name| *name != "dry_run").unwrap_or(first))
    }

    /// Whether nothing that decides about a write occurs twice.
    pub(crate) fn check_unambiguous_write(&self) -> Result<(), Answer> {
        let count = |name: &str| self.pairs.iter().filter(|(known, _)| known == name).count();
        match OF_WRITES.into_iter().find(|name| count(name) > 1) {
            Some(name) => Err(Answer::bad(format!("the argument {name} occurs twice"))),
            None => Ok(()),
        }
    }

    /// The time to live of the written document. 0 is none, as in APISIX's documentation.
    pub(crate) fn ttl_seconds(&self) -> Result<Option<u64>, Answer> {
        let Some(text) = self.get("ttl") else { return Ok(None) };
        match text.trim().parse::<f64>() {
            Ok(0.0) => Ok(None),
            // Both bounds apply, and a fraction of a second is rounded up.
            Ok(seconds) if (0.0..=TTL_SECONDS_MAX).contains(&seconds) => Ok(Some(seconds.ceil() as u64)),
            _ => Err(Answer::bad("invalid argument ttl: should be a number")),
        }
    }

    /// `None`: the whole list, as one of the arguments is missing or not a number.
    pub(crate) fn page(&self) -> Result<Option<Page>, Answer> {
        let number = |name: &str| self.get(name).and_then(|text| text.trim().parse::<f64>().ok());
        let (Some(page), Some(size)) = (number("page"), number("page_size")) else { return Ok(None) };
        if !PAGE_SIZES.contains(&size) {
            return Err(Answer::text(StatusCode::BAD_REQUEST, "page_size must be between 10 and 500"));
        }
        let number = if page >= 1.0 { page as usize } else { 1 };
        Ok(Some(Page { number, size: size as usize }))
    }

    /// The condition for answering a write.
    pub(crate) fn wait(&self) -> Wait {
        match self.is("wait", "stored") {
            true => Wait::Stored,
            false => Wait::Served,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_counts() {
        let query = "b=x&a=%20y&a=z";
        assert_eq!(Query::parse(Some(query)).get("a"), Some(" y"));
        assert_eq!(Query::parse(Some(query)).get("c"), None);
        let too_late = format!("{}a=1", "b&".repeat(ARGUMENTS_MAX));
        assert_eq!(Query::parse(Some(&too_late)).get("a"), None);
    }

    #[test]
    fn times_to_live() {
        let ttl = |text: &str| Query::parse(Some(text)).ttl_seconds().map_err(|answer| answer.status.as_u16());
        assert_eq!(ttl(""), Ok(None));
        assert_eq!(ttl("ttl=0"), Ok(None));
        assert_eq!(ttl("ttl=5"), Ok(Some(5)));
        assert_eq!(ttl("ttl=1.2"), Ok(Some(2)));
        for wrong in ["ttl=", "ttl=x", "ttl=-1", "ttl=NaN", "ttl=inf", "ttl=1e30"] {
            assert_eq!(ttl(wrong), Err(400), "{wrong}");
        }
    }

    #[test]
    fn dry_runs() {
        let dry_run = |text: &str| Query::parse(Some(text)).dry_run().map_err(|answer| answer.status.as_u16());
        assert_eq!(dry_run(""), Ok(false));
        assert_eq!(dry_run("dry_run=false"), Ok(false));
        assert_eq!(dry_run("dry_run=true&x=1&x=2;3"), Ok(true));
        assert_eq!(dry_run("api_key=ci-dry-run"), Ok(false));
        for wrong in [
            "dry_run=false&dry_run=true",
            "x=1;dry_run=true",
            "a;dry-run",
            "ttl=5&ttl=",
            "force=true&force=",
            "dry_run",
            "dry_run=",
            "dry_run=1",
            "dry_run=True",
            "dry_run=no",
            "Dry_Run=true",
            "a&dryrun",
            "dry-run=1",
            "dry_run%3Dtrue",
            "force=true%26dry_run=true",
            "?dry_run=true",
            "x=dry_run%3Dtrue",
            "dry_run_only=true",
        ] {
            assert_eq!(dry_run(wrong), Err(400), "{wrong}");
        }
        let before = "a=1&".repeat(ARGUMENTS_MAX);
        assert_eq!(dry_run(before.trim_end_matches('&')), Ok(false));
        assert_eq!(dry_run(&format!("{before}dry_run=true")), Err(400));
    }

    #[test]
    fn pages() {
        let page = |text: &str| {
            let page = Query::parse(Some(text)).page().map_err(|answer| answer.status.as_u16());
            page.map(|page| page.map(|page| (page.number, page.size)))
        };
        assert_eq!(page("page=2&page_size=10"), Ok(Some((2, 10))));
        assert_eq!(page("page=-1&page_size=500"), Ok(Some((1, 500))));
        assert_eq!(page("page=1"), Ok(None));
        assert_eq!(page("page_size=10"), Ok(None));
        assert_eq!(page("page=x&page_size=10"), Ok(None));
        assert_eq!(page("page=1&page_size=9"), Err(400));
        assert_eq!(page("page=1&page_size=501"), Err(400));
    }
}
