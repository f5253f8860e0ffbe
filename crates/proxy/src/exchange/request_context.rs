//! Context of the phases of a request.

use super::Exchange;
use crate::connection::client::ClientConnection;
use crate::plan::snapshot::Snapshot;
use crate::plan::{PlanRoute, Settings};
use crate::worker::Worker;
use std::rc::Rc;

/// A request being served. It is passed from phase to phase.
pub(crate) struct RequestContext<'a> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(crate) client: &'a mut ClientConnection,
    pub(crate) exchange: &'a mut Exchange,
    /// Snapshot from which it is served to its end, whatever is published meanwhile.
    pub(crate) snapshot: &'a Snapshot,
    /// `None`: no route was found yet, or there is none.
    pub(crate) route: Option<&'a PlanRoute>,
}

impl<'a> RequestContext<'a> {
    /// Lends the context for a part of its time.
    #[inline]
    pub(crate) fn lend(&mut self) -> RequestContext<'_> {
        RequestContext {
            worker: self.worker,
            client: self.client,
            exchange: self.exchange,
            snapshot: self.snapshot,
            route: self.route,
        }
    }

    pub(crate) fn settings(&self) -> &'a Settings {
        &self.snapshot.plan.settings
    }
}
