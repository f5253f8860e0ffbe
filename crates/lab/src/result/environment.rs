//! The properties of the machine of an experiment that affect its figures.

use serde::{Deserialize, Serialize};

/// The machine. Unknown properties are `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Environment {
    /// As `/proc/cpuinfo` names it.
    pub(crate) cpu_model: Option<String>,
    /// CPUs this process may use.
    pub(crate) cpus: usize,
    /// MHz of the first CPU when the experiment began.
    pub(crate) cpu_mhz: Option<f64>,
    /// The frequency governor of the first CPU.
    pub(crate) governor: Option<String>,
    /// Whether the CPU may go above its base frequency.
    pub(crate) turbo: Option<bool>,
    /// The hypervisor, if there is one.
    pub(crate) hypervisor: Option<String>,
    /// Name and release of the kernel.
    pub(crate) kernel: String,
    /// The system, as `/etc/os-release` names it.
    pub(crate) system: Option<String>,
    /// Memory in MiB.
    pub(crate) memory_mib: u64,
    /// The kernel's clock source.
    pub(crate) clock_source: Option<String>,
    /// Mitigations of CPU vulnerabilities that are active, one a line of `/sys/devices/system/cpu/vulnerabilities`.
    pub(crate) mitigations: Vec<String>,
    /// The one-minute load average when the experiment began.
    pub(crate) load_average: Option<f64>,
    /// The git commit of the current directory, with `+changes` if it has uncommitted ones.
    pub(crate) commit: Option<String>,
    /// Seconds that the host took from this machine's CPUs during the experiment, over all CPUs.
    pub(crate) stolen_s: Option<f64>,
    /// Other machines of the experiment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) hosts: Vec<HostEnvironment>,
}

/// Another machine of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostEnvironment {
    /// `target` or `upstream`.
    pub(crate) role: String,
    /// Address at which the others reached it.
    pub(crate) ip: String,
    /// Its properties.
    pub(crate) environment: Environment,
}
