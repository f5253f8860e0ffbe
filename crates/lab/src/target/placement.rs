//! Placement on CPUs: the target on its own, everything that measures on others. There, generator and upstream have
//! priority, if the target has CPUs of its own.

use crate::error::Result;
use crate::hosts;
use crate::result::run::Placement;
use std::path::Path;
use stillgate_rig::cpus;
use stillgate_rig::schedule::RealtimePriority;

/// Divides the CPUs this process may use: the first half for the target, the rest for the load. Given lists take
/// precedence, and a missing one then gets all the others.
pub(crate) fn choose(target_cpus: Option<&[usize]>, load_cpus: Option<&[usize]>) -> Result<Placement> {
    divide_cpus(&cpus::available()?, target_cpus, load_cpus)
}

/// The CPUs with or without a file of `--hosts`.
pub(crate) fn place_for_hosts(
    target_cpus: Option<&[usize]>,
    load_cpus: Option<&[usize]>,
    file: Option<&Path>,
) -> Result<Placement> {
    match file.map(hosts::has_target).transpose()? {
        Some(true) => apart(target_cpus, load_cpus),
        _ => choose(target_cpus, load_cpus),
    }
}

/// With a separate machine for the target: any given CPUs there, and on this machine all or the given ones.
fn apart(target_cpus: Option<&[usize]>, load_cpus: Option<&[usize]>) -> Result<Placement> {
    let Placement { load_cpus, .. } =
        divide_cpus(&cpus::available()?, None, Some(load_cpus.unwrap_or(&cpus::available()?)))?;
    Ok(Placement { target_cpus: target_cpus.unwrap_or_default().to_vec(), load_cpus, target_apart: true })
}

/// A warning about a placement: CPUs that target and load share.
pub(crate) fn warning(placement: &Placement) -> Option<String> {
    let Placement { target_cpus, load_cpus, target_apart } = placement;
    if *target_apart {
        return None;
    }
    let shared: Vec<usize> = target_cpus.iter().copied().filter(|cpu| load_cpus.contains(cpu)).collect();
    let what = match shared.as_slice() {
        // No list means all.
        [] if target_cpus.is_empty() || load_cpus.is_empty() => "CPUs".to_owned(),
        [] => return None,
        shared => format!("CPU {}", cpus::list(shared)),
    };
    Some(format!("target and load share {what}: each takes time from the other, and latencies are those of both"))
}

fn divide_cpus(available: &[usize], target: Option<&[usize]>, load: Option<&[usize]>) -> Result<Placement> {
    for cpu in target.iter().chain(&load).copied().flatten() {
        if !available.contains(cpu) {
            return Err(format!("CPU {cpu} is not among those this process may use: {}", cpus::list(available)).into());
        }
    }
    let others = |taken: &[usize]| {
        let rest: Vec<usize> = available.iter().copied().filter(|cpu| !taken.contains(cpu)).collect();
        if rest.is_empty() { available.to_vec() } else { rest }
    };
    let half = &available[..available.len().div_ceil(2)];
    let (target_cpus, load_cpus) = match (target, load) {
        (None, None) => (half.to_vec(), others(half)),
        (Some(target), None) => (target.to_vec(), others(target)),
        (None, Some(load)) => (others(load), load.to_vec()),
        (Some(target), Some(load)) => (target.to_vec(), load.to_vec()),
    };
    Ok(Placement { target_cpus, load_cpus, target_apart: false })
}

/// While it exists, this thread stays on the load's CPUs, and the given processes have priority there.
#[derive(Debug)]
pub(crate) struct LoadPriority {
    /// The reason why they have no priority.
    pub(crate) warning: Option<String>,
    _priority: Option<RealtimePriority>,
}

impl LoadPriority {
    /// Whether the generator's threads may have the same priority.
    pub(crate) fn realtime(&self) -> bool {
        self.warning.is_none()
    }
}

/// Gives priority to the first threads of `pids`, and moves this thread, which counts the generator's measurements, off
/// the target's CPUs; it needs no priority itself. Does nothing if the target shares the load's CPUs.
pub(crate) fn prioritize_load(placement: &Placement, pids: &[u32]) -> Result<LoadPriority> {
    match warning(placement) {
        warning @ Some(_) => Ok(LoadPriority { warning, _priority: None }),
        None => prioritize_open_loop(placement, pids),
    }
}

/// Puts the load first also if the target shares its CPUs: an open loop sleeps between its requests, and the target has that time.
pub(crate) fn prioritize_open_loop(placement: &Placement, pids: &[u32]) -> Result<LoadPriority> {
    let priority = RealtimePriority::give(&placement.load_cpus, pids)?;
    let warning = priority.refusal.as_ref().map(|error| {
        format!(
            "generator and upstream have no priority over other programs, so latencies may include the system's own delays; \
             run as root or with CAP_SYS_NICE ({error})"
        )
    });
    Ok(LoadPriority { warning, _priority: Some(priority) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_rig::cpus;

    #[test]
    fn halves_by_default() {
        #[track_caller]
        fn check(
            available: &[usize],
            target: Option<&[usize]>,
            load: Option<&[usize]>,
            expected: (&[usize], &[usize]),
        ) {
            let placement = divide_cpus(available, target, load).unwrap();
            assert_eq!((&placement.target_cpus[..], &placement.load_cpus[..]), expected);
        }
        check(&[0, 1], None, None, (&[0], &[1]));
        check(&[0, 1, 2], None, None, (&[0, 1], &[2]));
        check(&[4, 5, 6, 7], None, None, (&[4, 5], &[6, 7]));
        check(&[3], None, None, (&[3], &[3]));
        check(&[0, 1, 2, 3], Some(&[0]), None, (&[0], &[1, 2, 3]));
        check(&[0, 1, 2, 3], None, Some(&[0]), (&[1, 2, 3], &[0]));
        check(&[0, 1, 2, 3], Some(&[1]), Some(&[1]), (&[1], &[1]));
        check(&[0, 1], Some(&[0, 1]), None, (&[0, 1], &[0, 1]));
    }

    #[test]
    fn a_cpu_that_is_not_ours() {
        let error = divide_cpus(&[0, 1], Some(&[0]), Some(&[7])).unwrap_err();
        assert_eq!(error.to_string(), "CPU 7 is not among those this process may use: 0,1");
    }

    #[test]
    fn a_target_on_another_machine_shares_no_cpu() {
        let all = cpus::available().unwrap();
        let placement = apart(Some(&[5000]), None).unwrap();
        assert_eq!((&placement.target_cpus, &placement.load_cpus), (&vec![5000], &all));
        assert_eq!(warning(&apart(None, None).unwrap()), None);
        assert!(apart(None, Some(&[5000])).is_err());
    }

    #[test]
    fn shared_cpus_are_warned_of() {
        let alone = divide_cpus(&[0, 1], None, None).unwrap();
        assert_eq!(warning(&alone), None);
        let shared = divide_cpus(&[0], None, None).unwrap();
        assert!(warning(&shared).unwrap().starts_with("target and load share CPU 0: "));
        assert!(warning(&Placement::default()).unwrap().starts_with("target and load share CPUs: "));
    }

    #[test]
    fn nobody_goes_before_a_target_on_the_same_cpu() {
        let all = cpus::available().unwrap();
        let placement = Placement { target_cpus: vec![0], load_cpus: vec![0], target_apart: false };
        let priority = prioritize_load(&placement, &[]).unwrap();
        assert!(priority.warning.is_some() && !priority.realtime());
        assert_eq!(cpus::available().unwrap(), all);
    }
}
