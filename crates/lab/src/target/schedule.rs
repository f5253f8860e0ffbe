//! Priorities on the load's CPUs: generator and upstream, where the target has CPUs of its own.

use super::placement;
use crate::error::Result;
use crate::result::run::Placement;
use stillgate_rig::schedule::First as Priority;

/// While it exists, this thread stays on the load's CPUs, and the given processes have priority there.
#[derive(Debug)]
pub(crate) struct First {
    /// The reason why they have no priority.
    pub(crate) warning: Option<String>,
    _priority: Option<Priority>,
}

impl First {
    /// Whether the generator's threads may have the same priority.
    pub(crate) fn realtime(&self) -> bool {
        self.warning.is_none()
    }
}

/// Gives priority to the first threads of `pids`, and moves this thread, which counts the generator's measurements, off
/// the target's CPUs; it needs no priority itself. Does nothing if the target shares the load's CPUs.
pub(crate) fn first(placement: &Placement, pids: &[u32]) -> Result<First> {
    match placement::warning(placement) {
        warning @ Some(_) => Ok(First { warning, _priority: None }),
        None => first_of_open_loop(placement, pids),
    }
}

/// Puts the load first also if the target shares its CPUs: an open loop sleeps between its requests, and the target has that time.
pub(crate) fn first_of_open_loop(placement: &Placement, pids: &[u32]) -> Result<First> {
    let priority = Priority::put(&placement.load_cpus, pids)?;
    let warning = priority.refusal.as_ref().map(|error| {
        format!(
            "generator and upstream have no priority over other programs, so latencies may include the system's own delays; \
             run as root or with CAP_SYS_NICE ({error})"
        )
    });
    Ok(First { warning, _priority: Some(priority) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_rig::cpus;

    #[test]
    fn nobody_goes_before_a_target_on_the_same_cpu() {
        let all = cpus::available().unwrap();
        let placement = Placement { target_cpus: vec![0], load_cpus: vec![0], target_apart: false };
        let first = first(&placement, &[]).unwrap();
        assert!(first.warning.is_some() && !first.realtime());
        assert_eq!(cpus::available().unwrap(), all);
    }
}
