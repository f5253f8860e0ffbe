//! The command line of a task: words, flags and `--name value` pairs; unknown arguments are refused.
//!
//! Hand-written because `clap` alone would double the time this crate takes to build.

use crate::Result;
use std::fmt::Display;
use std::str::FromStr;

/// The remaining command line.
pub(crate) struct Args {
    rest: Vec<String>,
}

impl Args {
    pub(crate) fn new(words: impl Iterator<Item = String>) -> Self {
        Self { rest: words.collect() }
    }

    /// Takes the first word.
    pub(crate) fn word(&mut self) -> Option<String> {
        (!self.rest.is_empty()).then(|| self.rest.remove(0))
    }

    /// Takes `name` at any position.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let at = self.rest.iter().position(|word| word == name);
        at.map(|at| self.rest.remove(at)).is_some()
    }

    /// Takes `name VALUE` at any position.
    pub(crate) fn value<T>(&mut self, name: &str) -> Result<Option<T>>
    where
        T: FromStr,
        T::Err: Display,
    {
        let Some(at) = self.rest.iter().position(|word| word == name) else {
            return Ok(None);
        };
        self.rest.remove(at);
        if at == self.rest.len() {
            return Err(format!("{name} needs a value").into());
        }
        let text = self.rest.remove(at);
        match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(format!("{name} {text}: {error}").into()),
        }
    }

    /// Takes all remaining arguments, for another program.
    pub(crate) fn rest(self) -> Vec<String> {
        self.rest
    }

    /// Fails if arguments remain.
    pub(crate) fn finish(self) -> Result {
        match self.rest.first() {
            None => Ok(()),
            Some(word) => Err(format!("unknown argument {word:?}; see `cargo xtask help`").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(text: &str) -> Args {
        Args::new(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn flags_and_values_in_any_order() {
        let mut given = args("proxy --json out --rounds 3 --quick");
        assert_eq!(given.word().unwrap(), "proxy");
        assert!(given.flag("--quick"));
        assert!(!given.flag("--syscalls"));
        assert_eq!(given.value::<u32>("--rounds").unwrap(), Some(3));
        assert_eq!(given.value::<u32>("--seconds").unwrap(), None);
        assert_eq!(given.value::<String>("--json").unwrap().as_deref(), Some("out"));
        given.finish().unwrap();
    }

    #[test]
    fn nothing_unknown_passes() {
        assert!(args("--what").finish().is_err());
        assert!(args("--rounds").value::<u32>("--rounds").is_err());
        assert!(args("--rounds three").value::<u32>("--rounds").is_err());
    }
}
