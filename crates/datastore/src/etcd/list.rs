//! Everything below the prefix at one revision, page by page.
//!
//! The first page sets the revision and the others read the same one, so that writes in between are in none. A
//! compaction in between makes that impossible; then the list begins again.

use super::Etcd;
use super::call::Repeat;
use super::error::EtcdError;
use super::layout::is_directory;
use super::message::{KeyValue, Number, RangeRequest, RangeResponse};
use crate::document::{Document, Snapshot};
use crate::key::Key;

/// Keys of the first page, whose size is unknown: 16 of the largest values that etcd accepts by default fit into a
/// response.
const PAGE_KEYS_FIRST: u64 = 16;
const PAGE_KEYS_MAX: u64 = 1000;

/// Intended bytes of keys and values of a page, estimated from the previous page.
const PAGE_BYTES: u64 = 4 * 1024 * 1024;

/// How often a list is started again.
const TRIES_MAX: u32 = 5;

pub(crate) const RANGE: &str = "/v3/kv/range";

/// The result of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListResult {
    /// All documents.
    pub snapshot: Snapshot,
    /// The cluster's identity: revisions of another one have no meaning here.
    pub cluster: u64,
    /// Keys whose values are not text.
    pub unreadable: Vec<Unreadable>,
}

/// A key whose value is not text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// The key in etcd, with the prefix.
    pub key: String,
    /// The reason, for the person who has to fix it.
    pub why: String,
}

impl Etcd {
    /// Lists everything below the prefix.
    ///
    /// # Errors
    /// If no endpoint answers, or etcd refuses.
    pub async fn list(&self) -> Result<ListResult, EtcdError> {
        let mut tries = 1;
        loop {
            match self.list_once().await {
                Err(EtcdError::Compacted { .. }) if tries < TRIES_MAX => tries += 1,
                listed => return listed,
            }
        }
    }

    async fn list_once(&self) -> Result<ListResult, EtcdError> {
        let (mut from, end) = self.layout.range();
        let (mut listed, mut limit, mut revision) = (ListResult::default(), PAGE_KEYS_FIRST, None);
        loop {
            let request = RangeRequest {
                key: from.clone().into(),
                range_end: Some(end.clone().into()),
                limit: Some(Number(limit)),
                revision,
                keys_only: false,
                ..RangeRequest::default()
            };
            let page: RangeResponse = match self.caller.call(RANGE, &request, Repeat::Always).await {
                // Its values are larger than the previous ones: etcd could not send it in time, or it exceeds our
                // bound.
                Err(EtcdError::TooLarge { .. } | EtcdError::Unreachable { is_sent: true, .. })
                    if limit > PAGE_KEYS_FIRST =>
                {
                    limit = PAGE_KEYS_FIRST;
                    continue;
                }
                Err(EtcdError::TooLarge { .. }) if limit > 1 => {
                    limit /= 2;
                    continue;
                }
                page => page?,
            };
            if revision.is_none() {
                revision = Some(page.header.revision);
                listed.snapshot.revision = page.header.revision.0;
                listed.cluster = page.header.cluster_id.0;
            }
            limit = next_limit(&page.kvs);
            let last = page.kvs.last().map(|last| last.key.0.clone());
            page.kvs.into_iter().for_each(|pair| self.take(pair, &mut listed));
            match (page.more, last) {
                (false, _) => return Ok(listed),
                (true, Some(last)) => from = [&*last, &[0]].concat(),
                (true, None) => {
                    let why = "a page is empty although more follow".to_owned();
                    return Err(EtcdError::Unreadable { endpoint: self.caller.urls(), why });
                }
            }
        }
    }

    fn take(&self, pair: KeyValue, listed: &mut ListResult) {
        let Some(key) = self.layout.key_of(&pair.key.0).filter(|key| !is_directory(key, &pair.value.0)) else { return };
        let (document, problem) = document(pair);
        listed.unreadable.extend(problem.map(|why| self.unreadable(&key, why)));
        listed.snapshot.documents.push((key, document));
    }

    pub(crate) fn unreadable(&self, key: &Key, why: String) -> Unreadable {
        let key = format!("{}/{key}", self.prefix());
        tracing::warn!(%key, %why, "etcd: a value is not text and cannot be used");
        Unreadable { key, why }
    }
}

fn next_limit(page: &[KeyValue]) -> u64 {
    let bytes: usize = page.iter().map(|pair| pair.key.0.len() + pair.value.0.len()).sum();
    (PAGE_BYTES * page.len() as u64 / (bytes as u64).max(1)).clamp(1, PAGE_KEYS_MAX)
}

/// The value as text, without interpretation. A value that is not text becomes a text that is not JSON and ends with
/// its readable part, and so is refused: if it were left out, it would count as deleted, and a rule that keeps clients
/// out would be gone.
pub(crate) fn document(pair: KeyValue) -> (Document, Option<String>) {
    let (value, problem) = match String::from_utf8(pair.value.0) {
        Ok(value) => (value, None),
        Err(error) => {
            let why = format!("byte {} is not UTF-8; write JSON", error.utf8_error().valid_up_to());
            let readable = String::from_utf8_lossy(error.as_bytes());
            (format!("(no text: {why}) {readable}"), Some(why))
        }
    };
    let document = Document { value: value.into(), created: pair.create_revision.0, modified: pair.mod_revision.0 };
    (document, problem)
}
