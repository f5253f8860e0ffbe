//! `stillgate-lab measure` as `bisect` and `nightly` run it.

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use stillgate_testkit::{attempt, keeps_time, require_tool};

const LAB: &str = env!("CARGO_BIN_EXE_stillgate-lab");

fn measure(words: &[&str]) -> Output {
    measure_for("200ms", words)
}

fn measure_for(time: &str, words: &[&str]) -> Output {
    Command::new(LAB).arg("measure").args(words).args(["--time", time, "--connections", "4"]).output().unwrap()
}

/// Its number; the generator may be late on a busy machine, and then reports that, or answers take longer than the
/// measurement.
fn number(words: &[&str]) -> f64 {
    let mut time = "200ms";
    for _ in 0..50 {
        let output = measure_for(time, words);
        if output.status.success() {
            return String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        }
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if stderr.contains("too long for a closed loop") || stderr.contains("no request was answered") {
            time = if time == "200ms" { "1s" } else { "5s" };
            continue;
        }
        assert!(stderr.contains("late") || stderr.contains("generator"), "{words:?}: {stderr}");
    }
    panic!("{words:?}: the machine is too busy");
}

#[test]
fn figures_of_a_server() {
    let responder = format!("'{LAB}' respond --address {{address}} --latency fixed:5ms");
    let cpu = number(&["cpu", &responder]);
    assert!(cpu > 0.1 && cpu < 10_000.0, "{cpu} us");
    // Four connections, 5 ms each.
    let throughput = number(&["throughput", &responder]);
    assert!(throughput > 0.0 && throughput < 850.0, "{throughput} requests per second");
    let p50 = number(&["p50", &responder, "--rate", "100"]);
    assert!(p50 >= 5000.0, "{p50} us");
    let (rss, anonymous) = (number(&["rss", &responder]), number(&["anonymous", &responder]));
    assert!(rss > 500.0 && anonymous > 50.0 && anonymous < 0.8 * rss, "{rss} and {anonymous} KiB");
}

#[test]
fn slow_servers_have_the_throughput_that_they_have() {
    let responder = |ms: u64| format!("'{LAB}' respond --address {{address}} --latency fixed:{ms}ms");
    // The limit given by connections and latency is never exceeded; a busy machine gives less.
    for (ms, most) in [(20, 200.0), (40, 100.0), (90, 44.5)] {
        attempt(|| {
            let throughput = number(&["throughput", &responder(ms)]);
            assert!(throughput > 0.0 && throughput < 1.02 * most, "{ms} ms: {throughput} of {most} per second");
            assert!(throughput > 0.85 * most || !keeps_time(), "{ms} ms: {throughput} of {most} per second");
        });
    }
    // Twice as long as a closed loop of 200 ms has time for.
    let output = measure(&["throughput", &responder(150)]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{output:?}");
    assert!(stderr.contains("too long for a closed loop of 0.2 s") && stderr.contains("measure it for 0."), "{stderr}");
    // Its latency needs no closed loop.
    let p50 = number(&["p50", &responder(150), "--rate", "100"]);
    assert!(p50 >= 150_000.0, "{p50} us");
}

#[test]
fn a_gateway_has_a_configuration_of_ones_own_and_metrics() {
    require_tool("nginx", "nginx");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("nginx.conf");
    let text = "daemon off; pid {dir}/pid; error_log stderr; events {}\n\
                http { access_log off; server { listen {address}; location / { return 200 hello; } }\n\
                server { listen {metrics}; location / { return 200 \"hits $connection_requests\\nhits_all 1\\n\"; } } }\n";
    fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    let mix = folder.path().join("mix.yaml");
    fs::write(&mix, "requests: [{path: /x, expect: {status: 200, body: {contains: hello}}}]").unwrap();
    assert!(number(&["cpu", "nginx", "--config", config, "--mix", mix.to_str().unwrap()]) > 0.0);
    // Each scrape is a connection of its own, so the metric stays 1.
    assert_eq!(number(&["metric:hits", "nginx", "--config", config]), 1.0);
    assert_eq!(number(&["level:hits_all", "nginx", "--config", config]), 2.0);
    let none = measure(&["metric:absent", "nginx", "--config", config]);
    assert!(none.stdout == b"1\n" && String::from_utf8_lossy(&none.stderr).contains("no series of absent"), "{none:?}");
    fs::write(&mix, "requests: [{path: /x, expect: {status: 404}}]").unwrap();
    let failed = measure(&["cpu", "nginx", "--config", config, "--mix", mix.to_str().unwrap()]);
    assert!(failed.status.code() == Some(2) && failed.stdout.is_empty(), "{failed:?}");
}

#[test]
fn what_takes_longer_than_two_seconds_says_what_it_does_and_when_it_ends() {
    attempt(show_what_takes_long);
}

fn show_what_takes_long() {
    let responder = format!("'{LAB}' respond --address {{address}} --latency fixed:5ms");
    let shown = |warm_up: &str| -> Vec<String> {
        let output = measure(&["p99", &responder, "--rate", "100", "--warm-up", warm_up]);
        // There is none if the generator was late on a busy machine, which is an error.
        let numbers = String::from_utf8_lossy(&output.stdout).lines().count();
        assert_eq!(numbers, usize::from(output.status.success()), "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        stderr.lines().filter(|line| line.starts_with("p99 of '")).map(str::to_owned).collect()
    };
    let lines = shown("2100ms");
    let [warm_up, closed, open] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(warm_up.contains(": 2/4 warm-up, about 2 s left (2 s gone)"), "{lines:?}");
    assert!(closed.contains(": 3/4 closed loop, about 0 s left ("), "{lines:?}");
    assert!(
        open.contains(": 4/4 100 requests/s, about 0 s left; ") && open.contains(" requests/s so far"),
        "{lines:?}"
    );
    let begun = Instant::now();
    let lines = shown("100ms");
    assert!(lines.is_empty() || begun.elapsed() > Duration::from_secs(2), "{lines:?}");
}

#[test]
fn a_suite_is_a_table_of_targets_and_cases() {
    require_tool("nginx", "nginx");
    let folder = tempfile::tempdir().unwrap();
    let nginx = "daemon off; pid {dir}/pid; error_log stderr; events {}\n\
                 http { access_log off; server { listen {address}; {header} location / { return 200 {word}; } } }\n";
    fs::write(folder.path().join("nginx.conf"), nginx).unwrap();
    let suite = folder.path().join("suite.yaml");
    let text = format!(
        "fill: {{word: hello, header: \"\", path: /}}\nprepare: printf /x > path\n\
         targets:\n  nginx: {{kind: nginx, configuration: nginx.conf}}\n  \
         bare: {{command: \"'{LAB}' respond --address {{address}}\"}}\n\
         mix: 'requests: [{{path: \"{{path}}\", expect: {{status: 200}}}}]'\n\
         cases:\n  - name: none\n  \
         - {{name: header, against: none, shows: 'x-a: b', fill: {{path: '{{include path}}'}}, nginx: {{header: add_header X-A b;}}}}\n  \
         - {{name: broken, nginx: {{header: no_such_directive}}}}\n"
    );
    fs::write(&suite, text).unwrap();
    let json = folder.path().join("out.json");
    let table = |words: &[&str]| {
        let mut all =
            vec!["cpu,rss", "--suite", suite.to_str().unwrap(), "--rounds", "2", "--json", json.to_str().unwrap()];
        all.extend(words);
        measure(&all)
    };
    let output = table(&[]);
    let (text, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("header: cpu, us/request") && text.contains("header: rss, added, KiB"), "{text}{stderr}");
    // A target that does not start is left out, and that is a fault.
    assert!(text.contains("FAULT: nginx, broken: left out: ") && output.status.code() == Some(1), "{text}{stderr}");
    assert!(
        !text.lines().any(|line| line.starts_with("none")),
        "what others are compared with is not a row of its own: {text}"
    );
    let verified = Command::new(LAB).arg("verify").arg(&json).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    let output = table(&["--case", "none", "--targets", "bare,nginx"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let columns: Vec<&str> = text.lines().nth(2).unwrap_or_default().split_whitespace().collect();
    assert_eq!(columns, ["bare", "nginx", "ratio"], "{text}{}", String::from_utf8_lossy(&output.stderr));
    for (words, why) in [
        (["--case", "other"], "--case: a part of one of: none; header; broken"),
        (["--targets", "apache"], "--targets apache: the suite has nginx, bare"),
        (["--set", "port=1"], "--set port: the suite has header, path, word"),
    ] {
        let output = table(&words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(why), "{words:?}: {output:?}");
    }
}

#[test]
fn memory_and_calls_of_one_server() {
    require_tool("strace", "strace");
    let responder = format!("'{LAB}' respond --address {{address}}");
    attempt(|| {
        // One read and one write, and `epoll_wait` now and then.
        let (data, all) = (number(&["data-syscalls", &responder]), number(&["syscalls", &responder]));
        assert!(data > 1.5 && data < 2.5 && all >= data, "{data} of {all}");
        assert!(number(&["settled", &responder]) > 500.0);
        assert!(number(&["connection", &responder]) < 100_000.0);
    });
}

#[test]
fn what_makes_no_sense_is_refused() {
    let check = |words: &[&str], why: &str| {
        let output = measure(words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(why), "{words:?}: {output:?}");
    };
    check(&["speed", "nginx"], "not one of cpu");
    check(&["level:", "nginx"], "not one of cpu");
    check(&["p99", "nginx"], "latencies need --rate");
    check(&["cpu,rss", "nginx"], "several figures are for --suite");
    check(&["cpu", "--suite", "/nowhere/s"], "cannot be read");
    check(&["cpu", "nginx", "--suite", "x"], "cannot be used with");
    check(&["cpu", "nginx", "--rate", "5"], "--rate is for latencies");
    check(&["cpu", "server {address}", "--config", "/dev/null"], "instead of --config");
    check(&["cpu", "nginx", "--config", "/nowhere/c"], "cannot be read");
    check(&["metric:x", &format!("'{LAB}' respond --address {{address}}")], "the address of its metrics is unknown");
}
