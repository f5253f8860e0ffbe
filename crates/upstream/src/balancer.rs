//! Chooses the endpoint for a request.
//!
//! Endpoints are grouped in tiers by priority; a tier is used only if every endpoint of the better ones is unusable,
//! which means set aside, found unhealthy by active checks, or already tried by this request. An endpoint with weight 0
//! is in no tier and never chosen. If no tier has a usable endpoint, the one that failed least recently among those not
//! yet tried is chosen although it is set aside or unhealthy: that alone never makes a request fail. `None` means that
//! nothing is left to try.
//!
//! Within a tier one of several methods chooses. The state belongs to one worker; workers do not coordinate their turns.

use crate::endpoint::Endpoint;
use crate::health::{HealthStep, News, TryReport};
use crate::slot::{Slot, update_slots, usable};
use std::cmp::Ordering;
use std::net::SocketAddr;
use std::sync::Arc;
use stillgate_config::{Balance, Checks};

/// The balancing state of one upstream in one worker.
#[derive(Debug, Clone)]
pub struct Balancer {
    balance: Balance,
    slots: Vec<Slot>,
    /// Best first; tiers are never empty.
    tiers: Vec<Tier>,
    checks: Option<Arc<Checks>>,
    /// Zero if endpoints that have recovered get all of their weight at once.
    slow_start_ms: u64,
    /// Choices among endpoints that are all unusable.
    resorts: u64,
}

/// Endpoints of one priority with a weight, in the order of the configuration.
#[derive(Debug, Clone)]
struct Tier {
    members: Vec<u32>,
    /// Points of the members; empty unless the method is the consistent hash.
    ring: Ring,
}

impl Balancer {
    /// A balancer without history.
    pub fn new(balance: &Balance, endpoints: &[Endpoint]) -> Self {
        let mut balancer = Self {
            balance: balance.clone(),
            slots: Vec::new(),
            tiers: Vec::new(),
            checks: None,
            slow_start_ms: 0,
            resorts: 0,
        };
        balancer.redefine(balance, endpoints);
        balancer
    }

    /// Changes method and endpoints. A peer (same address and host) that stays keeps its index, its requests under way,
    /// latency and set-aside state, and its place in the round robin unless its weight or tier changed. Indices of
    /// removed peers stay valid for the requests under way.
    pub fn redefine(&mut self, balance: &Balance, endpoints: &[Endpoint]) {
        self.balance = balance.clone();
        let order = update_slots(&mut self.slots, endpoints);
        self.tiers = tiers(balance, &self.slots, order);
        for tier in &self.tiers {
            clamp_turns(&mut self.slots, &tier.members);
        }
    }

    /// Changes the rules for health; `None` for those of failing connections. The state of the endpoints is kept.
    pub fn set_checks(&mut self, checks: Option<&Arc<Checks>>) {
        self.checks = checks.cloned();
        let slow_start = checks.map_or(0, |checks| checks.slow_start.as_millis());
        self.slow_start_ms = u64::try_from(slow_start).unwrap_or(u64::MAX);
        if self.slow_start_ms == 0 {
            self.slots.iter_mut().for_each(|slot| slot.grow(u64::MAX, 0));
        }
    }

    /// Chooses an endpoint not in `tried`. `key` is the input of the consistent hash; without one it falls back to the
    /// round robin. `random` must be fresh for each call.
    #[inline]
    pub fn pick(&mut self, key: Option<&[u8]>, now_ms: u64, random: u64, tried: &TriedEndpoints) -> Option<usize> {
        self.pick_usable(key, now_ms, random, tried).or_else(|| self.last_resort(tried))
    }

    /// Like [`Balancer::pick`], without endpoints that are set aside or unhealthy.
    pub fn pick_usable(
        &mut self,
        key: Option<&[u8]>,
        now_ms: u64,
        random: u64,
        tried: &TriedEndpoints,
    ) -> Option<usize> {
        if self.slow_start_ms > 0 {
            self.slots.iter_mut().for_each(|slot| slot.grow(now_ms, self.slow_start_ms));
        }
        let slots = &mut self.slots;
        for tier in &self.tiers {
            let members = &tier.members;
            let chosen = match (&self.balance, key) {
                (Balance::RoundRobin, _) | (Balance::ConsistentHash(_), None) => {
                    pick_in_turn(slots, members, |slots, index| usable(slots, index, now_ms, tried))
                }
                (Balance::ConsistentHash(_), Some(key)) => {
                    let usable = |index| usable(slots, index, now_ms, tried);
                    tier.ring.pick(members, key, usable)
                }
                (Balance::LeastConn, _) => pick_least_loaded(slots, members, now_ms, tried),
                (Balance::Ewma, _) => pick_soonest(slots, members, now_ms, random, tried),
            };
            if let Some(index) = chosen {
                slots[index as usize].health.on_chosen(now_ms);
                return Some(index as usize);
            }
        }
        None
    }

    /// The endpoint that failed least recently; endpoints that failed at the same time, or that only active checks have
    /// failed, take turns.
    fn last_resort(&mut self, tried: &TriedEndpoints) -> Option<usize> {
        let slots = &mut self.slots;
        let members = self.tiers.iter().flat_map(|tier| &tier.members).map(|&index| index as usize);
        let index = members
            .filter(|&index| !tried.contains(index))
            .min_by_key(|&index| (slots[index].health.last_failed_ms, slots[index].resorted))?;
        self.resorts += 1;
        slots[index].resorted = self.resorts;
        slots[index].health.on_last_resort();
        Some(index)
    }

    /// Begins a try on the endpoint. Every call must be followed by one of [`Balancer::on_finish`].
    #[inline]
    pub fn on_start(&mut self, index: usize) {
        self.slots[index].active += 1;
    }

    /// Ends the try; `latency_us` is the time from its beginning to the response head, and `None` if there was none.
    #[inline]
    pub fn on_finish(&mut self, index: usize, latency_us: Option<u32>, now_ms: u64) {
        let slot = &mut self.slots[index];
        debug_assert!(slot.active > 0, "on_finish without on_start");
        slot.active = slot.active.saturating_sub(1);
        if let Some(latency_us) = latency_us {
            slot.figures.answered_us += u64::from(latency_us);
            if matches!(self.balance, Balance::Ewma) {
                slot.latency.observe(latency_us, now_ms);
            }
        }
    }

    /// Handles the result of a try for the endpoint; returns a change of its state.
    #[inline]
    pub fn report(&mut self, index: usize, report: TryReport, now_ms: u64) -> Option<News> {
        self.slots[index].figures.add(report);
        if matches!(report, TryReport::Status(_) | TryReport::Opened) {
            self.slots[index].unanswered.end();
        }
        let health = &mut self.slots[index].health;
        let news = match self.checks.as_ref().and_then(|checks| checks.passive.as_ref()) {
            None => health.report_connection(report, now_ms),
            Some(passive) => match health.report(report, passive, now_ms) {
                HealthStep::Stay => None,
                HealthStep::SetAside(period_ms) => Some(News::SetAside { period_ms }),
                HealthStep::Recovered => Some(News::Recovered),
                HealthStep::Eject if self.may_eject() => self.slots[index].health.record_failure(now_ms),
                HealthStep::Eject => None,
            },
        };
        if news == Some(News::Recovered) && self.slow_start_ms > 0 {
            self.slots[index].begin_slow_start(now_ms);
        }
        news
    }

    /// Handles that the endpoint has ended a request without an answer, which may be the request's fault. Returns
    /// whether it has done so for request after request: then the endpoint is at fault.
    pub fn note_unanswered(&mut self, index: usize, now_ms: u64) -> bool {
        self.slots[index].unanswered.note(now_ms)
    }

    /// Whether one more may be ejected: never more than the allowed share, never the last.
    fn may_eject(&self) -> bool {
        let percent = self.checks.as_ref().map_or(100, |checks| checks.max_ejected_percent as usize);
        let members = || self.tiers.iter().flat_map(|tier| &tier.members);
        let ejected = members().filter(|&&index| self.slots[index as usize].health.failures > 0).count();
        let all = members().count();
        ejected < (all * percent / 100).min(all.saturating_sub(1))
    }

    /// Whether work that has been at the endpoint since `since_ms`, and can move, should move: the endpoint is gone, or
    /// has failed since then or been found unhealthy, and another one is better.
    pub fn is_to_be_left(&self, index: usize, since_ms: u64, now_ms: u64) -> bool {
        let slot = &self.slots[index];
        let is_healthy = slot.endpoint.verdict.as_ref().is_none_or(|verdict| verdict.is_healthy());
        // Work that began after the failure serves as its probe.
        let is_set_aside = !slot.health.usable(now_ms) && slot.health.last_failed_ms > since_ms;
        let is_better =
            |&other: &u32| other as usize != index && usable(&self.slots, other, now_ms, &TriedEndpoints::default());
        let has_better = || self.tiers.iter().flat_map(|tier| &tier.members).any(is_better);
        !slot.live || ((!is_healthy || is_set_aside) && has_better())
    }

    /// The endpoint of an index.
    #[inline]
    pub fn endpoint(&self, index: usize) -> &Endpoint {
        &self.slots[index].endpoint
    }

    /// Endpoints that can be chosen, set aside or not.
    pub fn choices(&self) -> usize {
        self.tiers.iter().map(|tier| tier.members.len()).sum()
    }

    /// The slot of a peer that is already in use; if it is not an endpoint, a retired slot of its own.
    pub(crate) fn adopt(&mut self, address: SocketAddr, host: &str) -> usize {
        let is_peer = |slot: &Slot| slot.endpoint.address == address && *slot.endpoint.host == *host;
        self.slots.iter().position(is_peer).unwrap_or_else(|| {
            let endpoint = Endpoint { address, weight: 0, priority: 0, host: host.into(), verdict: None };
            // Never a slot of another peer: state that is kept by its number would be attributed to this peer.
            let mut slot = Slot::new(endpoint, 0);
            slot.live = false;
            self.slots.push(slot);
            self.slots.len() - 1
        })
    }

    /// Detaches all existing connections from their endpoints.
    pub(crate) fn renew_generations(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.generation = slot.generation.wrapping_add(1));
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }
}

/// Groups the slots in `order` that have a weight by priority, best first.
fn tiers(balance: &Balance, slots: &[Slot], mut order: Vec<u32>) -> Vec<Tier> {
    let endpoint = |index: u32| &slots[index as usize].endpoint;
    order.retain(|&index| endpoint(index).weight > 0);
    order.sort_by_key(|&index| std::cmp::Reverse(endpoint(index).priority));
    order
        .chunk_by(|&a, &b| endpoint(a).priority == endpoint(b).priority)
        .map(|members| Tier {
            members: members.to_vec(),
            ring: match balance {
                Balance::ConsistentHash(_) => Ring::new(slots, members),
                Balance::RoundRobin | Balance::LeastConn | Balance::Ewma => Ring::default(),
            },
        })
        .collect()
}

// Consistent hashing on a ring of points.
//
// The ring is that of nginx's `hash … consistent` and of APISIX's `chash`: 160 points per unit of weight, each the
// CRC-32 of the peer's name and the point before, and a key belongs to the first point at or after its own CRC-32. If
// a member is removed, only its keys move, each to the next point's member; a member that is temporarily unusable is
// skipped the same way and gets its keys back.

/// Points per unit of weight.
const POINTS_PER_WEIGHT: u64 = 160;
/// The most points of one ring, 8 MiB of memory. If the weights require more, all are halved until they fit, so that
/// the distribution stays as configured and two similar definitions are halved alike.
const RING_POINTS_MAX: u64 = 1 << 20;

/// The points of one tier, by hash.
#[derive(Debug, Clone, Default)]
struct Ring {
    /// Strictly ascending hashes, each with the index of its member's slot.
    points: Vec<(u32, u32)>,
}

impl Ring {
    fn new(slots: &[Slot], members: &[u32]) -> Self {
        let points_of = |index: u32, halvings: u32| {
            let weight = u64::from(slots[index as usize].endpoint.weight);
            ((POINTS_PER_WEIGHT * weight) >> halvings).max(1)
        };
        let sum = |halvings| -> u64 { members.iter().map(|&m| points_of(m, halvings)).sum() };
        let halvings = (0..u64::BITS).find(|&halvings| sum(halvings) <= RING_POINTS_MAX).unwrap_or(u64::BITS - 1);

        let mut points = Vec::with_capacity(sum(halvings) as usize);
        for &index in members {
            let base = crc32fast::hash(slots[index as usize].endpoint.ring_id().as_bytes());
            let mut hash = 0u32;
            for _ in 0..points_of(index, halvings) {
                let mut hasher = crc32fast::Hasher::new_with_initial(base);
                hasher.update(&hash.to_le_bytes());
                hash = hasher.finalize();
                points.push((hash, index));
            }
        }
        // If two members' points collide, the winner must not depend on the order of the configuration.
        points.sort_unstable_by(|a, b| {
            let peer = |index: u32| &slots[index as usize].endpoint;
            let (left, right) = (peer(a.1), peer(b.1));
            a.0.cmp(&b.0).then_with(|| left.address.cmp(&right.address)).then_with(|| left.host.cmp(&right.host))
        });
        points.dedup_by_key(|point| point.0);
        Self { points }
    }

    /// The member of the first usable point from the key's place on.
    fn pick(&self, members: &[u32], key: &[u8], usable: impl Fn(u32) -> bool) -> Option<u32> {
        let hash = crc32fast::hash(key);
        let start = self.points.partition_point(|point| point.0 < hash);
        let (before, after) = self.points.split_at(start);
        let mut walk = after.iter().chain(before).map(|point| point.1);
        let first = walk.next()?;
        if usable(first) {
            return Some(first);
        }
        // This check prevents a walk around the whole ring of a dead tier.
        if !members.iter().any(|&index| usable(index)) {
            return None;
        }
        walk.find(|&index| usable(index))
    }
}

// The set of endpoints one request has already tried.
//
// The first 128 endpoints of an upstream are bits held inline, so nearly every request keeps this set without
// allocating. Endpoints beyond that go to a list that is allocated by the first *failure* of one, never by a
// request that succeeds at once; it is bounded by the tries of the request.

const INLINE_BITS: usize = u128::BITS as usize;

/// Endpoints that the current request must not be sent to again.
#[derive(Debug, Clone, Default)]
pub struct TriedEndpoints {
    low: u128,
    high: Vec<u32>,
}

impl TriedEndpoints {
    /// An empty set; does not allocate.
    pub const fn new() -> Self {
        Self { low: 0, high: Vec::new() }
    }

    /// Adds an endpoint; to be called when the try has failed.
    pub fn insert(&mut self, endpoint: usize) {
        if endpoint < INLINE_BITS {
            self.low |= 1 << endpoint;
        } else if !self.contains(endpoint) {
            self.high.push(endpoint as u32);
        }
    }

    /// Whether the endpoint was tried.
    #[inline]
    pub fn contains(&self, endpoint: usize) -> bool {
        if endpoint < INLINE_BITS { self.low >> endpoint & 1 == 1 } else { self.high.contains(&(endpoint as u32)) }
    }

    /// Forgets all endpoints, for the next request on the same client connection.
    pub fn clear(&mut self) {
        self.low = 0;
        self.high.clear();
    }

    /// Whether nothing was tried yet.
    pub fn is_empty(&self) -> bool {
        self.low == 0 && self.high.is_empty()
    }

    /// Distinct endpoints tried.
    pub fn len(&self) -> usize {
        self.low.count_ones() as usize + self.high.len()
    }
}

// Smooth weighted round robin, as in nginx.
//
// Each choice adds every usable member's weight to its current weight, takes the member with the most and subtracts
// the sum from it: weights 5, 1, 1 give a a b a c a a and never a run longer than needed. The current weights of
// unusable members do not change meanwhile. Unlike nginx, the weight of a failing member is not lowered; it is set
// aside instead.

/// Chooses among the members for which `usable` holds; the first of equal ones.
fn pick_in_turn(slots: &mut [Slot], members: &[u32], usable: impl Fn(&[Slot], u32) -> bool) -> Option<u32> {
    let mut total = 0;
    let mut best: Option<(u32, i64)> = None;
    for &index in members {
        if !usable(slots, index) {
            continue;
        }
        let slot = &mut slots[index as usize];
        let weight = slot.weight() as i64;
        slot.current += weight;
        total += weight;
        if best.is_none_or(|(_, current)| slot.current > current) {
            best = Some((index, slot.current));
        }
    }
    let (index, _) = best?;
    slots[index as usize].current -= total;
    Some(index)
}

/// Limits the current weights of a tier whose members changed to values that its own choices could have reached.
/// Otherwise the debt from times with a heavy member would starve a light one for as many choices once the heavy one
/// is gone.
fn clamp_turns(slots: &mut [Slot], members: &[u32]) {
    let weight = |slots: &[Slot], index: u32| slots[index as usize].weight() as i64;
    let total: i64 = members.iter().map(|&index| weight(slots, index)).sum();
    for &index in members {
        let slot = &mut slots[index as usize];
        slot.current = slot.current.clamp(-total, total);
    }
}

// Fewest requests under way by weight, like nginx's `least_conn`.
//
// Members with equal ratios of requests to weight take turns by the weighted round robin, so that an idle upstream
// does not send everything to its first node.

fn pick_least_loaded(slots: &mut [Slot], members: &[u32], now_ms: u64, tried: &TriedEndpoints) -> Option<u32> {
    let mut best: Option<u32> = None;
    let mut many = false;
    for &index in members {
        if !usable(slots, index, now_ms, tried) {
            continue;
        }
        match best.map_or(Ordering::Less, |best| load_cmp(slots, index, best)) {
            Ordering::Less => {
                best = Some(index);
                many = false;
            }
            Ordering::Equal => many = true,
            Ordering::Greater => {}
        }
    }
    let best = best?;
    if !many {
        return Some(best);
    }
    pick_in_turn(slots, members, |slots, index| {
        usable(slots, index, now_ms, tried) && load_cmp(slots, index, best).is_eq()
    })
}

/// Compares requests per weight without a division.
fn load_cmp(slots: &[Slot], a: u32, b: u32) -> Ordering {
    let (a, b) = (&slots[a as usize], &slots[b as usize]);
    let left = u64::from(a.active) * b.weight();
    let right = u64::from(b.active) * a.weight();
    left.cmp(&right)
}

// Peak-EWMA with the power of two choices, as in Finagle and Linkerd.
//
// Two members are drawn in proportion to their weights, and the one that is expected to answer sooner is chosen: by
// its latency times the requests it would then have, divided by its weight. Two choices rather than the best of all, so
// that workers, which cannot see each other, do not all choose the same node.

fn pick_soonest(slots: &[Slot], members: &[u32], now_ms: u64, random: u64, tried: &TriedEndpoints) -> Option<u32> {
    let weight = |index: u32| slots[index as usize].weight();
    let choices = || members.iter().copied().filter(|&index| usable(slots, index, now_ms, tried));
    let total: u64 = choices().map(weight).sum();
    let first = draw_by_weight(choices(), weight, scaled(random >> 32, total))?;
    let rest = total - weight(first);
    let others = choices().filter(|&index| index != first);
    let Some(second) = draw_by_weight(others, weight, scaled(random & u64::from(u32::MAX), rest)) else {
        return Some(first);
    };
    let cost = |index: u32| {
        let slot = &slots[index as usize];
        slot.latency.cost(slot.active, now_ms) / weight(index) as f32
    };
    Some(if cost(second) < cost(first) { second } else { first })
}

/// The member whose share of the weights contains `at`.
fn draw_by_weight(mut members: impl Iterator<Item = u32>, weight: impl Fn(u32) -> u64, mut at: u64) -> Option<u32> {
    members.find(|&index| match at.checked_sub(weight(index)) {
        Some(left) => {
            at = left;
            false
        }
        None => true,
    })
}

/// Maps 32 random bits evenly to 0..below.
fn scaled(random: u64, below: u64) -> u64 {
    ((u128::from(random) * u128::from(below)) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_any_index_once() {
        let mut tried = TriedEndpoints::new();
        assert!(tried.is_empty());
        for index in [0, 5, 127, 128, 70_000, 128, 5] {
            tried.insert(index);
        }
        assert_eq!(tried.len(), 5);
        for index in [0, 5, 127, 128, 70_000] {
            assert!(tried.contains(index));
        }
        assert!(!tried.contains(1) && !tried.contains(129));
        tried.clear();
        assert!(tried.is_empty() && !tried.contains(128));
    }
}
