//! Makes a target's series, as many as requested.
//!
//! By requests if a label takes a query argument; by idle servers or clusters if every part of the configuration has
//! its series. The number of series per part depends on the version, so it is counted first.

use super::{Kind, Spec, Started, haproxy, nginx, pipelined};
use crate::error::{Error, Result};
use crate::scraper;
use std::fs;
use stillgate_load::{Mix, Target};

/// Allowed relative deviation of the series made by idle parts.
const TOLERANCE: f64 = 0.1;

/// The most that one program with one configuration file was seen to serve in reasonable time and memory.
const SERIES_MAX: u64 = 2_000_000;

/// Clusters of the smaller of the two probes.
const ENVOY_PROBE: u64 = 20;

/// A file of the touched numbers, and the mix that names it.
const NUMBERS_FILE: &str = "touched.txt";
const MIX_FILE: &str = "touched.yaml";

/// Makes the requested series, then counts those in the exposition.
pub(crate) fn make_series(started: &Started, spec: &Spec) -> Result<u64> {
    let asked = spec.series.filter(|_| spec.kind.makes_series());
    if let Some(series) = asked
        && by_requests(spec.kind)
    {
        pipelined::request_each(started.address, series, &path).map_err(|error| error.context(&spec.name))?;
    }
    let shown = shown(started)?;
    if spec.kind == Kind::Nginx {
        return Ok(nginx::STUB_STATUS_FIGURES);
    }
    let fits = |asked: u64| match by_requests(spec.kind) {
        true => shown >= asked,
        false => (shown as f64 - asked as f64).abs() <= TOLERANCE * asked as f64,
    };
    match asked {
        Some(asked) if !fits(asked) => {
            Err(format!("{}: its exposition has {shown} series, not the {asked} requested", spec.name).into())
        }
        _ => Ok(shown),
    }
}

/// The requests of the load: with series that requests make, `touched_percent` of them, spread over all; else `/`.
pub(crate) fn mix(spec: &Spec, target: &Target, touched_percent: f64) -> Result<Mix> {
    let cannot =
        |error: &dyn std::fmt::Display| Error::new(format!("{}: the requests of the load: {error}", spec.name));
    let Some(series) = spec.series.filter(|_| by_requests(spec.kind)) else {
        return Mix::single("GET", "/", &target.host, &[], Vec::new()).map_err(|errors| cannot(&errors));
    };
    let touched = ((series as f64 * touched_percent / 100.0).round() as u64).clamp(1, series.max(1));
    let distance = series.max(1) / touched;
    let numbers: String = (0..touched).map(|number| format!("{}\n", number * distance)).collect();
    let write = |name: &str, text: &str| {
        let file = spec.directory.join(name);
        fs::write(&file, text).map(|()| file).map_err(|error| cannot(&error))
    };
    write(NUMBERS_FILE, &numbers)?;
    let requests = format!("variables: {{id: {{file: {NUMBERS_FILE}}}}}\nrequests: [{{path: '/?id=${{id}}'}}]\n");
    let file = write(MIX_FILE, &requests)?;
    Mix::from_file(&file, target).map_err(|errors| cannot(&errors))
}

/// The number of series in a scrape.
pub(super) fn shown(started: &Started) -> Result<u64> {
    let name = &started.subject.name;
    let metrics =
        started.metrics.as_ref().ok_or_else(|| format!("{name}: the address of its exposition is unknown"))?;
    scraper::count_series(metrics).map_err(|error| error.context(name))
}

/// The number of idle parts that the configuration needs, found by counting the series of few and of more of them;
/// `count` starts a target with a given number. `None` for kinds without idle parts.
pub(super) fn idle_parts(spec: &Spec, count: impl Fn(u64) -> Result<u64>) -> Result<u64> {
    let probe = match spec.kind {
        Kind::Haproxy => haproxy::BACKEND_SERVERS,
        Kind::Envoy => ENVOY_PROBE,
        Kind::Stillgate | Kind::Nginx | Kind::NginxLua | Kind::Command => return Ok(0),
    };
    let Some(series) = spec.series else { return Ok(0) };
    if series > SERIES_MAX {
        return Err(
            format!("{}: {series} series are more than it is set up for; use {SERIES_MAX} at most", spec.name).into()
        );
    }
    let (few, more) = (count(probe)?, count(2 * probe)?);
    if more <= few {
        return Err(format!(
            "{}: {probe} idle parts show {few} series and {} show {more}, so no number of them is known to make {series}",
            spec.name,
            2 * probe
        )
        .into());
    }
    Ok(parts(series, probe, few, more))
}

fn by_requests(kind: Kind) -> bool {
    matches!(kind, Kind::Stillgate | Kind::NginxLua)
}

fn path(number: u64) -> String {
    format!("/?id={number}")
}

/// The nearest point to `series` on the line through both probes.
fn parts(series: u64, probe: u64, few: u64, more: u64) -> u64 {
    let each = (more - few) as f64 / probe as f64;
    let without = few as f64 - each * probe as f64;
    // A negative number of parts becomes none.
    ((series as f64 - without) / each).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_load::mix::Composer;

    #[test]
    fn parts_for_a_number_of_series() {
        #[track_caller]
        fn check(series: u64, probe: u64, each: u64, without: u64, expected: u64) {
            assert_eq!(parts(series, probe, without + each * probe, without + 2 * each * probe), expected);
        }
        check(1000, 100, 55, 262, 13);
        check(1_000_000, 100, 55, 262, 18_177);
        check(1000, 20, 170, 653, 2);
        check(10, 20, 170, 653, 0);
    }

    #[test]
    fn probes_only_where_parts_make_series() {
        #[track_caller]
        fn check(kind: Kind, series: Option<u64>, expected: Result<u64, &str>) {
            let spec = Spec { series, ..Spec::built_in(kind, std::env::temp_dir()) };
            let found = idle_parts(&spec, |parts| Ok(500 + 100 * parts)).map_err(|error| error.to_string());
            assert_eq!(found.as_ref().map(|parts| *parts).map_err(String::as_str), expected);
        }
        check(Kind::Haproxy, Some(1000), Ok(5));
        check(Kind::Envoy, Some(10_000), Ok(95));
        check(Kind::Envoy, None, Ok(0));
        check(Kind::Stillgate, Some(1000), Ok(0));
        check(
            Kind::Envoy,
            Some(50_000_000),
            Err("envoy: 50000000 series are more than it is set up for; use 2000000 at most"),
        );
        let stubborn = Spec { series: Some(1000), ..Spec::built_in(Kind::Haproxy, std::env::temp_dir()) };
        assert!(idle_parts(&stubborn, |_| Ok(7)).unwrap_err().to_string().contains("100 idle parts show 7 series"));
    }

    #[test]
    fn touched_series_are_spread_over_all() {
        #[track_caller]
        fn check(kind: Kind, series: Option<u64>, percent: f64, expected: &[&str]) {
            let dir = tempfile::tempdir().unwrap();
            let spec = Spec { series, ..Spec::built_in(kind, dir.path().to_owned()) };
            let target = Target::parse("http://127.0.0.1:80/").unwrap();
            let mix = mix(&spec, &target, percent).unwrap();
            let mut composer = Composer::new(&mix, 7, 0, 1);
            let paths = (0..1000).map(|_| {
                let request = String::from_utf8(composer.compose().bytes.to_vec()).unwrap();
                request.split(' ').nth(1).unwrap().to_owned()
            });
            let paths: std::collections::BTreeSet<String> = paths.collect();
            assert_eq!(paths.iter().map(String::as_str).collect::<Vec<_>>(), expected);
        }
        check(Kind::Stillgate, Some(1000), 0.3, &["/?id=0", "/?id=333", "/?id=666"]);
        check(Kind::NginxLua, Some(2), 100.0, &["/?id=0", "/?id=1"]);
        check(Kind::Stillgate, Some(1000), 0.0, &["/?id=0"]);
        check(Kind::Stillgate, None, 1.0, &["/"]);
        check(Kind::Haproxy, Some(1000), 1.0, &["/"]);
    }
}
