//! `stillgate lua check`: whether LuaJIT compiles a function, before it is in a gateway.
//!
//! What is compiled and what is not is found by `stillgate_lua::health`; here requests are read, and findings printed.

mod replayed;
mod requests;

use super::cli::{EXIT_ERRORS, EXIT_GOOD, EXIT_UNPROVEN, EXIT_UNUSABLE, LuaCheck};
use super::stdout::show;
use crate::configuration::source::read_bounded;
use replayed::Replayed;
use serde_json::{Value as Json, json};
use std::fs;
use std::path::Path;
use stillgate_lua::health::examine::{Examined, Finding, Subject, examine};
use stillgate_lua::{Module, check as check_text};
use stillgate_plugins::check_json;

/// Bytes of a file with a function.
const FILE_BYTES_MAX: usize = 1 << 20;

/// How a text is refused that returns the table of a plugin.
const RETURNS_TABLE: &str = "only accept Lua function, the input code type is table";

/// Checks a function, and returns the exit code.
pub(crate) fn check(arguments: &LuaCheck) -> u8 {
    match examined(arguments) {
        Ok(examined) => {
            show(printed(&arguments.file, &examined));
            code(&examined)
        }
        Err(why) => {
            eprintln!("stillgate: {why}");
            EXIT_UNUSABLE
        }
    }
}

fn code(examined: &Examined) -> u8 {
    match examined {
        Examined { findings, .. } if !findings.is_empty() => EXIT_ERRORS,
        Examined { lines_compiled: 0, .. } => EXIT_UNPROVEN,
        _ => EXIT_GOOD,
    }
}

fn printed(file: &Path, examined: &Examined) -> String {
    let Examined { findings, notes, lines_compiled, traces, late, flushes, runs, .. } = examined;
    let name = file.display();
    let line = |finding: &Finding, kind: &str| format!("{name}:{}: {kind}{}\n", finding.line, finding.reason);
    let mut text: String = findings.iter().map(|finding| line(finding, "")).collect();
    text.extend(notes.iter().map(|note| line(note, "note: ")));
    let verdict = match code(examined) {
        EXIT_GOOD => "good",
        EXIT_UNPROVEN => "not proven, as nothing of it was compiled",
        _ => "not good",
    };
    text + &format!(
        "{name}: {verdict} ({lines_compiled} lines in machine code, {traces} traces, {late} events after the warm-up, {flushes} flushes, {runs} runs)\n"
    )
}

fn examined(arguments: &LuaCheck) -> Result<Examined, String> {
    let file = &arguments.file;
    let bytes =
        read_bounded(file, FILE_BYTES_MAX).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let source = String::from_utf8(bytes).map_err(|_| format!("{}: it is not UTF-8", file.display()))?;
    let conf: Json = match &arguments.conf {
        None => json!({}),
        Some(text) => serde_json::from_str(text).map_err(|error| format!("--conf: {error}"))?,
    };
    let heads = match (&arguments.requests, &arguments.replay) {
        (Some(requests), _) => requests::lines(requests)?,
        (None, Some(log)) => requests::log(log)?,
        (None, None) => return Err("--requests or --replay is needed".to_owned()),
    };
    let name = file.display().to_string();
    let subject = subject(&name, source, conf)?;
    let examined = examine(&subject, heads.len(), |at, phase| Replayed::new(&heads[at], phase))
        .map_err(|failure| format!("the function failed: {}", failure.text))?;
    if let Some(path) = &arguments.json {
        let text = format!("{:#}\n", as_json(&name, &examined));
        fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(examined)
}

/// A function, or a plugin with a configuration that it takes.
fn subject(name: &str, source: String, conf: Json) -> Result<Subject, String> {
    match check_text(&source) {
        Ok(()) => Ok(Subject::function(name, &source, conf)),
        Err(why) if why == RETURNS_TABLE => {
            let module = Module::new(name.to_owned(), source);
            let described = module.describe(check_json)?;
            let conf = match described.checks {
                true => module.check_conf(&conf, check_json),
                false => check_json(&described.schema, conf),
            };
            Ok(Subject::plugin(module, &described.phases, conf.map_err(|why| format!("--conf: {why}"))?))
        }
        Err(why) => Err(format!("{name}: {why}")),
    }
}

fn as_json(name: &str, examined: &Examined) -> Json {
    let list = |findings: &[Finding]| -> Vec<Json> {
        findings.iter().map(|finding| json!({"line": finding.line, "reason": finding.reason})).collect()
    };
    let functions = examined.functions.iter().map(|(line, state)| json!({"line": line, "state": state.name()}));
    json!({
        "file": name,
        "findings": list(&examined.findings),
        "notes": list(&examined.notes),
        "functions": functions.collect::<Vec<_>>(),
        "lines_compiled": examined.lines_compiled,
        "traces": examined.traces,
        "events_after_warm_up": examined.late,
        "flushes": examined.flushes,
        "runs": examined.runs,
    })
}
