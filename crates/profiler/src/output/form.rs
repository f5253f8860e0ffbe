//! Chooses the form of a profile by the name of its file.

use super::{chrome, folded, html, pprof, speedscope, svg};
use crate::profile::{Profile, ValueType};
use std::fmt;
use std::path::{Path, PathBuf};

/// A form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// pprof's, gzipped.
    Pprof,
    /// A flame graph without scripts.
    Svg,
    /// One page: flame graph, tables, and the difference of two profiles.
    Html,
    /// One line per stack.
    Folded,
    /// speedscope's.
    Speedscope,
    /// Chrome's trace, for Perfetto.
    Trace,
}

/// Forms by the end of a file's name.
const FORMS: &[(&str, Form)] = &[
    (".html", Form::Html),
    (".svg", Form::Svg),
    (".pb.gz", Form::Pprof),
    (".folded", Form::Folded),
    (".speedscope.json", Form::Speedscope),
    (".trace.json", Form::Trace),
];

/// A name that implies no form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownForm(PathBuf);

impl fmt::Display for UnknownForm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endings: Vec<&str> = FORMS.iter().map(|(ending, _)| *ending).collect();
        write!(formatter, "{}: end the name with one of {}", self.0.display(), endings.join(", "))
    }
}

impl std::error::Error for UnknownForm {}

/// Why a profile cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteError {
    /// This form needs the time of each sample.
    Timeless(chrome::MissingTimes),
    /// The base has no value of the profile's kind, so they cannot be compared.
    OtherKind {
        /// The profile's kind and unit.
        profile: ValueType,
        /// The base's kind and unit, of its main value.
        base: Option<ValueType>,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Timeless(timeless) => timeless.fmt(formatter),
            WriteError::OtherKind { profile, base } => {
                let named = |of: &ValueType| format!("{} in {}", of.kind, of.unit);
                let base = base.as_ref().map_or("nothing".to_owned(), named);
                write!(
                    formatter,
                    "the base is a profile of another kind: it has {base}, this one {}; compare two profiles of one kind",
                    named(profile)
                )
            }
        }
    }
}

impl std::error::Error for WriteError {}

impl From<chrome::MissingTimes> for WriteError {
    fn from(timeless: chrome::MissingTimes) -> WriteError {
        WriteError::Timeless(timeless)
    }
}

impl Form {
    /// The form of a file with this name.
    pub fn of_name(file: &Path) -> Result<Form, UnknownForm> {
        let name = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let form = FORMS.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, form)| *form);
        form.ok_or_else(|| UnknownForm(file.to_owned()))
    }

    /// Writes the profile's main value in this form. Only a page compares it with `base`, which must have a
    /// value of that kind.
    pub fn write(self, profile: &Profile, base: Option<&Profile>) -> Result<Vec<u8>, WriteError> {
        let value = profile.main;
        if let (Some(base), Some(of)) = (base, profile.values.get(value))
            && !base.values.contains(of)
        {
            return Err(WriteError::OtherKind { profile: of.clone(), base: base.values.get(base.main).cloned() });
        }
        Ok(match self {
            Form::Pprof => pprof::write(profile),
            Form::Svg => svg::write(profile, value).into(),
            Form::Html => html::write(profile, value, base).into(),
            Form::Folded => folded::write(profile, value).into(),
            Form::Speedscope => speedscope::write(profile, value).into(),
            Form::Trace => chrome::write(profile)?.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::svg::example;

    #[test]
    fn the_name_says_the_form() {
        let form = |name: &str| Form::of_name(Path::new(name)).map_err(|unnamed| unnamed.to_string());
        assert_eq!(form("a/b.html"), Ok(Form::Html));
        assert_eq!(form("b.pb.gz"), Ok(Form::Pprof));
        assert_eq!(form("b.speedscope.json"), Ok(Form::Speedscope));
        assert_eq!(form("b.trace.json"), Ok(Form::Trace));
        assert!(form("b.json").unwrap_err().contains(".speedscope.json, .trace.json"));
        assert!(form("/").is_err());
    }

    #[test]
    fn a_base_of_another_kind_is_refused() {
        let profile = example();
        assert!(Form::Html.write(&profile, Some(&profile)).is_ok());
        for other in [ValueType::new("cpu", "count"), ValueType::new("inuse_space", "bytes")] {
            let mut base = profile.clone();
            base.values[base.main] = other;
            let why = Form::Html.write(&profile, Some(&base)).unwrap_err().to_string();
            assert!(why.contains("another kind") && why.contains("cpu in nanoseconds"), "{why}");
        }
        // Its main value may differ.
        let mut base = profile.clone();
        base.main = 0;
        assert!(Form::Html.write(&profile, Some(&base)).is_ok());
    }

    #[test]
    fn each_form_can_be_written() {
        for (ending, form) in FORMS {
            assert!(!form.write(&example(), None).unwrap().is_empty(), "{ending}");
        }
    }
}
