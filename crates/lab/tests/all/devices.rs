//! Mock devices against the gateway of this workspace: few and short, but with all guarantees checked.

use crate::processes::{RUN_PATIENCE, lab, run};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use stillgate_testkit::{Gateway, Process, Redis, ReservedPort, Setup, attempt, eventually_within, scrape};
use tempfile::TempDir;

/// The gateway, built unless it is there: it is where test programs are.
fn stillgate() -> PathBuf {
    static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
        let own = std::env::current_exe().unwrap();
        let binary = own.ancestors().nth(2).unwrap().join("stillgate");
        if !binary.is_file() {
            let build = Command::new(env!("CARGO"))
                .args(["build", "--package", "stillgate-gateway", "--bin", "stillgate"])
                .status();
            assert!(build.unwrap().success(), "the gateway cannot be built");
        }
        binary
    });
    BINARY.clone()
}

/// A gateway with the device plugin.
struct Node {
    gateway: Gateway,
    api: ReservedPort,
}

impl Node {
    fn start(keys: &str) -> Node {
        let api = ReservedPort::new();
        let address = api.addr();
        let setup =
            Setup::resources("routes: [{id: devices, uri: /connect, plugins: {device-gateway: {id: $arg_device}}}]")
                .gateway(&format!("devices: {{node: a, address: \"{address}\"{keys}}}"));
        Node { gateway: Gateway::start(stillgate().to_str().unwrap(), &setup), api }
    }

    /// One of several that share a directory; with the address of its metrics.
    fn of_several(name: &str, redis: &Redis) -> (Node, ReservedPort) {
        let [api, peer, metrics] = [(); 3].map(|()| ReservedPort::new());
        let (address, peer, url) = (api.addr(), peer.addr(), redis.url(0));
        let setup =
            Setup::resources("routes: [{id: devices, uri: /connect, plugins: {device-gateway: {id: $arg_device}}}]")
                .gateway(&format!(
                    "devices: {{node: {name}, address: \"{address}\", peer: {{address: \"{peer}\"}}, \
                     registry: {{redis: {{url: \"{url}\"}}}}}}\nmetrics: {{address: \"{}\"}}",
                    metrics.addr()
                ));
        (Node { gateway: Gateway::start(stillgate().to_str().unwrap(), &setup), api }, metrics)
    }

    fn url(&self) -> String {
        format!("ws://{}/connect?device={{id}}", self.gateway.addr())
    }

    fn api(&self) -> String {
        format!("http://{}", self.api.addr())
    }
}

#[test]
fn devices_connect_answer_drop_and_come_back() {
    // A busy machine may be too slow for this within two seconds.
    attempt(connect_answer_drop_and_come_back);
}

fn connect_answer_drop_and_come_back() {
    let node = Node::start("");
    let folder = TempDir::new().unwrap();
    let json = folder.path().join("devices.json");
    let further = [
        "--count",
        "300",
        "--connect-rate",
        "2000",
        "--message-rate",
        "200",
        "--duration",
        "2s",
        "--churn",
        "5%",
        "--storm",
        "--broadcast",
        "3",
        "--resume",
        "--ack",
        "reply",
        "--idle",
        "100ms",
        "--json",
    ];
    let done =
        run(&["devices", &node.url(), "--api", &node.api()], &[&further[..], &[json.to_str().unwrap()]].concat());
    // 3: the machine was busy with other tests; the guarantees hold nevertheless.
    assert!(matches!(done.code, Some(0 | 3)), "{}{}", done.stdout, done.stderr);
    let result: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let seen = &result["run"];
    assert_eq!(result["kind"], "devices");
    assert_eq!(seen["connects"][0]["connects"], 300, "{seen}");
    assert_eq!(seen["process"], "stillgate", "{seen}");
    assert!(seen["connects"][0]["cpu_us_per_connect"].as_f64().unwrap() > 0.0, "{seen}");
    let messages = &seen["messages"];
    assert!(messages["answers"]["200"].as_u64().unwrap() >= 300, "{messages}");
    for broken in ["lost", "refused_but_delivered", "wrong_replies", "reordered"] {
        assert_eq!((&messages[broken], &seen["storm"]["messages"][broken]), (&0.into(), &0.into()), "{broken}: {seen}");
    }
    assert!(seen["endings"]["dropped by --churn"].as_u64().unwrap() > 10, "{seen}");
    assert!(seen["resumed"].as_u64().unwrap() > 0, "{seen}");
    let broadcast = &seen["broadcast"];
    let [received, devices] = ["received", "devices"].map(|count| broadcast[count].as_u64().unwrap());
    // A device that has just reconnected gets its unacknowledged messages again.
    assert!((3 * devices..=3 * devices + 15).contains(&received), "{seen}");
    assert_eq!(broadcast["times_s"].as_array().unwrap().len(), 3, "{seen}");
    // Messages to single devices at the same time are measured, too.
    let meanwhile = &broadcast["messages"];
    assert!(meanwhile["sent"].as_u64().unwrap() > 0 && meanwhile["corrected"]["p99"].as_f64().unwrap() > 0.0, "{seen}");
    assert_eq!((&meanwhile["lost"], &meanwhile["wrong_replies"]), (&0.into(), &0.into()), "{seen}");
    assert!(seen["storm"]["devices"].as_u64().unwrap() > 250, "{seen}");
    assert!(done.stdout.contains("lost 0, duplicated"), "{}", done.stdout);
    let verified = run(&["verify"], &[json.to_str().unwrap()]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    let page = folder.path().join("page.html");
    let reported = run(&["report"], &[json.to_str().unwrap(), "-o", page.to_str().unwrap()]);
    assert_eq!(reported.code, Some(0), "{}", reported.stderr);
    let verdict = if done.code == Some(0) { "no guarantee broken" } else { "void" };
    assert!(fs::read_to_string(page).unwrap().contains(verdict), "{verdict}: {}", done.stdout);
}

#[test]
fn results_are_reported_after_the_measured_process_has_ended() {
    // Repeated if it was too late to end that in time.
    attempt(end_what_is_measured);
}

fn end_what_is_measured() {
    let node = Node::start("");
    let folder = TempDir::new().unwrap();
    let json = folder.path().join("devices.json");
    let mut ends = Command::new("sleep").arg("3600").spawn().unwrap();
    let pid = ends.id().to_string();
    let further = ["--count", "20", "--message-rate", "20", "--duration", "3s", "--pid", &pid, "--json"];
    let mut command = lab(&["devices", &node.url(), "--api", &node.api()]);
    command.args(further).arg(&json);
    let mut process = Process::spawn("devices", &mut command, &folder.path().join("log"));
    eventually_within(RUN_PATIENCE, "messages", || process.log().contains("messages per second"));
    ends.kill().unwrap();
    // It exists until its exit status was read.
    ends.wait().unwrap();
    let status = process.wait_within(RUN_PATIENCE);
    assert!(matches!(status.code(), Some(0 | 3)), "{}", process.log());
    let result: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let messages = &result["run"]["messages"];
    assert!(messages["answers"]["200"].as_u64() > Some(30), "{result}");
    assert!(messages["cpu_us_per_message"].is_null(), "{result}");
}

/// A gateway with devices over TLS, and the folder with its authority's `ca.pem`.
fn secured() -> (Node, TempDir) {
    let folder = TempDir::new().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let files = [("ca.pem", authority.pem()), ("cert.pem", certificate.pem()), ("key.pem", key.serialize_pem())];
    for (name, pem) in files {
        fs::write(folder.path().join(name), pem).unwrap();
    }
    let (at, api) = (folder.path().display(), ReservedPort::new());
    let setup = Setup::resources(format!(
        "ssls: [{{id: own, cert: \"{at}/cert.pem\", key: \"{at}/key.pem\", default: true}}]\n\
         routes: [{{id: devices, uri: /connect, plugins: {{device-gateway: {{id: $arg_device}}}}}}]"
    ))
    .listener("tls: true")
    .gateway(&format!("devices: {{node: a, address: \"{}\"}}", api.addr()));
    (Node { gateway: Gateway::start(stillgate().to_str().unwrap(), &setup), api }, folder)
}

#[test]
fn devices_over_tls_resume_their_own_sessions() {
    let (node, folder) = secured();
    let (authority, json) = (folder.path().join("ca.pem"), folder.path().join("devices.json"));
    let url = node.url().replace("ws://", "wss://");
    let further = [
        ["--count", "150"],
        ["--connect-rate", "1000"],
        ["--message-rate", "100"],
        ["--duration", "1s"],
        ["--cacert", authority.to_str().unwrap()],
        ["--json", json.to_str().unwrap()],
    ];
    let done = run(&["devices", &url, "--api", &node.api(), "--storm"], further.as_flattened());
    assert!(matches!(done.code, Some(0 | 3)), "{}{}", done.stdout, done.stderr);
    let result: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let seen = &result["run"];
    assert_eq!((&seen["connects"][0]["tls"]["full"], &seen["connects"][0]["tls"]["resumed"]), (&150.into(), &0.into()));
    // Each with the ticket of its own last connection: a shared store would have eight for all of them.
    assert_eq!((&seen["storm"]["tls"]["full"], &seen["storm"]["tls"]["resumed"]), (&0.into(), &150.into()), "{seen}");
    for messages in [&seen["messages"], &seen["storm"]["messages"]] {
        assert_eq!((&messages["lost"], &messages["refused_but_delivered"]), (&0.into(), &0.into()), "{seen}");
    }
    assert_eq!(seen["messages"]["received"], seen["messages"]["sent"], "{seen}");
    assert!(done.stdout.contains("TLS 0 full, 150 resumed"), "{}", done.stdout);

    let strange = run(&["devices", &url], &["--count", "1"]);
    assert_eq!(strange.code, Some(2), "{}", strange.stdout);
    assert!(strange.stderr.contains("TLS: ") && strange.stderr.contains("--cacert FILE"), "{}", strange.stderr);
    let anyone = run(&["devices", &url], &["--count", "1", "--insecure"]);
    assert_eq!(anyone.code, Some(0), "{}", anyone.stderr);
}

#[test]
fn devices_are_spread_over_nodes_and_messages_cross() {
    let redis = Redis::start();
    let ((a, metrics), (b, _other_metrics)) = (Node::of_several("a", &redis), Node::of_several("b", &redis));
    let folder = TempDir::new().unwrap();
    let json = folder.path().join("devices.json");
    let (url, api, other, other_api) = (a.url(), a.api(), b.url(), b.api());
    let run_via = |via: &str| {
        let further = [
            ["--api", &api],
            ["--node", &other],
            ["--node-api", &other_api],
            ["--via", via],
            ["--count", "100"],
            ["--message-rate", "200"],
            ["--duration", "1s"],
            ["--json", json.to_str().unwrap()],
        ];
        let done = run(&["devices", &url], further.as_flattened());
        assert!(matches!(done.code, Some(0 | 3)), "{}{}", done.stdout, done.stderr);
        let result: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        let seen = &result["run"];
        let messages = &seen["messages"];
        assert_eq!((&messages["lost"], &messages["refused_but_delivered"]), (&0.into(), &0.into()), "{seen}");
        // The first ones may come before the nodes know each other, and then get 503.
        assert!(messages["answers"]["200"].as_u64().unwrap() >= 150, "{seen}");
        assert_eq!(seen["further_pids"].as_array().unwrap().len(), 1, "{seen}");
        assert_ne!(seen["further_pids"][0], seen["pid"], "{seen}");
        assert!(done.stdout.contains("CPU time and memory are sums"), "{}", done.stdout);
    };
    // Nodes connect to each other on first use: they do not if no message crosses.
    let connected = || {
        let text = scrape(metrics.addr(), "/metrics", "", false).text().to_owned();
        text.lines().find_map(|line| line.strip_prefix("stillgate_device_peers_connected ")).unwrap().to_owned()
    };
    run_via("own");
    assert_eq!(connected(), "0");
    run_via("other");
    assert_eq!(connected(), "1");
    run_via("any");
}

#[test]
fn two_gateways_are_compared_in_rounds() {
    let (a, b) = (Node::start(""), Node::start(""));
    let folder = TempDir::new().unwrap();
    let json = folder.path().join("devices.json");
    let further = [
        "--count",
        "50",
        "--connect-rate",
        "5000",
        "--message-rate",
        "200",
        "--duration",
        "200ms",
        "--rounds",
        "9",
        "--margin",
        "100%",
        "--json",
    ];
    let arguments = ["devices", &a.url(), "--api", &a.api(), "--compare", &b.url(), "--compare-api", &b.api()];
    let done = run(&arguments, &[&further[..], &[json.to_str().unwrap()]].concat());
    // The comparison of two equal gateways on a busy machine is not part of this test.
    assert!(matches!(done.code, Some(0..=3)), "{}{}", done.stdout, done.stderr);
    let result: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(result["rounds"].as_array().unwrap().len(), 9, "{}{}", done.stdout, done.stderr);
    let names: Vec<&Value> =
        result["analysis"]["measures"].as_array().unwrap().iter().map(|of| &of["measure"]).collect();
    assert_eq!(names, ["CPU per connect", "CPU per message"]);
    let (measured, other) = (&result["rounds"][0]["a"]["pid"], &result["rounds"][0]["b"]["pid"]);
    assert_ne!(measured, other, "each has its own process");
    let verified = run(&["verify"], &[json.to_str().unwrap()]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}

#[test]
fn what_cannot_be_done_is_said() {
    let node = Node::start(", key: the-key-of-the-back-end");
    let check = |arguments: &[&str], part: &str| {
        let done = run(&["devices"], arguments);
        assert_eq!(done.code, Some(2), "{arguments:?}: {}{}", done.stdout, done.stderr);
        assert!(done.stderr.contains(part), "{arguments:?}: {}", done.stderr);
        assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
    };
    let (url, api) = (node.url(), node.api());
    check(&[], "<URL>");
    check(&["ws://127.0.0.1:1/connect"], "the devices have no ids");
    check(&[&url, "--insecure"], "is not wss://");
    check(&["wss://127.0.0.1:1/{id}", "--cacert", "/nowhere.pem"], "--cacert /nowhere.pem: ");
    check(&[&url.replace("ws://", "wss://"), "--insecure", "--count", "1"], "TLS: ");
    check(&[&url, "--count", "0"], "at least 1");
    check(&[&url, "--count", "9999999999"], "at most 10000000");
    check(&[&url, "--message-rate", "5"], "--api");
    check(&[&url, "--api", &api, "--node", &url], "each node needs its device API");
    check(&[&url, "--via", "own"], "--node");
    check(&[&url, "--churn", "5%"], "--message-rate");
    check(&[&url, "--prefix", "a/b"], "--prefix");
    check(&[&url, "--pid", "8388608", "--count", "1"], "no process has this id");
    check(&[&url, "--compare", &url, "--rounds", "3"], "at least 9");
    check(&[&url.replace("/connect", "/nowhere")], "answers 404");
    check(
        &[&url, "--count", "5", "--api", &api, "--message-rate", "50", "--duration", "1s"],
        "give its key with --key",
    );
    let further = ["--key", "the-key-of-the-back-end", "--message-rate", "50", "--duration", "300ms", "--json"];
    let done = run(&["devices", &url, "--count", "5", "--api", &api], &further);
    assert!(matches!(done.code, Some(0 | 3)), "{}", done.stderr);
    assert!(done.stdout.contains("\"kind\": \"devices\"") && !done.stdout.contains("the-key-of"), "{}", done.stdout);
}

/// A count by URL as a user may write it, in order, and with the contents that a day of devices leaves.
const NAIVE: &str = r#"
routes:
  - id: devices
    uri: /connect
    plugins:
      serverless-pre-function:
        phase: rewrite
        functions:
          - |
            local names, counts = {}, {}
            for i = 1, 60000 do names[i] = string.format("/connect?device=%06d", i) counts[i] = 1 end
            local function place_of(url)
              local at = 1
              while names[at] and names[at] < url do at = at + 1 end
              return at
            end
            return function(conf, ctx)
              local url = ngx.var.VARIABLE
              local at = place_of(url)
              if names[at] ~= url then
                table.insert(names, at, url)
                table.insert(counts, at, 0)
              end
              counts[at] = counts[at] + 1
            end
      device-gateway: {id: $arg_device}
"#;

/// The story of docs/devices-scale.md: found slower, profiled, named by `check`, cured.
#[test]
fn the_story_of_the_exploding_label() {
    let build = |variable: &str| {
        let api = ReservedPort::new();
        let keys = format!(
            "  keys: [{{name: admin, key: the-key-of-the-story, role: admin}}]\n\
             debug: {{pprof: true}}\n\
             devices: {{node: a, address: \"{}\"}}\n\
             metrics: {{address: \"127.0.0.1:0\", labels: {{http_requests_total: {{url: ${variable}}}}}}}",
            api.addr()
        );
        let setup = Setup::resources(NAIVE.replace("VARIABLE", variable)).gateway(&keys);
        Node { gateway: Gateway::start(stillgate().to_str().unwrap(), &setup), api }
    };
    let (cured, naive) = (build("uri"), build("request_uri"));

    let further = ["--compare", &naive.url(), "--count", "60", "--connect-rate", "2000", "--rounds", "9"];
    attempt(|| {
        let done = run(&["devices", &cured.url()], &further);
        assert_eq!(done.code, Some(1), "{}{}", done.stdout, done.stderr);
        assert!(done.stdout.contains("B is worse than A: CPU per connect +"), "{}", done.stdout);
    });

    let folder = TempDir::new().unwrap();
    let profile = folder.path().join("naive.folded");
    let admin = format!("http://{}", naive.gateway.admin_addr());
    let mut taking = Command::new(stillgate())
        .args([
            "profile",
            "--admin",
            &admin,
            "--key",
            "the-key-of-the-story",
            "--kind",
            "lua-cpu",
            "--seconds",
            "3",
            "-o",
        ])
        .arg(&profile)
        .spawn()
        .unwrap();
    // They connect for a little longer than the profile takes.
    let load = run(&["devices", &naive.url()], &["--count", "2000", "--connect-rate", "400", "--prefix", "profiled-"]);
    assert_eq!(load.code, Some(0), "{}", load.stderr);
    assert!(taking.wait().unwrap().success());
    let folded = fs::read_to_string(&profile).unwrap();
    // The function that begins at line 3: `place_of`.
    assert!(folded.contains("serverless-pre-function:3 "), "the function is named:\n{folded}");

    let checked = |variable: &str| {
        let file = folder.path().join(format!("{variable}.yaml"));
        let labels = format!("labels: {{http_requests_total: {{url: ${variable}}}}}");
        let gateway = format!(
            "gateway:\n  devices: {{address: \"127.0.0.1:9190\"}}\n  metrics: {{address: \"127.0.0.1:9091\", {labels}}}\n"
        );
        fs::write(&file, gateway + &NAIVE.replace("VARIABLE", variable)).unwrap();
        let output = Command::new(stillgate()).arg("check").arg("--offline").arg(&file).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let named =
        "each device makes a series of its own in stillgate_http_requests_total: its label url is of $request_uri";
    assert!(checked("request_uri").contains(named), "{}", checked("request_uri"));
    assert!(!checked("uri").contains("series"), "{}", checked("uri"));
}
