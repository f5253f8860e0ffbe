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
    pub(crate) fn chosen(&mut self, now_ms: u64) {
        if self.failures > 0 && now_ms >= self.until_ms {
            self.until_ms = now_ms + self.period_ms();
            self.probing = true;
        }
    }

    /// Handles that it was chosen although it is set aside, since all are.
    pub(crate) fn chosen_as_last_resort(&mut self) {
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
            TryReport::Failed(failure) if failure.is_connect() => self.failed(now_ms),
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
    pub(crate) fn report(&mut self, report: TryReport, rules: &PassiveCheck, now_ms: u64) -> Step {
        match grade(report, rules) {
            Grade::Good if self.failures == 0 => {
                self.counts = [0; 3];
                Step::Stay
            }
            // Results of requests that were under way when it opened show nothing about its present health.
            Grade::Good | Grade::Nothing if !self.probing && !self.resorted => Step::Stay,
            Grade::Good => {
                self.successes = self.successes.saturating_add(1);
                if self.successes < rules.healthy.successes {
                    self.end_probe(now_ms);
                    return Step::Stay;
                }
                *self = Health { last_failed_ms: self.last_failed_ms, ..Health::default() };
                Step::Recovered
            }
            Grade::Nothing => {
                // A connection does not end the probe.
                if report != TryReport::Connected {
                    self.end_probe(now_ms);
                }
                Step::Stay
            }
            Grade::Bad(..) if self.failures > 0 => self.failed(now_ms).map_or(Step::Stay, Step::from),
            Grade::Bad(kind, limit) => {
                self.last_failed_ms = now_ms;
                let count = &mut self.counts[kind as usize];
                *count = count.saturating_add(1);
                if *count >= limit { Step::Eject } else { Step::Stay }
            }
        }
    }

    /// Opens the breaker. Failures of requests that were under way together count as one. Returns the period for which
    /// the endpoint is set aside, if that begins now.
    pub(crate) fn failed(&mut self, now_ms: u64) -> Option<News> {
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
pub(crate) enum Step {
    /// No change.
    Stay,
    /// It has failed too often: [`Health::failed`] must set it aside, if not too many are.
    Eject,
    /// It is set aside again.
    SetAside(u64),
    /// It has closed.
    Recovered,
}

impl From<News> for Step {
    fn from(news: News) -> Step {
        match news {
            News::SetAside { period_ms } => Step::SetAside(period_ms),
            News::Recovered => Step::Recovered,
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

#[cfg(test)]
mod tests;

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
