//! The table of limits: one for the process, made for the first Plan that has a limit, and kept from then on.

use super::{Plan, PlanCell};
use std::io;
use std::sync::Arc;
use stillgate_limits::Limits;

impl Plan {
    /// Whether some plugin counts in the table of limits.
    fn needs_limits(&self) -> bool {
        self.routes.need_limits()
            || self.consumers.need_limits()
            || self
                .global
                .as_ref()
                .is_some_and(|global| global.entries().iter().any(|entry| entry.plugin.needs_limits()))
    }
}

impl PlanCell {
    /// Makes the table of limits if `plan`, which is to be published next, needs one and there is none. Must not be called by a
    /// worker: it takes memory.
    ///
    /// # Errors
    ///
    /// Fails if the system does not provide the memory: then plugins work without a table.
    pub fn provide_limits(&self, plan: &Plan, bytes_max: usize) -> io::Result<()> {
        if self.limits.get().is_none() && plan.needs_limits() {
            self.inherit_limits(Limits::create(bytes_max)?);
        }
        Ok(())
    }

    /// Takes over the table of the previous process. If there is one already, that stays.
    pub fn inherit_limits(&self, table: Limits) {
        // Only the control thread sets it; if there were another, its counters would be in use.
        let _stays = self.limits.set(Arc::new(table));
    }
}
