//! The output and the exit codes of the commands: the contract with scripts outside the project.

use crate::shared::STILLGATE;
use crate::shared::folder::{Folder, KINDS, SHOP, WRONG};
use expect_test::{Expect, expect};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;
use stillgate_datastore::embedded::{EmbeddedStore, HistoryBounds};
use stillgate_testkit::{END_PATIENCE, Gateway, Process, Setup, Upstream, eventually};

/// Debian's user and group that own nothing.
const NOBODY: u32 = 65534;

#[test]
fn check_tells_good_from_bad() {
    let folder = Folder::with(&[("good.yaml", SHOP), ("bad.yaml", WRONG)]);
    folder.check(
        &["check", "good.yaml"],
        expect![[r#"
        exit 0
        good.yaml: ok (3 routes, 2 upstreams)
    "#]],
    );
    folder.check(
        &["check", "bad.yaml"],
        expect![[r#"
            exit 1
            bad.yaml:2:12: gateway.workers: expected auto or a number from 1 to 256, found the text "many"
            bad.yaml:4:5: routes[0]: nothing says which requests the route takes; add uri, uris or expression
            bad.yaml:5:5: routes[0].ur: unknown key "ur"; did you mean "uri"?
            bad.yaml:6:18: routes[0].upstream_id: there is no upstream with the id "nowhere"; add it to `upstreams`
            bad.yaml: refused (4 errors)
        "#]],
    );
    folder.check(
        &["check", "missing.yaml"],
        expect![[r#"
        exit 2
        stillgate: cannot read missing.yaml: No such file or directory (os error 2)
    "#]],
    );
}

#[test]
fn check_for_programs() {
    let folder = Folder::with(&[("good.yaml", SHOP), ("bad.yaml", WRONG)]);
    folder.check(
        &["check", "good.yaml", "--format", "json"],
        expect![[r#"
        exit 0
        {
          "valid": true,
          "file": "good.yaml",
          "routes": 3,
          "upstreams": 2,
          "errors": 0,
          "warnings": 0,
          "diagnostics": [],
          "omitted": 0
        }
    "#]],
    );
    folder.check(
        &["check", "bad.yaml", "--format", "json"],
        expect![[r#"
            exit 1
            {
              "valid": false,
              "file": "bad.yaml",
              "routes": null,
              "upstreams": null,
              "errors": 4,
              "warnings": 0,
              "diagnostics": [
                {
                  "severity": "error",
                  "path": "gateway.workers",
                  "line": 2,
                  "column": 12,
                  "message": "expected auto or a number from 1 to 256, found the text \"many\"",
                  "hint": null
                },
                {
                  "severity": "error",
                  "path": "routes[0]",
                  "line": 4,
                  "column": 5,
                  "message": "nothing says which requests the route takes",
                  "hint": "add uri, uris or expression"
                },
                {
                  "severity": "error",
                  "path": "routes[0].ur",
                  "line": 5,
                  "column": 5,
                  "message": "unknown key \"ur\"",
                  "hint": "did you mean \"uri\"?"
                },
                {
                  "severity": "error",
                  "path": "routes[0].upstream_id",
                  "line": 6,
                  "column": 18,
                  "message": "there is no upstream with the id \"nowhere\"",
                  "hint": "add it to `upstreams`"
                }
              ],
              "omitted": 0
            }
        "#]],
    );
}

#[test]
fn check_warns_of_what_is_probably_not_meant() {
    let folder = Folder::with(&[("kinds.yaml", KINDS)]);
    folder.check(&["check", "kinds.yaml"], expect![[r#"
        exit 0
        kinds.yaml:17: warning: route "beta-again": takes no request, since route "beta" takes all of them first (of the same priority the earlier in the list comes first); see line 12
        kinds.yaml:20: warning: route "mixed": at 1:43 && and || are mixed, and || binds tighter; if this is meant, write `http.method == "PUT" && (http.path == "/a" || http.path == "/b")`
        kinds.yaml: ok (4 routes, 1 upstream; 2 warnings)
    "#]]);
    folder.check(&["check", "kinds.yaml", "--format", "json"], expect![[r#"
        exit 0
        {
          "valid": true,
          "file": "kinds.yaml",
          "routes": 4,
          "upstreams": 1,
          "errors": 0,
          "warnings": 2,
          "diagnostics": [
            {
              "severity": "warning",
              "path": "",
              "line": 17,
              "column": 0,
              "message": "route \"beta-again\": takes no request, since route \"beta\" takes all of them first (of the same priority the earlier in the list comes first)",
              "hint": "see line 12",
              "routes": [
                {
                  "id": "beta-again",
                  "line": 17
                },
                {
                  "id": "beta",
                  "line": 12
                }
              ]
            },
            {
              "severity": "warning",
              "path": "",
              "line": 20,
              "column": 0,
              "message": "route \"mixed\": at 1:43 && and || are mixed, and || binds tighter; if this is meant, write `http.method == \"PUT\" && (http.path == \"/a\" || http.path == \"/b\")`",
              "hint": null,
              "routes": [
                {
                  "id": "mixed",
                  "line": 20
                }
              ]
            }
          ],
          "omitted": 0
        }
    "#]]);
}

#[test]
fn check_warns_of_upgrades_that_nodes_cannot_be_asked_for() {
    let text = "\
upstreams:
  - {id: two, nodes: {\"127.0.0.1:1\": 1}, http2: true}
  - {id: one, nodes: {\"127.0.0.1:1\": 1}}
services:
  - {id: open, enable_websocket: true, upstream_id: two}
routes:
  - {id: good, uri: /good, enable_websocket: true, upstream_id: one}
  - {id: plain, uri: /plain, upstream_id: two}
  - {id: named, uri: /named, enable_websocket: true, upstream_id: two}
  - {id: service, uri: /service, service_id: open}
#END
";
    let folder = Folder::with(&[("upgrades.yaml", text)]);
    folder.check(&["check", "upgrades.yaml"], expect![[r#"
        exit 0
        upgrades.yaml:9: warning: route "named" has enable_websocket, but its nodes speak HTTP/2, over which no upgrade is forwarded; remove enable_websocket, or let the nodes speak HTTP/1.1
        upgrades.yaml: ok (4 routes, 2 upstreams; 1 warning)
    "#]]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn check_warns_of_plugins_that_cannot_do_what_they_are_there_for() {
    let upstream = "upstreams: [{id: u, nodes: {\"10.0.0.1:80\": 1}}]\n";
    let check = |yaml: &str, more: &[&str], expected: Expect| {
        let folder = Folder::with(&[("plugins.yaml", format!("{upstream}{yaml}"))]);
        folder.check(&[&["check", "plugins.yaml"], more].concat(), expected);
    };
    let shared = "routes:
  - {id: a, uri: /a, service_id: s}
  - {id: b, uri: /b, service_id: s}
  - id: c
    uri: /c
    upstream_id: u
    plugins: {limit-count: {count: 1, time_window: 1, key: consumer_name}}
services:
  - id: s
    upstream_id: u
    plugins:
      key-auth: {}
      limit-count: {count: 1, time_window: 1, key: consumer_name}
";
    check(
        shared,
        &[],
        expect![[r#"
        exit 0
        plugins.yaml:8: warning: limit-count of route "c": depends on the consumer, and no plugin before it authenticates; add a plugin that authenticates, or use something else than the consumer
        plugins.yaml:13: warning: key-auth of service "s": no consumer has a credential for it: requests are refused, unless it names an `anonymous_consumer`; add credentials to consumers, or remove the plugin
        plugins.yaml: ok (3 routes, 1 upstream; 2 warnings)
    "#]],
    );
    check(
        &format!("{shared}consumers: [{{username: jack, plugins: {{key-auth: {{key: secret}}}}}}]\n"),
        &[],
        expect![[r#"
            exit 0
            plugins.yaml:8: warning: limit-count of route "c": depends on the consumer, and no plugin before it authenticates; add a plugin that authenticates, or use something else than the consumer
            plugins.yaml: ok (3 routes, 1 upstream; 1 warning)
        "#]],
    );
    let several = "routes:
  - id: any
    uri: /any
    upstream_id: u
    plugins: {multi-auth: {auth_plugins: [{basic-auth: {}}, {jwt-auth: {}}]}, acl: {deny_labels: {a: [b]}}}
  - id: none
    uri: /none
    upstream_id: u
    plugins: {consumer-restriction: {blacklist: [jack]}}
";
    check(
        several,
        &[],
        expect![[r#"
        exit 0
        plugins.yaml:6: warning: multi-auth of route "any": no consumer has a credential for it: requests are refused, unless it names an `anonymous_consumer`; add credentials to consumers, or remove the plugin
        plugins.yaml:10: warning: consumer-restriction of route "none": depends on the consumer, and no plugin before it authenticates; add a plugin that authenticates, or use something else than the consumer
        plugins.yaml: ok (2 routes, 1 upstream; 2 warnings)
    "#]],
    );
    check(
        &format!("{several}consumers: [{{username: jack, plugins: {{jwt-auth: {{key: a, secret: b}}}}}}]\n"),
        &[],
        expect![[r#"
            exit 0
            plugins.yaml:10: warning: consumer-restriction of route "none": depends on the consumer, and no plugin before it authenticates; add a plugin that authenticates, or use something else than the consumer
            plugins.yaml: ok (2 routes, 1 upstream; 1 warning)
        "#]],
    );
    let twice = "global_rules: [{id: g, plugins: {key-auth: {}}}]
routes:
  - id: r
    uri: /r
    upstream_id: u
    plugins:
      key-auth: {_meta: {filter: [[\"http_x\", \"==\", \"secret\"], [\"http_x\", \"==\", \"other\"]]}}
consumers: [{username: jack, plugins: {key-auth: {key: secret}}}]
";
    check(
        twice,
        &[],
        expect![[r#"
        exit 0
        plugins.yaml:8: warning: key-auth of route "r": never runs, since no request can satisfy its _meta.filter; correct the filter, or remove the plugin
        plugins.yaml:8: warning: key-auth of route "r": authenticates a second time, after key-auth of global rule "g" (line 2): a request must satisfy both; keep one of them, or disable one with `_meta: {disable: true}`
        plugins.yaml: ok (1 route, 1 upstream; 2 warnings)
    "#]],
    );
    check(
        twice,
        &["--format", "json"],
        expect![[r#"
        exit 0
        {
          "valid": true,
          "file": "plugins.yaml",
          "routes": 1,
          "upstreams": 1,
          "errors": 0,
          "warnings": 2,
          "diagnostics": [
            {
              "severity": "warning",
              "path": "",
              "line": 8,
              "column": 0,
              "message": "key-auth of route \"r\": never runs, since no request can satisfy its _meta.filter",
              "hint": "correct the filter, or remove the plugin",
              "routes": [
                {
                  "id": "r",
                  "line": 4
                }
              ]
            },
            {
              "severity": "warning",
              "path": "",
              "line": 8,
              "column": 0,
              "message": "key-auth of route \"r\": authenticates a second time, after key-auth of global rule \"g\" (line 2): a request must satisfy both",
              "hint": "keep one of them, or disable one with `_meta: {disable: true}`",
              "routes": [
                {
                  "id": "r",
                  "line": 4
                }
              ]
            }
          ],
          "omitted": 0
        }
    "#]],
    );
    let unasked = "routes: [{id: r, uri: /r, upstream_id: u, plugins: {key-auth: {_meta: {disable: true}}}}]
consumers: [{username: jack, plugins: {key-auth: {key: secret}}}]
";
    check(
        unasked,
        &[],
        expect![[r#"
        exit 0
        plugins.yaml: warning: consumers have credentials of key-auth, which no route and no global rule uses; add the plugin to what the consumers may use
        plugins.yaml: ok (1 route, 1 upstream; 1 warning)
    "#]],
    );
}

#[test]
fn check_looks_at_what_run_needs_of_this_machine() {
    let gateway = "gateway:\n  listeners: [{address: \"192.0.2.1:9080\"}]\n  access_log:\n    path: logs/access.log\n  \
                   pid_file: /none/pid\n  metrics: {shared: /dev/null/metrics}\nroutes: []\n";
    let folder = Folder::with(&[("needs.yaml", gateway)]);
    folder.check(&["check", "needs.yaml"], expect![[r#"
        exit 1
        needs.yaml:1:1: warning: routes: no routes; every request is answered 404
        needs.yaml:2:25: gateway.listeners[0].address: 192.0.2.1 is not an address of this machine; use an address that `ip addr` lists, or 0.0.0.0 or [::] for all
        needs.yaml:4:11: gateway.access_log.path: the folder logs does not exist; create it (`mkdir -p logs`), or change gateway.access_log
        needs.yaml:5:13: warning: gateway.pid_file: the folder /none does not exist; create it (`mkdir -p /none`)
        needs.yaml:6:21: gateway.metrics.shared: /dev/null/metrics: Not a directory (os error 20)
        needs.yaml: refused (3 errors, 2 warnings)
    "#]]);
    let run = folder.run(&["run", "-c", "needs.yaml"]);
    assert_eq!(run.status.code(), Some(1), "{}", String::from_utf8_lossy(&run.stderr));
    folder.check(
        &["check", "needs.yaml", "--offline"],
        expect![[r#"
        exit 0
        needs.yaml:1:1: warning: routes: no routes; every request is answered 404
        needs.yaml: ok (no routes, no upstreams; 1 warning)
    "#]],
    );
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1, "nothing is made");
}

/// A user without write permission there may check it for the service's user.
#[test]
fn what_only_this_user_may_not_do_is_a_warning() {
    let folder = Folder::with(&[("log.yaml", "gateway: {access_log: {path: /usr/access.log}}\nroutes: []\n")]);
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("open the folder");
    let mut command = folder.command(&["check", "log.yaml"]);
    if rustix::process::getuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().expect("run stillgate");
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(
        told.contains("log.yaml:1:30: warning: gateway.access_log.path: the current user cannot write to /usr; "),
        "{told}"
    );
}

#[test]
fn the_first_configuration_of_the_readme_runs() {
    let readme = include_str!("../../../../README.md");
    let (_, from) = readme.split_once("```yaml\n# stillgate.yaml\n").expect("the example");
    let (example, _) = from.split_once("```").expect("its end");
    let mut example = example.replace("0.0.0.0:9080", "127.0.0.1:0").replace("127.0.0.1:9180", "127.0.0.1:0");
    example = example.replace("sessions.internal", "10.0.9.2");
    let folder = Folder::with(&[("stillgate.yaml", example)]);
    let checked = folder.run(&["check", "stillgate.yaml"]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let log = folder.path().join("log");
    let mut running = Process::spawn("stillgate", &mut folder.command(&["run"]), &log);
    eventually("the gateway to serve", || {
        assert!(running.ended().is_none(), "it ended: {}", running.log());
        running.log().contains("\"message\":\"serving\"")
    });
    running.signal("TERM");
    assert!(running.wait_within(END_PATIENCE).success());
}

#[test]
fn the_schema_is_json() {
    let output = Folder::with::<&str>(&[]).run(&["check", "--schema"]);
    assert!(output.status.success());
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(schema["properties"]["routes"].is_object(), "{schema:#}");
}

#[test]
fn unusable_arguments_end_with_2() {
    let folder = Folder::with(&[("good.yaml", SHOP)]);
    for arguments in [
        &["check"][..],
        &["check", "good.yaml", "--format", "xml"],
        &["explain", "good.yaml"],
        &["explain", "good.yaml", "--request", "GET"],
        &["explain", "good.yaml", "--request", "GET /", "-H", "no colon"],
        &["explain", "good.yaml", "--request", "GET /", "--client", "me"],
        &["explain", "missing.yaml", "--request", "GET /"],
        &["run", "--config", "missing.yaml"],
        &["nothing"],
        &[],
    ] {
        assert_eq!(folder.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn the_version_is_the_packages() {
    let expected = format!("exit 0\nstillgate {}\n", env!("CARGO_PKG_VERSION"));
    let output = Folder::with::<&str>(&[]).run(&["--version"]);
    assert_eq!(format!("exit 0\n{}", String::from_utf8_lossy(&output.stdout)), expected);
}

#[test]
fn run_says_what_it_needs() {
    let folder = Folder::with(&[("bad.yaml", WRONG)]);
    folder.check(
        &["run", "-c", "bad.yaml"],
        expect![[r#"
            exit 1
            stillgate: the configuration is refused
            bad.yaml:2:12: gateway.workers: expected auto or a number from 1 to 256, found the text "many"
            bad.yaml:4:5: routes[0]: nothing says which requests the route takes; add uri, uris or expression
            bad.yaml:5:5: routes[0].ur: unknown key "ur"; did you mean "uri"?
            bad.yaml:6:18: routes[0].upstream_id: there is no upstream with the id "nowhere"; add it to `upstreams`
        "#]],
    );
    folder.check(
        &["run", "-c", "missing.yaml"],
        expect![[r#"
        exit 2
        stillgate: cannot read missing.yaml: No such file or directory (os error 2)
    "#]],
    );
}

#[test]
fn an_address_in_use_is_reported_before_anything_is_served() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = holder.local_addr().expect("its address");
    let free = "127.0.0.1:0";
    for (listener, admin, key) in [
        (address.to_string(), free.to_owned(), "gateway.listeners[0].address"),
        (free.to_owned(), address.to_string(), "gateway.admin.address"),
    ] {
        let text = SHOP
            .replace("127.0.0.1:0", &listener)
            .replace("upstreams:", &format!("  admin: {{address: \"{admin}\"}}\nupstreams:"));
        let folder = Folder::with(&[("taken.yaml", &text.replace("backend.internal", "127.0.0.1"))]);
        let output = folder.run(&["run", "-c", "taken.yaml"]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        let expected = format!("stillgate: {key}: cannot listen on {address}: ");
        assert!(told.contains(&expected), "{told}");
        assert!(told.contains(&format!("ss -lntup 'sport = :{}'", address.port())), "{told}");
    }
}

#[test]
fn a_store_that_another_process_has_is_waited_for_and_that_is_said() {
    let folder = Folder::with::<&str>(&[]);
    let store = folder.path().join("config.redb");
    let text = format!(
        "gateway:\n  config: {{source: store, store: \"{}\"}}\n  admin: {{address: \"127.0.0.1:0\"}}\n  \
         listeners: [{{address: \"127.0.0.1:0\"}}]\n",
        store.display()
    );
    std::fs::write(folder.path().join("store.yaml"), text).expect("write a file");
    let bounds = HistoryBounds { history_changes_max: 1, history_age_max: Duration::ZERO };
    let other = EmbeddedStore::open(&store, bounds).expect("the store");
    let log = folder.path().join("log");
    let mut running = Process::spawn("stillgate", &mut folder.command(&["run", "-c", "store.yaml"]), &log);
    eventually("it to say what it waits for", || {
        running.log().contains("config.redb: another process has the store open; waiting up to 10 s")
    });
    other.close().expect("to close it");
    eventually("the gateway to serve", || running.log().contains("\"message\":\"serving\""));
    running.signal("TERM");
    assert!(running.wait_within(END_PATIENCE).success());
}

/// `top` in a terminal of 80 columns: it fits, is refreshed, and shows names of routes without what a terminal would obey.
#[test]
fn top_in_a_terminal() {
    let node = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(node.addr()));
    let server = format!("stillgate-test-{}", std::process::id());
    let tmux = |arguments: &[&str]| {
        let output = Command::new("tmux").args(["-L", &server, "-f", "/dev/null"]).args(arguments).output();
        let output = output.expect("run tmux");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let command = format!("{STILLGATE} top --every 1 --admin http://{}", gateway.admin_addr());
    let begun = tmux(&["new-session", "-d", "-x", "80", "-y", "24", &command]);
    assert_eq!(begun, "");
    eventually("the route with its requests", || {
        assert_eq!(gateway.get("/seen").head.status(), 200);
        let screen = tmux(&["capture-pane", "-p"]);
        let lines: Vec<&str> = screen.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80) && lines.len() <= 24, "{screen}");
        let head = lines.iter().position(|line| line.starts_with("route ") && line.ends_with("time"));
        head.is_some_and(|head| lines.get(head + 1).is_some_and(|line| line.contains('%')))
    });
    let before = tmux(&["capture-pane", "-p"]);
    eventually("the next screen", || tmux(&["capture-pane", "-p"]) != before);
    tmux(&["kill-server"]);

    // Elsewhere it prints one screen; a gateway that is away is an error at once.
    let url = format!("http://{}", gateway.admin_addr());
    let once = Command::new(STILLGATE).args(["top", "--admin", &url]).output().expect("run stillgate");
    assert!(once.status.success() && once.stdout.starts_with(b"Stillgate "), "{once:?}");
    drop(gateway);
    let away = Command::new(STILLGATE).args(["top", "--admin", &url]).output().expect("run stillgate");
    assert!(!away.status.success() && away.stdout.is_empty() && !away.stderr.is_empty(), "{away:?}");
}

/// `status` says what needs attention, and its exit code does, too; `slow` lists requests.
#[test]
fn a_look_at_a_running_gateway() {
    let node = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(node.addr()).gateway("debug: {slow: true}"));
    assert_eq!(gateway.get("/seen").head.status(), 200);
    let run = |arguments: &[&str]| {
        let url = format!("http://{}", gateway.admin_addr());
        let output = Command::new(STILLGATE).args(arguments).args(["--admin", &url]).output().expect("run stillgate");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let (code, text) = run(&["status"]);
    assert_eq!((code, text.lines().last()), (Some(0), Some("nothing needs attention")), "{text}");
    let (code, text) = run(&["slow"]);
    assert!(code == Some(0) && text.contains("GET /seen"), "{text}");

    // A file that cannot be read is a finding.
    let config = gateway.dir().join("stillgate.yaml");
    std::fs::write(&config, "gateway: [").expect("write the configuration");
    eventually("the refusal", || run(&["status"]).0 == Some(1));
    assert!(run(&["status"]).1.contains("! the last change was refused: "));

    let elsewhere = Command::new(STILLGATE).args(["status", "--admin", &format!("http://{}", node.addr())]).output();
    assert_eq!(elsewhere.expect("run stillgate").status.code(), Some(2));
}
