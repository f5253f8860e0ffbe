//! The comparisons of passwords with hashes that are under way on a worker, and their limits.
//!
//! ```text
//!   password ──▶ equal one under way? ──▶ wait for its result ──▶ right, wrong
//!                  │ no                                  └──▶ it was abandoned: begin again
//!                  └──▶ credits left? ──▶ begin ──▶ right: costs nothing
//!                         │ no                └──▶ wrong: costs a credit
//!                         └──▶ refused
//! ```
//!
//! After a start many connections of a good client send one right password at once, before any result is known. They must
//! neither take a thread each nor count as guesses.
//!
//! Wrong passwords must not use up the threads that compare. Each costs a credit of the pair of user and address, and one of the
//! address; comparisons under way are counted as if they were wrong until their result is known, so that many at once are no
//! way around the limit. The credits of an address that has none left come back with time. A comparison whose client goes away
//! costs a credit if it took time of a thread.

use crate::digest_cache::DigestCache;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use stillgate_plugin_api::facts::client_network;

/// Most requests of one address that compare, or wait for a comparison.
const REQUESTS_OF_ADDRESS_MAX: usize = 1024;

/// Burst of comparisons for one user and one address; and the time after which one credit comes back.
const OF_BOTH: CreditRate = CreditRate { credits: 32, back_ms: 4_000 };
/// The rate for all users of one address.
const OF_ADDRESS: CreditRate = CreditRate { credits: 256, back_ms: 250 };

/// `Retry-After` of a refused request, in seconds.
pub(super) const RETRY_AFTER_S: &str = "4";
const _: () = assert!(OF_BOTH.back_ms == 4_000, "`RETRY_AFTER_S` says so");

/// Result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PasswordVerdict {
    Right,
    Wrong,
    /// The password was not compared to the end: the request went away, or there was no room for the work.
    Abandoned,
}

/// What becomes of a request with a password.
pub(super) enum Admission {
    /// It compares the password itself.
    Begun(BegunComparison),
    /// An equal comparison is under way.
    UnderWay(AwaitedComparison),
    /// Too many passwords were wrong, or too many requests are under way.
    Refused,
}

thread_local! {
    /// Workers are threads: each has one, whatever the number of configurations.
    static COMPARISONS: RefCell<Comparisons> = RefCell::new(Comparisons {
        attempts: Attempts::new(),
        under_way: HashMap::new(),
        requests: HashMap::new(),
    });
}

/// Admits a request to a comparison. `digest` identifies credential and password, `credential` only the first.
pub(super) fn admit(digest: u128, credential: u128, client: IpAddr, now_ms: u64) -> Admission {
    COMPARISONS.with_borrow_mut(|Comparisons { attempts, under_way, requests }| {
        let address = address_of(client);
        if requests.get(&address).is_some_and(|count| *count >= REQUESTS_OF_ADDRESS_MAX) {
            return Admission::Refused;
        }
        if let Some(comparison) = under_way.get(&digest) {
            add_one(requests, address);
            return Admission::UnderWay(AwaitedComparison::new(comparison.clone(), CountedRequest(address)));
        }
        let Some(attempt) = attempts.begin(credential, address, now_ms) else { return Admission::Refused };
        add_one(requests, address);
        let comparison = Rc::<PasswordComparison>::default();
        under_way.insert(digest, comparison.clone());
        let (has_run, request) = (Arc::default(), CountedRequest(address));
        Admission::Begun(BegunComparison { digest, attempt, comparison, has_run, _request: request })
    })
}

/// A worker's comparisons.
struct Comparisons {
    attempts: Attempts,
    /// By credential and password.
    under_way: HashMap<u128, Rc<PasswordComparison>>,
    /// Number of requests that compare or wait, by address.
    requests: HashMap<[u8; 8], usize>,
}

/// One comparison, and the requests that wait for it.
#[derive(Default)]
struct PasswordComparison {
    /// `None`: it is under way.
    verdict: Cell<Option<PasswordVerdict>>,
    /// By number of the request. One that goes away is removed.
    waiting: RefCell<HashMap<usize, Waker>>,
    next: Cell<usize>,
}

/// The part of the request that compares. When it ends in any way, the others continue.
pub(super) struct BegunComparison {
    digest: u128,
    attempt: Attempt,
    comparison: Rc<PasswordComparison>,
    /// Whether a thread has begun with the work.
    has_run: Arc<AtomicBool>,
    _request: CountedRequest,
}

impl BegunComparison {
    /// To be set when a thread begins with the work.
    pub(super) fn has_run(&self) -> Arc<AtomicBool> {
        self.has_run.clone()
    }

    /// Ends the comparison with a result.
    pub(super) fn end(self, verdict: PasswordVerdict) {
        self.comparison.verdict.set(Some(verdict));
    }
}

impl Drop for BegunComparison {
    fn drop(&mut self) {
        let BegunComparison { digest, attempt, comparison, has_run, .. } = self;
        let verdict = comparison.verdict.get().unwrap_or(PasswordVerdict::Abandoned);
        comparison.verdict.set(Some(verdict));
        let costs = match verdict {
            PasswordVerdict::Right => false,
            PasswordVerdict::Wrong => true,
            PasswordVerdict::Abandoned => has_run.load(Ordering::Relaxed),
        };
        // At the end of a thread there may be none any more.
        let _ = COMPARISONS.try_with(|all| {
            let Comparisons { attempts, under_way, .. } = &mut *all.borrow_mut();
            under_way.remove(digest);
            attempts.end(*attempt, costs);
        });
        comparison.waiting.take().into_values().for_each(Waker::wake);
    }
}

/// Waits for a comparison of another request.
pub(super) struct AwaitedComparison {
    comparison: Rc<PasswordComparison>,
    number: usize,
    _request: CountedRequest,
}

impl AwaitedComparison {
    fn new(comparison: Rc<PasswordComparison>, request: CountedRequest) -> AwaitedComparison {
        let number = comparison.next.get();
        comparison.next.set(number + 1);
        AwaitedComparison { comparison, number, _request: request }
    }
}

impl Future for AwaitedComparison {
    type Output = PasswordVerdict;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PasswordVerdict> {
        if let Some(verdict) = self.comparison.verdict.get() {
            return Poll::Ready(verdict);
        }
        let _before = self.comparison.waiting.borrow_mut().insert(self.number, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for AwaitedComparison {
    fn drop(&mut self) {
        let _waker = self.comparison.waiting.borrow_mut().remove(&self.number);
    }
}

/// A request that is counted for its address.
struct CountedRequest([u8; 8]);

impl Drop for CountedRequest {
    fn drop(&mut self) {
        let _ = COMPARISONS.try_with(|all| take_one(&mut all.borrow_mut().requests, self.0));
    }
}

fn add_one<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: K) {
    *counts.entry(key).or_default() += 1;
}

fn take_one<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: K) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

struct CreditRate {
    credits: u64,
    back_ms: u64,
}

/// Credits, per worker.
struct Attempts {
    /// When all spent credits will be back, in milliseconds since 1970. The least recently used entry is dropped.
    spent: DigestCache<u64>,
    /// Number of comparisons whose result is not known.
    under_way: HashMap<u128, usize>,
}

/// One comparison, for its limits.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    both: u128,
    address: u128,
    begun_ms: u64,
}

impl Attempts {
    fn new() -> Attempts {
        Attempts { spent: DigestCache::new(), under_way: HashMap::new() }
    }

    /// Begins a comparison; `None`: too few credits are left.
    fn begin(&mut self, credential: u128, address: [u8; 8], now_ms: u64) -> Option<Attempt> {
        let both = self.spent.digest(&[&address, &credential.to_le_bytes()]);
        let address = self.spent.digest(&[&address]);
        if !self.has_credit(both, &OF_BOTH, now_ms) || !self.has_credit(address, &OF_ADDRESS, now_ms) {
            return None;
        }
        [both, address].into_iter().for_each(|digest| add_one(&mut self.under_way, digest));
        Some(Attempt { both, address, begun_ms: now_ms })
    }

    /// Ends a comparison. `costs`: its credits are spent, as of its beginning.
    fn end(&mut self, attempt: Attempt, costs: bool) {
        for (digest, rate) in [(attempt.both, &OF_BOTH), (attempt.address, &OF_ADDRESS)] {
            take_one(&mut self.under_way, digest);
            if costs {
                let back_at_ms = self.spent.get(digest).copied().unwrap_or(0).max(attempt.begun_ms);
                self.spent.put(digest, back_at_ms + rate.back_ms);
            }
        }
    }

    /// Whether a credit would be left if all comparisons under way were wrong.
    fn has_credit(&mut self, digest: u128, rate: &CreditRate, now_ms: u64) -> bool {
        let back_at_ms = self.spent.get(digest).copied().unwrap_or(0).max(now_ms);
        let under_way = self.under_way.get(&digest).copied().unwrap_or(0) as u64;
        back_at_ms + (under_way + 1) * rate.back_ms <= now_ms + rate.credits * rate.back_ms
    }
}

/// An address, or the network of a client that can choose among many.
fn address_of(client: IpAddr) -> [u8; 8] {
    let mut bytes = [0; 8];
    match client_network(client) {
        IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes.copy_from_slice(&address.octets()[..8]),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_spent_and_come_back() {
        let mut attempts = Attempts::new();
        let (client, other): (IpAddr, IpAddr) = ("2001:db8::1".parse().unwrap(), "2001:db8:0:1::1".parse().unwrap());
        let now = 1_700_000_000_000;
        let spend = |attempts: &mut Attempts, user, client, now| {
            let mut wrong = || attempts.begin(user, address_of(client), now).map(|begun| attempts.end(begun, true));
            (0..1000).take_while(|_| wrong().is_some()).count()
        };
        assert_eq!(spend(&mut attempts, 1, client, now), 32);
        // Another address of that network, another user, another network.
        assert_eq!(spend(&mut attempts, 1, "2001:db8::2".parse().unwrap(), now), 0);
        assert_eq!(spend(&mut attempts, 2, client, now), 32);
        assert_eq!(spend(&mut attempts, 1, other, now), 32);
        assert_eq!(spend(&mut attempts, 1, client, now + 3_999), 0);
        assert_eq!(spend(&mut attempts, 1, client, now + 4_000), 1);
        assert_eq!(spend(&mut attempts, 1, client, now + 1_000_000), 32);
        // Correct passwords cost nothing.
        for _ in 0..1000 {
            let attempt = attempts.begin(3, address_of(client), now + 2_000_000).unwrap();
            attempts.end(attempt, false);
        }
        assert_eq!(spend(&mut attempts, 3, client, now + 2_000_000), 32);
        // An address has credits for some users, but not for many.
        let of_many: usize = (10..30).map(|user| spend(&mut attempts, user, client, now + 9_000_000)).sum();
        assert_eq!(of_many, 256);
    }

    #[test]
    fn comparisons_at_once_are_no_way_around_the_limit() {
        let (mut attempts, now) = (Attempts::new(), 1_700_000_000_000);
        let begin = |attempts: &mut Attempts, now| attempts.begin(1, [1; 8], now);
        let begun: Vec<Attempt> = (0..40).filter_map(|_| begin(&mut attempts, now)).collect();
        assert_eq!(begun.len(), 32);
        // However long they take: their results are still unknown.
        assert!(begin(&mut attempts, now + 1_000_000).is_none());
        begun.iter().for_each(|attempt| attempts.end(*attempt, true));
        assert!(begin(&mut attempts, now + 3_999).is_none() && begin(&mut attempts, now + 4_000).is_some());
    }

    #[test]
    fn nothing_is_kept_of_requests_that_went_away() {
        let client = "192.0.2.1".parse().unwrap();
        let Admission::Begun(begun) = admit(1, 1, client, 0) else { panic!("nothing is under way") };
        for _ in 0..3 * REQUESTS_OF_ADDRESS_MAX {
            let Admission::UnderWay(mut awaited) = admit(1, 1, client, 0) else { panic!("it is under way") };
            assert!(Pin::new(&mut awaited).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert!(begun.comparison.waiting.borrow().is_empty());
        drop(begun);
        COMPARISONS.with_borrow(|all| {
            assert!(all.under_way.is_empty() && all.requests.is_empty() && all.attempts.under_way.is_empty());
        });
    }
}
