//! Counts consecutive requests that an endpoint has ended without an answer.
//!
//! A single one may be the request's fault: a request that makes every node close its connection. A node that ends all
//! requests, for long enough, is at fault itself. Any answer in between restarts the count, so that a client cannot
//! make a node that answers others seem faulty.

/// Number of consecutive requests. Envoy ejects a host after as many failures in a row.
pub const UNANSWERED_REQUESTS: u8 = 5;
/// Time since the first of them, so that a client which sends many at once needs more than a moment without another's
/// answer.
pub const UNANSWERED_MS: u64 = 1_000;

/// The current count of one endpoint in one worker.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UnansweredRequests {
    requests: u8,
    since_ms: u64,
}

impl UnansweredRequests {
    /// Counts one more; returns whether the endpoint is at fault.
    pub(crate) fn note(&mut self, now_ms: u64) -> bool {
        if self.requests == 0 {
            self.since_ms = now_ms;
        }
        self.requests = self.requests.saturating_add(1);
        self.requests >= UNANSWERED_REQUESTS && now_ms.saturating_sub(self.since_ms) >= UNANSWERED_MS
    }

    /// Handles an answer of the endpoint.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.requests = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_over_a_while_are_the_endpoints_fault() {
        let mut run = UnansweredRequests::default();
        assert!((1..UNANSWERED_REQUESTS).all(|_| !run.note(50)), "too few");
        assert!(!run.note(50 + UNANSWERED_MS - 1), "within a moment");
        assert!(run.note(50 + UNANSWERED_MS) && run.note(50 + 9 * UNANSWERED_MS));
        run.end();
        assert!(!run.note(50 + 9 * UNANSWERED_MS), "it has answered since");
        for _ in 0..1_000 {
            assert!(!run.note(50 + 9 * UNANSWERED_MS));
        }
        assert!(run.note(50 + 10 * UNANSWERED_MS));
    }
}
