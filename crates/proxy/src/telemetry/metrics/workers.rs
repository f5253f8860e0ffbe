//! What a worker reports about itself: its CPU time, its connections, the turns of its event loop, and what its listeners accepted.
//!
//! A worker that is busy, or blocked by something that it should not do, looks like any latency from outside; a label for the
//! worker shows it. A turn is timed by reading the clock at its end, as it is read at its beginning anyway; all else is reported on
//! ticks.

use super::Recorder;
use super::gauges::{labelled, labelled_from_start};
use crate::plan::metrics::{MetricsPlan, PlanFamily};
use crate::sockets::listener::{CONNECTION_EVENTS, ConnectionEvent, Listener};
use rustix::time::{ClockId, clock_gettime};
use std::rc::Rc;
use std::sync::Arc;
use stillgate_config::Measure;
use stillgate_metrics::{DeclaredFamily, Handle};

/// The families of the events of connections.
const EVENT_MEASURES: [(ConnectionEvent, Measure); CONNECTION_EVENTS] = [
    (ConnectionEvent::Accepted, Measure::ConnectionsAccepted),
    (ConnectionEvent::Refused, Measure::ConnectionsRefused),
    (ConnectionEvent::NoProxyHeader, Measure::ProxyProtocolErrors),
];

/// What the metrics have been given about a worker.
#[derive(Debug)]
pub(super) struct Itself {
    /// Its number, as a label.
    number: String,
    cpu_s: f64,
    /// Connections.
    open: u64,
    /// The series of its turns, and its family.
    turns: Option<(Arc<DeclaredFamily>, Handle)>,
}

impl Itself {
    pub(super) fn new(number: usize) -> Itself {
        Itself { number: number.to_string(), cpu_s: 0.0, open: 0, turns: None }
    }
}

impl Recorder {
    /// Records how long a turn of the event loop took.
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
        // Refused only if there was no memory for the series, which the writer has counted.
        let _ = writer.observe(handle, seconds);
    }

    /// Reports what has changed, or everything if it is `due`.
    pub(crate) fn report_itself(&mut self, metrics: &MetricsPlan, listeners: &[Rc<Listener>], open: u64, due: bool) {
        let Recorder { writer, itself, .. } = self;
        for (event, measure) in EVENT_MEASURES {
            let Some(family) = metrics.family(measure) else { continue };
            for listener in listeners.iter().filter(|listener| listener.takes_connections()) {
                let Some(count) = listener.news(event, due) else { continue };
                let handle = labelled_from_start(writer, family, &listener.label);
                // Refused only if there was no memory for the series, which the writer has counted.
                let _ = writer.add(handle, count);
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
            let handle = labelled_from_start(writer, family, &itself.number);
            let _ = writer.add_float(handle, cpu_s - std::mem::replace(&mut itself.cpu_s, cpu_s));
        }
    }
}
