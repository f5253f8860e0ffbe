//! Failures of requests to etcd, and the reactions to them: another endpoint, a new token, a new list.
//!
//! Texts are one line, name the endpoint, and contain no password and no token.

use super::Etcd;
use super::call::Repeat;
use super::layout::is_directory;
use super::message::{EtcdHeader, KeyValue, Number, RangeRequest, RangeResponse};
use crate::document::{Document, Key, Snapshot};
use std::fmt;

/// etcd's message when its space is used up.
const NO_SPACE: &str = "database space exceeded";

/// gRPC codes of etcd's answers.
pub(crate) mod code {
    pub(crate) const INVALID_ARGUMENT: u32 = 3;
    pub(crate) const DEADLINE_EXCEEDED: u32 = 4;
    pub(crate) const PERMISSION_DENIED: u32 = 7;
    pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;
    pub(crate) const FAILED_PRECONDITION: u32 = 9;
    pub(crate) const OUT_OF_RANGE: u32 = 11;
    pub(crate) const UNIMPLEMENTED: u32 = 12;
    pub(crate) const UNAVAILABLE: u32 = 14;
    pub(crate) const UNAUTHENTICATED: u32 = 16;

    /// With these codes a request was refused before it was processed, or as a whole.
    pub(crate) const WITHOUT_EFFECT: &[u32] = &[
        INVALID_ARGUMENT,
        PERMISSION_DENIED,
        RESOURCE_EXHAUSTED,
        FAILED_PRECONDITION,
        OUT_OF_RANGE,
        UNIMPLEMENTED,
        UNAUTHENTICATED,
    ];
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdError {
    /// No connection, a broken one, or no answer in time: the network, or etcd.
    Unreachable {
        /// Its URL in the options.
        endpoint: String,
        /// The reason.
        why: String,
        /// Whether etcd may have received the request.
        is_sent: bool,
    },
    /// etcd refused the request.
    Refused {
        /// Its URL in the options.
        endpoint: String,
        /// The gRPC code.
        code: u32,
        /// etcd's message.
        message: String,
    },
    /// The requested revision is older than the oldest that etcd keeps.
    Compacted {
        /// The oldest revision, if etcd reports it.
        oldest: Option<u64>,
    },
    /// etcd's history differs from the one that was followed: it was restored from a backup, or is another cluster.
    Replaced {
        /// The observed difference.
        why: String,
    },
    /// The endpoint belongs to another cluster than the one that is followed.
    OtherCluster {
        /// Its URL in the options.
        endpoint: String,
        /// Whether that cluster has received the request.
        is_sent: bool,
    },
    /// A response is larger than the bound.
    TooLarge {
        /// Its URL in the options.
        endpoint: String,
        /// The bound.
        bytes_max: usize,
    },
    /// The response is not etcd's.
    Unreadable {
        /// Its URL in the options.
        endpoint: String,
        /// The unexpected part.
        why: String,
    },
}

impl EtcdError {
    /// Whether another member might answer.
    pub(crate) fn is_of_endpoint(&self) -> bool {
        match self {
            EtcdError::Unreachable { .. } | EtcdError::OtherCluster { .. } | EtcdError::Unreadable { .. } => true,
            EtcdError::Refused { code, .. } => matches!(*code, code::UNAVAILABLE | code::DEADLINE_EXCEEDED),
            EtcdError::Compacted { .. } | EtcdError::Replaced { .. } | EtcdError::TooLarge { .. } => false,
        }
    }

    /// Whether the request certainly had no effect.
    pub(crate) fn is_without_effect(&self) -> bool {
        match self {
            EtcdError::Unreachable { is_sent, .. } | EtcdError::OtherCluster { is_sent, .. } => !is_sent,
            // A member without a leader refuses requests before it proposes anything. A change of the leader, or a
            // timeout in etcd, has the same code but leaves the effect of the request unknown.
            EtcdError::Refused { code, message, .. } => {
                code::WITHOUT_EFFECT.contains(code) || *code == code::UNAVAILABLE && message.contains("no leader")
            }
            EtcdError::Compacted { .. } => true,
            EtcdError::Replaced { .. } | EtcdError::TooLarge { .. } | EtcdError::Unreadable { .. } => false,
        }
    }

    /// Whether a new token may help: this one has expired or is unknown (after a restart of etcd), or users have
    /// changed.
    pub(crate) fn is_about_token(&self) -> bool {
        let EtcdError::Refused { code, message, .. } = self else { return false };
        let words = ["invalid auth token", "revision of auth store is old", "user name is empty"];
        *code == code::UNAUTHENTICATED || words.iter().any(|words| message.contains(words))
    }

    /// Whether etcd takes no writes because its space is used up.
    pub(crate) fn is_about_space(&self) -> bool {
        matches!(self, EtcdError::Refused { message, .. } if message.contains(NO_SPACE))
    }

    /// Whether only a new list can help.
    pub(crate) fn needs_list(&self) -> bool {
        // If a watch's response was too large, it would be too large again.
        matches!(self, EtcdError::Compacted { .. } | EtcdError::Replaced { .. } | EtcdError::TooLarge { .. })
    }
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EtcdError::Unreachable { endpoint, why, .. } => write!(f, "etcd at {endpoint}: {why}"),
            EtcdError::Refused { endpoint, message, .. } => {
                write!(f, "etcd at {endpoint} answers: {message}")?;
                f.write_str(advice(message))
            }
            EtcdError::Compacted { oldest: Some(oldest) } => {
                write!(f, "etcd has compacted the requested revision; it keeps revisions from {oldest} on")
            }
            EtcdError::Compacted { oldest: None } => f.write_str("etcd has compacted the requested revision"),
            EtcdError::Replaced { why } => write!(f, "etcd's history is not the one from before: {why}"),
            EtcdError::OtherCluster { endpoint, .. } => {
                write!(f, "etcd at {endpoint} belongs to another cluster; name the members of one cluster only")
            }
            EtcdError::TooLarge { endpoint, bytes_max } => {
                write!(f, "etcd at {endpoint}: the response is larger than {} MiB", bytes_max / (1024 * 1024))
            }
            EtcdError::Unreadable { endpoint, why } => {
                write!(f, "{endpoint} does not answer like etcd's JSON gateway: {why}; is it etcd 3.4 or newer?")
            }
        }
    }
}

impl std::error::Error for EtcdError {}

/// Suggestions for some of etcd's answers.
fn advice(message: &str) -> &'static str {
    const ADVICE: &[(&str, &str)] = &[
        ("authentication failed", "; are `user` and `password` right?"),
        ("user name is empty", "; etcd's authentication is on: set `user` and `password`"),
        ("permission denied", "; grant the user's role read and write below the prefix"),
        (NO_SPACE, "; compact and defragment etcd, then clear its alarm"),
        ("no leader", "; is the majority of its members up?"),
    ];
    ADVICE.iter().find(|(words, _)| message.contains(words)).map_or("", |(_, advice)| advice)
}

// Everything below the prefix at one revision, page by page.
//
// The first page sets the revision and the others read the same one, so that writes in between are in none. A
// compaction in between makes that impossible; then the list begins again.

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
    /// Number of keys below the prefix, with those that are not documents'.
    pub keys: u64,
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
        let mut listed = ListResult::default();
        let header = self.read_pages(None, |pair| self.take(pair, &mut listed)).await?;
        (listed.snapshot.revision, listed.cluster) = (header.revision.0, header.cluster_id.0);
        Ok(listed)
    }

    /// Reads everything at one revision, by default the current one. Returns that revision and the cluster.
    pub(crate) async fn read_pages(
        &self,
        mut revision: Option<Number>,
        mut take: impl FnMut(KeyValue),
    ) -> Result<EtcdHeader, EtcdError> {
        self.caller.choose_cluster().await;
        let (mut from, end) = self.layout.range();
        let (mut limit, mut header) = (PAGE_KEYS_FIRST, None);
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
            // The others are of this cluster: their responses are checked, too.
            self.caller.follow(page.header.cluster_id.0);
            revision.get_or_insert(page.header.revision);
            let header = header.get_or_insert(page.header);
            limit = next_limit(&page.kvs);
            let last = page.kvs.last().map(|last| last.key.0.clone());
            page.kvs.into_iter().for_each(&mut take);
            match (page.more, last) {
                (false, _) => return Ok(*header),
                (true, Some(last)) => from = [&*last, &[0]].concat(),
                (true, None) => {
                    let why = "a page is empty although more follow".to_owned();
                    return Err(EtcdError::Unreadable { endpoint: self.caller.urls(), why });
                }
            }
        }
    }

    fn take(&self, pair: KeyValue, listed: &mut ListResult) {
        listed.keys += 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_an_answer() {
        let check = |code, message: &str, of_endpoint, without_effect, token| {
            let error = EtcdError::Refused { endpoint: "http://e".to_owned(), code, message: message.to_owned() };
            let found = (error.is_of_endpoint(), error.is_without_effect(), error.is_about_token());
            assert_eq!(found, (of_endpoint, without_effect, token), "{message}");
        };
        check(14, "etcdserver: no leader", true, true, false);
        check(14, "etcdserver: leader changed", true, false, false);
        check(14, "etcdserver: request timed out", true, false, false);
        check(4, "context deadline exceeded", true, false, false);
        check(2, "who knows", false, false, false);
        check(16, "etcdserver: invalid auth token", false, true, true);
        check(3, "etcdserver: revision of auth store is old", false, true, true);
        check(3, "etcdserver: user name is empty", false, true, true);
        check(7, "etcdserver: permission denied", false, true, false);
    }

    #[test]
    fn a_message_says_what_to_do() {
        let message = "etcdserver: authentication failed, invalid user ID or password".to_owned();
        let error = EtcdError::Refused { endpoint: "http://e".to_owned(), code: 3, message };
        assert!(error.to_string().ends_with("; are `user` and `password` right?"), "{error}");
    }
}
