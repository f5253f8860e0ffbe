//! What a terminal shows of a running gateway, made of the answers of its admin address: whether something needs attention, and the
//! slowest requests. Nothing here does IO.
//!
//! Names in the answers are somebody else's text: each stays on its line, and its control characters are replaced.

#![forbid(unsafe_code)]

use serde_json::Value as Json;
use std::cmp::Reverse;
use std::fmt::Write as _;

/// What a look at a gateway has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusReport {
    /// Lines for a reader, the findings behind the state.
    pub text: String,
    /// The number of findings: what an operator should look at.
    pub findings: usize,
}

/// Reports the state of a gateway. `status`: its answer to `/v1/status`; `upstreams`: to `/v1/upstreams`, or why there is none.
pub fn status_report(status: &Json, upstreams: Result<&Json, &str>) -> StatusReport {
    let mut found = Vec::new();
    let config = &status["config"];
    let text = |value: &Json| one_line(value.as_str().unwrap_or_default());
    if status["draining"] == true {
        found.push("it is shutting down".to_owned());
    }
    if let Some(error) = status["source_error"].as_str() {
        found.push(format!("its {} cannot be reached or written: {}", text(&status["source"]), one_line(error)));
    }
    if let [first, others @ ..] = items(&config["last_error"]["errors"]) {
        let others = if others.is_empty() { String::new() } else { format!(" (and {} more errors)", others.len()) };
        found.push(format!("the last change was refused: {}{others}", text(first)));
    }
    for rejected in items(&status["rejected"]) {
        found.push(format!(
            "{}/{} is not served as written, but {}: {}",
            text(&rejected["kind"]),
            text(&rejected["id"]),
            text(&rejected["serving"]),
            text(&rejected["reason"])
        ));
    }
    let pending: Vec<String> = items(&status["pending_restart"]).iter().map(text).collect();
    if !pending.is_empty() {
        found.push(format!("changed, but in effect only after a restart: {}", pending.join(", ")));
    }
    if let Some(error) = status["devices_error"].as_str() {
        found.push(format!("the directory of devices cannot be used: {}", one_line(error)));
    }
    match upstreams {
        Ok(upstreams) => found.extend(node_findings(upstreams)),
        Err(why) => found.push(format!("the health of nodes is unknown: {}", one_line(why))),
    }
    let mut lines = format!(
        "Stillgate {}, up for {}; {} workers\nresources from {}, revision {}, loaded at {}\n",
        text(&status["version"]),
        duration(status["uptime_seconds"].as_u64().unwrap_or(0)),
        status["workers"],
        text(&status["source_path"]),
        status["revision"].as_u64().map_or_else(|| "none".to_owned(), |revision| revision.to_string()),
        text(&config["loaded_at"]),
    );
    let (connections, requests) = (&status["connections"], &status["requests"]);
    let _ = writeln!(
        lines,
        "connections: {} open, {} in all, {} refused; requests: {} in flight, {} in all",
        connections["open"], connections["total"], connections["refused"], requests["in_flight"], requests["total"]
    );
    for finding in &found {
        let _ = writeln!(lines, "! {finding}");
    }
    if found.is_empty() {
        lines.push_str("nothing needs attention\n");
    }
    StatusReport { text: lines, findings: found.len() }
}

/// Nodes that get no requests, and names without an address.
fn node_findings(upstreams: &Json) -> Vec<String> {
    let mut found = Vec::new();
    let text = |value: &Json| one_line(value.as_str().unwrap_or_default());
    for upstream in items(&upstreams["upstreams"]) {
        let id = text(&upstream["id"]);
        for endpoint in items(&upstream["endpoints"]).iter().filter(|endpoint| endpoint["state"] != "healthy") {
            let (host, address) = (text(&endpoint["host"]), text(&endpoint["address"]));
            let resolved = if host == address { String::new() } else { format!(" ({address})") };
            let why = match endpoint["state"].as_str() {
                Some("unhealthy") => {
                    let checks = &endpoint["active_checks"];
                    format!("unhealthy since {}: {}", text(&checks["since"]), text(&checks["reason"]))
                }
                _ => format!("set aside by {} workers after failures", items(&endpoint["set_aside"]).len()),
            };
            found.push(format!("upstream {id}: node {host}{resolved} is {why}"));
        }
        for name in items(&upstream["unresolved"]) {
            found.push(format!("upstream {id}: {} has no address: {}", text(&name["name"]), text(&name["reason"])));
        }
    }
    let silent: Vec<String> = items(&upstreams["silent_workers"]).iter().map(Json::to_string).collect();
    if !silent.is_empty() {
        found.push(format!("workers that did not answer within two seconds: {}", silent.join(", ")));
    }
    found
}

/// The slowest requests as a table, the slowest first, at most `count`. `slow`: the gateway's answer to `/v1/slow`.
pub fn slow_table(slow: &Json, count: usize) -> String {
    let mut requests: Vec<&Json> =
        items(&slow["minutes"]).iter().flat_map(|minute| items(&minute["requests"])).collect();
    let took_us = |request: &Json| (request["took_ms"].as_f64().unwrap_or(0.0) * 1000.0) as u64;
    requests.sort_by_key(|request| Reverse(took_us(request)));
    requests.truncate(count);
    if requests.is_empty() {
        return "no request in the last 15 minutes\n".to_owned();
    }
    let mut table = format!(
        "{:>10} {:>8} {:>8} {:>8} {:>8}  {:11} {:6}  request\n",
        "took ms", "before", "queue", "node", "after", "cause", "status"
    );
    for request in requests {
        let ms = |name: &str| request[name].as_f64().unwrap_or(0.0);
        let text = |name: &str| one_line(request[name].as_str().unwrap_or("-"));
        // Time in the queue is a part of the time before the node.
        let before = (ms("before_ms") - ms("queued_ms")).max(0.0);
        let _ = writeln!(
            table,
            "{:>10.1} {before:>8.1} {:>8.1} {:>8.1} {:>8.1}  {:11} {:6}  {} {} (route {}, node {})",
            ms("took_ms"),
            ms("queued_ms"),
            ms("node_ms"),
            ms("after_ms"),
            text("cause"),
            request["status"].to_string(),
            text("method"),
            text("path"),
            text("route"),
            text("node"),
        );
    }
    match slow["lost"].as_u64() {
        Some(lost) if lost > 0 => {
            let _ = writeln!(table, "{lost} further requests were too many to keep");
        }
        _ => {}
    }
    table
}

/// The size of a screen, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScreenSize {
    /// Characters of a line.
    pub columns: usize,
    /// Lines.
    pub rows: usize,
}

/// With fewer requests their 99th percentile says no more than the slowest of them.
const PERCENTILE_REQUESTS: u64 = 100;

/// Lines above the routes, with the one that names the columns.
const HEAD_ROWS: usize = 5;

/// Width of the columns behind the route's name.
const FIGURES_COLUMNS: usize = 6 * 9;

/// One screen of `stillgate top`. `status`: the answer to `/v1/status`; `live`: the first event of `/v1/live`; `routes`: the answer
/// to `/v1/routes`, in the order in which they are shown.
pub fn top_screen(status: &Json, live: &Json, routes: &Json, size: ScreenSize) -> String {
    let seconds = items(&live["history"]);
    let mean = |name: &str| {
        let known: Vec<f64> = seconds.iter().filter_map(|second| second[name].as_f64()).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    let share = |name: &str| match (mean(name), mean("requests")) {
        (Some(some), Some(all)) if all > 0.0 => format!("{:.1}%", some / all * 100.0),
        _ => "-".to_owned(),
    };
    let last = seconds.last().unwrap_or(&Json::Null);
    let timed = seconds.iter().rev().find(|second| second["p50"].is_f64()).unwrap_or(&Json::Null);
    let (p99_name, p99) = slowest(timed);
    let count = |value: &Json| value.as_u64().map_or_else(|| "-".to_owned(), |count| count.to_string());
    let mut lines = vec![
        format!(
            "Stillgate {}, up for {}, generation {}, revision {}",
            one_line(status["version"].as_str().unwrap_or("-")),
            duration(status["uptime_seconds"].as_u64().unwrap_or(0)),
            count(&status["config"]["generation"]),
            count(&status["revision"]),
        ),
        format!(
            "requests {}/s, 4xx {}, 5xx {}, p50 {}, {p99_name} {p99}",
            mean("requests").map_or_else(|| "-".to_owned(), rate_words),
            share("client_errors"),
            share("errors"),
            time_words(timed["p50"].as_f64()),
        ),
        format!(
            "connections {}, WebSockets {}, requests in flight {}",
            count(&last["connections"]),
            count(&last["tunnels"]),
            count(&status["requests"]["in_flight"]),
        ),
        String::new(),
    ];
    let name_columns = size.columns.saturating_sub(FIGURES_COLUMNS).max(10);
    let heads = ["req/s", "4xx/s", "5xx/s", "p50", "p99", "time"].map(|head| format!("{head:>9}"));
    lines.push(format!("{:name_columns$}{}", "route", heads.concat()));
    let listed = items(&routes["list"]).iter().filter(|route| route["traffic"].is_object());
    let mut has_few = false;
    for route in listed.take(size.rows.saturating_sub(HEAD_ROWS + 1)) {
        let traffic = &route["traffic"];
        let (name, p99) = slowest(traffic);
        has_few |= name == "max";
        let rate = |name: &str| traffic[name].as_f64().map_or_else(|| "-".to_owned(), rate_words);
        let share =
            traffic["time_share"].as_f64().map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0));
        let few = if name == "max" { "*" } else { "" };
        lines.push(format!(
            "{:name_columns$}{:>9}{:>9}{:>9}{:>9}{:>9}{share:>9}",
            shortened(&one_line(route["id"].as_str().unwrap_or_default()), name_columns - 1),
            rate("requests"),
            rate("client_errors"),
            rate("errors"),
            time_words(traffic["p50"].as_f64()),
            format!("{few}{p99}"),
        ));
    }
    if lines.len() == HEAD_ROWS {
        lines.push(match live["metrics"] == true {
            true => "no route has had a request in the last 15 minutes".to_owned(),
            false => "metrics are off (gateway.metrics.enabled), so routes have no figures".to_owned(),
        });
    }
    if has_few {
        lines.push(format!("* the slowest of fewer than {PERCENTILE_REQUESTS} requests in the last minute"));
    }
    lines.iter().map(|line| shortened(line, size.columns) + "\n").collect()
}

/// The 99th percentile, or of few requests the slowest one, with its name.
fn slowest(figures: &Json) -> (&'static str, String) {
    match figures["timed"].as_u64().unwrap_or(0) {
        PERCENTILE_REQUESTS.. => ("p99", time_words(figures["p99"].as_f64())),
        0 => ("p99", "-".to_owned()),
        _ => ("max", time_words(figures["max"].as_f64())),
    }
}

fn rate_words(rate: f64) -> String {
    if rate >= 100.0 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}

fn time_words(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 0.001 => format!("{:.0} us", seconds * 1e6),
        Some(seconds) if seconds < 0.01 => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}

/// The beginning of a text that does not fit.
fn shortened(text: &str, columns: usize) -> String {
    match text.chars().count() > columns {
        true => text.chars().take(columns.saturating_sub(1)).chain(['\u{2026}']).collect(),
        false => text.to_owned(),
    }
}

fn items(list: &Json) -> &[Json] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// The text on one line, without characters that a terminal would obey.
fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The two largest units of a time in seconds.
fn duration(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn good() -> Json {
        json!({
            "version": "0.1.0", "source": "store", "source_path": "/s/config.redb", "revision": 7, "rejected": [],
            "config": {"loaded_at": "2026-11-30T22:44:21.492Z", "last_error": null}, "pending_restart": [],
            "workers": 2, "uptime_seconds": 93_784, "connections": {"open": 3, "total": 68, "refused": 0},
            "requests": {"total": 900, "in_flight": 1}, "draining": false
        })
    }

    #[test]
    fn a_good_state_has_three_lines_and_no_finding() {
        let upstreams = json!({"upstreams": [{"id": "a", "endpoints": [{"state": "healthy"}], "unresolved": []}]});
        let report = status_report(&good(), Ok(&upstreams));
        assert_eq!(report.findings, 0);
        assert_eq!(
            report.text,
            "Stillgate 0.1.0, up for 1 d 2 h; 2 workers\n\
             resources from /s/config.redb, revision 7, loaded at 2026-11-30T22:44:21.492Z\n\
             connections: 3 open, 68 in all, 0 refused; requests: 1 in flight, 900 in all\n\
             nothing needs attention\n"
        );
    }

    #[test]
    fn each_finding_has_a_line_whatever_is_in_its_names() {
        let mut status = good();
        status["draining"] = true.into();
        status["source_error"] = "connection refused".into();
        status["config"]["last_error"] = json!({"errors": ["line 3: no\nsuch key", "b"]});
        status["rejected"] = json!([{"kind": "routes", "id": "a\u{1b}[2J", "reason": "no plugin x", "serving": "503"}]);
        status["pending_restart"] = json!(["gateway.workers"]);
        let upstreams = json!({
            "upstreams": [{"id": "u", "endpoints": [
                {"host": "n:80", "address": "10.0.0.1:80", "state": "unhealthy",
                 "active_checks": {"since": "10:00", "reason": "status 500"}},
                {"host": "10.0.0.2:80", "address": "10.0.0.2:80", "state": "set_aside", "set_aside": [{}, {}]},
            ], "unresolved": [{"name": "gone.test", "reason": "no such name"}]}],
            "silent_workers": [1]
        });
        let report = status_report(&status, Ok(&upstreams));
        let found: Vec<&str> = report.text.lines().filter_map(|line| line.strip_prefix("! ")).collect();
        assert_eq!(
            found,
            [
                "it is shutting down",
                "its store cannot be reached or written: connection refused",
                "the last change was refused: line 3: no such key (and 1 more errors)",
                "routes/a\u{fffd}[2J is not served as written, but 503: no plugin x",
                "changed, but in effect only after a restart: gateway.workers",
                "upstream u: node n:80 (10.0.0.1:80) is unhealthy since 10:00: status 500",
                "upstream u: node 10.0.0.2:80 is set aside by 2 workers after failures",
                "upstream u: gone.test has no address: no such name",
                "workers that did not answer within two seconds: 1",
            ]
        );
        assert_eq!(report.findings, found.len());
        assert_eq!(status_report(&good(), Err("401")).findings, 1);
        // An answer of another form does not end in a panic.
        assert_eq!(status_report(&Json::Null, Ok(&Json::Null)).findings, 0);
    }

    #[test]
    fn a_screen_has_its_size_and_the_routes_their_figures() {
        let mut status = good();
        status["config"]["generation"] = 4.into();
        let second = |requests: f64| {
            json!({"requests": requests, "client_errors": 1.0, "errors": 0.5, "timed": 200, "p50": 0.0012, "p99": 0.02,
                   "max": 0.5, "connections": 880, "tunnels": 140})
        };
        let live = json!({"metrics": true, "history": [second(150.0), second(250.0)]});
        let traffic = |timed: u64| {
            json!({"requests": 120.25, "client_errors": 0.0, "errors": 0.1, "timed": timed, "p50": 0.0004, "p99": 0.0201,
                   "max": 2.5, "time_share": 0.314})
        };
        let long = format!("a\u{1b}[2J{}", "x".repeat(300));
        let routes = json!({"list": [{"id": "orders", "traffic": traffic(7000)}, {"id": long, "traffic": traffic(99)},
                                     {"id": "quiet", "traffic": null}]});
        let screen = top_screen(&status, &live, &routes, ScreenSize { columns: 80, rows: 24 });
        assert_eq!(
            screen,
            "Stillgate 0.1.0, up for 1 d 2 h, generation 4, revision 7\n\
             requests 200/s, 4xx 0.5%, 5xx 0.2%, p50 1.2 ms, p99 20 ms\n\
             connections 880, WebSockets 140, requests in flight 1\n\
             \n\
             route                         req/s    4xx/s    5xx/s      p50      p99     time\n\
             orders                          120      0.0      0.1   400 us    20 ms      31%\n\
             a\u{fffd}[2Jxxxxxxxxxxxxxxxxxxx\u{2026}       120      0.0      0.1   400 us   *2.5 s      31%\n\
             * the slowest of fewer than 100 requests in the last minute\n"
        );
        let narrow = top_screen(&status, &live, &routes, ScreenSize { columns: 40, rows: 7 });
        assert!(narrow.lines().all(|line| line.chars().count() <= 40) && narrow.lines().count() <= 7, "{narrow}");
        let nothing = top_screen(&Json::Null, &Json::Null, &Json::Null, ScreenSize { columns: 80, rows: 24 });
        assert!(nothing.contains("metrics are off"), "{nothing}");
    }

    #[test]
    fn the_slowest_requests_come_first() {
        let request = |took: f64, path: &str| {
            json!({"took_ms": took, "before_ms": 5.0, "queued_ms": 2.0, "node_ms": took - 6.0, "after_ms": 1.0, "cause": "node",
                   "status": 200, "method": "GET", "path": path, "route": "r", "node": "10.0.0.1:80"})
        };
        let slow = json!({"minutes": [{"requests": [request(10.0, "/a"), request(812.4, "/b\n")]},
                                       {"requests": [request(30.0, "/c")]}], "lost": 4});
        assert_eq!(
            slow_table(&slow, 2),
            "   took ms   before    queue     node    after  cause       status  request\n\
            \x20    812.4      3.0      2.0    806.4      1.0  node        200     GET /b (route r, node 10.0.0.1:80)\n\
            \x20     30.0      3.0      2.0     24.0      1.0  node        200     GET /c (route r, node 10.0.0.1:80)\n\
             4 further requests were too many to keep\n"
        );
        assert_eq!(slow_table(&json!({}), 5), "no request in the last 15 minutes\n");
    }
}
