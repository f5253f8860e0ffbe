//! How many CPUs the process may use: by its affinity, and by the CPU quota of its cgroup.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::LazyLock;
use std::thread;

/// One worker per CPU, counted once: the parts of a start have to agree on it.
///
/// A fraction of a CPU counts as one: with a quota of 1.5 CPUs, one worker could not use the half. The standard library rounds down.
pub(super) fn usable_cpus() -> usize {
    static USABLE: LazyLock<usize> = LazyLock::new(|| {
        // This is also right for a quota of cgroup v1, rounded down.
        let rounded_down = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let Ok(affinity) = rustix::thread::sched_getaffinity(None) else { return rounded_down };
        match fs::read_to_string("/proc/self/cgroup") {
            Ok(groups) => quota(&groups, |file| fs::read_to_string(Path::new("/sys/fs/cgroup").join(file)).ok())
                .map_or(rounded_down, |quota| rounded_up(quota).clamp(1, affinity.count() as usize)),
            Err(_) => rounded_down,
        }
    });
    *USABLE
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of CPUs")]
fn rounded_up(cpus: f64) -> usize {
    cpus.ceil() as usize
}

/// The least quota, in CPUs, of a cgroup and of those that contain it. `groups`: `/proc/self/cgroup`, where cgroup v2 has the
/// hierarchy 0. `None`: no limit, or another version.
fn quota(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<f64> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let quotas = Path::new(group).ancestors().filter_map(|folder| cpu_max(&read(&folder.join("cpu.max"))?));
    quotas.reduce(f64::min)
}

/// `cpu.max`: the microseconds of CPU time in each period, or `max`, and the length of the period.
fn cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim_end().split_once(' ')?;
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The quota of a group in a group, by their files.
    fn quota_of(outer: &str, inner: &str, groups: &str) -> Option<f64> {
        quota(groups, |file| match file.to_str() {
            Some("outer/cpu.max") => Some(outer.to_owned()),
            Some("outer/inner/cpu.max") => Some(inner.to_owned()),
            _ => None,
        })
    }

    #[test]
    fn the_least_quota_of_all_groups_counts() {
        const GROUPS: &str = "4:cpu:/x\n0::/outer/inner\n";
        assert_eq!(quota_of("", "150000 100000\n", GROUPS), Some(1.5));
        assert_eq!(quota_of("50000 100000\n", "150000 100000\n", GROUPS), Some(0.5));
        assert_eq!(quota_of("50000 100000\n", "max 100000\n", GROUPS), Some(0.5));
        assert_eq!(quota_of("max 100000\n", "", GROUPS), None);
        assert_eq!(quota_of("", "150000 100000\n", "4:cpu:/outer/inner\n"), None);
        for wrong in ["", "150000", "x 100000", "150000 0", "0 100000", "-1 100000"] {
            assert_eq!(quota_of("", wrong, GROUPS), None, "{wrong}");
        }
    }

    #[test]
    fn a_fraction_is_a_cpu() {
        assert_eq!([0.01, 0.5, 1.0, 1.5, 2.0].map(rounded_up), [1, 1, 1, 2, 2]);
    }
}
