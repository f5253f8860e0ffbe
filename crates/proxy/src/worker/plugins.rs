//! What a worker has for running plugins, and the calls themselves.
//!
//! A plugin that panics is a bug of the plugin: its call has no result, and what it says is not repeated, since it may hold
//! what is secret.

use super::Worker;
use super::body_memory::BodyMemory;
use super::offload::Offloading;
use super::plugin_io::PluginIo;
use crate::random;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Once, OnceLock};
use std::time::Instant;
use stillgate_limits::Limits;
use stillgate_plugin::chain::TooLong;
use stillgate_plugin::{Chain, Entry, Phase};

/// One request in so many is timed.
const TIMED_OF: u32 = 1_000;
/// Chains with a consumer's plugins that a worker keeps.
const MERGED_MAX: usize = 1_024;

/// What a worker has for running plugins.
#[derive(Default)]
pub(crate) struct Plugins {
    /// What plugins themselves see of it.
    pub(crate) own: stillgate_plugin::Worker,
    /// What filters of bodies hold.
    pub(crate) held: Rc<BodyMemory>,
    /// Chains of routes joined by plugins of consumers, by the memory of both.
    merged: RefCell<HashMap<(usize, usize), Merged>>,
    requests: Cell<u32>,
    /// For what would take too long here.
    pub(crate) offloading: Arc<Offloading>,
    /// Requests that wait for plugins.
    pub(crate) waiting: Cell<usize>,
}

/// A chain and what it was made of, which stays where it is as long as its address is a key.
struct Merged {
    chain: Rc<Chain>,
    _route: Option<Arc<Chain>>,
    _consumer: Arc<[Arc<Entry>]>,
}

impl Plugins {
    /// With a place for the table of limits, and the threads that all workers share.
    pub(crate) fn new(
        limits: Arc<OnceLock<Arc<Limits>>>,
        offloading: Arc<Offloading>,
        worker: Weak<Worker>,
    ) -> Plugins {
        let io = PluginIo { worker, calls: Rc::default() };
        let own = stillgate_plugin::Worker::new(limits).with_io(Rc::new(io));
        own.seed(random::number());
        Plugins { own, offloading, ..Plugins::default() }
    }

    /// The route's chain with a consumer's plugins in it.
    pub(crate) fn merged(
        &self,
        route: Option<&Arc<Chain>>,
        consumer: &Arc<[Arc<Entry>]>,
    ) -> Result<Rc<Chain>, TooLong> {
        let key = (route.map_or(0, |route| Arc::as_ptr(route).addr()), Arc::as_ptr(consumer).cast::<u8>().addr());
        let mut known = self.merged.borrow_mut();
        if let Some(merged) = known.get(&key) {
            return Ok(merged.chain.clone());
        }
        let chain = Rc::new(Chain::merge([route.map_or(&[][..], |route| route.entries()), consumer])?);
        if known.len() >= MERGED_MAX {
            known.clear();
        }
        let merged = Merged { chain: chain.clone(), _route: route.cloned(), _consumer: consumer.clone() };
        known.insert(key, merged);
        Ok(chain)
    }

    /// Whether the next request is timed.
    pub(crate) fn is_timed(&self) -> bool {
        let requests = self.requests.get().wrapping_add(1);
        self.requests.set(requests);
        requests.is_multiple_of(TIMED_OF)
    }
}

/// A plugin has panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panicked;

/// Calls a plugin, timed or not, whatever becomes of it.
pub(crate) fn call<R>(
    worker: &Worker,
    entry: &Entry,
    phase: Phase,
    is_timed: bool,
    then: impl FnOnce() -> R,
) -> Result<R, Panicked> {
    let began = is_timed.then(Instant::now);
    let result = guarded(then);
    if let Some(began) = began {
        let took = began.elapsed();
        worker.tell_plugin(|recorder, metrics| recorder.observe_plugin(metrics, entry.name, phase, took));
    }
    result.inspect_err(|Panicked| {
        worker.tell_plugin(|recorder, metrics| recorder.count_plugin_panic(metrics, entry.name));
        tracing::error!(plugin = entry.name, origin = %entry.origin, phase = phase.name(), "a plugin panicked");
    })
}

/// What plugins do that ends a request, beyond answering it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// More is added to a head than it may have.
    Head,
    /// A body is larger than the plugin holds.
    TooLarge,
    /// It is not what its head says.
    Malformed,
    /// Filters hold as much as they may in this worker.
    Memory,
    /// The same for this client.
    ClientMemory,
    /// Filters have worked on it for as long as they may.
    Time,
}

impl Refusal {
    /// In the label `reason`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Refusal::Head => "head",
            Refusal::TooLarge => "too_large",
            Refusal::Malformed => "malformed",
            Refusal::Memory => "memory",
            Refusal::ClientMemory => "client_memory",
            Refusal::Time => "time",
        }
    }
}

impl Worker {
    /// A plugin does not let a head or a body go on.
    #[cold]
    pub(crate) fn note_refusal(&self, plugin: &'static str, refusal: Refusal) {
        self.tell_plugin(|recorder, metrics| match refusal {
            Refusal::Head => recorder.count_refused_head(metrics, plugin),
            of_body => recorder.count_refused_body(metrics, plugin, of_body.name()),
        });
        self.troubles.note_plugin(plugin, refusal.name());
    }

    /// A filter of a body has panicked.
    #[cold]
    pub(crate) fn note_filter_panic(&self, plugin: &'static str) {
        self.tell_plugin(|recorder, metrics| recorder.count_plugin_panic(metrics, plugin));
        tracing::error!(plugin, phase = Phase::BodyFilter.name(), "a plugin panicked");
    }
}

/// Runs a plugin's code. What a panic says may hold what is secret: only its place is told.
pub(crate) fn guarded<R>(then: impl FnOnce() -> R) -> Result<R, Panicked> {
    static HOOK: Once = Once::new();
    thread_local!(static IS_INSIDE: Cell<bool> = const { Cell::new(false) });
    HOOK.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match (IS_INSIDE.get(), info.location()) {
            (false, _) => default(info),
            (true, place) => tracing::error!(place = place.map(tracing::field::display), "panic in a plugin"),
        }));
    });
    IS_INSIDE.set(true);
    let result = catch_unwind(AssertUnwindSafe(then));
    IS_INSIDE.set(false);
    result.map_err(|_| Panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_with_consumers_are_merged_once() {
        let plugins = Plugins::default();
        let (route, consumer): (_, Arc<[Arc<Entry>]>) = (Arc::new(Chain::default()), Arc::default());
        let first = plugins.merged(Some(&route), &consumer).unwrap();
        assert!(Rc::ptr_eq(&first, &plugins.merged(Some(&route), &consumer).unwrap()));
        assert!(!Rc::ptr_eq(&first, &plugins.merged(None, &consumer).unwrap()));
        for _ in 0..2 * MERGED_MAX {
            plugins.merged(Some(&Arc::new(Chain::default())), &consumer).unwrap();
            assert!(plugins.merged.borrow().len() <= MERGED_MAX);
        }
    }

    #[test]
    fn one_request_in_a_thousand_is_timed() {
        let plugins = Plugins::default();
        assert_eq!((0..10 * TIMED_OF).filter(|_| plugins.is_timed()).count(), 10);
    }

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!((guarded(|| 1), guarded(|| -> u32 { panic!("a secret") })), (Ok(1), Err(Panicked)));
    }
}
