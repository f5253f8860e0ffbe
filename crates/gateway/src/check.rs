//! `stillgate check`: everything that is wrong with a configuration file, for people or programs.
//!
//! It looks at the file only. Whether its addresses are free and its names resolve is seen when it runs.

use crate::cli::{Check, EXIT_ERRORS, EXIT_GOOD, EXIT_UNUSABLE, Format};
use crate::source::Source;
use crate::stdout::show;
use serde::Serialize;
use std::collections::HashMap;
use std::path::Path;
use stillgate_config::{Config, Diagnostic, Severity};
use stillgate_proxy::Plan;

/// What was found, as `--format json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether the gateway would take the file.
    valid: bool,
    /// The file that was looked at.
    file: String,
    /// How much it holds; null where it is not valid.
    routes: Option<usize>,
    upstreams: Option<usize>,
    errors: usize,
    warnings: usize,
    /// In the order of the file.
    diagnostics: Vec<Diagnostic>,
    /// Findings beyond the loader's bound.
    omitted: usize,
}

/// Runs the command; returns the exit code.
pub(crate) fn run(arguments: &Check) -> u8 {
    let Some(file) = &arguments.file else {
        show(format_args!("{:#}\n", stillgate_config::schema()));
        return EXIT_GOOD;
    };
    let report = match look_at(file) {
        Ok(report) => report,
        Err(unreadable) => {
            eprintln!("stillgate: {unreadable}");
            return EXIT_UNUSABLE;
        }
    };
    match arguments.format {
        Format::Json => show(format_args!("{:#}\n", serde_json::json!(report))),
        Format::Text => show(text(&report)),
    }
    if report.valid { EXIT_GOOD } else { EXIT_ERRORS }
}

fn look_at(file: &Path) -> Result<Report, crate::source::ReadError> {
    let source = Source::File(file.to_owned());
    let text = source.read()?;
    let (config, diagnostics, omitted) = match source.parse(&text) {
        Ok(loaded) => (Some(loaded.config), loaded.warnings, 0),
        Err(errors) => (None, errors.diagnostics, errors.omitted),
    };
    // Compiling finds what reading cannot: bounds of the whole table of routes.
    let (config, diagnostics) = match config.map(compile) {
        Some(Ok(config)) => (Some(config), diagnostics),
        Some(Err(found)) => (None, [diagnostics, found].concat()),
        None => (None, diagnostics),
    };
    let count = |severity| diagnostics.iter().filter(|d| d.severity == severity).count();
    Ok(Report {
        valid: config.is_some(),
        file: file.display().to_string(),
        routes: config.as_ref().map(|config| config.routes.len()),
        upstreams: config.as_ref().map(|config| config.upstreams.len()),
        errors: count(Severity::Error),
        warnings: count(Severity::Warning),
        diagnostics,
        omitted,
    })
}

fn compile(config: Config) -> Result<Config, Vec<Diagnostic>> {
    match Plan::build(1, &config, &HashMap::new(), None, None) {
        Ok(_) => Ok(config),
        Err(error) => Err(vec![Diagnostic {
            severity: Severity::Error,
            path: "routes".to_owned(),
            line: 0,
            column: 0,
            message: error.to_string(),
            hint: None,
            excerpt: None,
        }]),
    }
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    for diagnostic in &report.diagnostics {
        out.push_str(&diagnostic.in_file(Some(&report.file)));
        out.push('\n');
    }
    if report.omitted > 0 {
        out.push_str(&format!("and {} more\n", report.omitted));
    }
    let found = [counted(report.errors, "error"), counted(report.warnings, "warning")]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ");
    match (report.valid, report.routes, report.upstreams) {
        (true, Some(routes), Some(upstreams)) => {
            let holds = format!(
                "{}, {}",
                counted(routes, "route").unwrap_or_else(|| "no routes".to_owned()),
                counted(upstreams, "upstream").unwrap_or_else(|| "no upstreams".to_owned()),
            );
            let but = match found.is_empty() {
                true => String::new(),
                false => format!("; {found}"),
            };
            out.push_str(&format!("{}: good ({holds}{but})\n", report.file));
        }
        _ => out.push_str(&format!("{}: refused ({found})\n", report.file)),
    }
    out
}

fn counted(count: usize, what: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        many => Some(format!("{many} {what}s")),
    }
}
