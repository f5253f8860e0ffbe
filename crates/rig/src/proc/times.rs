//! CPU time of processes.
//!
//! Two lower bounds are there: `schedstat` of each thread, in nanoseconds but without the threads that have ended, and `stat` of
//! the process, with them but cut to clock ticks. The larger of the two is the nearer. Children that were waited for are only in
//! `stat`.

use super::threads::Thread;
use super::{Stat, strange, threads, tree};
use std::io;
use std::path::Path;
use std::time::Duration;

/// CPU time to the clock tick, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuTime {
    /// In the program.
    pub user_us: f64,
    /// In the kernel.
    pub system_us: f64,
}

impl CpuTime {
    /// Both together.
    pub fn us(self) -> f64 {
        self.user_us + self.system_us
    }

    /// What was used between two looks.
    pub fn since(self, before: CpuTime) -> CpuTime {
        CpuTime { user_us: self.user_us - before.user_us, system_us: self.system_us - before.system_us }
    }
}

/// Clock ticks of the kernel's figures in microseconds.
pub fn ticks_us(ticks: u64) -> f64 {
    ticks as f64 * 1e6 / rustix::param::clock_ticks_per_second() as f64
}

/// CPU time of a process and its descendants so far, in microseconds, to the nearest lower bound.
pub fn cpu_time_us(pid: u32) -> io::Result<f64> {
    let own = process_us(pid)?;
    // A descendant may have ended since the tree was read; its parent's `stat` has its time by then.
    let others = tree(pid).into_iter().skip(1).filter_map(|child| process_us(child).ok());
    Ok(own + others.sum::<f64>())
}

/// CPU time of a process and its descendants so far, apart for program and kernel; without children that have ended.
pub fn cpu_time(pid: u32) -> io::Result<CpuTime> {
    let of_one = |pid| {
        let [user, system] = fields(pid, [14, 15])?;
        Ok::<_, io::Error>(CpuTime { user_us: ticks_us(user), system_us: ticks_us(system) })
    };
    let mut sum = of_one(pid)?;
    // A descendant may have ended since the tree was read.
    for CpuTime { user_us, system_us } in tree(pid).into_iter().skip(1).filter_map(|child| of_one(child).ok()) {
        sum = CpuTime { user_us: sum.user_us + user_us, system_us: sum.system_us + system_us };
    }
    Ok(sum)
}

/// CPU time of this process, and of all that it has started and waited for.
pub fn self_and_children() -> io::Result<(Duration, Duration)> {
    let stat = Stat::read("self")?;
    let of = |user: usize, system: usize| {
        let ticks = stat.number(user).zip(stat.number(system)).map(|(user, system)| user + system);
        ticks.map(|ticks| Duration::from_secs_f64(ticks_us(ticks) / 1e6))
    };
    of(14, 15).zip(of(16, 17)).ok_or_else(|| strange(Path::new("/proc/self/stat")))
}

fn process_us(pid: u32) -> io::Result<f64> {
    let [user, system, user_of_children, system_of_children] = fields(pid, [14, 15, 16, 17])?;
    let exact: u64 = threads(pid).unwrap_or_default().iter().filter_map(Thread::exact_ns).sum();
    Ok((exact as f64 / 1e3).max(ticks_us(user + system)) + ticks_us(user_of_children + system_of_children))
}

fn fields<const COUNT: usize>(pid: u32, numbers: [usize; COUNT]) -> io::Result<[u64; COUNT]> {
    let stat = Stat::read(pid)?;
    let mut values = [0; COUNT];
    for (value, number) in values.iter_mut().zip(numbers) {
        *value = stat.number(number).ok_or_else(|| strange(Path::new(&format!("/proc/{pid}/stat"))))?;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::super::tests::ABSENT;
    use super::*;
    use std::process::Command;

    #[test]
    fn this_process_uses_time() {
        let own = std::process::id();
        let before = cpu_time_us(own).unwrap();
        while cpu_time_us(own).unwrap() <= before {}
        let before = cpu_time(own).unwrap();
        while cpu_time(own).unwrap().since(before).us() <= 0.0 {}
    }

    #[test]
    fn children_count_once_they_are_waited_for() {
        let (_, before) = self_and_children().unwrap();
        let burn = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", burn]).status().unwrap().success());
        assert!(self_and_children().unwrap().1 > before);
    }

    #[test]
    fn a_process_that_is_not_there() {
        assert!(cpu_time_us(ABSENT).is_err() && cpu_time(ABSENT).is_err());
    }
}
