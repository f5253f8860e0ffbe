//! The whole state of one upstream in one worker: turns, failures, and idle connections.
//!
//! The proxy keeps the object across a reload that leaves the upstream unchanged, and calls [`UpstreamState::migrate`]
//! if the definition or the resolved addresses changed.

use crate::balancer::{Balancer, TriedEndpoints};
use crate::endpoint::Endpoint;
use crate::health::{Circuit, News, TryReport};
use crate::names::{NameFault, Names};
use crate::pool::{ConnMeta, Fit, Pool};
use crate::slot::{NodeFigures, Slot};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use stillgate_config::{RetryBudget, Upstream, UpstreamLimits};

/// One upstream in one worker. An endpoint's index is valid from the [`UpstreamState::pick`] that returned it until the
/// [`UpstreamState::on_finish`] of that try, even if the upstream is redefined in between.
#[derive(Debug)]
pub struct UpstreamState<C> {
    balancer: Balancer,
    pool: Pool<C>,
    /// Tries under way, over all endpoints.
    tries: u32,
    /// Tries among them that are retries.
    retries: u32,
    limits: UpstreamLimits,
    queue: Queue,
    names: Names,
}

/// Status of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointStatus {
    /// Its address.
    pub address: SocketAddr,
    /// Its node; see [`Endpoint::host`].
    pub host: Arc<str>,
    /// Requests and tunnels under way.
    pub active: u32,
    /// Idle connections.
    pub idle: usize,
    /// State of its circuit breaker.
    pub circuit: Circuit,
    /// Set-aside periods in a row.
    pub failures: u32,
    /// The rest of the present set-aside period; zero if it is in use.
    pub set_aside_ms: u64,
    /// What it has done so far.
    pub figures: NodeFigures,
}

impl<C> UpstreamState<C> {
    /// An upstream without history.
    pub fn new(upstream: &Upstream, endpoints: &[Endpoint]) -> Self {
        let mut balancer = Balancer::new(&upstream.balance, endpoints);
        balancer.set_checks(upstream.checks.as_ref());
        let pool = Pool::new(upstream.keepalive);
        let (limits, queue, names) = (upstream.limits, Queue::default(), Names::default());
        Self { balancer, pool, tries: 0, retries: 0, limits, queue, names }
    }

    /// Applies a new definition or new addresses. The state of endpoints that stay is kept: idle connections, requests
    /// under way, set-aside state, latency, and the turn if weight and priority are unchanged. Idle connections to
    /// removed endpoints are closed; one in use ends its request and is not kept afterwards. Waiting requests continue
    /// to wait, under the new bound on requests in flight.
    pub fn migrate(&mut self, upstream: &Upstream, endpoints: &[Endpoint]) {
        self.balancer.redefine(&upstream.balance, endpoints);
        self.balancer.set_checks(upstream.checks.as_ref());
        let slots = self.balancer.slots();
        self.names.retain(|(index, generation)| slots[index].live && slots[index].generation == generation);
        self.pool.retain(|index, meta| keeps_connections(&slots[index], meta));
        self.pool.set_bounds(upstream.keepalive);
        self.limits = upstream.limits;
        self.queue.wake_first();
    }

    /// Closes all idle connections, and keeps none of those in use: their protocol is not the one that the upstream
    /// requires now.
    pub fn renew_connections(&mut self) {
        self.balancer.renew_generations();
        self.names.retain(|_| false);
        self.pool.retain(|_, _| false);
    }

    /// Chooses an endpoint; see [`Balancer::pick`].
    #[inline]
    pub fn pick(&mut self, key: Option<&[u8]>, now_ms: u64, random: u64, tried: &TriedEndpoints) -> Option<usize> {
        self.balancer.pick(key, now_ms, random, tried)
    }

    /// Chooses an endpoint for a request whose server name, possibly a valid one, was refused by an endpoint: preferably one that
    /// has not refused an unproved name since it last accepted one. If all have, any endpoint of any tier is chosen: requests for
    /// foreign names must not keep others from the nodes behind broken ones, in whatever order they arrive.
    #[cold]
    pub fn pick_undoubted(
        &mut self,
        key: Option<&[u8]>,
        now_ms: u64,
        random: u64,
        tried: &TriedEndpoints,
    ) -> Option<usize> {
        let Self { names, balancer, .. } = self;
        let doubted: Vec<usize> = names.doubted_indices().collect();
        // Without any of the doubted nodes, or with one of them.
        let mut pick = |spared: Option<usize>| {
            let mut avoided = tried.clone();
            doubted.iter().filter(|index| spared != Some(**index)).for_each(|index| avoided.insert(*index));
            balancer.pick_usable(key, now_ms, random, &avoided)
        };
        let first = random.checked_rem(doubted.len() as u64).unwrap_or_default() as usize;
        let any = doubted[first..].iter().chain(&doubted[..first]);
        let picked = pick(None).or_else(|| any.copied().find_map(|index| pick(Some(index))));
        picked.or_else(|| self.pick(key, now_ms, random, tried))
    }

    /// Begins a try on the endpoint; see [`Balancer::on_start`].
    #[inline]
    pub fn on_start(&mut self, index: usize) {
        self.balancer.on_start(index);
        self.tries += 1;
    }

    /// Ends the try, with its connection back in the pool or closed; see [`Balancer::on_finish`].
    #[inline]
    pub fn on_finish(&mut self, index: usize, latency_us: Option<u32>, now_ms: u64) {
        self.balancer.on_finish(index, latency_us, now_ms);
        self.tries = self.tries.saturating_sub(1);
        self.queue.wake_first();
    }

    /// The index of the peer of work that began in another process. It need not be an endpoint of the upstream (any
    /// more).
    pub fn adopt(&mut self, address: SocketAddr, host: &str) -> usize {
        self.balancer.adopt(address, host)
    }

    /// Begins a tunnel on the endpoint: the balancer counts it like a try, but it is not a request, as it may last for
    /// days.
    pub fn on_tunnel_start(&mut self, index: usize) {
        self.balancer.on_start(index);
    }

    /// Ends the tunnel.
    pub fn on_tunnel_finish(&mut self, index: usize, now_ms: u64) {
        self.balancer.on_finish(index, None, now_ms);
    }

    /// Requests under way.
    #[inline]
    pub fn active(&self) -> u32 {
        self.tries
    }

    /// Whether a request may begin at once: there is room for it, and no other request has waited longer.
    #[inline]
    pub fn has_place(&self) -> bool {
        self.queue.is_empty() && self.has_room()
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.limits.requests.is_none_or(|max| self.tries < max)
    }

    /// Begins to wait for a place; `None` if the queue is full. Waiting requests with room for them do not count: they
    /// were woken, and are about to leave. Every call that returns a ticket must be followed by one of
    /// [`UpstreamState::leave_queue`].
    pub fn join_queue(&mut self, waker: &Waker) -> Option<(Ticket, Duration)> {
        let room = self.limits.requests.map_or(u32::MAX, |max| max.saturating_sub(self.tries));
        let is_full = self.queue.len() >= self.limits.queue.saturating_add(room) as usize;
        (!is_full).then(|| (self.queue.join(waker), self.limits.queue_timeout))
    }

    /// Whether it is the request's turn and there is room for it. If not, `waker` is woken when that may have changed.
    pub fn poll_turn(&mut self, ticket: Ticket, waker: &Waker) -> bool {
        let is_turn = self.queue.is_first(ticket) && self.has_room();
        if !is_turn {
            self.queue.set_waker(ticket, waker);
        }
        is_turn
    }

    /// Stops waiting: its try begins before any other request can check, or there will be none.
    pub fn leave_queue(&mut self, ticket: Ticket) {
        self.queue.leave(ticket);
    }

    /// Requests that wait for a place.
    pub fn waiting_count(&self) -> usize {
        self.queue.len()
    }

    /// Begins a retry; every call must be followed by one of [`UpstreamState::on_retry_end`].
    pub fn on_retry(&mut self) {
        self.retries += 1;
    }

    /// Ends the retry.
    pub fn on_retry_end(&mut self) {
        self.retries = self.retries.saturating_sub(1);
    }

    /// Whether a request whose try is over may be tried again, considering other retries.
    pub fn has_budget(&self, budget: &RetryBudget) -> bool {
        // The request itself counts like the others.
        let requests = u64::from(self.tries) + 1;
        let share = requests * u64::from(budget.percent) / 100;
        u64::from(self.retries) < share.max(u64::from(budget.min_concurrency))
    }

    /// Handles the result of a try for the endpoint; see [`Balancer::report`].
    #[inline]
    pub fn report(&mut self, index: usize, report: TryReport, now_ms: u64) -> Option<News> {
        self.balancer.report(index, report, now_ms)
    }

    /// Handles that the endpoint has ended a request without an answer, which may be the request's fault; see
    /// [`Balancer::note_unanswered`].
    pub fn note_unanswered(&mut self, index: usize, now_ms: u64) -> bool {
        self.balancer.note_unanswered(index, now_ms)
    }

    /// Records that the endpoint has accepted the server name of a request.
    pub fn accept_name(&mut self, index: usize, name: &str) {
        self.names.accept((index, self.balancer.slots()[index].generation), name);
    }

    /// Records that a handshake with the endpoint has failed for the server name of a request; returns the cause.
    pub fn refuse_name(&mut self, index: usize, name: &str) -> NameFault {
        self.names.refuse((index, self.balancer.slots()[index].generation), name)
    }

    /// Whether the endpoint has failed, with no further failure after `since_ms`.
    #[inline]
    pub fn is_doubted_since(&self, index: usize, since_ms: u64) -> bool {
        let health = &self.balancer.slots()[index].health;
        health.failures > 0 && health.last_failed_ms <= since_ms
    }

    /// Whether work that has been at the endpoint for a while should move; see [`Balancer::is_to_be_left`].
    pub fn is_to_be_left(&self, index: usize, since_ms: u64, now_ms: u64) -> bool {
        self.balancer.is_to_be_left(index, since_ms, now_ms)
    }

    /// The endpoint of an index.
    #[inline]
    pub fn endpoint(&self, index: usize) -> &Endpoint {
        self.balancer.endpoint(index)
    }

    /// Endpoints that can be chosen, set aside or not; if there are none, the request is answered 503.
    pub fn choices(&self) -> usize {
        self.balancer.choices()
    }

    /// An idle connection to the endpoint that `judge`, called with its node, accepts; see [`Pool::take`].
    #[inline]
    pub fn take(
        &mut self,
        index: usize,
        now_ms: u64,
        mut judge: impl FnMut(&mut C, &str) -> Fit,
    ) -> Option<(C, ConnMeta)> {
        let node = &self.balancer.endpoint(index).host;
        self.pool.take(index, now_ms, |conn| judge(conn, node))
    }

    /// The state to keep with a new connection to the endpoint, for [`UpstreamState::put`] after its first request.
    pub fn fresh_meta(&self, index: usize) -> ConnMeta {
        ConnMeta::fresh(self.balancer.slots()[index].generation)
    }

    /// Keeps a connection whose request is over, and returns the one to close instead, if any; see [`Pool::put`]. A
    /// connection to an endpoint that was removed meanwhile is not kept.
    #[inline]
    pub fn put(&mut self, index: usize, conn: C, meta: ConnMeta, now_ms: u64) -> Option<C> {
        if keeps_connections(&self.balancer.slots()[index], &meta) {
            self.pool.put(index, conn, meta, now_ms)
        } else {
            Some(conn)
        }
    }

    /// Closes idle connections that are too old or dead; see [`Pool::expire`].
    pub fn expire(&mut self, now_ms: u64, is_dead: impl FnMut(&mut C) -> bool) -> usize {
        self.pool.expire(now_ms, is_dead)
    }

    /// Idle connections over all endpoints.
    pub fn idle(&self) -> usize {
        self.pool.len()
    }

    /// The present endpoints, for the status.
    pub fn status(&self, now_ms: u64) -> impl Iterator<Item = EndpointStatus> {
        let slots = self.balancer.slots().iter().enumerate();
        slots.filter(|(_, slot)| slot.live).map(move |(index, slot)| EndpointStatus {
            address: slot.endpoint.address,
            host: slot.endpoint.host.clone(),
            circuit: slot.health.circuit(now_ms),
            active: slot.active,
            idle: self.pool.idle(index),
            failures: slot.health.failures,
            set_aside_ms: slot.health.set_aside_ms(now_ms),
            figures: slot.figures,
        })
    }
}

/// Whether a connection with this meta was made to the slot's present peer.
#[inline]
fn keeps_connections(slot: &Slot, meta: &ConnMeta) -> bool {
    slot.live && slot.generation == meta.generation
}

// Requests that wait for one under way to end, in the order of arrival.
//
// A place is not handed over: the oldest waiting request is woken and checks itself, and new requests queue behind
// waiting ones. So a superfluous wake is harmless, and one that reaches a task about to end loses no place: a request
// that leaves wakes the next.

/// The waiting requests.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// In the order of their tickets.
    waiting: VecDeque<QueueEntry>,
    next_ticket: u64,
}

/// Identifies a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Debug)]
struct QueueEntry {
    ticket: Ticket,
    waker: Waker,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Appends a request to the queue.
    pub(crate) fn join(&mut self, waker: &Waker) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting.push_back(QueueEntry { ticket, waker: waker.clone() });
        ticket
    }

    /// Whether no request has waited longer.
    pub(crate) fn is_first(&self, ticket: Ticket) -> bool {
        self.waiting.front().is_some_and(|first| first.ticket == ticket)
    }

    /// Replaces the waker of a waiting request.
    pub(crate) fn set_waker(&mut self, ticket: Ticket, waker: &Waker) {
        if let Some(at) = self.position(ticket) {
            self.waiting[at].waker.clone_from(waker);
        }
    }

    /// Removes a request from the queue, for any reason.
    pub(crate) fn leave(&mut self, ticket: Ticket) {
        let Some(at) = self.position(ticket) else { return };
        self.waiting.remove(at);
        if at == 0 {
            self.wake_first();
        }
    }

    /// Wakes the first request, since there may be a place.
    #[inline]
    pub(crate) fn wake_first(&self) {
        if let Some(first) = self.waiting.front() {
            first.waker.wake_by_ref();
        }
    }

    fn position(&self, ticket: Ticket) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket).ok()
    }
}
