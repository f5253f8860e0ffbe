//! Asks the gateway whether it accepts a configuration, before a bench relies on it.

use crate::Result;
use crate::step;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The most errors shown; a file of many resources may have one for each.
const ERRORS_SHOWN: usize = 3;

/// The binary's error for a file; `None`: the file is valid.
pub(super) fn refused(binary: &Path, file: &Path) -> Result<Option<String>> {
    let mut command = Command::new(binary);
    let (good, out, err) = step::capture(command.args(["check", "--offline", "--format", "json"]).arg(file))?;
    if good {
        return Ok(None);
    }
    let report: Value = serde_json::from_str(&out).map_err(|error| format!("stillgate check: {error}\n{out}{err}"))?;
    Ok(Some(errors(&report)))
}

fn errors(report: &Value) -> String {
    let diagnostics = report["diagnostics"].as_array().map(Vec::as_slice).unwrap_or_default();
    let errors = diagnostics.iter().filter(|diagnostic| diagnostic["severity"] == "error");
    let shown = errors.take(ERRORS_SHOWN).map(|error| {
        let text = |key: &str| error[key].as_str().unwrap_or_default();
        format!("{}: {}", text("path"), text("message"))
    });
    shown.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_errors_are_shown_and_few_of_them() {
        let diagnostic = |severity: &str, path: &str| json!({ "severity": severity, "path": path, "message": "no" });
        let of = |paths: &[&str]| -> Vec<Value> { paths.iter().map(|path| diagnostic("error", path)).collect() };
        let mut few = of(&["a", "b"]);
        few.insert(0, diagnostic("warning", "w"));
        assert_eq!(errors(&json!({ "diagnostics": few })), "a: no; b: no");
        assert_eq!(errors(&json!({ "diagnostics": of(&["a", "b", "c", "d"]) })), "a: no; b: no; c: no");
    }
}
