//! Invalid or malicious input: each is refused quickly, with a message that contains the position and the reason.
//!
//! `UPDATE_EXPECT=1 cargo test` rewrites the expected output; review the difference.

use expect_test::{Expect, expect};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use stillgate_config::{DIAGNOSTICS_MAX, FILE_BYTES_MAX, load};

/// Far above the time that any of the inputs needs, far below that of an exponential one.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The CPU time of this thread so far: other load on the CPU does not affect it.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

#[track_caller]
fn check(text: impl AsRef<[u8]>, want: Expect) {
    let environment = |name: &str| match name {
        "HUGE" => Some("x".repeat(60_000)),
        _ => None,
    };
    let start = cpu_time();
    let errors = load(text, &environment).expect_err("this must be refused").to_string();
    assert!(cpu_time() - start < PATIENCE, "{:?}", cpu_time() - start);
    for line in errors.lines() {
        assert!(line.len() < 2000, "a message of {} bytes", line.len());
    }
    want.assert_eq(&errors);
}

/// Nine levels of ten aliases each: 10^9 scalars.
fn billion_laughs() -> String {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        text += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    text
}

/// Each list contains the previous one: the depth is the number of lines.
fn nested_aliases() -> String {
    let mut text = "a0: &a0 []\n".to_owned();
    for level in 1..10_000 {
        text += &format!("a{level}: &a{level} [*a{}]\n", level - 1);
    }
    text
}

#[test]
fn not_yaml() {
    check("routes: [\n", expect!["2:1: not valid YAML: while parsing a node, did not find expected node content"]);
    check(
        "routes: {a: b\n",
        expect!["2:1: not valid YAML: while parsing a flow mapping, did not find expected ',' or '}'"],
    );
    check(
        "routes:\n\t- uri: /a\n",
        expect!["2:2: not valid YAML: tabs disallowed within this context (block indentation)"],
    );
    check(
        "routes: \"unclosed\n",
        expect!["1:9: not valid YAML: while scanning a quoted scalar, found unexpected end of stream"],
    );
    check("a: b: c\n", expect!["1:5: not valid YAML: mapping values are not allowed in this context"]);
    check(
        "- a\nb: c\n",
        expect!["2:1: not valid YAML: while parsing a block collection, did not find expected '-' indicator"],
    );
    check(
        "routes: []\n  bad: indent\n",
        expect!["2:3: not valid YAML: while parsing a block mapping, did not find expected key"],
    );
    check("@routes: []\n", expect!["1:1: not valid YAML: unexpected character: `@'"]);
    check("routes: *nowhere\n", expect!["1:9: not valid YAML: while parsing node, found unknown anchor"]);
    check(
        "routes: !!bad!tag []\n",
        expect!["1:9: not valid YAML: while scanning a tag, did not find expected whitespace or line break"],
    );
    check("routes: []]\n", expect!["1:11: not valid YAML: misplaced bracket"]);
    check(
        "routes: \"\\q\"\n",
        expect!["1:9: not valid YAML: while parsing a quoted scalar, found unknown escape character"],
    );
    check("a\0b: c\n", expect!["1:2: not valid YAML: found unprintable character"]);
}

#[test]
fn not_text() {
    check(b"routes: \xff\n", expect!["1:9: not UTF-8; save the file as UTF-8"]);
    check(b"routes: []\n# caf\xe9 \n", expect!["2:6: not UTF-8; save the file as UTF-8"]);
    check(b"\xff\xfer\0o\0u\0", expect!["1:1: not UTF-8; save the file as UTF-8"]);
    check(b"routes:\n- uri: \xc3\xa9\xc3\n", expect!["2:9: not UTF-8; save the file as UTF-8"]);
}

#[test]
fn nothing_in_it() {
    check("", expect!["1:1: the file is empty; write at least `routes: []`"]);
    check("\n\n", expect!["1:1: the file is empty; write at least `routes: []`"]);
    check("# only a comment\n#END\n", expect!["1:1: the file is empty; write at least `routes: []`"]);
    check("---\n", expect!["1:1: the file is empty; write at least `routes: []`"]);
    check("~\n", expect!["1:1: the file is empty; write at least `routes: []`"]);
    check("\u{feff}", expect!["1:1: the file is empty; write at least `routes: []`"]);
    check("[]\n", expect!["1:1: expected a map, found an empty list"]);
    check("text\n", expect!["1:1: expected a map, found a text"]);
    check("42\n", expect!["1:1: expected a map, found a number"]);
    check("- uri: /a\n", expect!["1:1: expected a map, found a list"]);
}

/// Clients in PHP and Lua do not distinguish them, nor does APISIX.
#[test]
fn empty_lists_are_empty_maps_and_the_other_way_round() {
    let text = r#"
upstreams: [{id: u, nodes: {"127.0.0.1:80": 1.0}, retries: 1e0, labels: []}]
plugin_configs: [{id: p, plugins: []}]
consumers: [{username: jack, plugins: [], labels: []}]
routes: [{id: a, uri: /a, upstream_id: u, priority: 1.0, plugins: [], labels: [], vars: {}}]
"#;
    let loaded = load(text, &|_: &str| None).expect("it is read");
    assert_eq!((loaded.config.routes.len(), loaded.config.upstreams.len()), (1, 1));
    // An empty list would match no client.
    check(
        "routes: [{id: a, uri: /a, remote_addrs: {}, upstream: {nodes: {\"a:80\": 1}}}]",
        expect!["1:41: routes[0].remote_addrs: an empty list; name at least one, or remove the key"],
    );
}

#[test]
fn documents_tags_and_merge_keys() {
    check("---\nroutes: []\n---\nroutes: []\n", expect!["3:1: a second YAML document begins; keep to one per file"]);
    check("routes: []\n...\n---\n{}\n", expect!["3:1: a second YAML document begins; keep to one per file"]);
    check("routes: !!map []\n", expect!["1:9: routes: the tag !!map is not supported; remove it"]);
    check(
        "routes: !include other.yaml\n",
        expect!["1:9: routes: a tag is not supported; quote a value that begins with !, or remove the tag"],
    );
    check(
        "gateway: {workers: !!int \"many\"}\n",
        expect![[r#"1:20: gateway.workers: the value is not of the type !!int; remove the tag"#]],
    );
    check(
        "gateway: {log: &l {level: info}}\nroutes:\n- <<: *l\n  uri: /a\n",
        expect![[r#"
            1:20: routes[0].level: unknown key "level"; known keys: id, name, desc, labels, create_time, update_time, uri, uris, host, hosts, methods, remote_addr, remote_addrs, expression, priority, vars, filter_func, status, upstream, upstream_id, service_id, timeout, enable_websocket, on_change, plugins, plugin_config_id
            3:3: routes[0]: nothing says where requests go; add upstream, upstream_id, service_id or plugins"#]],
    );
    check("? [a, b]\n: c\n", expect!["1:3: a key must be a scalar, not a list or map"]);
    check("? {a: b}\n: c\n", expect!["1:3: a key must be a scalar, not a list or map"]);
    check(
        "~: a\n",
        expect![[
            r#"1:1: ["~"]: unknown key "~"; known keys: gateway, routes, services, upstreams, ssls, stream_routes, plugin_configs, global_rules, consumers, consumer_groups, plugin_metadata, secrets, protos, plugins"#
        ]],
    );
    check(
        "1: a\n",
        expect![[
            r#"1:1: 1: unknown key "1"; known keys: gateway, routes, services, upstreams, ssls, stream_routes, plugin_configs, global_rules, consumers, consumer_groups, plugin_metadata, secrets, protos, plugins"#
        ]],
    );
    check(
        "true: a\n",
        expect![[
            r#"1:1: true: unknown key "true"; known keys: gateway, routes, services, upstreams, ssls, stream_routes, plugin_configs, global_rules, consumers, consumer_groups, plugin_metadata, secrets, protos, plugins"#
        ]],
    );
}

#[test]
fn duplicate_keys() {
    check("routes: []\nroutes: []\n", expect![[r#"2:1: "routes" is listed twice, first in line 1; keep one of them"#]]);
    check(
        "gateway: {workers: 1, workers: 2}\n",
        expect![[r#"1:23: gateway: "workers" is listed twice, first in line 1; keep one of them"#]],
    );
    check(
        "routes: []\n\"routes\": []\n",
        expect![[r#"2:1: "routes" is listed twice, first in line 1; keep one of them"#]],
    );
    check(
        "upstreams: [{id: a, nodes: {\"a:1\": 1, \"a:1\": 2}}]\n",
        expect![[r#"1:39: upstreams[0].nodes: "a:1" is listed twice, first in line 1; keep one of them"#]],
    );
    check(
        "gateway:\n  limits: {}\n  log: {}\n  limits: {headers: 5, headers: 6}\n",
        expect![[r#"
            4:3: gateway: "limits" is listed twice, first in line 2; keep one of them
            4:24: gateway: "headers" is listed twice, first in line 4; keep one of them"#]],
    );
}

#[test]
fn aliases() {
    check("a: &a [*a]\n", expect!["1:8: a[0]: an alias inside of what it stands for"]);
    check("a: &a {b: *a}\n", expect!["1:11: a.b: an alias inside of what it stands for"]);
    check(
        billion_laughs(),
        expect!["6:45: a5[7]: aliases add more than 1000000 nodes to the file; write the values out"],
    );
    check(nested_aliases(), expect!["31:6: more than 32 lists and maps inside one another"]);
    check(
        "upstreams: [{id: &x a, nodes: {}}]\nroutes: [{uri: /a, upstream_id: *x, host: *x, methods: *x}]\n",
        expect![[r#"
            1:18: routes[0].methods: expected a list, found a text
            1:31: warning: upstreams[0].nodes: no node can be chosen; every request is answered 503"#]],
    );
}

#[test]
fn too_much() {
    check("[".repeat(1_000_000), expect!["1:256: not valid YAML: recursion limit exceeded"]);
    check(
        format!("a: {}{}", "[".repeat(100), "]".repeat(100)),
        expect!["1:35: more than 32 lists and maps inside one another"],
    );
    check("- ".repeat(200), expect!["1:65: more than 32 lists and maps inside one another"]);
    check(
        (0..100).map(|i| format!("{}a:\n", " ".repeat(i))).collect::<String>(),
        expect!["33:33: more than 32 lists and maps inside one another"],
    );
    check(
        format!("routes: {}\n", "x".repeat((1 << 20) + 1)),
        expect!["1:9: routes: a scalar of 1048577 bytes; at most 1048576 are allowed"],
    );
    check(
        format!("{}: 1\n", "k".repeat(1 << 20)),
        expect!["1:1048577: not valid YAML: mapping values are not allowed in this context"],
    );
    check(
        format!("{}: 1\n", "k".repeat(1000)),
        expect![[
            r#"1:1: kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk…: unknown key "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk…"; known keys: gateway, routes, services, upstreams, ssls, stream_routes, plugin_configs, global_rules, consumers, consumer_groups, plugin_metadata, secrets, protos, plugins"#
        ]],
    );
    check(
        format!("routes: \"{}\"\n", "${HUGE}".repeat(10)),
        expect!["1:9: routes: more than 65536 bytes after variables are put in"],
    );
    check("{".repeat(5000), expect!["1:256: not valid YAML: recursion limit exceeded"]);
    check("? ".repeat(5000), expect!["1:65: more than 32 lists and maps inside one another"]);
    check("&a ".repeat(1000), expect!["1:4: not valid YAML: did not find expected <document start>"]);
    check(format!("gateway: {}\n", "-".repeat(60_000)), expect!["1:10: gateway: expected a map, found a text"]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn numbers() {
    check(
        "gateway: {workers: 99999999999999999999}\n",
        expect![
            "1:20: gateway.workers: expected auto or a number from 1 to 256, found the number 99999999999999999999"
        ],
    );
    check(
        "gateway: {workers: .nan}\n",
        expect!["1:20: gateway.workers: expected auto or a number from 1 to 256, found the number .nan"],
    );
    check(
        "gateway: {workers: -1}\n",
        expect!["1:20: gateway.workers: expected auto or a number from 1 to 256, found the number -1"],
    );
    check(
        "gateway: {workers: 1.0}\n",
        expect!["1:20: gateway.workers: expected auto or a number from 1 to 256, found the number 1.0"],
    );
    check(
        "gateway: {workers: 257}\n",
        expect!["1:20: gateway.workers: expected auto or a number from 1 to 256, found the number 257"],
    );
    check(
        "gateway: {workers: \"4\"}\n",
        expect![[r#"1:20: gateway.workers: expected auto or a number from 1 to 256, found the text "4""#]],
    );
    check(
        "gateway: {workers: Auto}\n",
        expect![[r#"1:20: gateway.workers: expected auto or a number from 1 to 256, found the text "Auto""#]],
    );
    check(
        "gateway: {timeouts: {head: .inf}}\n",
        expect![
            "1:28: gateway.timeouts.head: expected a duration from 1ms to 1h, such as 500ms, 5s, 2m, 1h or a number of seconds, found the number .inf"
        ],
    );
    check(
        "gateway: {timeouts: {head: 1e400}}\n",
        expect![
            "1:28: gateway.timeouts.head: expected a duration from 1ms to 1h, such as 500ms, 5s, 2m, 1h or a number of seconds, found the number 1e400"
        ],
    );
    check(
        "gateway: {timeouts: {head: .5s}}\n",
        expect![[
            r#"1:28: gateway.timeouts.head: expected a duration from 1ms to 1h, such as 500ms, 5s, 2m, 1h or a number of seconds, found the text ".5s""#
        ]],
    );
    check(
        "gateway: {timeouts: {head: 5.s}}\n",
        expect![[
            r#"1:28: gateway.timeouts.head: expected a duration from 1ms to 1h, such as 500ms, 5s, 2m, 1h or a number of seconds, found the text "5.s""#
        ]],
    );
    check(
        "gateway: {timeouts: {head: 1.2.3s}}\n",
        expect![[
            r#"1:28: gateway.timeouts.head: expected a duration from 1ms to 1h, such as 500ms, 5s, 2m, 1h or a number of seconds, found the text "1.2.3s""#
        ]],
    );
    check(
        "gateway: {timeouts: {head: 0x10s}}\n",
        expect![[
            r#"1:28: gateway.timeouts.head: expected a duration from 1ms to 1h, such as 500ms, 5s, 2m, 1h or a number of seconds, found the text "0x10s""#
        ]],
    );
    check(
        "gateway: {timeouts: {head: -5s}}\n",
        expect![[
            r#"1:28: gateway.timeouts.head: expected a duration from 1ms to 1h, such as 500ms, 5s, 2m, 1h or a number of seconds, found the text "-5s""#
        ]],
    );
    check(
        "gateway: {timeouts: {head: 99999999999999999999h}}\n",
        expect![[
            r#"1:28: gateway.timeouts.head: expected a duration from 1ms to 1h, such as 500ms, 5s, 2m, 1h or a number of seconds, found the text "99999999999999999999h""#
        ]],
    );
    check(
        "gateway: {timeouts: {head: 1M}}\n",
        expect![[
            r#"1:28: gateway.timeouts.head: expected a duration from 1ms to 1h, such as 500ms, 5s, 2m, 1h or a number of seconds, found the text "1M""#
        ]],
    );
    check(
        "gateway: {limits: {head_bytes: 16kib}}\n",
        expect![[
            r#"1:32: gateway.limits.head_bytes: expected a size from 1KiB to 32KiB, such as 16KiB or a number of bytes, found the text "16kib""#
        ]],
    );
    check(
        "gateway: {limits: {head_bytes: 16 KiB}}\n",
        expect![[
            r#"1:32: gateway.limits.head_bytes: expected a size from 1KiB to 32KiB, such as 16KiB or a number of bytes, found the text "16 KiB""#
        ]],
    );
    check(
        "gateway: {limits: {head_bytes: 1.00001KiB}}\n",
        expect![[
            r#"1:32: gateway.limits.head_bytes: expected a size from 1KiB to 32KiB, such as 16KiB or a number of bytes, found the text "1.00001KiB""#
        ]],
    );
    check(
        "gateway: {limits: {head_bytes: [16KiB]}}\n",
        expect![
            "1:32: gateway.limits.head_bytes: expected a size from 1KiB to 32KiB, such as 16KiB or a number of bytes, found a list"
        ],
    );
    check(
        "gateway: {limits: {head_bytes: }}\n",
        expect![
            "1:20: gateway.limits.head_bytes: expected a size from 1KiB to 32KiB, such as 16KiB or a number of bytes, found nothing"
        ],
    );
}

#[test]
fn positions() {
    check(
        "gateway:\r\n  workers: x\r\n  server_header: y\r\n",
        expect![[r#"
            2:12: gateway.workers: expected auto or a number from 1 to 256, found the text "x"
            3:18: gateway.server_header: expected true or false, found the text "y""#]],
    );
    check(
        "\u{feff}gateway: {workers: x}\n",
        expect![[r#"1:20: gateway.workers: expected auto or a number from 1 to 256, found the text "x""#]],
    );
    check(
        "# ünï¢öde ☃\ngateway: {\"😀\": 1, workers: x}\n",
        expect![[r#"
            2:11: gateway["😀"]: unknown key "😀"; known keys: workers, listeners, stream_proxy, admin, devices, config, data_encryption, metrics, acme, pid_file, trusted_proxies, server_header, underscores_in_headers, path_parameters, timeouts, limits, route_cache, access_log, log, lua, debug
            2:28: gateway.workers: expected auto or a number from 1 to 256, found the text "x""#]],
    );
    check(
        "gateway:\n  workers:\n    x\n",
        expect![[r#"3:5: gateway.workers: expected auto or a number from 1 to 256, found the text "x""#]],
    );
    check(
        "gateway:\n  workers: |\n    4\n",
        expect![[r#"3:5: gateway.workers: expected auto or a number from 1 to 256, found the text "4�""#]],
    );
    check(
        "gateway:\n  log:\n    level:\n  access_log:\n    path:\n",
        expect![[r#"
            3:5: gateway.log.level: expected a log level, found nothing
            5:5: gateway.access_log.path: expected a text, found nothing"#]],
    );
}

#[test]
fn very_many_errors_are_counted() {
    let text: String = (0..250).map(|i| format!("k{i}: 1\n")).collect();
    let errors = load(text, &|_| None).unwrap_err();
    assert_eq!(errors.diagnostics.len(), DIAGNOSTICS_MAX);
    assert_eq!(errors.omitted, 150);
    let lines: Vec<u32> = errors.diagnostics.iter().map(|d| d.line).collect();
    assert_eq!(lines, (1..=100).collect::<Vec<u32>>());
    assert!(errors.to_string().ends_with("\nand 150 more"));
}

/// The cost of a file is proportional to its size, even if everything in it is wrong.
#[test]
fn very_many_resources_are_read_and_refused_in_time() {
    let mut good = "upstreams:\n".to_owned();
    let mut bad = good.clone();
    for i in 0..5_000 {
        good += &format!("- {{id: u{i}, nodes: {{\"a:{}\": 1}}}}\n", i + 1);
        bad += &format!("- {{id: u{i}, node: {{}}}}\n");
    }
    good += "routes:\n";
    bad += "routes:\n";
    for i in 0..5_000 {
        good += &format!("- {{id: r{i}, uri: /a{i}, upstream_id: u{}}}\n", i % 5_000);
        bad += &format!("- {{id: r{}, url: /a{i}, upstream_id: x{i}}}\n", i / 2);
    }
    let start = cpu_time();
    assert_eq!(load(&good, &|_| None).unwrap().config.routes.len(), 5_000);
    assert_eq!(load(&bad, &|_| None).unwrap_err().omitted, 10_000 + 17_500 - DIAGNOSTICS_MAX);
    assert!(cpu_time() - start < PATIENCE, "{:?}", cpu_time() - start);
}

#[test]
fn a_report_is_the_same_every_time() {
    let text = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/bad-routes.yaml")).unwrap();
    let first = load(&text, &|_| None).unwrap_err();
    for _ in 0..20 {
        assert_eq!(load(&text, &|_| None).unwrap_err(), first);
    }
}

#[test]
fn a_report_can_be_read_by_machines() {
    let errors = load("routes:\n- uri: a\n  upstream: {nodes: {a: 1}}\n", &|_| None).unwrap_err();
    expect![[r#"
        {
          "file": null,
          "diagnostics": [
            {
              "severity": "error",
              "path": "routes[0].uri",
              "line": 2,
              "column": 8,
              "message": "\"a\": must begin with '/'; write \"/a\"",
              "hint": null
            }
          ],
          "omitted": 0
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&errors).unwrap());
}

#[test]
fn a_file_beyond_the_bound_is_refused_unparsed() {
    check("# ".repeat(FILE_BYTES_MAX / 2 + 1), expect!["the file is larger than 67108864 bytes"]);
}

#[test]
fn addresses_in_each_others_way_are_reported() {
    check(
        "gateway:\n  listeners: [{address: \"0.0.0.0:9080\"}, {address: \"127.0.0.1:9080\"}]\n  admin: {address: \"127.0.0.1:9080\"}\n",
        expect![[r#"
            gateway.listeners[1]: 127.0.0.1:9080 overlaps the listener 0.0.0.0:9080; remove one
            gateway.admin.address: 127.0.0.1:9080 overlaps the listener 0.0.0.0:9080; write another port"#]],
    );
    check(
        "gateway:\n  listeners: [{address: \"0.0.0.0:9080\"}]\n  devices: {address: \"127.0.0.1:9080\"}\n",
        expect!["gateway.devices.address: 127.0.0.1:9080 overlaps the listener 0.0.0.0:9080; write another port"],
    );
    check(
        "gateway:\n  admin: {address: \"127.0.0.1:1\"}\n  metrics: {address: \"127.0.0.1:2\"}\n  devices: {address: \"0.0.0.0:1\"}\n",
        expect!["gateway.devices.address: 0.0.0.0:1 overlaps the admin address 127.0.0.1:1; write another port"],
    );
    let shared = "registry: {redis: {url: \"redis://127.0.0.1\"}}";
    for (devices, peer) in [(2, 3), (3, 3), (3, 4)] {
        let gateway = format!(
            "gateway:\n  metrics: {{address: \"127.0.0.1:2\"}}\n  stream_proxy: {{udp: [{{address: \"127.0.0.1:4\"}}]}}\n  \
             devices: {{address: \"127.0.0.1:{devices}\", {shared}, peer: {{address: \"127.0.0.1:{peer}\"}}}}\n"
        );
        let told = load(&gateway, &|_| None).map_or_else(|errors| errors.to_string(), |_| "good".to_owned());
        let expected = match (devices, peer) {
            (2, _) => {
                "gateway.devices.address: 127.0.0.1:2 overlaps the address of metrics 127.0.0.1:2; write another port"
            }
            (_, 3) => {
                "gateway.devices.peer.address: 127.0.0.1:3 overlaps the address of the device API 127.0.0.1:3; write another port"
            }
            _ => "good",
        };
        assert_eq!(told, expected, "{gateway}");
    }
}
