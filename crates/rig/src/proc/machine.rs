//! What `/proc` says of the machine.

use super::ticks_us;
use std::fs;

/// A file below `/proc`, without the white space around its text; `None` where it cannot be read or is empty.
pub fn text(path: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{path}")).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The value of the first line `name : value`, as `cpuinfo` and `meminfo` have them.
pub fn field(text: &str, name: &str) -> Option<String> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

/// A line of `meminfo`, in KiB.
pub fn memory_kib(name: &str) -> Option<u64> {
    field(&text("meminfo")?, name)?.split(' ').next()?.parse().ok()
}

/// CPU time that the host has kept from this machine so far, over all CPUs, in microseconds; to the clock tick.
pub fn stolen_us() -> Option<f64> {
    stolen_ticks(&text("stat")?).map(ticks_us)
}

/// The eighth figure of all CPUs together.
fn stolen_ticks(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("cpu "))?.split_whitespace().nth(7)?.parse().ok()
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
        let cpuinfo = "processor\t: 0\nmodel name\t: A: B\n\nprocessor\t: 1\nmodel name\t: C\n";
        assert_eq!(field(cpuinfo, "model name").as_deref(), Some("A: B"));
        assert_eq!(field(cpuinfo, "model"), None);
        assert_eq!(field("MemTotal:       24684176 kB\n", "MemTotal").as_deref(), Some("24684176 kB"));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_kib("MemTotal").unwrap() > 0);
        assert!(stolen_us().is_some_and(|us| us >= 0.0));
        assert_eq!((text("no-such-file"), memory_kib("Nothing")), (None, None));
    }
}
