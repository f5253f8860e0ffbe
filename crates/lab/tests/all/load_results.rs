//! Output of `stillgate-lab load`: table, JSON, log, exit codes.

use crate::processes::{Loading, RUN_PATIENCE, Responder, load, load_json, load_json_or_void, number, run};
use stillgate_testkit::{attempt, eventually_within};
use tempfile::TempDir;

/// On a busy machine every run is late; the tests are not about the machine.
const ANY_LATENESS: [&str; 2] = ["--late-share", "100%"];

#[test]
fn the_json_has_what_scripts_read() {
    attempt(|| {
        let responder = Responder::start(&[]);
        let url = responder.url();
        let open = [&[&url, "--rate", "500", "--duration", "400ms", "--connections", "4"], &ANY_LATENESS[..]].concat();
        let closed = [&[&url, "--requests", "500", "--connections", "4"], &ANY_LATENESS[..]].concat();
        for arguments in [open, closed] {
            let json = load_json_or_void(&arguments);
            assert_eq!((json["kind"].as_str(), json["void"].is_boolean()), (Some("load"), true));
            assert_eq!(number(&json, &["schema_version"]), 1.0);
            assert_eq!((json["url"].as_str(), number(&json, &["errors"])), (Some(url.as_str()), 0.0));
            assert!(number(&json, &["requests"]) > 0.0 && number(&json, &["rate_achieved"]) > 0.0);
            for view in ["corrected", "uncorrected"] {
                let figures = ["p50", "p90", "p99", "p99_9", "p99_99", "max"].map(|name| number(&json, &[view, name]));
                assert!(figures[0] > 0.0 && figures.is_sorted(), "{view}: {figures:?}");
            }
            assert!(json["environment"]["kernel"].as_str().unwrap().starts_with("Linux"));
            assert_eq!(json["arguments"][1].as_str(), Some(url.as_str()));
        }
    });
}

#[test]
fn a_result_file_verifies_and_becomes_a_report() {
    attempt(|| {
        let responder = Responder::start(&[]);
        let folder = TempDir::new().unwrap();
        let [json, html] = ["run.json", "run.html"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
        let ended = load(&[&[&responder.url(), "--requests", "500", "--json", &json], &ANY_LATENESS[..]].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.stdout.contains("Requests/sec:"));
        let verified = run(&["verify"], &[&json]);
        assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
        let reported = run(&["report"], &[&json, "-o", &html]);
        assert_eq!(reported.code, Some(0), "{}{}", reported.stdout, reported.stderr);
        assert!(std::fs::read_to_string(&html).unwrap().contains("<html"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no half-written file stays");
    });
}

#[test]
fn one_line_a_stretch_and_a_table_at_the_end() {
    attempt(|| {
        let responder = Responder::start(&[]);
        let common = [&["--rate", "200", "--duration", "2s", "--interval", "500ms"], &ANY_LATENESS[..]].concat();
        let url = responder.url();
        let told = load(&[&[url.as_str()], &common[..]].concat());
        let lines = told.stderr.lines().filter(|line| line.contains("/s  p50 ")).count();
        // Four, and more for answers that come late; fewer if the generator was too late to notice the end of an
        // interval.
        assert!((2..=10).contains(&lines), "{}", told.stderr);
        for part in ["99.990%", "100.000%", "Corrected", "Uncorrected", "Requests/sec:"] {
            assert!(told.stdout.contains(part), "{part}: {}", told.stdout);
        }
        let quiet = load(&[&[url.as_str(), "--quiet"], &common[..]].concat());
        assert!(matches!(quiet.code, Some(0 | 3)) && quiet.stderr.is_empty(), "{:?} {}", quiet.code, quiet.stderr);
        assert!(quiet.stdout.contains("Requests/sec:"));
    });
}

#[test]
fn the_interval_log_has_both_views() {
    attempt(|| {
        let responder = Responder::start(&[]);
        let folder = TempDir::new().unwrap();
        let log = folder.path().join("run.hlog");
        let arguments = ["--rate", "200", "--duration", "1s", "--interval", "100ms", "--quiet", "--hdr-log"];
        let url = responder.url();
        let ended = load(&[&[url.as_str()], &arguments[..], &[log.to_str().unwrap()], &ANY_LATENESS[..]].concat());
        assert!(matches!(ended.code, Some(0 | 3)), "{}", ended.stderr);
        let log = std::fs::read_to_string(log).unwrap();
        let (tagged, others): (Vec<&str>, Vec<&str>) =
            log.lines().partition(|line| line.starts_with("Tag=uncorrected,"));
        let corrected = others.iter().filter(|line| line.starts_with(|first: char| first.is_ascii_digit())).count();
        assert!(tagged.len() >= 3 && corrected == tagged.len(), "{log}");
    });
}

#[test]
fn what_is_asked_is_what_is_typed() {
    attempt(|| {
        let responder = Responder::start(&["--body-bytes", "5"]);
        let url = responder.url();
        let check = |arguments: &[&str], errors: bool| {
            let json = load_json_or_void(&[&[url.as_str(), "--duration", "50ms", "-c", "2"], arguments].concat());
            let failed = number(&json, &["errors"]);
            assert!(
                if errors { failed == number(&json, &["requests"]) } else { failed == 0.0 },
                "{arguments:?}: {json}"
            );
        };
        check(&["--method", "POST", "--body", "abc", "--header", "X-A: b"], false);
        check(&["-X", "HEAD", "-H", "X-A: b", "-H", "X-B: c"], false);
        check(&["--expect-body-contains", "still"], false);
        check(&["--expect-body-contains", "moving"], true);
        check(&["--expect-status", "2xx"], false);
        check(&["--expect-status", "404,500-503"], true);
        check(&["--threads", "2", "--cpus", "0"], false);
        check(&["--sources", "127.0.0.2,127.0.0.3", "--warm-up", "20ms"], false);
    });
}

#[test]
fn the_same_seed_asks_the_same() {
    attempt(|| {
        let responder = Responder::start(&[]);
        let url = responder.url();
        let common = [url.as_str(), "--rate", "1k", "--rate-end", "3k", "--poisson", "--duration", "200ms"];
        let due = |seed: &str| {
            let json = load_json_or_void(&[&common[..], &["--seed", seed], &ANY_LATENESS[..]].concat());
            number(&json, &["requests"]) + number(&json, &["missed_starts"])
        };
        let first = due("5");
        assert_eq!(first, due("5"));
        // 400 are due on average.
        assert!((300.0..500.0).contains(&first), "{first}");
    });
}

#[test]
fn an_interrupted_run_is_reported() {
    attempt(|| {
        let responder = Responder::start(&[]);
        let url = responder.url();
        let run = Loading::start(
            &[&[url.as_str(), "--rate", "100", "--duration", "1h", "--interval", "50ms"], &ANY_LATENESS[..]].concat(),
        );
        run.stretches(2);
        run.process.signal("INT");
        let (code, json, log) = run.finish();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("Requests/sec:") && log.contains("interrupted after"), "{log}");
        let json = json.unwrap();
        assert!(number(&json, &["duration_s"]) < 1800.0 && json["interrupted"] == true, "{json}");
    });
}

#[test]
fn a_run_that_is_interrupted_before_anything_is_measured_says_so() {
    attempt(|| {
        let responder = Responder::start(&[]);
        for signal in ["INT", "TERM", "HUP"] {
            let run = Loading::start(&[&responder.url(), "--rate", "100", "--warm-up", "1h"]);
            eventually_within(RUN_PATIENCE, "it begins", || run.process.log().contains("of warm-up"));
            run.process.signal(signal);
            let (code, json, log) = run.finish();
            assert_eq!((code, json), (Some(130), None), "{signal}: {log}");
            assert!(log.contains("nothing was measured") && !log.contains("Requests/sec"), "{signal}: {log}");
        }
    });
}

#[test]
fn what_was_asked_beyond_the_server_adds_up() {
    attempt(|| {
        let responder = Responder::start(&["--latency", "fixed:50ms"]);
        let url = responder.url();
        let arguments = [url.as_str(), "--rate", "1k", "--duration", "300ms", "--connections", "4", "--timeout", "2s"];
        let json = load_json_or_void(&[&arguments[..], &ANY_LATENESS[..]].concat());
        let [requests, in_time, cut_off, missed] =
            ["requests", "answered_in_time", "cut_off", "missed_starts"].map(|name| number(&json, &[name]));
        assert_eq!((requests + cut_off + missed, number(&json, &["errors"])), (300.0, 0.0), "{json}");
        assert!(in_time < requests && number(&json, &["drain_s"]) > 0.0, "{json}");
        let rate = number(&json, &["rate_achieved"]) * number(&json, &["duration_s"]);
        assert!((rate - in_time).abs() < 1e-6, "{json}");
        let notes = json["notes"].to_string();
        assert!(notes.contains("of 300 requests were answered in the measured time"), "{notes}");
    });
}

#[test]
fn what_was_not_measured_is_null() {
    attempt(|| {
        let responder = Responder::start(&["--latency", "fixed:1h"]);
        let json = load_json(&[&responder.url(), "--duration", "100ms", "--connections", "2", "--timeout", "200ms"], 3);
        assert!(json["lateness"]["p50"].is_null() && json["first_byte"]["max"].is_null(), "{json}");
        assert!(number(&json, &["connect", "max"]) > 0.0 && number(&json, &["corrected", "max"]) > 0.0, "{json}");
    });
}

#[test]
fn thousands_of_connections_from_several_sources() {
    attempt(|| {
        let responder = Responder::start(&[]);
        let url = responder.url();
        let arguments = [url.as_str(), "--connections", "3000", "--duration", "300ms", "--rate", "5k"];
        for sources in [&[][..], &["--sources", "127.0.0.2,127.0.0.3,127.0.0.4"]] {
            let json = load_json_or_void(&[&arguments[..], sources, &ANY_LATENESS[..]].concat());
            assert_eq!((number(&json, &["errors"]), number(&json, &["connections"])), (0.0, 3000.0), "{json}");
            assert_eq!(number(&json, &["requests"]) + number(&json, &["missed_starts"]), 1500.0);
        }
    });
}
