//! `If-Match` and `If-None-Match` of a write: which revision of a document a client means.
//!
//! A condition that is ignored lets a client overwrite what it has not seen, so what is not understood is refused.

use crate::answer::Answer;
use crate::commit::precondition_failed;
use axum::http::HeaderMap;
use axum::http::header::{HeaderName, IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
use stillgate_datastore::{Condition, Document, Key};

/// What states a condition of a write (RFC 9110, section 13.1).
const CONDITIONS: [HeaderName; 3] = [IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE];

/// Refuses conditions of a request that is not about one document, which would have no revision to compare with.
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
        // Several lines are one list.
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
                // A tag that is no revision matches none.
                Ok(Stated::Revisions(tags.split(',').filter_map(revision).collect()))
            }
            _ => Err(Answer::bad("send either If-Match or If-None-Match: *")),
        }
    }

    /// Whether it holds for what is stored.
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

    /// For the transaction, after [`check`](Stated::check).
    pub(super) fn condition(&self, old: Option<&Document>) -> Option<Condition> {
        match (self, old) {
            (Stated::Nothing, _) => None,
            (Stated::Absent, _) => Some(Condition::Absent),
            (Stated::Present, _) => Some(Condition::Present),
            (Stated::Revisions(_), old) => old.map(|old| Condition::Modified(old.modified)),
        }
    }
}
