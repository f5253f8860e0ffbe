//! Commits a transaction: conditions as compares, writes as operations, a lease for each time to live.
//!
//! A single request, so etcd applies it completely or not at all. A transaction that may have reached etcd is never
//! sent again: without an answer it is unknown whether it was applied, and the error reports that.

use super::Etcd;
use super::call::Repeat;
use super::error::{EtcdError, RANGE, code};
use super::message::{
    Compare, EtcdOperation, LeaseRequest, LeaseResponse, Number, OperationResponse, RangeRequest, RangeResponse,
    TxnRequest, TxnResponse,
};
use crate::document::{Batch, Document, Event, Key};
use crate::transaction::{CommitError, Condition, ReferenceCheck, Transaction, WRITES_MAX, Write};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

const TXN: &str = "/v3/kv/txn";
const LEASE_GRANT: &str = "/v3/lease/grant";

impl Etcd {
    /// [`Etcd::commit`] for a transaction that has waited for others since it arrived. While etcd hangs, each would wait for an
    /// answer of its own, one after the other; so one that has waited for most of its time is not sent.
    ///
    /// # Errors
    /// As for [`Etcd::commit`].
    pub async fn commit_queued(&self, transaction: &Transaction, arrived: Instant) -> Result<Batch, CommitError> {
        // Each endpoint has been asked once: one of several may hang alone.
        let is_silent = self.unanswered_writes.load(Ordering::Relaxed) >= self.caller.endpoints();
        let waited = arrived.elapsed();
        if is_silent && 2 * waited >= self.caller.timeout {
            let why = format!(
                "etcd has not answered the writes before this one, which has waited for {} ms; nothing was changed",
                waited.as_millis()
            );
            return Err(CommitError::Unavailable(why));
        }
        self.commit(transaction).await
    }

    /// Commits a transaction, and returns its changes. The author is not written: etcd has no place for it.
    ///
    /// A time to live that is shorter than etcd's shortest (a few seconds, from its election timeout) becomes that one.
    ///
    /// # Errors
    /// See [`CommitError`]. [`CommitError::Unavailable`] mentions if it is unknown whether the transaction was applied.
    pub async fn commit(&self, transaction: &Transaction) -> Result<Batch, CommitError> {
        let unreferenced = oldest_of_each_path(&transaction.unreferenced);
        let conditions = transaction.conditions.len() + unreferenced.len();
        for (what, count) in [("writes", transaction.writes.len()), ("conditions", conditions)] {
            if count > WRITES_MAX {
                let why = format!("{count} {what} in one transaction; etcd takes at most {WRITES_MAX}: split it");
                return Err(CommitError::TooLarge(why));
            }
        }
        let leases = self.leases(&transaction.writes).await?;
        let keys = transaction.conditions.iter();
        let request = TxnRequest {
            compare: keys
                .clone()
                .map(|(key, condition)| self.compare(key, *condition))
                .chain(unreferenced.iter().map(|(below, since)| self.compare_below(below, *since)))
                .collect(),
            success: transaction.writes.iter().map(|write| self.operation(write, &leases)).collect(),
            failure: keys
                .map(|(key, _)| self.look(key))
                .chain(unreferenced.iter().map(|(below, since)| self.look_below(below, *since)))
                .collect(),
        };
        let answer: Result<TxnResponse, EtcdError> = self.caller.call(TXN, &request, Repeat::WithoutEffect).await;
        self.is_full.store(answer.as_ref().is_err_and(EtcdError::is_about_space), Ordering::Relaxed);
        self.note_write(answer.as_ref().err());
        let answer = answer.map_err(|error| refused(&error))?;
        match answer.succeeded {
            true => Ok(batch(transaction, answer)),
            false => Err(self.conflict(transaction, answer)),
        }
    }

    /// Writes a node's report about itself, where those of APISIX's data planes are. Followers of documents skip it.
    ///
    /// # Errors
    /// etcd cannot be reached, or refuses it: the user may be allowed to read only.
    pub async fn report(&self, node: &str, report: String, ttl_seconds: u64) -> Result<(), EtcdError> {
        let request = LeaseRequest { ttl: Number(ttl_seconds) };
        let lease: LeaseResponse = self.caller.call(LEASE_GRANT, &request, Repeat::Always).await?;
        let key = self.layout.name_of_report(node).into();
        let put = EtcdOperation::Put { key, value: report.into_bytes().into(), lease: Some(lease.id), prev_kv: false };
        let request = TxnRequest { compare: Vec::new(), success: vec![put], failure: Vec::new() };
        self.caller.call::<TxnResponse>(TXN, &request, Repeat::Always).await.map(drop)
    }

    /// The reports of all nodes, at most `count`.
    ///
    /// # Errors
    /// etcd cannot be reached, or refuses it.
    pub async fn reports(&self, count: u64) -> Result<Vec<Vec<u8>>, EtcdError> {
        let (key, end) = self.layout.reports();
        let (key, range_end) = (key.into(), Some(end.into()));
        let request = RangeRequest { key, range_end, limit: Some(Number(count)), ..RangeRequest::default() };
        let answer: RangeResponse = self.caller.call(RANGE, &request, Repeat::Always).await?;
        Ok(answer.kvs.into_iter().map(|kv| kv.value.0).collect())
    }

    /// Grants one lease for each time to live. Those of a failed transaction expire.
    async fn leases(&self, writes: &[Write]) -> Result<BTreeMap<u64, Number>, CommitError> {
        let mut leases = BTreeMap::new();
        for write in writes {
            let Write::Put { ttl_seconds: Some(ttl), .. } = write else { continue };
            if !leases.contains_key(ttl) {
                let request = LeaseRequest { ttl: Number(*ttl) };
                // A lease that was granted twice is harmless, and expires.
                let lease: Result<LeaseResponse, _> = self.caller.call(LEASE_GRANT, &request, Repeat::Always).await;
                self.note_write(lease.as_ref().err());
                leases.insert(*ttl, lease.map_err(|error| not_made(&error))?.id);
            }
        }
        Ok(leases)
    }

    fn note_write(&self, error: Option<&EtcdError>) {
        match error {
            Some(EtcdError::Unreachable { .. }) => {
                self.unanswered_writes.fetch_add(1, Ordering::Relaxed);
            }
            _ => self.unanswered_writes.store(0, Ordering::Relaxed),
        }
    }

    fn compare(&self, key: &Key, condition: Condition) -> Compare {
        let (target, result, create_revision, mod_revision) = match condition {
            Condition::Absent => ("CREATE", "EQUAL", Some(Number(0)), None),
            Condition::Present => ("CREATE", "GREATER", Some(Number(0)), None),
            Condition::Modified(revision) => ("MOD", "EQUAL", None, Some(Number(revision))),
        };
        Compare { key: self.layout.name_of(key).into(), range_end: None, target, result, create_revision, mod_revision }
    }

    /// Holds if no document below a path was written after a revision.
    fn compare_below(&self, below: &str, since: u64) -> Compare {
        let (key, end) = self.layout.range_below(below);
        Compare {
            key: key.into(),
            range_end: Some(end.into()),
            target: "MOD",
            result: "LESS",
            create_revision: None,
            mod_revision: Some(Number(since + 1)),
        }
    }

    fn operation(&self, write: &Write, leases: &BTreeMap<u64, Number>) -> EtcdOperation {
        match write {
            Write::Put { key, value, ttl_seconds } => EtcdOperation::Put {
                key: self.layout.name_of(key).into(),
                value: value.as_bytes().to_vec().into(),
                lease: ttl_seconds.and_then(|ttl| leases.get(&ttl).copied()),
                // Returns the previous document, if there was one.
                prev_kv: true,
            },
            Write::Delete { key } => EtcdOperation::Delete { key: self.layout.name_of(key).into() },
        }
    }

    fn look(&self, key: &Key) -> EtcdOperation {
        let key = self.layout.name_of(key).into();
        EtcdOperation::Range(RangeRequest { key, keys_only: true, ..RangeRequest::default() })
    }

    fn look_below(&self, below: &str, since: u64) -> EtcdOperation {
        let (key, end) = self.layout.range_below(below);
        EtcdOperation::Range(RangeRequest {
            key: key.into(),
            range_end: Some(end.into()),
            limit: Some(Number(1)),
            min_mod_revision: Some(Number(since + 1)),
            keys_only: true,
            ..RangeRequest::default()
        })
    }

    /// The first condition that etcd found violated.
    fn conflict(&self, transaction: &Transaction, answer: TxnResponse) -> CommitError {
        let mut found = answer.responses.into_iter().map(|response| {
            let range = response.response_range.unwrap_or_default();
            range.kvs.into_iter().next()
        });
        for (key, condition) in &transaction.conditions {
            let modified = found.next().flatten().map(|pair| pair.mod_revision.0);
            let holds = match condition {
                Condition::Absent => modified.is_none(),
                Condition::Present => modified.is_some(),
                Condition::Modified(revision) => modified == Some(*revision),
            };
            if !holds {
                return CommitError::Conflict { key: key.clone(), modified };
            }
        }
        // The remaining responses are about documents that may refer to something.
        let written = found.flatten().find_map(|pair| Some((self.layout.key_of(&pair.key.0)?, pair.mod_revision.0)));
        match written {
            Some((key, modified)) => CommitError::Conflict { key, modified: Some(modified) },
            None => CommitError::Unavailable(
                "etcd refused the transaction, although its conditions hold; nothing was changed".to_owned(),
            ),
        }
    }
}

/// One condition for each path: it ignores which texts the documents must not mention.
fn oldest_of_each_path(conditions: &[ReferenceCheck]) -> BTreeMap<&str, u64> {
    let mut oldest = BTreeMap::new();
    for condition in conditions {
        let since = oldest.entry(condition.below.as_str()).or_insert(condition.since);
        *since = condition.since.min(*since);
    }
    oldest
}

fn batch(transaction: &Transaction, answer: TxnResponse) -> Batch {
    let revision = answer.header.revision.0;
    let made = transaction.writes.iter().zip(answer.responses);
    Batch { revision, events: made.filter_map(|(write, response)| event(write, response, revision)).collect() }
}

/// `None` if there was nothing to delete.
fn event(write: &Write, response: OperationResponse, revision: u64) -> Option<Event> {
    let key = write.key().clone();
    match write {
        Write::Put { value, .. } => {
            let previous = response.response_put.and_then(|put| put.prev_kv);
            let created = previous.map_or(revision, |previous| previous.create_revision.0);
            let document = Document { value: value.as_str().into(), created, modified: revision };
            Some(Event { key, document: Some(document) })
        }
        Write::Delete { .. } => {
            let deleted = response.response_delete_range.is_some_and(|response| response.deleted.0 > 0);
            deleted.then_some(Event { key, document: None })
        }
    }
}

fn refused(error: &EtcdError) -> CommitError {
    match error.is_without_effect() {
        true => not_made(error),
        false => CommitError::Unavailable(format!(
            "{error}; it is unknown whether the change was made: read the resource to find out"
        )),
    }
}

fn not_made(error: &EtcdError) -> CommitError {
    match error {
        EtcdError::Refused { code, message, .. } if is_too_large(*code, message) => {
            CommitError::TooLarge(format!("{error}; nothing was changed"))
        }
        _ => CommitError::Unavailable(format!("{error}; nothing was changed")),
    }
}

/// Recognised by the message: a full disk has the same code.
fn is_too_large(code: u32, message: &str) -> bool {
    let words = ["request is too large", "too many operations", "too large lease TTL"];
    words.iter().any(|words| message.contains(words))
        || code == code::RESOURCE_EXHAUSTED && message.contains("larger than max")
}
