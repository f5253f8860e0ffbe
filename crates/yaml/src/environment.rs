//! Puts environment variables into scalar values: `${NAME}` and `${NAME:-default}`.
//!
//! This happens after the YAML is parsed, so a value can never add keys or lists. As in a shell, the default holds
//! where the variable is unset or empty. `$${` stands for a literal `${`; any other `$` is itself. Keys of maps are not
//! expanded.

use crate::diagnostic::{Fault, shortened};
use crate::tree::SCALAR_BYTES_MAX;

/// Looks up one environment variable.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The text with its variables put in; `None` where it has none and stays as it is.
pub fn expand(text: &str, environment: Lookup<'_>) -> Result<Option<String>, Fault> {
    if !text.contains("${") {
        return Ok(None);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, reference) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = &reference[2..];
            continue;
        }
        out.push_str(before);
        let end =
            reference.find('}').ok_or_else(|| Fault::new("`${` without `}`").hint("write `$${` for a literal `${`"))?;
        out.push_str(&value(&reference[2..end], environment)?);
        rest = &reference[end + 1..];
        if out.len() > SCALAR_BYTES_MAX {
            return Err(Fault::new(format!("more than {SCALAR_BYTES_MAX} bytes after `${{…}}` is put in")));
        }
    }
    out.push_str(rest);
    Ok(Some(out))
}

/// What `${reference}` stands for.
fn value(reference: &str, environment: Lookup<'_>) -> Result<String, Fault> {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    if let Some(name) = name.strip_prefix('{') {
        let name = name.split(":=").next().unwrap_or(name);
        return Err(Fault::new("`${{…}}` is not known").hint(format!("write `${{{}}}`", shortened(name.trim()))));
    }
    let mut bytes = name.bytes();
    let named = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !named {
        let fault = Fault::new(format!("{:?} is not the name of an environment variable", shortened(name)));
        return Err(fault.hint("write `${NAME}` or `${NAME:-default}`, or `$${` for a literal `${`"));
    }
    match (environment(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(Fault::new(format!("environment variable {name} is not set"))
            .hint(format!("set it, or write `${{{name}:-default}}`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, want: Result<Option<&str>, &str>) {
        let environment = |name: &str| match name {
            "A" => Some("1".to_owned()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("${A}".to_owned()),
            "HUGE" => Some("x".repeat(SCALAR_BYTES_MAX + 1)),
            _ => None,
        };
        match (expand(text, &environment), want) {
            (Ok(got), Ok(want)) => assert_eq!(got.as_deref(), want, "{text}"),
            (Err(got), Err(want)) => assert!(got.message.contains(want), "{text}: {}", got.message),
            (got, want) => panic!("{text}: {got:?}, not {want:?}"),
        }
    }

    #[test]
    fn expands() {
        check("plain $ and $A and }", Ok(None));
        check("${A}", Ok(Some("1")));
        check("a${A}b${A}c", Ok(Some("a1b1c")));
        check("${EMPTY}", Ok(Some("")));
        check("${EMPTY:-d}${UNSET:-d}${A:-d}", Ok(Some("dd1")));
        check("${UNSET:-}", Ok(Some("")));
        check("${UNSET:-a:-b}", Ok(Some("a:-b")));
        check("$${A}", Ok(Some("${A}")));
        check("$$${A}", Ok(Some("$${A}")));
        check("${NESTED}", Ok(Some("${A}")));
        check("${UNSET}", Err("UNSET is not set"));
        check("${A", Err("without"));
        check("${}", Err("not the name"));
        check("${1A}", Err("not the name"));
        check("${A B}", Err("not the name"));
        check("${{A}}", Err("not known"));
        check("${HUGE}", Err("more than"));
    }
}
