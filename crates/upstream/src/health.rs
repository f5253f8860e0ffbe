//! A circuit breaker for each endpoint, in each worker: failing endpoints are set aside.
//!
//! ```text
//!            fails too often                  its time is over
//!   closed ──────────────────▶ open (set aside) ─────────────▶ half-open (one request at a time)
//!     ▲                            ▲                               │   │
//!     │                            └───────────── it fails ────────┘   │
//!     └──────────────────────────── good answers enough ───────────────┘
//! ```
//!
//! Each time it opens the period is twice as long, from a second up to half a minute. When the period is over, one
//! request is let through as a probe and the rest stay away until it succeeds or the period has passed again, so that a
//! node that drops packets costs one connect timeout per period and not one per request.
//!
//! `checks.passive` defines what is too often; without it, one failed connection is, and the next successful one closes
//! the breaker. Active checks, with requests of their own, are made elsewhere; their result is a [`HealthVerdict`].

use crate::retry::Failure;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use stillgate_config::{CheckType, PassiveCheck};

/// The first period for which an endpoint is set aside.
pub const SET_ASIDE_FIRST_MS: u64 = 1_000;
/// The longest period for which an endpoint is set aside.
pub const SET_ASIDE_MAX_MS: u64 = 30_000;

/// The result of a try for its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryReport {
    /// A connection was made, over which a request will be sent.
    Connected,
    /// A connection was made, or an answer came, and nothing else of a stream shows the endpoint's health.
    Opened,
    /// The head of a response came, with this status.
    Status(u16),
    /// The try ended without any evidence on the endpoint, for example by a failure that the request causes. If it was
    /// a probe, the next one may come at once.
    Inconclusive,
    /// The try failed. Not to be reported if the endpoint is not the cause: a lack of resources here, a reused
    /// connection that was closed, or a failure that the request causes.
    Failed(Failure),
}

/// A change of state that follows from a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// The endpoint is set aside for this time.
    SetAside {
        /// In milliseconds.
        period_ms: u64,
    },
    /// The endpoint has recovered.
    Recovered,
}

/// State of an endpoint's circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Circuit {
    /// Requests are sent.
    Closed,
    /// Set aside.
    Open,
    /// One request at a time.
    HalfOpen,
}

/// A kind of failure that is counted separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailureKind {
    Http,
    Tcp,
    Timeout,
}

/// The grade of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grade {
    Good,
    /// A failure of a kind, with the number of them that is too many.
    Bad(FailureKind, u8),
    Nothing,
}

/// State of one endpoint's failures.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Health {
    /// How often it opened since it was last closed, zero if it is closed.
    pub(crate) failures: u32,
    /// Set aside while the clock is below this.
    until_ms: u64,
    /// When it last failed; orders the endpoints when all are set aside.
    pub(crate) last_failed_ms: u64,
    /// A probe was let through and its result is not known.
    probing: bool,
    /// It was chosen although it is set aside, since all are: the result of that request counts if it is good.
    resorted: bool,
    /// Failures of each kind since the last success, while closed.
    counts: [u8; 3],
    /// Good answers since it was half open.
    successes: u8,
}

impl Health {
    /// Whether a request may be sent there.
    #[inline]
    pub(crate) fn usable(&self, now_ms: u64) -> bool {
        self.failures == 0 || now_ms >= self.until_ms
    }

    /// The rest of the set-aside time.
    pub(crate) fn set_aside_ms(&self, now_ms: u64) -> u64 {
        if self.failures == 0 { 0 } else { self.until_ms.saturating_sub(now_ms) }
    }

    /// State of the circuit breaker.
    pub(crate) fn circuit(&self, now_ms: u64) -> Circuit {
        match self.failures {
            0 => Circuit::Closed,
            _ if self.probing || self.usable(now_ms) => Circuit::HalfOpen,
            _ => Circuit::Open,
        }
    }

    /// Handles that the endpoint was chosen: if its period has just passed, this request is the probe and others keep
    /// away.
    #[inline]
    pub(crate) fn on_chosen(&mut self, now_ms: u64) {
        if self.failures > 0 && now_ms >= self.until_ms {
            self.until_ms = now_ms + self.period_ms();
            self.probing = true;
        }
    }

    /// Handles that it was chosen although it is set aside, since all are.
    pub(crate) fn on_last_resort(&mut self) {
        self.resorted = self.failures > 0;
    }

    /// Without `checks.passive`: a failed connection opens the breaker, a successful one closes it.
    #[inline]
    pub(crate) fn report_connection(&mut self, report: TryReport, now_ms: u64) -> Option<News> {
        match report {
            TryReport::Connected | TryReport::Opened | TryReport::Status(_) => {
                self.probing = false;
                (std::mem::take(&mut self.failures) > 0).then_some(News::Recovered)
            }
            TryReport::Failed(failure) if failure.is_connect() => self.record_failure(now_ms),
            TryReport::Failed(_) => None,
            TryReport::Inconclusive => {
                if self.probing {
                    self.end_probe(now_ms);
                }
                None
            }
        }
    }

    /// With `checks.passive`. Before a closed circuit opens, the caller has to check whether it may eject.
    pub(crate) fn report(&mut self, report: TryReport, rules: &PassiveCheck, now_ms: u64) -> HealthStep {
        match grade(report, rules) {
            Grade::Good if self.failures == 0 => {
                self.counts = [0; 3];
                HealthStep::Stay
            }
            // Results of requests that were under way when it opened show nothing about its present health.
            Grade::Good | Grade::Nothing if !self.probing && !self.resorted => HealthStep::Stay,
            Grade::Good => {
                self.successes = self.successes.saturating_add(1);
                if self.successes < rules.healthy.successes {
                    self.end_probe(now_ms);
                    return HealthStep::Stay;
                }
                *self = Health { last_failed_ms: self.last_failed_ms, ..Health::default() };
                HealthStep::Recovered
            }
            Grade::Nothing => {
                // A connection does not end the probe.
                if report != TryReport::Connected {
                    self.end_probe(now_ms);
                }
                HealthStep::Stay
            }
            Grade::Bad(..) if self.failures > 0 => {
                self.record_failure(now_ms).map_or(HealthStep::Stay, HealthStep::from)
            }
            Grade::Bad(kind, limit) => {
                self.last_failed_ms = now_ms;
                let count = &mut self.counts[kind as usize];
                *count = count.saturating_add(1);
                if *count >= limit { HealthStep::Eject } else { HealthStep::Stay }
            }
        }
    }

    /// Opens the breaker. Failures of requests that were under way together count as one. Returns the period for which
    /// the endpoint is set aside, if that begins now.
    pub(crate) fn record_failure(&mut self, now_ms: u64) -> Option<News> {
        self.last_failed_ms = now_ms;
        if !self.usable(now_ms) && !self.probing {
            return None;
        }
        self.failures = self.failures.saturating_add(1);
        let period_ms = self.period_ms();
        self.until_ms = now_ms + period_ms;
        self.probing = false;
        self.resorted = false;
        self.counts = [0; 3];
        self.successes = 0;
        Some(News::SetAside { period_ms })
    }

    /// The next probe may come at once.
    fn end_probe(&mut self, now_ms: u64) {
        self.probing = false;
        self.resorted = false;
        self.until_ms = now_ms;
    }

    fn period_ms(&self) -> u64 {
        let doublings = self.failures.saturating_sub(1).min(32);
        (SET_ASIDE_FIRST_MS << doublings).min(SET_ASIDE_MAX_MS)
    }
}

/// The consequence of a report to [`Health::report`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthStep {
    /// No change.
    Stay,
    /// It has failed too often: [`Health::record_failure`] must set it aside, if not too many are.
    Eject,
    /// It is set aside again.
    SetAside(u64),
    /// It has closed.
    Recovered,
}

impl From<News> for HealthStep {
    fn from(news: News) -> HealthStep {
        match news {
            News::SetAside { period_ms } => HealthStep::SetAside(period_ms),
            News::Recovered => HealthStep::Recovered,
        }
    }
}

fn grade(report: TryReport, rules: &PassiveCheck) -> Grade {
    let unhealthy = &rules.unhealthy;
    let bad = |kind, limit| if limit == 0 { Grade::Nothing } else { Grade::Bad(kind, limit) };
    match report {
        TryReport::Connected if rules.r#type == CheckType::Tcp => Grade::Good,
        TryReport::Connected => Grade::Nothing,
        // Independent of `type`, whose default is for HTTP.
        TryReport::Opened => Grade::Good,
        TryReport::Inconclusive => Grade::Nothing,
        TryReport::Status(_) if rules.r#type == CheckType::Tcp => Grade::Good,
        TryReport::Status(status) if rules.healthy.http_statuses.contains(&status) => Grade::Good,
        TryReport::Status(status) if unhealthy.http_statuses.contains(&status) => {
            bad(FailureKind::Http, unhealthy.http_failures)
        }
        TryReport::Status(_) => Grade::Nothing,
        TryReport::Failed(failure) => match failure {
            Failure::Connect | Failure::Reset => bad(FailureKind::Tcp, unhealthy.tcp_failures),
            Failure::BadResponse if rules.r#type == CheckType::Tcp => Grade::Nothing,
            Failure::BadResponse => bad(FailureKind::Http, unhealthy.http_failures),
            Failure::Name | Failure::Refused => Grade::Nothing,
            Failure::ConnectTimeout | Failure::SendTimeout | Failure::ReadTimeout | Failure::TryTimeout => {
                bad(FailureKind::Timeout, unhealthy.timeouts)
            }
        },
    }
}

// The verdict of active checks on an endpoint, shared with all workers.
//
// The control thread makes the checks and is the only writer; a worker reads it with one load for each choice. It
// is part of the endpoint and stays as long as that does, so that a reload does not reset it.

/// Healthy until set otherwise. Two are equal only if they are identical.
#[derive(Debug, Default)]
pub struct HealthVerdict {
    /// The number of changes, so that none can be missed; odd if unhealthy.
    changes: AtomicU64,
}

impl HealthVerdict {
    /// Whether requests may be sent there.
    #[inline]
    pub fn is_healthy(&self) -> bool {
        self.changes.load(Relaxed).is_multiple_of(2)
    }

    /// To be called by the thread that makes the checks. Returns whether this is a change.
    pub fn set(&self, is_healthy: bool) -> bool {
        let is_news = self.is_healthy() != is_healthy;
        if is_news {
            self.changes.store(self.changes.load(Relaxed) + 1, Relaxed);
        }
        is_news
    }

    /// The number of changes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }
}

impl PartialEq for HealthVerdict {
    fn eq(&self, other: &HealthVerdict) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for HealthVerdict {}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_config::{PassiveHealthy, PassiveUnhealthy};

    const REFUSED: TryReport = TryReport::Failed(Failure::Connect);

    fn rules() -> PassiveCheck {
        PassiveCheck {
            r#type: CheckType::Http,
            healthy: PassiveHealthy { http_statuses: vec![200], successes: 2 },
            unhealthy: PassiveUnhealthy { http_statuses: vec![500], http_failures: 3, tcp_failures: 2, timeouts: 1 },
        }
    }

    /// Applies `reports` to a closed endpoint; returns whether the last of them, and none before, ejects it.
    fn ejects(rules: &PassiveCheck, reports: &[TryReport]) -> bool {
        let mut health = Health::default();
        let steps: Vec<HealthStep> = reports.iter().map(|report| health.report(*report, rules, 5)).collect();
        let early = steps.iter().rev().skip(1).any(|step| *step != HealthStep::Stay);
        assert!(!early, "{steps:?}");
        steps.last() == Some(&HealthStep::Eject)
    }

    #[test]
    fn a_probe_that_shows_nothing_leaves_room_for_the_next() {
        let mut health = Health::default();
        assert_eq!(health.report_connection(REFUSED, 0), Some(News::SetAside { period_ms: SET_ASIDE_FIRST_MS }));
        // It stays set aside for the period.
        assert_eq!(health.report_connection(TryReport::Inconclusive, 10), None);
        assert!(!health.usable(SET_ASIDE_FIRST_MS - 1) && health.usable(SET_ASIDE_FIRST_MS));
        health.on_chosen(SET_ASIDE_FIRST_MS);
        assert!(!health.usable(SET_ASIDE_FIRST_MS + 1), "one probe at a time");
        assert_eq!(health.report_connection(TryReport::Inconclusive, SET_ASIDE_FIRST_MS + 2), None);
        assert!(health.usable(SET_ASIDE_FIRST_MS + 2));
        assert_eq!(health.circuit(SET_ASIDE_FIRST_MS + 2), Circuit::HalfOpen);
        assert_eq!(health.report_connection(TryReport::Connected, SET_ASIDE_FIRST_MS + 3), Some(News::Recovered));
    }

    #[test]
    fn without_rules_it_grows_to_the_bound_and_resets() {
        let mut health = Health::default();
        let mut now_ms = 10;
        for expected_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            assert!(health.usable(now_ms));
            health.on_chosen(now_ms);
            assert_eq!(health.report_connection(REFUSED, now_ms), Some(News::SetAside { period_ms: expected_ms }));
            assert_eq!(health.circuit(now_ms), Circuit::Open);
            assert_eq!(health.set_aside_ms(now_ms), expected_ms);
            assert!(!health.usable(now_ms + expected_ms - 1));
            now_ms += expected_ms;
        }
        assert_eq!(health.circuit(now_ms), Circuit::HalfOpen);
        assert_eq!(health.report_connection(TryReport::Connected, now_ms), Some(News::Recovered));
        assert_eq!(health.report_connection(TryReport::Status(500), now_ms), None);
        assert_eq!(health.circuit(now_ms), Circuit::Closed);
        health.record_failure(now_ms);
        assert_eq!(health.set_aside_ms(now_ms), SET_ASIDE_FIRST_MS);
    }

    #[test]
    fn without_rules_only_connections_count() {
        let mut health = Health::default();
        for failure in
            [Failure::Reset, Failure::SendTimeout, Failure::ReadTimeout, Failure::TryTimeout, Failure::BadResponse]
        {
            assert_eq!(health.report_connection(TryReport::Failed(failure), 1), None, "{failure:?}");
        }
        assert!(health.report_connection(TryReport::Failed(Failure::ConnectTimeout), 1).is_some());
    }

    #[test]
    fn failures_under_way_together_count_once() {
        let mut health = Health::default();
        for _ in 0..50 {
            health.record_failure(100);
        }
        assert_eq!(health.set_aside_ms(100), SET_ASIDE_FIRST_MS);
    }

    #[test]
    fn one_probe_a_period() {
        let mut health = Health::default();
        health.record_failure(0);
        assert!(health.usable(1_000));
        health.on_chosen(1_000);
        assert!(!health.usable(1_001), "others keep away from the probe");
        assert!(health.usable(2_000), "a probe that never ends is not waited for");
        health.record_failure(1_500);
        assert_eq!(health.set_aside_ms(1_500), 2_000, "the probe's failure counts");
    }

    #[test]
    fn last_failure_is_kept_while_set_aside() {
        let mut health = Health::default();
        health.record_failure(0);
        health.record_failure(500);
        assert_eq!(health.last_failed_ms, 500);
        assert_eq!(health.set_aside_ms(500), 500);
    }

    #[test]
    fn each_kind_is_counted_by_itself_until_a_success() {
        let (ok, bad, odd) = (TryReport::Status(200), TryReport::Status(500), TryReport::Status(404));
        let (reset, slow) = (TryReport::Failed(Failure::Reset), TryReport::Failed(Failure::ReadTimeout));
        let garbage = TryReport::Failed(Failure::BadResponse);
        let rules = rules();
        assert!(!ejects(&rules, &[bad, bad]));
        assert!(ejects(&rules, &[bad, bad, bad]));
        assert!(ejects(&rules, &[bad, garbage, bad]));
        assert!(!ejects(&rules, &[bad, bad, ok, bad]));
        assert!(ejects(&rules, &[bad, bad, odd, bad]), "a status in neither list counts as nothing");
        assert!(!ejects(&rules, &[REFUSED]));
        assert!(ejects(&rules, &[REFUSED, reset]));
        assert!(ejects(&rules, &[REFUSED, TryReport::Connected, reset]), "to connect is not a good answer");
        assert!(!ejects(&rules, &[REFUSED, TryReport::Opened, reset]), "of a stream it is");
        assert!(!ejects(&rules, &[bad, bad, reset]));
        for failure in [Failure::ConnectTimeout, Failure::SendTimeout, Failure::TryTimeout] {
            assert!(ejects(&rules, &[TryReport::Failed(failure)]), "{failure:?}");
        }
        assert!(ejects(&rules, &[slow]));
        let mut never = rules;
        never.unhealthy.timeouts = 0;
        assert!(!ejects(&never, &[slow; 50]));
        never.r#type = CheckType::Tcp;
        assert!(!ejects(&never, &[bad; 50]), "of a connection the status says nothing");
        assert!(ejects(&never, &[reset, reset]));
    }

    #[test]
    fn half_open_it_takes_one_at_a_time_until_enough_were_good() {
        let rules = rules();
        let mut health = Health::default();
        health.record_failure(0);
        assert_eq!(
            health.report(TryReport::Status(200), &rules, 10),
            HealthStep::Stay,
            "it was under way when it opened"
        );
        health.on_chosen(1_000);
        assert_eq!(health.report(TryReport::Connected, &rules, 1_010), HealthStep::Stay);
        assert!(!health.usable(1_010), "the probe is not over");
        assert_eq!(health.report(TryReport::Status(200), &rules, 1_020), HealthStep::Stay);
        assert!(health.usable(1_020), "the next may come at once");
        health.on_chosen(1_020);
        assert!(!health.usable(1_020));
        assert_eq!(health.report(TryReport::Status(404), &rules, 1_030), HealthStep::Stay);
        assert!(health.usable(1_030), "neither good nor bad: another one");
        health.on_chosen(1_030);
        assert_eq!(health.report(TryReport::Status(200), &rules, 1_040), HealthStep::Recovered);
        assert_eq!(health.circuit(1_040), Circuit::Closed);

        health.record_failure(2_000);
        health.on_chosen(3_000);
        assert_eq!(health.report(TryReport::Status(200), &rules, 3_000), HealthStep::Stay);
        health.on_chosen(3_000);
        assert_eq!(
            health.report(TryReport::Status(500), &rules, 3_000),
            HealthStep::SetAside(2_000),
            "one failure is enough"
        );
        health.on_chosen(5_000);
        assert_eq!(health.report(TryReport::Status(200), &rules, 5_000), HealthStep::Stay, "it begins again");
    }

    #[test]
    fn a_good_answer_to_a_last_resort_counts() {
        let rules = rules();
        let mut health = Health::default();
        health.record_failure(0);
        health.on_last_resort();
        assert_eq!(health.report(TryReport::Status(200), &rules, 10), HealthStep::Stay);
        assert_eq!(health.circuit(10), Circuit::HalfOpen);
        health.record_failure(20);
        health.on_last_resort();
        let before = health.set_aside_ms(30);
        assert_eq!(health.report(REFUSED, &rules, 30), HealthStep::Stay);
        assert_eq!(health.set_aside_ms(30), before, "its failure is already known");
    }
}
