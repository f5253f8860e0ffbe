//! Properties of the machine that affect the figures of an experiment. What cannot be found out is left open.

use crate::result::run::Environment;
use std::fs;
use std::process::{Command, Stdio};
use stillgate_rig::proc::machine;

const CPU: &str = "/sys/devices/system/cpu";

/// The machine now. Its `stolen_s` is filled in at the end of the experiment: see [`Stolen`].
pub(crate) fn gather() -> Environment {
    let cpuinfo = machine::text("cpuinfo").unwrap_or_default();
    Environment {
        cpu_model: machine::field(&cpuinfo, "model name"),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        cpu_mhz: machine::field(&cpuinfo, "cpu MHz").and_then(|mhz| mhz.parse().ok()),
        governor: text(&format!("{CPU}/cpu0/cpufreq/scaling_governor")),
        turbo: turbo(),
        hypervisor: hypervisor(&cpuinfo),
        kernel: kernel(),
        system: text("/etc/os-release").as_deref().and_then(system),
        memory_mib: machine::memory_kib("MemTotal").unwrap_or(0) / 1024,
        clock_source: text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        mitigations: mitigations(),
        load_average: machine::text("loadavg").and_then(|text| text.split(' ').next()?.parse().ok()),
        commit: commit(),
        stolen_s: None,
        hosts: Vec::new(),
    }
}

/// CPU time that the host took from this machine, over all CPUs, since a point in time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stolen {
    us: Option<f64>,
}

impl Stolen {
    /// Counts from now on.
    pub(crate) fn begin() -> Stolen {
        Stolen { us: machine::stolen_us() }
    }

    /// So far, in milliseconds, in whole clock ticks; `None` if the kernel does not report it.
    pub(crate) fn ms(self) -> Option<f64> {
        Some((machine::stolen_us()? - self.us?).max(0.0) / 1e3)
    }
}

/// A file's text without surrounding white space; `None` if it cannot be read or is empty.
fn text(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn turbo() -> Option<bool> {
    let intel = text(&format!("{CPU}/intel_pstate/no_turbo")).map(|off| off == "0");
    intel.or_else(|| text(&format!("{CPU}/cpufreq/boost")).map(|on| on == "1"))
}

/// Its name, or a remark that it has none.
fn hypervisor(cpuinfo: &str) -> Option<String> {
    let flags = machine::field(cpuinfo, "flags").unwrap_or_default();
    if !flags.split(' ').any(|flag| flag == "hypervisor") {
        return None;
    }
    let named = text("/sys/hypervisor/type").or_else(|| {
        let part = |name: &str| text(&format!("/sys/class/dmi/id/{name}"));
        Some(format!("{} {}", part("sys_vendor")?, part("product_name").unwrap_or_default()).trim().to_owned())
    });
    Some(named.unwrap_or_else(|| "a hypervisor without a name".to_owned()))
}

fn kernel() -> String {
    let part = |name: &str| machine::text(&format!("sys/kernel/{name}")).unwrap_or_default();
    format!("{} {}", part("ostype"), part("osrelease")).trim().to_owned()
}

/// `PRETTY_NAME` of `/etc/os-release`.
fn system(os_release: &str) -> Option<String> {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches(['"', '\'']).to_owned())
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

/// One vulnerability, if it is mitigated.
fn mitigation(name: &str, state: &str) -> Option<String> {
    state.strip_prefix("Mitigation: ").map(|done| format!("{name}: {done}"))
}

/// The commit of the current directory's repository, if it is in one.
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
    fn fields_are_distinguished() {
        assert!(hypervisor("flags\t\t: fpu hypervisor\n").is_some());
        assert_eq!(hypervisor("flags : fpu\n"), None);
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
