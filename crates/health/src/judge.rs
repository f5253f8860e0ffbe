//! What the outcomes of checks come to: an endpoint's state, and a record for who wants to know why.
//!
//! The rules are those of APISIX's checker (lua-resty-healthcheck): failures of each kind are counted by themselves until
//! a success, successes until a failure. It neither checks nor waits.

use std::fmt;
use std::time::Duration;
use stillgate_config::ActiveCheck;

/// How one check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckOutcome {
    /// With a connection, where that is all that was asked for.
    Connected,
    /// With a response.
    Status(u16),
    /// Without a connection, or with one that broke before there was a response.
    Broken(String),
    /// With something other than an HTTP response.
    NotHttp(String),
    /// Not in time.
    TimedOut,
    /// Here: we lack descriptors, ports or memory. Says nothing of the endpoint.
    NotMade(String),
}

/// The checks of one endpoint so far.
#[derive(Debug, Clone, Default)]
pub struct CheckRecord {
    /// How many were made.
    pub checks: u64,
    /// How many of them failed.
    pub failures: u64,
    /// The last one.
    pub last: Option<Last>,
    /// When, in milliseconds since 1970, the endpoint's state last changed, and why.
    pub changed: Option<(u64, String)>,
}

/// One check that is over.
#[derive(Debug, Clone)]
pub struct Last {
    /// When it ended.
    pub at_unix_ms: u64,
    /// How.
    pub outcome: CheckOutcome,
    /// What it took.
    pub latency: Duration,
}

/// A change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    /// What it is now.
    pub is_healthy: bool,
    /// For people.
    pub reason: String,
}

/// The counts of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    successes: u8,
    http_failures: u8,
    tcp_failures: u8,
    timeouts: u8,
}

impl CheckOutcome {
    fn is_success(&self, rules: &ActiveCheck) -> bool {
        match self {
            CheckOutcome::Connected => true,
            CheckOutcome::Status(status) => rules.healthy.http_statuses.contains(status),
            CheckOutcome::Broken(_) | CheckOutcome::NotHttp(_) | CheckOutcome::TimedOut | CheckOutcome::NotMade(_) => {
                false
            }
        }
    }

    /// Whether it speaks against the endpoint.
    pub fn is_failure(&self, rules: &ActiveCheck) -> bool {
        match self {
            CheckOutcome::Connected | CheckOutcome::NotMade(_) => false,
            CheckOutcome::Status(status) => !self.is_success(rules) && rules.unhealthy.http_statuses.contains(status),
            CheckOutcome::Broken(_) | CheckOutcome::NotHttp(_) | CheckOutcome::TimedOut => true,
        }
    }
}

impl fmt::Display for CheckOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckOutcome::Connected => f.write_str("connected"),
            CheckOutcome::Status(status) => write!(f, "status {status}"),
            CheckOutcome::Broken(error) => f.write_str(error),
            CheckOutcome::NotHttp(error) => write!(f, "not an HTTP response: {error}"),
            CheckOutcome::TimedOut => f.write_str("timed out"),
            CheckOutcome::NotMade(error) => write!(f, "the check could not be made: {error}"),
        }
    }
}

impl CheckRecord {
    /// A check has ended.
    pub fn add(&mut self, outcome: CheckOutcome, is_failure: bool, latency: Duration, at_unix_ms: u64) {
        self.checks += 1;
        self.failures += u64::from(is_failure);
        self.last = Some(Last { at_unix_ms, outcome, latency });
    }
}

impl Judge {
    /// Takes in the outcome of a check of an endpoint that `is_healthy`, or not; what follows, where that is news.
    pub(crate) fn take(&mut self, outcome: &CheckOutcome, is_healthy: bool, rules: &ActiveCheck) -> Option<Decision> {
        if outcome.is_success(rules) {
            *self = Judge { successes: self.successes.saturating_add(1), ..Judge::default() };
            let is_enough = !is_healthy && self.successes >= rules.healthy.successes;
            let reason = || format!("{} in a row: {outcome}", times(self.successes, "success", "successes"));
            return is_enough.then(|| Decision { is_healthy: true, reason: reason() });
        }
        if !outcome.is_failure(rules) {
            return None;
        }
        self.successes = 0;
        let (count, limit, one, many) = match outcome {
            CheckOutcome::TimedOut => (&mut self.timeouts, rules.unhealthy.timeouts, "timeout", "timeouts"),
            CheckOutcome::Broken(_) => {
                (&mut self.tcp_failures, rules.unhealthy.tcp_failures, "TCP failure", "TCP failures")
            }
            _ => (&mut self.http_failures, rules.unhealthy.http_failures, "HTTP failure", "HTTP failures"),
        };
        *count = count.saturating_add(1);
        let is_enough = is_healthy && limit > 0 && *count >= limit;
        is_enough.then(|| Decision { is_healthy: false, reason: format!("{}: {outcome}", times(*count, one, many)) })
    }
}

fn times(count: u8, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> ActiveCheck {
        let text = "upstreams: [{id: u, nodes: {\"10.0.0.1:81\": 1}, checks: {active: {healthy: {http_statuses: [200], \
                    successes: 2}, unhealthy: {http_statuses: [500], http_failures: 3, tcp_failures: 2, timeouts: 1}}}}]";
        let config = stillgate_config::load(format!("{text}\nroutes: []\n"), &|_| None).unwrap().config;
        config.upstreams[0].checks.as_ref().unwrap().active.clone().unwrap()
    }

    /// What each outcome makes of an endpoint that begins healthy, or not.
    fn check(rules: &ActiveCheck, mut is_healthy: bool, outcomes: &[CheckOutcome], expected: &[Option<bool>]) {
        let mut judge = Judge::default();
        for (outcome, expected) in outcomes.iter().zip(expected) {
            let decided = judge.take(outcome, is_healthy, rules).map(|decision| decision.is_healthy);
            assert_eq!(decided, *expected, "{outcome:?} of {outcomes:?}");
            is_healthy = decided.unwrap_or(is_healthy);
        }
        assert_eq!(outcomes.len(), expected.len());
    }

    #[test]
    fn failures_of_a_kind_are_counted_until_a_success() {
        use CheckOutcome::{NotMade, Status, TimedOut};
        let (ok, bad, odd) = (Status(200), Status(500), Status(404));
        let broken = || CheckOutcome::Broken("refused".to_owned());
        let garbage = || CheckOutcome::NotHttp("no status line".to_owned());
        let rules = rules();
        check(&rules, true, &[bad.clone(), garbage(), bad.clone(), bad.clone()], &[None, None, Some(false), None]);
        check(&rules, true, &[bad.clone(), bad.clone(), ok.clone(), bad.clone()], &[None; 4]);
        check(&rules, true, &[bad.clone(), bad.clone(), odd, bad.clone()], &[None, None, None, Some(false)]);
        check(&rules, true, &[broken(), bad.clone(), broken()], &[None, None, Some(false)]);
        check(&rules, true, &[TimedOut], &[Some(false)]);
        check(&rules, true, &[NotMade("no descriptors".to_owned()), bad.clone(), bad], &[None; 3]);
        let mut never = rules;
        never.unhealthy.timeouts = 0;
        check(&never, true, &[TimedOut, TimedOut, TimedOut], &[None; 3]);
    }

    #[test]
    fn successes_in_a_row_make_healthy() {
        use CheckOutcome::{Connected, Status, TimedOut};
        let rules = rules();
        check(&rules, false, &[Status(200), Status(200), Status(200)], &[None, Some(true), None]);
        check(&rules, false, &[Status(200), TimedOut, Status(200), Status(200)], &[None, None, None, Some(true)]);
        check(&rules, false, &[Status(200), Status(404), Status(200)], &[None, None, Some(true)]);
        check(&rules, false, &[Connected, Connected, TimedOut, Connected], &[None, Some(true), Some(false), None]);
    }

    #[test]
    fn reasons_are_for_people() {
        let rules = rules();
        let mut judge = Judge::default();
        let decision = judge.take(&CheckOutcome::TimedOut, true, &rules).unwrap();
        assert_eq!(decision.reason, "1 timeout: timed out");
        judge.take(&CheckOutcome::Status(200), false, &rules);
        let decision = judge.take(&CheckOutcome::Status(200), false, &rules).unwrap();
        assert_eq!(decision.reason, "2 successes in a row: status 200");
    }
}
