//! Failures of requests to etcd, and the reactions to them: another endpoint, a new token, a new list.
//!
//! Texts are one line, name the endpoint, and contain no password and no token.

use std::fmt;

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
            EtcdError::Unreachable { .. } | EtcdError::Unreadable { .. } => true,
            EtcdError::Refused { code, .. } => matches!(*code, code::UNAVAILABLE | code::DEADLINE_EXCEEDED),
            EtcdError::Compacted { .. } | EtcdError::Replaced { .. } | EtcdError::TooLarge { .. } => false,
        }
    }

    /// Whether the request certainly had no effect.
    pub(crate) fn is_without_effect(&self) -> bool {
        match self {
            EtcdError::Unreachable { is_sent, .. } => !is_sent,
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
        ("database space exceeded", "; compact and defragment etcd, then clear its alarm"),
        ("no leader", "; is the majority of its members up?"),
    ];
    ADVICE.iter().find(|(words, _)| message.contains(words)).map_or("", |(_, advice)| advice)
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
