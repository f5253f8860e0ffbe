//! Looks at the machine an experiment runs on, as far as it bears on the figures. What cannot be found out is left open.

use crate::result::environment::Environment;
use std::fs;
use std::process::{Command, Stdio};

const CPU: &str = "/sys/devices/system/cpu";

/// The machine now. Its `stolen_s` is for who knows when the experiment ends: see [`Stolen`].
pub(crate) fn gather() -> Environment {
    let cpuinfo = text("/proc/cpuinfo").unwrap_or_default();
    Environment {
        cpu_model: field(&cpuinfo, "model name"),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        cpu_mhz: field(&cpuinfo, "cpu MHz").and_then(|mhz| mhz.parse().ok()),
        governor: text(&format!("{CPU}/cpu0/cpufreq/scaling_governor")),
        turbo: turbo(),
        hypervisor: hypervisor(&cpuinfo),
        kernel: kernel(),
        system: text("/etc/os-release").as_deref().and_then(system),
        memory_mib: memory_mib(&text("/proc/meminfo").unwrap_or_default()),
        clock_source: text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        mitigations: mitigations(),
        load_average: text("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok()),
        commit: commit(),
        stolen_s: None,
        hosts: Vec::new(),
    }
}

/// CPU time that the host keeps from this machine, over all CPUs, since a point in time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stolen {
    ticks: Option<u64>,
}

impl Stolen {
    /// From now on.
    pub(crate) fn begin() -> Stolen {
        Stolen { ticks: stolen_ticks_now() }
    }

    /// So far, in milliseconds, to the clock tick; none where the kernel does not tell.
    pub(crate) fn ms(self) -> Option<f64> {
        let ticks = stolen_ticks_now()?.saturating_sub(self.ticks?);
        Some(ticks as f64 * 1e3 / rustix::param::clock_ticks_per_second() as f64)
    }
}

fn stolen_ticks_now() -> Option<u64> {
    stolen_ticks(&text("/proc/stat")?)
}

/// The eighth figure of all CPUs together.
fn stolen_ticks(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("cpu "))?.split_whitespace().nth(7)?.parse().ok()
}

/// A file's text without the white space around it; none where it cannot be read or is empty.
fn text(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The first `name : value` of `/proc/cpuinfo`.
fn field(cpuinfo: &str, name: &str) -> Option<String> {
    let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    fields
        .map(|(key, value)| (key.trim(), value.trim()))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.to_owned())
}

fn turbo() -> Option<bool> {
    let intel = text(&format!("{CPU}/intel_pstate/no_turbo")).map(|off| off == "0");
    intel.or_else(|| text(&format!("{CPU}/cpufreq/boost")).map(|on| on == "1"))
}

/// Its name; where it has none, that there is one.
fn hypervisor(cpuinfo: &str) -> Option<String> {
    let flags = field(cpuinfo, "flags").unwrap_or_default();
    if !flags.split(' ').any(|flag| flag == "hypervisor") {
        return None;
    }
    let named = text("/sys/hypervisor/type").or_else(|| {
        let part = |name: &str| text(&format!("/sys/class/dmi/id/{name}"));
        Some(format!("{} {}", part("sys_vendor")?, part("product_name").unwrap_or_default()).trim().to_owned())
    });
    Some(named.unwrap_or_else(|| "one that does not say its name".to_owned()))
}

fn kernel() -> String {
    let part = |name: &str| text(&format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    format!("{} {}", part("ostype"), part("osrelease")).trim().to_owned()
}

/// `PRETTY_NAME` of `/etc/os-release`.
fn system(os_release: &str) -> Option<String> {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches(['"', '\'']).to_owned())
}

fn memory_mib(meminfo: &str) -> u64 {
    let kib = field(meminfo, "MemTotal").and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

fn mitigations() -> Vec<String> {
    let Ok(files) = fs::read_dir(format!("{CPU}/vulnerabilities")) else { return Vec::new() };
    let lines = files.flatten().filter_map(|file| {
        let state = text(&file.path().to_string_lossy())?;
        mitigation(&file.file_name().to_string_lossy(), &state)
    });
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines
}

/// One vulnerability, if something is done about it.
fn mitigation(name: &str, state: &str) -> Option<String> {
    state.strip_prefix("Mitigation: ").map(|done| format!("{name}: {done}"))
}

/// Of the current directory's repository, if it is in one.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).stdin(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let head = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changes.is_empty() { head } else { format!("{head}+changes") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_the_eighth_figure() {
        #[track_caller]
        fn check(stat: &str, expected: Option<u64>) {
            assert_eq!(stolen_ticks(stat), expected, "{stat}");
        }
        check("cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n", Some(88));
        check("cpu  1 2 3 4\n", None);
        check("", None);
    }

    #[test]
    fn fields_are_told_apart() {
        let cpuinfo =
            "processor\t: 0\nmodel name\t: A: B\nflags\t\t: fpu hypervisor\n\nprocessor\t: 1\nmodel name\t: C\n";
        assert_eq!(field(cpuinfo, "model name").as_deref(), Some("A: B"));
        assert_eq!(field(cpuinfo, "model"), None);
        assert!(hypervisor(cpuinfo).is_some());
        assert_eq!(hypervisor("flags : fpu\n"), None);
        assert_eq!(memory_mib("MemTotal:       24684176 kB\nMemFree: 1 kB\n"), 24_105);
        assert_eq!(memory_mib(""), 0);
        assert_eq!(system("ID=x\nPRETTY_NAME=\"Some Linux 12\"\n").as_deref(), Some("Some Linux 12"));
        assert_eq!(mitigation("spectre_v1", "Mitigation: usercopy").as_deref(), Some("spectre_v1: usercopy"));
        assert_eq!(mitigation("meltdown", "Not affected"), None);
    }

    #[test]
    fn this_machine_has_something_to_tell() {
        let found = gather();
        assert!(found.cpus > 0 && found.memory_mib > 0, "{found:?}");
        assert!(found.kernel.starts_with("Linux "), "{found:?}");
        assert!(Stolen::begin().ms().is_some_and(|ms| ms >= 0.0));
    }
}
