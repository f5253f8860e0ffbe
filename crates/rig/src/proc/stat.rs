//! `/proc/PID/stat`: one line of fields, numbered from 1.

use super::times::ticks_us;
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::Path;

/// The fields of a `stat` file behind the name, which may hold anything.
#[derive(Debug, Clone)]
pub struct Stat {
    /// From the third one on.
    fields: String,
}

impl Stat {
    /// The statistics of a process (a number or `self`), or of a thread (`thread-self`).
    pub fn read(process: impl Display) -> io::Result<Stat> {
        Stat::of_file(Path::new(&format!("/proc/{process}/stat")))
    }

    pub(super) fn of_file(file: &Path) -> io::Result<Stat> {
        Ok(Stat::parse(&fs::read_to_string(file)?))
    }

    pub(super) fn parse(text: &str) -> Stat {
        // The command's name ends at the last bracket.
        Stat { fields: text.rsplit_once(')').map_or("", |(_, fields)| fields).trim().to_owned() }
    }

    /// A field from the fourth one on, which all are numbers.
    pub fn number(&self, field: usize) -> Option<u64> {
        self.fields.split_whitespace().nth(field.checked_sub(3)?)?.parse().ok()
    }

    /// CPU time so far, in microseconds, to the clock tick; without that of its children.
    pub fn cpu_us(&self) -> Option<f64> {
        Some(ticks_us(self.number(14)? + self.number(15)?))
    }

    /// What it does: `R` runs, `S` waits, `T` is stopped, `Z` has ended, …
    pub fn state(&self) -> Option<char> {
        self.fields.chars().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_behind_the_name() {
        #[track_caller]
        fn check(text: &str, state: Option<char>, user: Option<u64>) {
            let stat = Stat::parse(text);
            assert_eq!((stat.state(), stat.number(14)), (state, user), "{text}");
        }
        check("7 (nginx) S 1 7 7 0 -1 4194560 100 0 0 0 11 5 2 1 20 0 1 0 99", Some('S'), Some(11));
        check("7 (a) b (c)) Z 1 7 7 0 -1 4194560 100 0 0 0 1 0 0 0 20 0 1 0 99", Some('Z'), Some(1));
        check("7 (nginx) S 1", Some('S'), None);
        check("", None, None);
    }
}
