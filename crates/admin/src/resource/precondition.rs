//! `If-Match` and `If-None-Match` of a write: the revision of the document that a client expects.
//!
//! An ignored condition would let a client overwrite changes it has not seen, so a condition that cannot be parsed is refused.

use crate::answer::Answer;
use crate::commit::precondition_failed;
use axum::http::HeaderMap;
use axum::http::header::{HeaderName, IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
use stillgate_datastore::{Condition, Document, Key};

/// The headers that state a condition of a write (RFC 9110, section 13.1).
const CONDITIONS: [HeaderName; 3] = [IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE];

/// Refuses conditions on a request that is not about one document, since there is no revision to compare.
pub(crate) fn refuse_conditions(headers: &HeaderMap) -> Result<(), Answer> {
    match CONDITIONS.iter().find(|name| headers.contains_key(*name)) {
        Some(name) => Err(Answer::bad(format!(
            "{} is supported in writes of one resource only, at its own path; remove it here",
            shown(name)
        ))),
        None => Ok(()),
    }
}

fn shown(name: &HeaderName) -> &'static str {
    match *name {
        IF_MATCH => "If-Match",
        IF_NONE_MATCH => "If-None-Match",
        _ => "If-Unmodified-Since",
    }
}

/// The condition that a client states.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stated {
    Nothing,
    /// `If-Match: *`.
    Present,
    /// `If-None-Match: *`.
    Absent,
    /// `If-Match` with revisions.
    Revisions(Vec<u64>),
}

impl Stated {
    pub(super) fn of(headers: &HeaderMap) -> Result<Stated, Answer> {
        if headers.contains_key(IF_UNMODIFIED_SINCE) {
            return Err(Answer::bad("If-Unmodified-Since is not supported; send If-Match with the ETag"));
        }
        // Several lines form one list.
        let text = |name| {
            let lines = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default().trim());
            lines.map(str::to_owned).reduce(|all, line| format!("{all},{line}"))
        };
        match (text(IF_MATCH).as_deref(), text(IF_NONE_MATCH).as_deref()) {
            (None, None) => Ok(Stated::Nothing),
            (Some("*"), None) => Ok(Stated::Present),
            (None, Some("*")) => Ok(Stated::Absent),
            (Some(tags), None) => {
                let revision = |tag: &str| tag.trim().trim_start_matches("W/").trim_matches('"').parse().ok();
                // A tag that is not a revision matches none.
                Ok(Stated::Revisions(tags.split(',').filter_map(revision).collect()))
            }
            _ => Err(Answer::bad("send either If-Match or If-None-Match: *")),
        }
    }

    /// Whether it holds for the stored document.
    pub(super) fn check(&self, key: &Key, old: Option<&Document>) -> Result<(), Answer> {
        let modified = old.map(|old| old.modified);
        let holds = match self {
            Stated::Nothing => true,
            Stated::Present => old.is_some(),
            Stated::Absent => old.is_none(),
            Stated::Revisions(revisions) => modified.is_some_and(|modified| revisions.contains(&modified)),
        };
        if holds { Ok(()) } else { Err(precondition_failed(key, modified)) }
    }

    /// The condition of the transaction, after [`check`](Stated::check).
    pub(super) fn condition(&self, old: Option<&Document>) -> Option<Condition> {
        match (self, old) {
            (Stated::Nothing, _) => None,
            (Stated::Absent, _) => Some(Condition::Absent),
            (Stated::Present, _) => Some(Condition::Present),
            (Stated::Revisions(_), old) => old.map(|old| Condition::Modified(old.modified)),
        }
    }
}
