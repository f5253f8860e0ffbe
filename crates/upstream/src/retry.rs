//! Decides what to do after a failed try.
//!
//! Four rules, in this order:
//! 1. Nothing is sent twice unless that is safe: no byte of the request was sent, or its method is idempotent and its
//!    whole body can be sent again. Once a byte of the response came, nothing is tried again.
//! 2. A reused connection that ends before any response byte is not evidence against the node, which may just have
//!    closed it for being idle: the same node is tried at once on a fresh connection, and that does not count as a
//!    retry.
//! 3. Failures that the request itself causes are not tried again: a server name that a second node refuses, a request
//!    that a node refuses, one on which a second node closes a new connection without an answer.
//! 4. Otherwise `retries` bounds how often another node is tried, `retry_timeout` until when, and `retry_budget` how
//!    many requests do so at once.
//!
//! Pure: it neither chooses a node nor waits.

/// How a try failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No connection: refused, unreachable, no local resource.
    Connect,
    /// No connection within `timeout.connect`.
    ConnectTimeout,
    /// The connection was reset or closed before the response was complete.
    Reset,
    /// No progress in sending for `timeout.send`.
    SendTimeout,
    /// No byte of the response for `timeout.read`.
    ReadTimeout,
    /// The head of the response did not come within `timeout.per_try`.
    TryTimeout,
    /// The response broke the protocol or a limit.
    BadResponse,
    /// The node refuses the server name of the request, and it is not known that any node accepts it.
    Name,
    /// The node reports that the request itself violates its protocol or its bounds.
    Refused,
}

impl Failure {
    /// Whether it happened before there was a connection; the endpoint must then be set aside.
    pub fn is_connect(self) -> bool {
        matches!(self, Failure::Connect | Failure::ConnectTimeout)
    }

    /// Status for the client if nothing more is tried, and the result that is recorded for the try.
    pub fn status(self) -> u16 {
        match self {
            Failure::Connect | Failure::Reset | Failure::BadResponse | Failure::Name | Failure::Refused => 502,
            Failure::ConnectTimeout | Failure::SendTimeout | Failure::ReadTimeout | Failure::TryTimeout => 504,
        }
    }
}

/// The failed try and what came before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// The kind of failure.
    pub failure: Failure,
    /// It went over a connection that had carried a request before.
    pub reused: bool,
    /// A byte of the request may have reached the kernel.
    pub request_sent: bool,
    /// Another node has closed a new connection on this request, without an answer.
    pub closed_before: bool,
    /// Another node has refused the server name of this request, and it is not known that any node accepts it.
    pub refused_before: bool,
    /// A byte of the response was read.
    pub response_started: bool,
    /// Sending it twice means the same as once (RFC 9110 section 9.2.2).
    pub idempotent: bool,
    /// All of the body read so far is still held, or the request has none.
    pub body_replayable: bool,
    /// Number of tries on other nodes so far.
    pub retries_used: u32,
    /// The upstream's `retries`; `None` for one per other node.
    pub retries: Option<u32>,
    /// Endpoints of the upstream that can be chosen.
    pub choices: usize,
    /// Time since the first try began.
    pub elapsed_ms: u64,
    /// The upstream's `retry_timeout`; zero if there is none.
    pub retry_timeout_ms: u64,
    /// The upstream's `retry_budget` leaves room for a retry, or there is none.
    pub in_budget: bool,
}

impl Attempt {
    /// Whether a new connection ended on a request that the node got, without an answer.
    pub fn is_closed(&self) -> bool {
        self.failure == Failure::Reset && !self.reused && self.request_sent && !self.response_started
    }

    /// Whether this happened at another node, too: the request is the cause.
    pub fn is_closed_again(&self) -> bool {
        self.closed_before && self.is_closed()
    }
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Try the same endpoint on a fresh connection, never on one from the pool.
    RetrySame,
    /// Try another endpoint; if none is left, answer with the status.
    RetryNext(u16),
    /// Another endpoint would be tried, but the budget is spent: answer with the status.
    OverBudget(u16),
    /// Answer with the status, or cut the response if its head has been sent already.
    Fail(u16),
}

/// Decides about a failed try.
pub fn decide(attempt: &Attempt) -> Decision {
    let status = attempt.failure.status();
    let safe = !attempt.request_sent || (attempt.idempotent && attempt.body_replayable);
    let is_final = match attempt.failure {
        Failure::BadResponse | Failure::Refused => true,
        Failure::Name => attempt.refused_before,
        _ => false,
    };
    if !safe || attempt.response_started || is_final {
        return Decision::Fail(status);
    }
    if attempt.reused && attempt.failure == Failure::Reset {
        return Decision::RetrySame;
    }
    if attempt.is_closed_again() {
        return Decision::Fail(status);
    }
    let others = u32::try_from(attempt.choices.saturating_sub(1)).unwrap_or(u32::MAX);
    let in_time = attempt.retry_timeout_ms == 0 || attempt.elapsed_ms < attempt.retry_timeout_ms;
    // Without a second handshake, a node that refuses all names could not be distinguished from a name that all nodes refuse.
    let needs_proof = attempt.failure == Failure::Name && others > 0;
    if (attempt.retries_used < attempt.retries.unwrap_or(others) || needs_proof) && in_time {
        match attempt.in_budget {
            true => Decision::RetryNext(status),
            false => Decision::OverBudget(status),
        }
    } else {
        Decision::Fail(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILURES: [Failure; 9] = [
        Failure::Connect,
        Failure::ConnectTimeout,
        Failure::Reset,
        Failure::SendTimeout,
        Failure::ReadTimeout,
        Failure::TryTimeout,
        Failure::BadResponse,
        Failure::Name,
        Failure::Refused,
    ];

    /// A GET without a body on a fresh connection to the first of three nodes.
    fn get(failure: Failure) -> Attempt {
        Attempt {
            failure,
            reused: false,
            request_sent: !failure.is_connect(),
            closed_before: false,
            refused_before: false,
            response_started: false,
            idempotent: true,
            body_replayable: true,
            retries_used: 0,
            retries: None,
            choices: 3,
            elapsed_ms: 10,
            retry_timeout_ms: 0,
            in_budget: true,
        }
    }

    #[test]
    fn examples() {
        use Decision::*;
        use Failure::*;
        let post = |failure| Attempt { idempotent: false, ..get(failure) };
        let reused = |attempt| Attempt { reused: true, ..attempt };
        let unsent = |attempt| Attempt { request_sent: false, ..attempt };
        let twice = |attempt| Attempt { refused_before: true, ..attempt };
        let used = |retries_used, attempt| Attempt { retries_used, ..attempt };
        let table = [
            ("GET refused", get(Connect), RetryNext(502)),
            ("GET connect timeout", get(ConnectTimeout), RetryNext(504)),
            ("POST refused", post(Connect), RetryNext(502)),
            ("GET reset, fresh", get(Reset), RetryNext(502)),
            ("GET reset, reused", reused(get(Reset)), RetrySame),
            ("POST reset, fresh", post(Reset), Fail(502)),
            ("POST reset, reused", reused(post(Reset)), Fail(502)),
            ("POST unsent, reused", reused(unsent(post(Reset))), RetrySame),
            ("POST unsent, fresh", unsent(post(Reset)), RetryNext(502)),
            ("GET read timeout, reused", reused(get(ReadTimeout)), RetryNext(504)),
            ("POST read timeout", post(ReadTimeout), Fail(504)),
            ("GET try timeout", get(TryTimeout), RetryNext(504)),
            ("POST try timeout", post(TryTimeout), Fail(504)),
            ("GET send timeout", get(SendTimeout), RetryNext(504)),
            ("GET bad response", get(BadResponse), Fail(502)),
            ("GET of an unproved name", unsent(get(Name)), RetryNext(502)),
            ("POST of an unproved name", unsent(post(Name)), RetryNext(502)),
            ("GET of a name that a second node refuses", twice(unsent(get(Name))), Fail(502)),
            ("GET of a refused name, then no connection", twice(get(Connect)), RetryNext(502)),
            ("GET of an unproved name, retries: 0", Attempt { retries: Some(0), ..unsent(get(Name)) }, RetryNext(502)),
            ("GET of an unproved name, none left", used(2, unsent(get(Name))), RetryNext(502)),
            ("GET of an unproved name, one node", Attempt { choices: 1, ..unsent(get(Name)) }, Fail(502)),
            (
                "GET of a name that a second node refuses, retries: 0",
                Attempt { retries: Some(0), ..used(1, twice(unsent(get(Name)))) },
                Fail(502),
            ),
            ("GET refused by the node's HTTP/2", get(Refused), Fail(502)),
            ("GET refused by the node's HTTP/2, reused", reused(get(Refused)), Fail(502)),
            ("GET closed by a second node", Attempt { closed_before: true, ..get(Reset) }, Fail(502)),
            ("GET closed by a second node, reused", Attempt { closed_before: true, ..reused(get(Reset)) }, RetrySame),
            ("GET closed, then no connection", Attempt { closed_before: true, ..get(Connect) }, RetryNext(502)),
            ("GET refused, last retry", used(1, get(Connect)), RetryNext(502)),
            ("GET refused, none left", used(2, get(Connect)), Fail(502)),
            ("GET reset, reused, none left", used(2, reused(get(Reset))), RetrySame),
            ("PUT whose body is gone", Attempt { body_replayable: false, ..reused(get(Reset)) }, Fail(502)),
            ("GET cut in its response", Attempt { response_started: true, ..reused(get(Reset)) }, Fail(502)),
            ("retries: 0", Attempt { retries: Some(0), ..get(Connect) }, Fail(502)),
            ("retries: 5 of one node", Attempt { retries: Some(5), choices: 1, ..get(Connect) }, RetryNext(502)),
            ("no other node", Attempt { choices: 1, ..get(Connect) }, Fail(502)),
            ("over budget", Attempt { in_budget: false, ..get(ConnectTimeout) }, OverBudget(504)),
            ("over budget, same node", Attempt { in_budget: false, ..reused(get(Reset)) }, RetrySame),
            ("over budget, none left", Attempt { in_budget: false, ..used(2, get(Connect)) }, Fail(502)),
            ("retry_timeout just not over", Attempt { retry_timeout_ms: 11, ..get(Connect) }, RetryNext(502)),
            ("retry_timeout over", Attempt { retry_timeout_ms: 10, ..get(ConnectTimeout) }, Fail(504)),
        ];
        for (what, attempt, expected) in table {
            assert_eq!(decide(&attempt), expected, "{what}");
        }
    }

    /// Every combination of the inputs of `decide`, compared with the rules one by one.
    #[test]
    fn every_combination_keeps_the_rules() {
        let bits = 0..1u32 << 8;
        let mut seen = [0usize; 4];
        for (failure, bits) in FAILURES.iter().flat_map(|f| bits.clone().map(move |b| (*f, b))) {
            let bit = |n: u32| bits >> n & 1 == 1;
            for (retries, choices, retries_used, elapsed_ms, retry_timeout_ms) in bounds() {
                let attempt = Attempt {
                    failure,
                    reused: bit(0),
                    request_sent: bit(1),
                    closed_before: bit(6),
                    refused_before: bit(7),
                    response_started: bit(2),
                    idempotent: bit(3),
                    body_replayable: bit(4),
                    retries_used,
                    retries,
                    choices,
                    elapsed_ms,
                    retry_timeout_ms,
                    in_budget: bit(5),
                };
                let decision = decide(&attempt);
                seen[match decision {
                    Decision::RetrySame => 0,
                    Decision::RetryNext(_) => 1,
                    Decision::Fail(_) => 2,
                    Decision::OverBudget(_) => 3,
                }] += 1;
                check_rules(&attempt, decision);
            }
        }
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    }

    /// `(retries, choices, retries_used, elapsed_ms, retry_timeout_ms)`
    fn bounds() -> impl Iterator<Item = (Option<u32>, usize, u32, u64, u64)> {
        let retries = [None, Some(0), Some(1), Some(3)];
        let times = [(0, 0), (900, 0), (900, 1_000), (1_000, 1_000), (1_001, 1_000)];
        retries.into_iter().flat_map(move |retries| {
            (0..4).flat_map(move |choices| {
                (0..4).flat_map(move |used| {
                    times.map(move |(elapsed, timeout)| (retries, choices, used, elapsed, timeout))
                })
            })
        })
    }

    fn check_rules(attempt: &Attempt, decision: Decision) {
        let retried = matches!(decision, Decision::RetrySame | Decision::RetryNext(_));
        if attempt.request_sent && !attempt.idempotent {
            assert!(!retried, "sent twice: {attempt:?}");
        }
        if attempt.request_sent && !attempt.body_replayable {
            assert!(!retried, "half a body: {attempt:?}");
        }
        if attempt.response_started || attempt.failure == Failure::BadResponse {
            assert!(!retried, "response begun: {attempt:?}");
        }
        let is_closed = attempt.failure == Failure::Reset && attempt.request_sent && !attempt.reused;
        let is_refused = attempt.failure == Failure::Name && attempt.refused_before;
        if attempt.failure == Failure::Refused || is_refused || (attempt.closed_before && is_closed) {
            assert!(!retried, "the request is to blame: {attempt:?}");
        }
        match decision {
            Decision::RetrySame => assert!(
                attempt.reused && attempt.failure == Failure::Reset,
                "a fresh connection's failure is the node's: {attempt:?}"
            ),
            Decision::RetryNext(_) | Decision::OverBudget(_) => {
                assert_eq!(attempt.in_budget, retried);
                let others = attempt.choices.saturating_sub(1) as u32;
                let needs_proof = attempt.failure == Failure::Name && others > 0;
                assert!(attempt.retries_used < attempt.retries.unwrap_or(others) || needs_proof);
                let over = attempt.elapsed_ms >= attempt.retry_timeout_ms;
                assert!(attempt.retry_timeout_ms == 0 || !over);
                assert!(!(attempt.reused && attempt.failure == Failure::Reset));
            }
            Decision::Fail(_) => {}
        }
        if let Decision::RetryNext(status) | Decision::OverBudget(status) | Decision::Fail(status) = decision {
            let timeout = format!("{:?}", attempt.failure).ends_with("Timeout");
            assert_eq!(status, if timeout { 504 } else { 502 });
        }
    }
}
