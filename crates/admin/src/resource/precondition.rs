//! `If-Match` and `If-None-Match` of a write: which revision of a document a client means.

use crate::answer::Answer;
use crate::commit::precondition_failed;
use axum::http::HeaderMap;
use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use stillgate_datastore::{Condition, Document, Key};

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
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default().trim());
        match (text(IF_MATCH), text(IF_NONE_MATCH)) {
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
