//! `stillgate check`: reports errors in a configuration file, and what is probably not meant, for people or programs.
//!
//! It looks at the file, at the certificates and keys that it names, and at what `run` needs of this machine (`environment`).
//! Whether its addresses are free and its names resolve is only seen when it runs. With `--against` and `--requests` it also
//! reports which requests of a log would change route (`replaying`).

use super::cli::{Check, EXIT_ERRORS, EXIT_GOOD, EXIT_UNUSABLE, OutputFormat};
use super::stdout::show;
use crate::configuration::source::{ConfigSource, ReadError};
use crate::configuration::{end_flag, environment, tls_material};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use stillgate_config::{ChainFinding, Config, Diagnostic, Severity, SslUse, Target, chain_lint};
use stillgate_proxy::Plan;
use stillgate_replay::explain::explanation::counted;
use stillgate_replay::replay::{self, RoutedConfig};
use stillgate_route::lint::{self, Finding, FindingKind};
use stillgate_route::{HostPattern, RouteSpec};

/// The report, as `--format json` prints it.
#[derive(Debug, Serialize)]
struct CheckReport {
    /// Whether the gateway would accept the file.
    valid: bool,
    /// The file that was checked.
    file: String,
    /// Number of routes; null where the file is not valid.
    routes: Option<usize>,
    /// Absent if the file has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_routes: Option<usize>,
    upstreams: Option<usize>,
    errors: usize,
    warnings: usize,
    /// Findings, in the order of the file.
    diagnostics: Vec<CheckFinding>,
    /// Findings beyond the loader's bound, or lint's.
    omitted: usize,
    /// Summary of a log's requests; absent without `--requests`, or where the file is not valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<replay::ReplayReport>,
}

/// One finding.
#[derive(Debug, Serialize)]
struct CheckFinding {
    #[serde(flatten)]
    diagnostic: Diagnostic,
    /// The route it is about, for findings about matching; then the routes that take its requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteAt>,
}

/// A route of the file.
#[derive(Debug, Clone, Serialize)]
struct RouteAt {
    id: String,
    line: u32,
}

/// A file that the gateway would accept.
pub(crate) struct AcceptedFile {
    pub(crate) config: Config,
    pub(crate) plan: Plan,
}

impl AcceptedFile {
    fn routed(&self) -> RoutedConfig<'_> {
        RoutedConfig { config: &self.config, matcher: self.plan.matcher() }
    }
}

/// Runs the command; returns the exit code.
pub(crate) fn run(arguments: &Check) -> u8 {
    let Some(file) = &arguments.file else {
        show(format_args!("{:#}\n", stillgate_config::schema(&stillgate_plugins::TABLE)));
        return EXIT_GOOD;
    };
    let depth = if arguments.offline { Depth::File } else { Depth::Machine };
    // A file that replaces one with `#END` must end with it, too.
    let had_end_flag = arguments.against.as_deref().is_some_and(has_end_flag);
    let (mut report, new) = match look_at(file, depth, had_end_flag) {
        Ok(looked_at) => looked_at,
        Err(unreadable) => {
            eprintln!("stillgate: {unreadable}");
            return EXIT_UNUSABLE;
        }
    };
    if let (Some(old), Some(log), Some(new)) = (&arguments.against, &arguments.requests, new) {
        match replayed(old, log, &new) {
            Ok(requests) => report.requests = Some(requests),
            Err(unusable) => {
                eprintln!("stillgate: {unusable}");
                return EXIT_UNUSABLE;
            }
        }
    }
    match arguments.format {
        OutputFormat::Json => show(format_args!("{:#}\n", serde_json::json!(report))),
        OutputFormat::Text => {
            show(text(&report));
            if let Some(requests) = &report.requests {
                show(requests.text());
            }
        }
    }
    let changes_nothing = report.requests.as_ref().is_none_or(replay::ReplayReport::changes_nothing);
    if report.valid && changes_nothing { EXIT_GOOD } else { EXIT_ERRORS }
}

fn replayed(old: &Path, log: &Path, new: &AcceptedFile) -> Result<replay::ReplayReport, String> {
    let (report, compiled) = look_at(old, Depth::Routes, false).map_err(|unreadable| unreadable.to_string())?;
    let Some(compiled) = compiled else {
        return Err(format!("--against: {}", text(&report).trim_end()));
    };
    replay::run(log, (old, compiled.routed()), new.routed()).map_err(|error| error.to_string())
}

/// How deep a file is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    /// Checks whether routes can be compiled.
    Routes,
    /// Also reports what is probably not meant.
    File,
    /// Also checks what it needs of this machine.
    Machine,
}

/// Whether the file ends with the end flag. A file that cannot be read is reported when it is checked.
fn has_end_flag(file: &Path) -> bool {
    ConfigSource::File(file.to_owned()).read().is_ok_and(|text| end_flag::is_at_end_of(&text))
}

fn look_at(file: &Path, depth: Depth, had_end_flag: bool) -> Result<(CheckReport, Option<AcceptedFile>), ReadError> {
    let source = ConfigSource::File(file.to_owned());
    let text = source.read()?;
    let (config, diagnostics, mut omitted) =
        match source.check_end(&text, had_end_flag).and_then(|()| source.parse(&text)) {
            Ok(loaded) => (Some(loaded.config), loaded.warnings, 0),
            Err(errors) => (None, errors.diagnostics, errors.omitted),
        };
    let plain = |diagnostic| CheckFinding { diagnostic, routes: Vec::new() };
    let mut diagnostics: Vec<CheckFinding> = diagnostics.into_iter().map(plain).collect();
    if let Some(config) = config.as_ref().filter(|_| depth >= Depth::Machine) {
        diagnostics.extend(of_machine(config, &text).into_iter().map(plain));
    }
    let is_usable = !diagnostics.iter().any(|found| found.diagnostic.severity == Severity::Error);
    // Compiling finds errors that reading cannot: bounds of the whole table of routes.
    let compiled = match config.filter(|_| is_usable).map(compile) {
        Some(Ok(compiled)) => Some(compiled),
        Some(Err(found)) => {
            diagnostics.push(plain(found));
            None
        }
        None => None,
    };
    if let Some(AcceptedFile { config, .. }) = compiled.as_ref().filter(|_| depth >= Depth::File) {
        let specs: Vec<Arc<_>> = config.routes.iter().map(|route| route.spec.clone()).collect();
        let linted = lint::lint(&specs);
        diagnostics.extend(linted.findings.iter().map(|finding| lint_found(finding, config)));
        diagnostics.extend(deep_hosts(config).into_iter().map(|deep| deep_found(deep, config)));
        diagnostics.extend(upgrades_over_http2(config));
        let of_chains = chain_lint(config);
        diagnostics.extend(of_chains.findings.into_iter().map(|finding| chain_found(finding, config)));
        diagnostics.sort_by_key(|found| found.diagnostic.line);
        omitted += linted.omitted + of_chains.omitted;
    }
    let count = |severity| diagnostics.iter().filter(|found| found.diagnostic.severity == severity).count();
    let report = CheckReport {
        valid: compiled.is_some(),
        file: file.display().to_string(),
        routes: compiled.as_ref().map(|compiled| compiled.config.routes.len()),
        stream_routes: compiled.as_ref().map(|of| of.config.stream_routes.len()).filter(|count| *count > 0),
        upstreams: compiled.as_ref().map(|compiled| compiled.config.upstreams.len()),
        errors: count(Severity::Error),
        warnings: count(Severity::Warning),
        diagnostics,
        omitted,
        requests: None,
    };
    Ok((report, compiled))
}

/// Problems of this machine: certificates and keys, folders, addresses.
fn of_machine(config: &Config, text: &[u8]) -> Vec<Diagnostic> {
    let (errors, warnings) = match tls_material::load(config, None) {
        Ok((_, warnings)) => (Vec::new(), warnings),
        Err(refused) => (refused.errors, refused.warnings),
    };
    let errors = errors.into_iter().chain(stillgate_acme::problem(config)).map(|error| (error, Severity::Error));
    let found = errors.chain(warnings.into_iter().map(|warning| (warning, Severity::Warning)));
    let mut found: Vec<_> = found.map(|(problem, severity)| tls_material::diagnostic(problem, severity)).collect();
    let tls = stillgate_door::tls::problem(config).into_iter().chain(stillgate_device_node::problem(config));
    let tls = tls.map(|problem| (problem, Severity::Error));
    for (problem, severity) in environment::look_at(config).into_iter().chain(tls) {
        let (line, column) = ConfigSource::locate(text, &problem.path).unwrap_or_default();
        found.push(Diagnostic { line, column, ..tls_material::diagnostic(problem, severity) });
    }
    found.sort_by_key(|found| (found.line, found.column));
    found
}

fn compile(config: Config) -> Result<AcceptedFile, Diagnostic> {
    match Plan::build(1, &config, &HashMap::new(), None, None, None) {
        Ok(plan) => Ok(AcceptedFile { config, plan }),
        Err(error) => Err(Diagnostic {
            severity: Severity::Error,
            path: "routes".to_owned(),
            line: 0,
            column: 0,
            message: error.to_string(),
            hint: None,
            excerpt: None,
        }),
    }
}

/// A finding about matching. It has the line of its route, and no column.
fn lint_found(finding: &Finding, config: &Config) -> CheckFinding {
    let at = |route: usize, id: &str| RouteAt { id: id.to_owned(), line: config.route_lines[route] };
    let others: Vec<RouteAt> = match &finding.kind {
        FindingKind::Shadowed { by, .. } => by.iter().map(|(route, id)| at(*route, id)).collect(),
        FindingKind::SameButOrder { by: (route, id), .. } => vec![at(*route, id)],
        _ => Vec::new(),
    };
    let hint = (!others.is_empty()).then(|| see(&others));
    let mut routes = vec![at(finding.route, &finding.id)];
    routes.extend(others);
    let diagnostic = Diagnostic {
        severity: Severity::Warning,
        path: String::new(),
        line: routes[0].line,
        column: 0,
        message: finding.to_string(),
        hint,
        excerpt: None,
    };
    CheckFinding { diagnostic, routes }
}

/// A finding about hosts that client certificates do not reach, reported at the first route with one of them.
fn deep_found(deep: DeepHosts, config: &Config) -> CheckFinding {
    let at = |route: &usize| RouteAt { id: config.routes[*route].spec.id.clone(), line: config.route_lines[*route] };
    let routes: Vec<RouteAt> = deep.routes.iter().map(at).collect();
    let diagnostic = Diagnostic {
        severity: Severity::Warning,
        path: String::new(),
        line: routes[0].line,
        column: 0,
        message: deep.message,
        hint: Some(deep.hint),
        excerpt: None,
    };
    CheckFinding { diagnostic, routes }
}

/// Routes that let clients ask for another protocol, although their nodes speak HTTP/2, over which that is not forwarded.
fn upgrades_over_http2(config: &Config) -> Option<CheckFinding> {
    let shared: HashMap<&str, bool> =
        config.upstreams.iter().map(|upstream| (&*upstream.key, upstream.http2)).collect();
    let is_http2 = |target: &Target| match target {
        Target::Own(upstream) => upstream.http2,
        Target::Shared(key) => shared.get(&**key).is_some_and(|is_http2| *is_http2),
        Target::Nowhere | Target::Unavailable(_) => false,
    };
    let mut routes = Vec::new();
    for (route, line) in config.routes.iter().zip(&config.route_lines) {
        if route.upgrades && is_http2(&route.target) {
            routes.push(RouteAt { id: route.spec.id.clone(), line: *line });
        }
    }
    let first = routes.first()?;
    let diagnostic = Diagnostic {
        severity: Severity::Warning,
        path: String::new(),
        line: first.line,
        column: 0,
        message: format!(
            "route {:?} has enable_websocket, but its nodes speak HTTP/2, over which no upgrade is forwarded",
            first.id
        ),
        hint: Some("remove enable_websocket, or let the nodes speak HTTP/1.1".to_owned()),
        excerpt: None,
    };
    Some(CheckFinding { diagnostic, routes })
}

/// A finding about plugins, reported where they are configured.
fn chain_found(finding: ChainFinding, config: &Config) -> CheckFinding {
    let at = |route: usize| RouteAt { id: config.routes[route].spec.id.clone(), line: config.route_lines[route] };
    let diagnostic = Diagnostic {
        severity: Severity::Warning,
        path: String::new(),
        line: finding.line,
        column: 0,
        message: finding.message,
        hint: Some(finding.hint.to_owned()),
        excerpt: None,
    };
    CheckFinding { diagnostic, routes: finding.route.map(at).into_iter().collect() }
}

fn see(routes: &[RouteAt]) -> String {
    const SHOWN_MAX: usize = 5;
    let lines: Vec<String> = routes.iter().take(SHOWN_MAX).map(|route| route.line.to_string()).collect();
    let more = routes.len().saturating_sub(SHOWN_MAX);
    let word = if routes.len() == 1 { "line" } else { "lines" };
    let others = if more == 0 { String::new() } else { format!(" and {more} others") };
    format!("see {word} {}{others}", lines.join(", "))
}

fn text(report: &CheckReport) -> String {
    let mut out = String::new();
    for CheckFinding { diagnostic, .. } in &report.diagnostics {
        match (diagnostic.line, diagnostic.column) {
            (line @ 1.., 0) => {
                let nowhere = Diagnostic { line: 0, ..diagnostic.clone() };
                out.push_str(&format!("{}:{line}: {nowhere}", report.file));
            }
            _ => out.push_str(&diagnostic.in_file(Some(&report.file))),
        }
        out.push('\n');
    }
    if report.omitted > 0 {
        out.push_str(&format!("and {} more\n", report.omitted));
    }
    // Where the file is valid, only warnings are left out.
    let (warnings, more) = match report.valid {
        true => (report.warnings + report.omitted, None),
        false => (report.warnings, (report.omitted > 0).then(|| format!("{} more", report.omitted))),
    };
    let found = [counted(report.errors, "error"), counted(warnings, "warning"), more]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ");
    match (report.valid, report.routes, report.upstreams) {
        (true, Some(routes), Some(upstreams)) => {
            let stream_routes = report.stream_routes.and_then(|count| counted(count, "stream route"));
            let holds = format!(
                "{}, {}{}",
                counted(routes, "route").unwrap_or_else(|| "no routes".to_owned()),
                stream_routes.map_or(String::new(), |stream_routes| format!("{stream_routes}, ")),
                counted(upstreams, "upstream").unwrap_or_else(|| "no upstreams".to_owned()),
            );
            let but = match found.is_empty() {
                true => String::new(),
                false => format!("; {found}"),
            };
            out.push_str(&format!("{}: ok ({holds}{but})\n", report.file));
        }
        _ => out.push_str(&format!("{}: refused ({found})\n", report.file)),
    }
    out
}

// Routes whose hosts have more labels than the names for which `ssls` requests client certificates.
//
// A wildcard of `ssls` matches one label in a handshake, that of a route's host any number of them. Requests for hosts in between
// are answered 421 unless the connection has shown a certificate under another name, which is rarely what was meant. Hosts that
// expressions match are not checked.

/// Routes whose hosts exceed one name.
pub(crate) struct DeepHosts {
    /// The warning about the first of them.
    pub(crate) message: String,
    /// How to fix it.
    pub(crate) hint: String,
    /// Their indices, in the order of the file; never empty.
    pub(crate) routes: Vec<usize>,
}

/// One finding for each wildcard that requires client certificates and that hosts of routes exceed.
pub(crate) fn deep_hosts(config: &Config) -> Vec<DeepHosts> {
    let servers = || {
        config.ssls.iter().filter_map(|ssl| match &ssl.usage {
            SslUse::Server(server) => Some((ssl.id.as_str(), server)),
            SslUse::Client | SslUse::Refused(_) => None,
        })
    };
    let names: HashSet<&str> = servers().flat_map(|(_, server)| &server.names).map(String::as_str).collect();
    let asking = servers().filter(|(_, server)| server.client.is_some());
    let wildcards: Vec<(&str, &str)> = asking
        .flat_map(|(id, server)| server.names.iter().map(move |name| (id, name.as_str())))
        .filter(|(_, name)| name.starts_with('*'))
        .collect();
    if wildcards.is_empty() {
        return Vec::new();
    }
    let hosts =
        |spec: &RouteSpec| spec.uri().map_or(Vec::new(), |uri| uri.hosts.iter().map(HostPattern::to_string).collect());
    let hosts: Vec<Vec<String>> = config.routes.iter().map(|route| hosts(&route.spec)).collect();
    wildcards.into_iter().filter_map(|(id, wildcard)| beyond(id, wildcard, &hosts, &names, config)).collect()
}

/// `hosts`: those of each route.
fn beyond(
    id: &str,
    wildcard: &str,
    hosts: &[Vec<String>],
    names: &HashSet<&str>,
    config: &Config,
) -> Option<DeepHosts> {
    let parent = wildcard.strip_prefix('*')?;
    let of = |hosts: &Vec<String>| hosts.iter().find(|host| is_beyond(host, parent, names)).cloned();
    let found: Vec<(usize, String)> =
        hosts.iter().enumerate().filter_map(|(route, hosts)| Some((route, of(hosts)?))).collect();
    let (first, host) = found.first()?;
    let message = format!(
        "route {:?} takes hosts ({host}) deeper than the one label that {wildcard:?} of ssls {id:?} covers in a TLS \
         handshake; requests for them are answered 421 unless the client presented its certificate under another name of \
         that entry",
        config.routes[*first].spec.id
    );
    let hint = "list the exact hosts in the route, and add the deeper ones to `snis`".to_owned();
    Some(DeepHosts { message, hint, routes: found.iter().map(|(route, _)| *route).collect() })
}

/// Whether `host`, of a route, matches names more than one label below `parent` (with its leading dot) that no handshake covers.
fn is_beyond(host: &str, parent: &str, names: &HashSet<&str>) -> bool {
    match host.strip_prefix('*') {
        Some(suffix) => suffix.ends_with(parent) || parent.ends_with(suffix),
        None => {
            let is_deep = host.strip_suffix(parent).is_some_and(|labels| labels.contains('.'));
            let right_above = host.split_once('.').map(|(_, above)| format!("*.{above}"));
            is_deep && !names.contains(host) && !right_above.is_some_and(|above| names.contains(above.as_str()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_handshake_finds_a_name_for() {
        let names = HashSet::from(["*.sec.example", "x.y.sec.example", "*.z.sec.example"]);
        let check = |host: &str, expected: bool| {
            assert_eq!(is_beyond(host, ".sec.example", &names), expected, "{host}");
        };
        check("*.sec.example", true);
        check("*.example", true);
        check("*.a.sec.example", true);
        check("a.b.sec.example", true);
        check("a.sec.example", false);
        check("sec.example", false);
        check("x.y.sec.example", false);
        check("a.z.sec.example", false);
        check("*.other.example", false);
        check("*.xsec.example", false);
        check("a.b.xsec.example", false);
    }
}
