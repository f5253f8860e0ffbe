//! What a worker tells of itself: its CPU time, its connections, the turns of its event loop, and what its listeners accepted.
//!
//! One worker that is busy, or blocked by something that it should not do, looks like any latency from outside; by worker it
//! shows. A turn is timed by a look at the clock at its end, as one at its beginning is taken anyhow; all else is told on ticks.

use super::Recorder;
use super::gauges::labelled;
use crate::plan::metrics::{MetricsPlan, PlanFamily};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::sync::Arc;
use stillgate_config::Measure;
use stillgate_metrics::{Declared, Handle};

/// What is counted of connections, by listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionEvent {
    Accepted,
    /// The worker had its share.
    Refused,
    /// There was no good PROXY protocol header.
    NoProxyHeader,
}

/// The families of the events, in their order.
const EVENT_MEASURES: [Measure; 3] =
    [Measure::ConnectionsAccepted, Measure::ConnectionsRefused, Measure::ProxyProtocolErrors];

/// What has happened at one listener of a worker, of HTTP or of streams.
#[derive(Debug)]
pub(crate) struct ListenerEvents {
    /// As the configuration has its address.
    label: String,
    pub(crate) counts: [Cell<u64>; EVENT_MEASURES.len()],
    /// How much of them the metrics know.
    told: [Cell<u64>; EVENT_MEASURES.len()],
}

impl ListenerEvents {
    pub(crate) fn new(label: String) -> ListenerEvents {
        ListenerEvents { label, counts: Default::default(), told: Default::default() }
    }
}

/// What the metrics know of a worker.
#[derive(Debug)]
pub(super) struct Itself {
    /// Its number, as a label.
    number: String,
    cpu_s: f64,
    /// Connections.
    open: u64,
    /// The series of its turns, and the family that it is of.
    turns: Option<(Arc<Declared>, Handle)>,
}

impl Itself {
    pub(super) fn new(number: usize) -> Itself {
        Itself { number: number.to_string(), cpu_s: 0.0, open: 0, turns: None }
    }
}

impl Recorder {
    /// A turn of the event loop has taken so long.
    pub(crate) fn observe_turn(&mut self, family: &PlanFamily, seconds: f64) {
        let Recorder { writer, itself, .. } = self;
        if let Some((of, handle)) = &itself.turns
            && Arc::ptr_eq(of, &family.declared)
            && writer.observe(*handle, seconds)
        {
            return;
        }
        let handle = labelled(writer, family, &itself.number);
        itself.turns = Some((family.declared.clone(), handle));
        // Refused only where there was no memory for the series, and that the writer has counted.
        let _ = writer.observe(handle, seconds);
    }

    /// What has changed, or all of it if it is `due`.
    pub(crate) fn tell_itself(&mut self, metrics: &MetricsPlan, listeners: &[ListenerEvents], open: u64, due: bool) {
        let Recorder { writer, itself, .. } = self;
        for (index, measure) in EVENT_MEASURES.into_iter().enumerate() {
            let Some(family) = metrics.family(measure) else { continue };
            for listener in listeners {
                let (count, told) = (listener.counts[index].get(), &listener.told[index]);
                if count == told.get() && !due {
                    continue;
                }
                let handle = labelled(writer, family, &listener.label);
                // Refused only where there was no memory for the series, and that the writer has counted.
                let _ = writer.add(handle, count - told.replace(count));
            }
        }
        if let Some(family) = metrics.family(Measure::WorkerConnections).filter(|_| due || open != itself.open) {
            itself.open = open;
            let handle = labelled(writer, family, &itself.number);
            let _ = writer.set(handle, open as f64);
        }
        if let Some(family) = metrics.family(Measure::WorkerCpu).filter(|_| due) {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            let cpu_s = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
            let handle = labelled(writer, family, &itself.number);
            let _ = writer.add_float(handle, cpu_s - std::mem::replace(&mut itself.cpu_s, cpu_s));
        }
    }
}
