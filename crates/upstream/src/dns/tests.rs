//! The resolver with real and with simulated servers.

use super::lookup::{FamilyAddresses, FamilyResult};
use super::*;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use tokio::time::{sleep, timeout_at};

#[test]
fn a_family_without_answers_is_waited_for_and_then_not_used() {
    let known = || FamilyLookup::Known(vec![Ipv4Addr::LOCALHOST]);
    // It needs patience after the last one.
    let unanswered = |family: &mut FamilyMemory<_>, count| {
        for n in 1..=count {
            family.update(FamilyLookup::Unknown);
            assert_eq!(family.needs_patience(), n == count, "{n}");
        }
    };
    let mut family = FamilyMemory::default();
    // Nothing is known of it: at once.
    unanswered(&mut family, 1);
    assert!(!family.seems_silent());
    family.update_patiently(known());
    // It may only be late. Its addresses stay.
    unanswered(&mut family, UNANSWERED_WITH_GRACE);
    assert!(family.seems_silent());
    family.update_patiently(known());
    assert!(!family.seems_silent());
    unanswered(&mut family, UNANSWERED_WITH_GRACE);
    family.update_patiently(FamilyLookup::Unknown);
    assert_eq!(family.addresses, [Ipv4Addr::LOCALHOST]);
    unanswered(&mut family, UNANSWERED_MAX - UNANSWERED_WITH_GRACE);
    assert_eq!(family.addresses, [Ipv4Addr::LOCALHOST]);
    family.update_patiently(FamilyLookup::Unknown);
    assert!(family.addresses.is_empty() && family.seems_silent());
    // Now and then it is waited for again.
    unanswered(&mut family, UNANSWERED_MAX);
    family.update_patiently(known());
    assert_eq!(family.addresses, [Ipv4Addr::LOCALHOST]);
    // A patient lookup that ends after another one had an answer is old.
    family.update_patiently(FamilyLookup::Unknown);
    assert!(!family.addresses.is_empty() && !family.seems_silent());
}

/// No test takes as long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("n{n}.test")).collect()
}

#[tokio::test]
async fn the_hosts_file_is_checked_once_a_step() {
    // It is silent.
    let server = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let servers = vec![server.local_addr().unwrap()];
    let hosts_file = PathBuf::from("/nonexistent/hosts");
    let mut resolver = Resolver::new(ResolverSettings { servers, hosts_file, ..ResolverSettings::default() }).unwrap();
    // The names are more than there are places: there are due names that cannot begin.
    let count = 2 * queue::PLACES_MAX;
    resolver.set_names(names(count));
    assert_eq!(resolver.resolve_all(Duration::from_secs(1)).await.len(), count);
    // Places become free in few steps, as turns last for a tenth of a second or more.
    assert!(resolver.hosts.checks <= count / 4, "{} checks", resolver.hosts.checks);
}

#[tokio::test]
async fn names_in_the_hosts_file_take_one_step() {
    let count = 4000;
    let hosts_file = std::env::temp_dir().join(format!("stillgate-many-hosts-{}", std::process::id()));
    let lines = names(count).iter().map(|name| format!("192.0.2.7 {name}\n")).collect::<String>();
    std::fs::write(&hosts_file, lines).unwrap();
    let settings = ResolverSettings { hosts_file: hosts_file.clone(), ..ResolverSettings::default() };
    let mut resolver = Resolver::new(settings).unwrap();
    resolver.set_names(names(count));
    assert_eq!(resolver.resolve_all(PATIENCE).await, []);
    assert_eq!(resolver.hosts.checks, 1);
    std::fs::remove_file(&hosts_file).unwrap();
}

/// Servers in a world whose time passes at once, as tokio's clock is paused.
#[derive(Clone)]
pub(super) struct SimulatedServer {
    ttl_s: u32,
    /// After what time it answers for a name, and with which address of the type; `None`: never.
    says: Arc<SimulatedAnswer>,
}

type SimulatedAnswer = dyn Fn(&str, RecordType) -> Option<(Duration, Option<IpAddr>)> + Send + Sync;

impl fmt::Debug for SimulatedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedServer").finish_non_exhaustive()
    }
}

impl SimulatedServer {
    pub(super) async fn answer<A>(
        &self,
        name: &Name,
        record_type: RecordType,
        address: impl Fn(&RData) -> Option<A>,
    ) -> FamilyResult<A> {
        let Some((after, found)) = (self.says)(&name.to_ascii(), record_type) else {
            return std::future::pending().await;
        };
        sleep(after).await;
        let addresses = found.into_iter().filter_map(|found| address(&RData::from(found))).collect();
        Ok(FamilyAddresses { addresses, ttl_s: self.ttl_s })
    }
}

const AT_ONCE: Duration = Duration::from_millis(1);

/// A resolver of `count` names that begin with `s`, and further ones.
fn simulated(
    count: usize,
    others: &[&str],
    ttl_s: u32,
    says: impl Fn(&str, RecordType) -> Option<(Duration, Option<IpAddr>)> + Send + Sync + 'static,
) -> Resolver {
    let hosts_file = PathBuf::from("/nonexistent/hosts");
    let mut resolver = Resolver::new(ResolverSettings { hosts_file, ..ResolverSettings::default() }).unwrap();
    resolver.servers.simulated = Some(SimulatedServer { ttl_s, says: Arc::new(says) });
    let others = others.iter().map(|name| name.to_string());
    resolver.set_names((0..count).map(|n| format!("s{n}.test.")).chain(others));
    resolver
}

fn v4(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// An A record at once, and no answer for AAAA.
fn without_v6(record_type: RecordType, last: u8) -> Option<(Duration, Option<IpAddr>)> {
    (record_type == RecordType::A).then_some((AT_ONCE, Some(v4(last))))
}

/// Lets the resolver work until then.
async fn work_until(resolver: &mut Resolver, end: Instant) {
    let work = async {
        loop {
            resolver.next_change().await;
        }
    };
    let Err(_end) = timeout_at(end, work).await;
}

#[tokio::test(start_paused = true)]
async fn a_name_whose_v6_is_silent_follows_within_its_ttl() {
    let (second, ttl_s) = (Duration::from_secs(1), 2);
    for (count, first_move_ms) in [(1, 3000), (300, 3000), (1000, 700), (1000, 3000), (1000, 5500)] {
        let last = Arc::new(AtomicU8::new(0));
        let served = last.clone();
        let mut resolver =
            simulated(count, &[], ttl_s, move |_, record_type| without_v6(record_type, served.load(Ordering::Relaxed)));
        let began = Instant::now();
        assert_eq!(resolver.resolve_all(10 * second).await, []);
        assert!(began.elapsed() < second, "{:?} for {count}", began.elapsed());
        work_until(&mut resolver, began + Duration::from_millis(first_move_ms)).await;
        for n in 1..=15 {
            last.store(n, Ordering::Relaxed);
            let now = Instant::now();
            let end = now + second * (ttl_s + 1);
            work_until(&mut resolver, end).await;
            let late = resolver.names.values().filter(|entry| entry.addresses != [v4(n)]).count();
            assert_eq!(late, 0, "of {count} after move {n}, {:?} after the start", now - began);
            // Moves are at various times of the lookups.
            work_until(&mut resolver, end + Duration::from_millis(170) * u32::from(n % 9)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_or_lost_record_is_found_beside_silent_names() {
    let second = Duration::from_secs(1);
    for (count, late_s) in [(0, 1), (1000, 45)] {
        let asked = Arc::new(AtomicUsize::new(0));
        let asked_lost = asked.clone();
        let mut resolver = simulated(count, &["late.test.", "lost.test."], 300, move |name, record_type| match name {
            _ if name.starts_with('s') => without_v6(record_type, 1),
            _ if record_type == RecordType::AAAA => Some((AT_ONCE, Some(V6))),
            "late.test." => Some((second / 2, Some(v4(1)))),
            _ => (asked_lost.fetch_add(1, Ordering::Relaxed) > 0).then_some((AT_ONCE, Some(v4(1)))),
        });
        let began = Instant::now();
        assert_eq!(resolver.resolve_all(10 * second).await, []);
        assert_eq!(resolver.addresses("late.test."), [V6]);
        for (name, bound_s) in [("lost.test.", 2), ("late.test.", late_s)] {
            work_until(&mut resolver, began + second * bound_s).await;
            assert_eq!(resolver.addresses(name), [v4(1), V6], "{name} beside {count}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn patient_lookups_are_bounded_and_leave_other_names_alone() {
    let second = Duration::from_secs(1);
    let last = Arc::new(AtomicU8::new(0));
    let served = last.clone();
    let mut resolver = simulated(1000, &["z.test."], 1, move |name, record_type| match name {
        "z.test." => {
            let found = (record_type == RecordType::A).then(|| v4(served.load(Ordering::Relaxed)));
            Some((AT_ONCE, found))
        }
        _ => without_v6(record_type, 1),
    });
    for n in 1..=40 {
        last.store(n, Ordering::Relaxed);
        let end = Instant::now() + second + second / 2;
        work_until(&mut resolver, end).await;
        assert_eq!(resolver.addresses("z.test."), [v4(n)], "move {n}");
    }
    // The names that are forgotten do not wait.
    resolver.set_names(["z.test.".to_string()]);
    work_until(&mut resolver, Instant::now() + 6 * second).await;
    assert!(resolver.tasks.len() <= 1 && resolver.patient.is_empty());
}

#[tokio::test(start_paused = true)]
async fn healthy_names_start_at_once() {
    let mut resolver = simulated(4000, &[], 2, |_, record_type| {
        Some((AT_ONCE, Some(if record_type == RecordType::A { v4(1) } else { V6 })))
    });
    let began = Instant::now();
    assert_eq!(resolver.resolve_all(PATIENCE).await, []);
    assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());
    assert!(resolver.names.values().all(|entry| entry.addresses == [v4(1), V6]));
    assert!(resolver.patient.is_empty());
}
