//! The allowed dependencies between crates, and names that some crates may not use: tables, checked against cargo and the sources.
//!
//! It checks names, not meaning: it finds honest mistakes, not ingenious ones.

use crate::Result;
use crate::step;
use crate::tree;
use serde_json::Value;
use std::fs;

/// From top to bottom. A crate may depend only on those below it.
const ORDER: &[&str] = &[
    "stillgate-gateway",
    "stillgate-import",
    "stillgate-replay",
    "stillgate-admin",
    "stillgate-device-node",
    "stillgate-acme",
    "stillgate-live",
    "stillgate-health",
    "stillgate-measures",
    "stillgate-plugins",
    "stillgate-logs",
    "stillgate-proxy",
    "stillgate-exporter",
    "stillgate-door",
    "stillgate-upstream",
    "stillgate-datastore",
    "stillgate-outbound",
    "stillgate-cluster",
    "stillgate-tls",
    "stillgate-config",
    "stillgate-plugin-api",
    "stillgate-lua",
    "stillgate-jws",
    "stillgate-schema",
    "stillgate-route",
    "stillgate-metrics",
    "stillgate-limits",
    "stillgate-devices",
    "stillgate-brotli",
    "stillgate-allocator",
    "stillgate-pcre",
    "stillgate-lab",
    "stillgate-load",
    "stillgate-stats",
    "stillgate-rig",
    "stillgate-profiler",
    "stillgate-yaml",
    "stillgate-wire",
    "stillgate-files",
    "stillgate-terminal",
];

/// Crates outside the order: no shipped crate depends on them; tests may.
const OUTSIDE: &[&str] =
    &["stillgate-interleavings", "stillgate-operations", "stillgate-packaging", "stillgate-testkit", "xtask"];

/// The laboratory works with any gateway.
const LABORATORY: &[&str] = &["stillgate-lab", "stillgate-load", "stillgate-stats", "stillgate-rig"];

/// The crates that the laboratory may use: for reading bytes and text, and for writing profiles.
const FOR_ALL: &[&str] = &["stillgate-profiler", "stillgate-wire", "stillgate-yaml"];

/// Crates without IO, clock or randomness: those are arguments.
const PURE: &[&str] = &[
    "stillgate-devices",
    "stillgate-import",
    "stillgate-route",
    "stillgate-stats",
    "stillgate-wire",
    "stillgate-yaml",
];

/// Dependencies that a pure crate cannot have.
const IMPURE_CRATES: &[&str] = &[
    "arc-swap",
    "getrandom",
    "hickory-resolver",
    "hyper",
    "libc",
    "mio",
    "notify",
    "rand",
    "rustix",
    "socket2",
    "tokio",
    "tracing",
];

/// Names that the sources of some crates cannot use, with the reason.
struct Ban {
    crates: &'static [&'static str],
    /// Exempt files and folders below `src/`, whose purpose it is.
    but: &'static [&'static str],
    names: &'static [&'static str],
    reason: &'static str,
}

/// Names of IO, clocks and threads.
const IMPURE_NAMES: &[&str] = &[
    "std::env::",
    "std::fs",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime",
    "TcpStream",
    "UdpSocket",
    "println!(",
];

/// Crates that speak TLS with peers of the gateway.
const TLS_USERS: &[&str] = &[
    "stillgate-acme",
    "stillgate-admin",
    "stillgate-cluster",
    "stillgate-datastore",
    "stillgate-device-node",
    "stillgate-door",
    "stillgate-exporter",
    "stillgate-gateway",
    "stillgate-health",
    "stillgate-live",
    "stillgate-logs",
    "stillgate-lua",
    "stillgate-measures",
    "stillgate-outbound",
    "stillgate-plugins",
    "stillgate-proxy",
    "stillgate-tls",
    "stillgate-upstream",
];

const BANS: &[Ban] = &[
    Ban {
        crates: PURE,
        but: &[],
        names: IMPURE_NAMES,
        reason: "in a crate without IO and clock; take it as an argument",
    },
    Ban {
        crates: &["stillgate-metrics"],
        but: &["registry.rs", "process.rs", "segment/memory.rs", "shared/"],
        names: IMPURE_NAMES,
        reason: "outside the files of metrics that map memory, prepare it, share it and serve a process; take it as an argument",
    },
    Ban {
        crates: &["stillgate-metrics"],
        // That of a process has one for its reader.
        but: &["registry.rs", "process.rs"],
        names: &["Mutex", "RwLock", "Condvar"],
        reason: "where a writer could wait for it; only declaring families and making writers takes a lock",
    },
    Ban {
        crates: &["stillgate-limits"],
        but: &["memory.rs"],
        names: IMPURE_NAMES,
        reason: "outside the file of limits that maps memory; take it as an argument",
    },
    Ban {
        crates: &[
            "stillgate-devices",
            "stillgate-wire",
            "stillgate-route",
            "stillgate-limits",
            "stillgate-upstream",
            "stillgate-proxy",
        ],
        but: &[],
        names: &["Mutex", "RwLock", "Condvar"],
        reason: "on the way of a request; give the value one owner, or publish a snapshot",
    },
    Ban {
        crates: TLS_USERS,
        but: &["peer_chain.rs"],
        names: &["WebPkiServerVerifier", "WebPkiClientVerifier", "with_root_certificates", "with_native_roots"],
        reason: "has no bound on the chain that a peer sends; use stillgate_tls::server_verifier or client_verifier",
    },
];

/// Checks every arrow and that every dependency has its reason; reports violations.
pub(crate) fn check() -> Result {
    let metadata = step::output(&mut step::cargo(["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let reasons = fs::read_to_string(step::root().join("docs/decisions.md"))?;
    let mut wrong = Vec::new();
    let mut arrows = 0;
    for package in packages {
        let from = package["name"].as_str().unwrap_or_default();
        if !ORDER.contains(&from) && !OUTSIDE.contains(&from) {
            wrong.push(format!("{from}: not in the table of xtask/src/arrows.rs; give it its place"));
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            let dev = dependency["kind"] == "dev";
            arrows += usize::from(ORDER.contains(&to));
            wrong.extend(judge(from, to, dev));
            if !ORDER.contains(&to) && !OUTSIDE.contains(&to) && !reasons.contains(&format!("`{to}`")) {
                wrong.push(format!(
                    "{from} -> {to}: has no line under Dependencies in docs/decisions.md; say why it and not its rival"
                ));
            }
        }
    }
    wrong.extend(banned_names()?);
    if wrong.is_empty() {
        println!("{arrows} arrows point down, each dependency has its reason");
        return Ok(());
    }
    Err(wrong.join("\n").into())
}

/// Why `from` may not depend on `to`.
fn judge(from: &str, to: &str, dev: bool) -> Option<String> {
    let place = |name: &str| ORDER.iter().position(|known| *known == name);
    if dev {
        return None;
    }
    if OUTSIDE.contains(&to) {
        return Some(format!("{from} -> {to}: for tests only; make it a dev-dependency"));
    }
    if PURE.contains(&from) && IMPURE_CRATES.contains(&to) {
        return Some(format!("{from} -> {to}: {from} does no IO; take what it gives as an argument"));
    }
    if LABORATORY.contains(&from) && ORDER.contains(&to) && !LABORATORY.contains(&to) && !FOR_ALL.contains(&to) {
        return Some(format!(
            "{from} -> {to}: the laboratory serves any gateway; start ours as a program like the others"
        ));
    }
    match (place(from), place(to)) {
        (Some(above), Some(below)) if above >= below => {
            Some(format!("{from} -> {to}: points up; an arrow may only point down the table"))
        }
        _ => None,
    }
}

/// Lines before a file's tests that use a name which is forbidden in their crate.
fn banned_names() -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for file in tree::files()?.iter().filter(|file| file.is_rust()) {
        let text = file.text().unwrap_or_default();
        let shipped = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
        for ban in BANS.iter().filter(|ban| ban.covers(&file.path)) {
            for (number, line) in shipped.lines().enumerate() {
                let code = line.split("//").next().unwrap_or(line);
                if let Some(name) = ban.names.iter().find(|name| code.contains(**name)) {
                    wrong.push(format!("{}:{}: `{name}` {}", file.path, number + 1, ban.reason));
                }
            }
        }
    }
    Ok(wrong)
}

impl Ban {
    fn covers(&self, path: &str) -> bool {
        self.crates.iter().any(|name| {
            let folder = name.trim_start_matches("stillgate-");
            path.strip_prefix(&format!("crates/{folder}/src/"))
                .is_some_and(|below| !self.but.iter().any(|but| below.starts_with(but)) && !is_of_tests(below))
        })
    }
}

/// Whether a whole file is tests.
pub(crate) fn is_of_tests(below: &str) -> bool {
    below.ends_with("tests.rs") || below.contains("tests/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_down() {
        assert_eq!(judge("stillgate-proxy", "stillgate-wire", false), None);
        assert!(judge("stillgate-wire", "stillgate-proxy", false).is_some());
        assert!(judge("stillgate-wire", "stillgate-wire", false).is_some());
        assert!(judge("stillgate-wire", "tokio", false).is_some());
        assert_eq!(judge("stillgate-lab", "stillgate-wire", false), None);
        assert!(judge("stillgate-lab", "stillgate-metrics", false).is_some());
        assert!(judge("stillgate-gateway", "stillgate-testkit", false).is_some());
        assert_eq!(judge("stillgate-gateway", "stillgate-testkit", true), None);
        assert_eq!(judge("stillgate-wire", "proptest", true), None);
        assert_eq!(judge("stillgate-config", "stillgate-metrics", false), None);
        assert!(judge("stillgate-exporter", "stillgate-proxy", false).is_some());
    }

    #[test]
    fn exceptions_are_of_their_crate() {
        let metrics = &BANS[1];
        let covered = ["crates/metrics/src/writer/mod.rs", "crates/metrics/src/segment/mod.rs"];
        let exempt = [
            "crates/metrics/src/segment/memory.rs",
            "crates/metrics/src/shared/rotation.rs",
            "crates/wire/src/registry.rs",
        ];
        assert!(covered.iter().all(|path| metrics.covers(path)) && !exempt.iter().any(|path| metrics.covers(path)));
        assert!(BANS[0].covers("crates/route/src/registry.rs"));
        let verifiers = BANS.last().expect("there are bans");
        assert!(verifiers.covers("crates/door/src/tls.rs") && !verifiers.covers("crates/tls/src/peer_chain.rs"));
    }
}
