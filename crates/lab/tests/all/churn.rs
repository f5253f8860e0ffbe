//! `stillgate-lab churn` with gateways that change.

use crate::processes::{RUN_PATIENCE, lab, run};
use serde_json::Value;
use std::fs;
use stillgate_testkit::{Process, eventually_within, require_tool};

const SHORT: [&str; 10] =
    ["--rate", "200", "--connections", "4", "--block", "400ms", "--rounds", "1", "--routes", "20"];

/// Failed requests are what nginx's reloads may cost, and a busy machine makes blocks void.
fn is_measured(code: Option<i32>) -> bool {
    matches!(code, Some(0 | 1 | 3))
}

#[test]
fn reloads_of_a_gateway_are_served_and_measured() {
    require_tool("nginx", "nginx");
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("churn.json");
    let words = ["churn", "nginx", "--reload", "--changes", "5", "--json", json.to_str().unwrap()];
    let done = run(&words, &SHORT);
    assert!(is_measured(done.code), "{}{}", done.stdout, done.stderr);
    assert!(done.stdout.contains("reload of nginx") && done.stdout.contains("CPU a request, us"), "{}", done.stdout);
    assert!(!done.stdout.contains("these threads"), "{}", done.stdout);
    let result: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!((result["kind"].as_str(), result["experiment"].as_str()), (Some("figures"), Some("churn")));
    let changes = result["lines"].as_array().unwrap().iter().position(|line| line["name"] == "changes").unwrap();
    for column in 0..2 {
        // In the block without changes, a file that nobody reads was written.
        assert!(result["rounds"][0][column]["values"][changes].as_f64().unwrap() >= 2.0, "{result}");
    }
    assert!(!result["durations"][0]["us"].as_array().unwrap().is_empty(), "{result}");
    let verified = run(&["verify"], &[json.to_str().unwrap()]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    let page = folder.path().join("page.html");
    let drawn = run(&["report"], &[json.to_str().unwrap(), "-o", page.to_str().unwrap()]);
    assert_eq!(drawn.code, Some(0), "{}", drawn.stderr);
    assert!(fs::read_to_string(&page).unwrap().contains("from written to served"));
}

#[test]
fn a_stored_figure_that_does_not_follow_is_found() {
    require_tool("nginx", "nginx");
    let folder = tempfile::tempdir().unwrap();
    let (json, changed) = (folder.path().join("churn.json"), folder.path().join("changed.json"));
    let words = ["churn", "nginx", "--reload", "--changes", "5", "--json", json.to_str().unwrap()];
    let done = run(&words, &SHORT);
    assert!(is_measured(done.code), "{}{}", done.stdout, done.stderr);
    let mut result: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    result["analysis"][1]["cells"][0]["median"] = 0.125.into();
    fs::write(&changed, result.to_string()).unwrap();
    let verified = run(&["verify"], &[changed.to_str().unwrap()]);
    assert_eq!(verified.code, Some(1), "{}{}", verified.stdout, verified.stderr);
}

#[test]
fn a_command_reads_a_configuration_of_its_own_again() {
    require_tool("nginx", "nginx");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("own.conf");
    let text = "daemon off; pid {dir}/pid; error_log stderr; events {}\n\
                http { access_log off; server { listen {address}; location / { return 200 hello; }\n\
                location /changing-0/ { return 404; } location /changing-0/v00000000/ { return 200 changed; } } }\n";
    fs::write(&config, text).unwrap();
    let start = "nginx -e stderr -c {config}";
    let words = ["churn", "--start", start, "--config", config.to_str().unwrap(), "--reload", "--signal", "HUP"];
    let done = run(&words, &SHORT);
    assert!(is_measured(done.code) && done.stdout.contains("from written to served"), "{}{}", done.stdout, done.stderr);
}

#[test]
fn an_interrupted_experiment_shows_what_it_has() {
    require_tool("nginx", "nginx");
    let folder = tempfile::tempdir().unwrap();
    let mut command = lab(&["churn", "nginx", "--reload", "--rounds", "2", "--block", "600s", "--rate", "100"]);
    let mut process = Process::spawn("churn", &mut command, &folder.path().join("log"));
    eventually_within(RUN_PATIENCE, "the first block", || process.log().contains("round 1 of 2"));
    process.signal("INT");
    assert_eq!(process.wait().code(), Some(130), "{}", process.log());
    assert!(process.log().contains("Medians of 0 of 2 rounds"), "{}", process.log());
}

#[test]
fn a_configuration_without_a_path_to_change_is_refused() {
    require_tool("nginx", "nginx");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("own.conf");
    fs::write(&config, "daemon off; error_log stderr; pid {dir}/pid; events {} http { server { listen {address}; } }")
        .unwrap();
    let done = run(&["churn", "nginx", "--reload", "--config", config.to_str().unwrap()], &SHORT);
    assert_eq!(done.code, Some(2), "{}{}", done.stdout, done.stderr);
    assert!(done.stderr.contains("has no path to change; write /changing-0/v00000000 into it"), "{}", done.stderr);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let refused = |words: &[&str], expected: &str| {
        let done = run(&["churn"], words);
        assert_eq!(done.code, Some(2), "{words:?}: {}", done.stderr);
        assert!(done.stderr.contains(expected), "{words:?}: {}", done.stderr);
    };
    refused(&["nginx"], "--reload");
    refused(&["nginx", "--reload", "--upgrade"], "cannot be used with");
    refused(&["--reload"], "TARGET");
    refused(&["apache", "--reload"], "not one of stillgate");
    refused(&["nginx", "--reload", "--block", "0"], "must be above zero");
    refused(&["nginx", "--reload", "--signal", "KILL"], "write HUP, USR1 or USR2");
    refused(&["envoy", "--reload"], "name the signal after which envoy reads its configuration again");
    refused(&["nginx", "--upgrade"], "name the signal after which nginx starts its successor");
    refused(&["nginx", "--write"], "--write is for stillgate, not for nginx");
    refused(&["nginx", "--new-labels"], "--new-labels is for stillgate");
    refused(&["nginx", "--watch", "5"], "--watch without --stream is for stillgate");
    refused(&["--start", "server {address}", "--reload"], "name the signal");
}
