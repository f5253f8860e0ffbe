//! `gateway.metrics`: the values that each key refuses, and the resulting families.
//!
//! `UPDATE_EXPECT=1 cargo test` rewrites the expected output; review the difference.

use expect_test::{Expect, expect};
use std::fmt::Write;
use stillgate_config::{Dialect, EXTRA_LABELS_MAX, LabelSource, Measure, Metrics, load};
use stillgate_metrics::FamilyType;

/// `keys` of `gateway.metrics`, next to an address.
fn metrics(keys: &str) -> Result<Metrics, String> {
    let text = format!("gateway: {{metrics: {{address: \"127.0.0.1:9091\", {keys}}}}}\n");
    let loaded = load(text, &|_| None).map_err(|errors| errors.to_string())?;
    Ok(loaded.config.gateway.metrics.unwrap())
}

#[track_caller]
fn refused(keys: &str, want: Expect) {
    let errors = metrics(keys).unwrap_err();
    for line in errors.lines() {
        assert!(line.len() < 2000, "a message of {} bytes", line.len());
    }
    want.assert_eq(&errors);
}

/// The label names of a family, with the source of each.
fn labels(metrics: &Metrics, name: &str) -> String {
    let spec = metrics.dialect.find(name).unwrap();
    let Some(family) = spec.family(metrics) else { return "disabled".to_owned() };
    let plan = spec.label_plan(metrics);
    assert_eq!(plan.len(), family.labels.len());
    let mut out = String::new();
    for (label, source) in family.labels.iter().zip(plan) {
        match source {
            LabelSource::Label(own) => {
                assert_eq!(own.name(), label);
                write!(out, "{label} ").unwrap();
            }
            LabelSource::Variable(variable) => write!(out, "{label}=${variable} ").unwrap(),
            LabelSource::Nothing => write!(out, "{label}=\"\" ").unwrap(),
        }
    }
    out.trim_end().to_owned()
}

#[test]
fn they_are_on_unless_they_are_switched_off() {
    let metrics = |text: &str| load(text, &|_| None).unwrap().config.gateway.metrics;
    let defaults = metrics("routes: []\n").unwrap();
    assert_eq!((defaults.address, &defaults.shared, defaults.dialect), (None, &None, Dialect::Native));
    assert_eq!((defaults.memory_bytes, defaults.series_per_family), (256 << 20, 100_000));
    for text in ["gateway: {}\n", "gateway: {metrics: }\n", "gateway: {metrics: {path: /metrics, enabled: true}}\n"] {
        assert_eq!(metrics(text), Some(defaults.clone()), "{text}");
    }
    for more in ["", ", address: \"127.0.0.1:9091\", dialect: apisix"] {
        assert_eq!(metrics(&format!("gateway: {{metrics: {{enabled: false{more}}}}}\n")), None, "{more}");
    }
}

#[test]
fn nowhere_to_expose() {
    let refused = |text: &str, want: Expect| want.assert_eq(&load(text, &|_| None).unwrap_err().to_string());
    // Disabled ones are checked, too.
    refused(
        "gateway: {metrics: {enabled: false, address: 9091}}\n",
        expect![[
            r#"1:46: gateway.metrics.address: expected an address as IP:PORT, found the number 9091; write it in quotes: "9091""#
        ]],
    );
    refused(
        "gateway: {metrics: {enabled: 1}}\n",
        expect!["1:30: gateway.metrics.enabled: expected true or false, found the number 1"],
    );
    refused(
        "gateway: {metrics: {address: 9091}}\n",
        expect![[
            r#"1:30: gateway.metrics.address: expected an address as IP:PORT, found the number 9091; write it in quotes: "9091""#
        ]],
    );
    refused(
        "gateway: {metrics: {address: \"localhost:9091\"}}\n",
        expect![[
            r#"1:30: gateway.metrics.address: expected an address as IP:PORT, found "localhost:9091"; write "127.0.0.1:9091""#
        ]],
    );
    refused(
        "gateway: {listeners: [{address: \"0.0.0.0:80\"}], metrics: {address: \"127.0.0.1:80\"}}\n",
        expect!["gateway.metrics.address: 127.0.0.1:80 overlaps the listener 0.0.0.0:80; write another port"],
    );
    refused(
        "gateway: {admin: {address: \"127.0.0.1:81\"}, metrics: {address: \"127.0.0.1:81\"}}\n",
        expect!["gateway.metrics.address: 127.0.0.1:81 overlaps the admin address 127.0.0.1:81; write another port"],
    );
}

#[test]
fn path_and_dialect() {
    refused(
        "path: metrics",
        expect![[r#"1:54: gateway.metrics.path: the path "metrics" does not begin with a slash; write "/metrics""#]],
    );
    refused(
        "path: \"/a?b\"",
        expect![[
            r##"1:54: gateway.metrics.path: the path "/a?b" cannot be sent in a request; use printable ASCII without spaces, "?" and "#""##
        ]],
    );
    refused(
        "path: \"/a\\r\\nb\"",
        expect![[
            r##"1:54: gateway.metrics.path: the path "/a��b" cannot be sent in a request; use printable ASCII without spaces, "?" and "#""##
        ]],
    );
    refused(
        &format!("path: /{}", "a".repeat(1024)),
        expect!["1:54: gateway.metrics.path: the path has more than 1024 bytes; write a shorter one"],
    );
    refused(
        "dialect: apisx",
        expect![[
            r#"1:57: gateway.metrics.dialect: expected native or apisix, found the text "apisx"; did you mean "apisix"?"#
        ]],
    );
}

#[test]
fn bounds() {
    refused(
        "memory: 4095KiB",
        expect![[
            r#"1:56: gateway.metrics.memory: expected a size from 4MiB to 64GiB, such as 16KiB or a number of bytes, found the text "4095KiB""#
        ]],
    );
    refused(
        "memory: 65GiB",
        expect![[
            r#"1:56: gateway.metrics.memory: expected a size from 4MiB to 64GiB, such as 16KiB or a number of bytes, found the text "65GiB""#
        ]],
    );
    refused(
        "memory: -1",
        expect![
            "1:56: gateway.metrics.memory: expected a size from 4MiB to 64GiB, such as 16KiB or a number of bytes, found the number -1"
        ],
    );
    refused(
        "series_per_family: 99",
        expect![
            "1:67: gateway.metrics.series_per_family: expected a whole number from 100 to 10000000, found the number 99"
        ],
    );
    refused(
        "series_per_family: 10000001",
        expect![
            "1:67: gateway.metrics.series_per_family: expected a whole number from 100 to 10000000, found the number 10000001"
        ],
    );
    refused(
        "expire: 999ms",
        expect![
            "1:56: gateway.metrics.expire: a series cannot go after less than 1s; write at least 1s, or 0s for never"
        ],
    );
    refused(
        "expire: 721h",
        expect![[
            r#"1:56: gateway.metrics.expire: expected a duration from 0s to 720h, such as 500ms, 5s, 2m, 1h or a number of seconds, found the text "721h""#
        ]],
    );

    let edges = metrics("memory: 4MiB, series_per_family: 100, expire: 1s").unwrap();
    assert_eq!((edges.memory_bytes, edges.series_per_family), (4 << 20, 100));
    assert_eq!(edges.expire.unwrap().as_secs(), 1);
    let edges = metrics("memory: 64GiB, series_per_family: 10000000, expire: 720h").unwrap();
    assert_eq!((edges.memory_bytes, edges.series_per_family), (64 << 30, 10_000_000));
    assert_eq!(metrics("expire: 0").unwrap().expire, None);
}

#[test]
fn shared_and_switches() {
    refused(
        "shared: shm/stillgate",
        expect![[
            r#"1:56: gateway.metrics.shared: "shm/stillgate" is not an absolute path; write one like "/dev/shm/stillgate""#
        ]],
    );
    refused(
        "shared: \"\"",
        expect![[r#"1:56: gateway.metrics.shared: "" is not an absolute path; write one like "/dev/shm/stillgate""#]],
    );
    refused(
        "shared: \"/a\\0b\"",
        expect![[
            r#"1:56: gateway.metrics.shared: "/a�b" is not an absolute path; write one like "/dev/shm/stillgate""#
        ]],
    );
    refused(
        "native_histograms: 1",
        expect!["1:67: gateway.metrics.native_histograms: expected true or false, found the number 1"],
    );
    refused(
        "created: \"no\"",
        expect![[r#"1:57: gateway.metrics.created: expected true or false, found the text "no""#]],
    );
    refused(
        "buckets: [1]",
        expect![[
            r#"1:48: gateway.metrics.buckets: unknown key "buckets"; known keys: enabled, address, path, hosts, dialect, memory, series_per_family, expire, shared, disable, enable, labels, native_histograms, created, exemplars"#
        ]],
    );
}

#[test]
fn families_that_are_disabled() {
    refused("disable: [node]", expect!["1:57: gateway.metrics.disable: expected a map, found a list"]);
    refused(
        "disable: {families: http_requests_total}",
        expect!["1:68: gateway.metrics.disable.families: expected a list, found a text"],
    );
    refused(
        "disable: {families: [http_request_total]}",
        expect![[
            r#"1:69: gateway.metrics.disable.families: the dialect native has no family "http_request_total"; did you mean "http_requests_total"?"#
        ]],
    );
    refused(
        "disable: {families: [Stillgate-HTTP-requests-total]}",
        expect![[
            r#"1:69: gateway.metrics.disable.families: the dialect native has no family "Stillgate-HTTP-requests-total"; did you mean "stillgate_http_requests_total"?"#
        ]],
    );
    refused(
        "disable: {families: [http_requests_total, stillgate_http_requests_total]}",
        expect!["1:90: gateway.metrics.disable.families: stillgate_http_requests_total is listed twice; remove one"],
    );
    refused(
        "disable: {families: [apisix_http_status]}",
        expect![[
            r#"1:69: gateway.metrics.disable.families: the dialect native has no family "apisix_http_status"; remove it, or write `dialect: apisix`"#
        ]],
    );
    refused(
        "dialect: apisix, disable: {families: [http_bytes_total]}",
        expect![[
            r#"1:86: gateway.metrics.disable.families: the dialect apisix has no family "http_bytes_total"; remove it, or write `dialect: native`"#
        ]],
    );
    refused(
        "dialect: apisix, disable: {families: [shared_dict_capacity_bytes]}",
        expect![[
            r#"1:86: gateway.metrics.disable.families: the dialect apisix has no family "shared_dict_capacity_bytes"; write one of http_status, http_latency, bandwidth, http_requests_total, nginx_http_current_connections, node_info, upstream_status, nginx_metric_errors_total, etcd_reachable, etcd_modify_indexes, stillgate_access_log_dropped_lines_total, stillgate_build_info, stillgate_config_generation, stillgate_config_last_reload_successful, stillgate_config_pending_restart_keys, stillgate_config_rejected, stillgate_config_last_reload_timestamp_seconds, stillgate_config_last_reload_success_timestamp_seconds, stillgate_connections_accepted_total, stillgate_connections_refused_total, stillgate_proxy_protocol_errors_total, stillgate_worker_cpu_seconds_total, stillgate_worker_connections, stillgate_worker_turn_seconds, stillgate_metrics_bytes, stillgate_metrics_series, process_cpu_seconds_total, process_max_fds, process_open_fds, process_resident_memory_bytes, process_start_time_seconds, process_virtual_memory_bytes, stillgate_route_cache_bytes, stillgate_route_cache_entries, stillgate_route_cache_hits_…"#
        ]],
    );
    refused(
        &format!("disable: {{families: [{}]}}", "x".repeat(60_000)),
        expect![[
            r#"1:69: gateway.metrics.disable.families: the dialect native has no family "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"; write one of http_requests_total, http_request_duration_seconds, http_upstream_duration_seconds, http_gateway_duration_seconds, http_tunnel_duration_seconds, http_bytes_total, connections, upstream_healthy, access_log_dropped_lines_total, build_info, config_generation, config_last_reload_successful, config_pending_restart_keys, config_rejected, config_last_reload_timestamp_seconds, config_last_reload_success_timestamp_seconds, connections_accepted_total, connections_refused_total, proxy_protocol_errors_total, worker_cpu_seconds_total, worker_connections, worker_turn_seconds, metrics_bytes, metrics_series, process_cpu_seconds_total, process_max_fds, process_open_fds, process_resident_memory_bytes, process_start_time_seconds, process_virtual_memory_bytes, route_cache_bytes, route_cache_entries, route_cache_hits_total, route_cache_misses_total, upstream_connect_duration_seconds, upstream_retries_total, upstream_retries_over_budget_total, upstream_requests_shed_total, upstream_requests_que…"#
        ]],
    );

    let metrics = metrics("disable: {families: [process_open_fds, http_requests_total]}").unwrap();
    assert_eq!(metrics.disabled_families, [Measure::HttpRequests, Measure::ProcessOpenFds]);
    assert_eq!(metrics.families().count() + 2, Dialect::Native.families().count());
    assert!(metrics.families().all(|spec| spec.family(&metrics).is_some()));
    assert_eq!(labels(&metrics, "http_requests_total"), "disabled");
}

#[test]
fn labels_that_are_disabled() {
    refused(
        "disable: {labels: [nodes]}",
        expect![[
            r#"1:67: gateway.metrics.disable.labels: no family of the dialect native has a label "nodes"; did you mean "node"?"#
        ]],
    );
    refused(
        "disable: {labels: [node, node]}",
        expect![[r#"1:73: gateway.metrics.disable.labels: "node" is listed twice; remove one"#]],
    );
    refused(
        "disable: {labels: [\"\"]}",
        expect![[
            r#"1:67: gateway.metrics.disable.labels: no family of the dialect native has a label ""; write code, consumer, direction, node, route or service"#
        ]],
    );
    refused(
        "disable: {labels: [matched_uri]}",
        expect![[
            r#"1:67: gateway.metrics.disable.labels: no family of the dialect native has a label "matched_uri"; write code, consumer, direction, node, route or service"#
        ]],
    );
    refused(
        "disable: {labels: [listener]}",
        expect![[
            r#"1:67: gateway.metrics.disable.labels: the label "listener" is what stillgate_connections is about; disable the family"#
        ]],
    );
    refused(
        "dialect: apisix, disable: {labels: [type]}",
        expect![[
            r#"1:84: gateway.metrics.disable.labels: the label "type" separates values that cannot be added up; disable the families that have it"#
        ]],
    );
    refused(
        "disable: {labels: [uri]}, labels: {http_requests_total: {uri: $uri}}",
        expect![[
            r#"1:67: gateway.metrics.disable.labels: the label "uri" is there only because of gateway.metrics.labels; remove it there"#
        ]],
    );

    let metrics = metrics("disable: {labels: [node, service]}").unwrap();
    assert_eq!(labels(&metrics, "http_requests_total"), "route consumer code");
    assert_eq!(labels(&metrics, "http_request_duration_seconds"), "route");
    // There the node is the measured object and not one of several attributes.
    assert_eq!(labels(&metrics, "upstream_healthy"), "upstream node");
}

#[test]
fn labels_that_are_enabled() {
    refused(
        "enable: {labels: [methods]}",
        expect![[
            r#"1:66: gateway.metrics.enable.labels: no label "methods" is off by default; write method, or add one of your own in gateway.metrics.labels"#
        ]],
    );
    refused(
        "enable: {labels: [node]}",
        expect![[
            r#"1:66: gateway.metrics.enable.labels: no label "node" is off by default; write method, or add one of your own in gateway.metrics.labels"#
        ]],
    );
    refused(
        "enable: {labels: [method, method]}",
        expect![[r#"1:74: gateway.metrics.enable.labels: "method" is listed twice; remove one"#]],
    );
    refused(
        "disable: {labels: [method]}",
        expect![[
            r#"1:67: gateway.metrics.disable.labels: the label "method" is off unless gateway.metrics.enable names it; remove it here, and there"#
        ]],
    );
    refused(
        "enable: {labels: [method]}, labels: {http_requests_total: {method: $request_method}}",
        expect![[
            r#"1:107: gateway.metrics.labels.http_requests_total.method: stillgate_http_requests_total has the label "method" already; write another name"#
        ]],
    );
    let enabled = metrics("enable: {labels: [method]}, disable: {labels: [node]}").unwrap();
    assert_eq!(labels(&enabled, "http_requests_total"), "route service consumer code method");
    assert_eq!(labels(&enabled, "http_bytes_total"), "route service direction method");
    assert_eq!(labels(&enabled, "upstream_healthy"), "upstream node");
    // A label that was added before stays.
    let own = metrics("labels: {http_requests_total: {method: $request_method}}").unwrap();
    assert_eq!(labels(&own, "http_requests_total"), "route service node consumer code method=$request_method");
    let apisix = metrics("dialect: apisix, enable: {labels: [method]}").unwrap();
    assert_eq!(labels(&apisix, "bandwidth"), "type route service consumer node method");
    assert_eq!(labels(&apisix, "nginx_http_current_connections"), "state");
}

#[test]
fn labels_that_are_added() {
    refused(
        "labels: [uri]",
        expect!["1:56: gateway.metrics.labels: expected a map of families to labels, found a list"],
    );
    refused(
        "labels: {http_requests_total: uri}",
        expect![
            "1:78: gateway.metrics.labels.http_requests_total: expected a map of labels to variables, found a text"
        ],
    );
    refused(
        "labels: {http_requests_total: {uri: [$uri]}}",
        expect![
            "1:84: gateway.metrics.labels.http_requests_total.uri: expected a variable such as $host, found a list"
        ],
    );
    refused(
        "labels: {http_requests_totl: {uri: $uri}}",
        expect![[
            r#"1:57: gateway.metrics.labels.http_requests_totl: the dialect native has no family "http_requests_totl"; did you mean "http_requests_total"?"#
        ]],
    );
    refused(
        "labels: {connections: {uri: $uri}}",
        expect![
            "1:57: gateway.metrics.labels.connections: stillgate_connections does not count requests; remove it; these do: http_requests_total, http_request_duration_seconds, http_upstream_duration_seconds, http_gateway_duration_seconds, http_tunnel_duration_seconds, http_bytes_total"
        ],
    );
    refused(
        "dialect: apisix, labels: {http_requests_total: {uri: $uri}}",
        expect![
            "1:74: gateway.metrics.labels.http_requests_total: apisix_http_requests_total does not count requests; remove it; these do: http_status, http_latency, bandwidth"
        ],
    );
    refused(
        "labels: {http_requests_total: {a: $uri}, stillgate_http_requests_total: {b: $uri}}",
        expect![
            "1:89: gateway.metrics.labels.stillgate_http_requests_total: stillgate_http_requests_total is listed twice; put the labels together"
        ],
    );
}

#[test]
fn names_and_variables_of_added_labels() {
    refused(
        "labels: {http_requests_total: {uri: $rui}}",
        expect![[
            r#"1:84: gateway.metrics.labels.http_requests_total.uri: "rui": unknown variable; did you mean "uri"?"#
        ]],
    );
    refused(
        "labels: {http_requests_total: {uri: \"\"}}",
        expect![[
            r#"1:84: gateway.metrics.labels.http_requests_total.uri: "": unknown variable; write one of uri, document_uri, request_uri, args, query_string, is_args, host, request_method, method, scheme, server_protocol, protocol, remote_addr, remote_port, remote_user, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME"#
        ]],
    );
    refused(
        "labels: {http_requests_total: {uri: $upstream_addr}}",
        expect![[
            r#"1:84: gateway.metrics.labels.http_requests_total.uri: "upstream_addr": not known before the response is; plugins and the access log may use it"#
        ]],
    );
    refused(
        "labels: {http_requests_total: {route: $uri}}",
        expect![[
            r#"1:79: gateway.metrics.labels.http_requests_total.route: stillgate_http_requests_total has the label "route" already; write another name"#
        ]],
    );
    refused(
        "disable: {labels: [node]}, labels: {http_requests_total: {node: $host}}",
        expect![[
            r#"1:106: gateway.metrics.labels.http_requests_total.node: stillgate_http_requests_total has the label "node" already; write another name"#
        ]],
    );
    for name in ["le", "__a", "a:b", "a-b", "1a", "\"\"", "ä", "\"a\\nb\"", &"a".repeat(256), &"a".repeat(60_000)] {
        let error = metrics(&format!("labels: {{http_requests_total: {{{name}: $uri}}}}")).unwrap_err();
        assert!(error.contains("is not a label name; write up to 255"), "{error}");
    }
    let many: Vec<String> = (0..=EXTRA_LABELS_MAX).map(|i| format!("l{i}: $uri")).collect();
    refused(
        &format!("labels: {{http_requests_total: {{{}}}}}", many.join(", ")),
        expect!["1:78: gateway.metrics.labels.http_requests_total: 17 labels are more than 16; leave some out"],
    );
}

#[test]
fn added_labels_come_after_the_familys_own_by_name() {
    let metrics = metrics(
        "disable: {labels: [node]}, labels: {http_requests_total: {uri: $request_uri, agent: http_user_agent}, \
         stillgate_http_bytes_total: {a: $arg_a}}",
    )
    .unwrap();
    assert_eq!(
        labels(&metrics, "http_requests_total"),
        "route service consumer code agent=$http_user_agent uri=$request_uri"
    );
    assert_eq!(labels(&metrics, "http_bytes_total"), "route service direction a=$arg_a");
    assert_eq!(labels(&metrics, "http_request_duration_seconds"), "route service");
}

#[test]
fn labels_of_a_disabled_family_are_reported() {
    let text = "gateway:\n  metrics:\n    shared: /a\n    disable: {families: [http_bytes_total]}\n    \
                labels: {http_bytes_total: {uri: $uri}}\nroutes: [{uri: /, upstream: {nodes: {a: 1}}}]\n";
    let warnings = load(text, &|_| None).unwrap().warnings;
    expect!["5:14: warning: gateway.metrics.labels.http_bytes_total: the family is disabled; its labels are of no use"]
        .assert_eq(&warnings.iter().map(ToString::to_string).collect::<String>());
}

#[test]
fn labels_that_receivers_have_a_use_of_their_own_for_are_reported() {
    #[track_caller]
    fn check(label: &str, expected: &[&str]) {
        let text = format!(
            "gateway:\n  metrics:\n    shared: /a\n    labels: {{http_requests_total: {{{label}: $uri}}}}\n\
             routes: [{{uri: /, upstream: {{nodes: {{a: 1}}}}}}]\n"
        );
        let warnings = load(&text, &|_| None).unwrap().warnings;
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings, expected);
    }
    let at = "4:36: warning: gateway.metrics.labels.http_requests_total";
    for name in ["job", "instance"] {
        check(
            name,
            &[&format!(
                "{at}.{name}: Prometheus sets this label itself and renames this one to exported_{name}; write another name"
            )],
        );
    }
    check(
        "quantile",
        &[&format!(
            "{at}.quantile: this label belongs to summaries, and receivers may drop or misread the series; write another name"
        )],
    );
    for name in ["Job", "jobs", "exported_job", "instance_id"] {
        check(name, &[]);
    }
}

/// The engine accepts every family, with as many labels as may be added and native buckets.
#[test]
fn every_family_can_be_declared() {
    let added: Vec<String> = (0..EXTRA_LABELS_MAX).map(|i| format!("l{i}: $uri")).collect();
    let added = added.join(", ");
    for (word, dialect) in Dialect::ALL {
        let per_request = dialect.families().filter(|spec| spec.per_request);
        let labels: Vec<String> = per_request.map(|spec| format!("{}: {{{added}}}", spec.name)).collect();
        for native in [true, false] {
            let metrics = metrics(&format!(
                "dialect: {word}, native_histograms: {native}, enable: {{labels: [method]}}, labels: {{{}}}",
                labels.join(", ")
            ))
            .unwrap();
            for spec in metrics.families() {
                let family = spec.family(&metrics).unwrap();
                family.check().unwrap();
                assert_eq!(
                    family.labels.len(),
                    spec.labels.len() + spec.optional.len() + if spec.per_request { EXTRA_LABELS_MAX } else { 0 }
                );
                if let FamilyType::Histogram(buckets) = &family.kind {
                    assert_eq!(buckets.native.is_some(), native);
                }
            }
        }
    }
}

/// The metadata of the plugin `prometheus` uses the names of APISIX's families in any dialect.
#[test]
fn labels_without_a_value_stay() {
    let named =
        [("http_status", "node"), ("http_status", "consumer"), ("http_latency", "route"), ("bandwidth", "node")];
    let emptied = |keys: &str| metrics(keys).unwrap().with_emptied(named.into_iter());
    let native = emptied("dialect: native");
    assert_eq!(labels(&native, "http_requests_total"), "route service node=\"\" consumer=\"\" code");
    for times in ["http_request", "http_upstream", "http_gateway", "http_tunnel"] {
        assert_eq!(labels(&native, &format!("{times}_duration_seconds")), "route=\"\" service", "{times}");
    }
    assert_eq!(labels(&native, "http_bytes_total"), "route service direction");
    let apisix = emptied("dialect: apisix, disable: {labels: [consumer]}");
    assert_eq!(labels(&apisix, "http_status"), "code route matched_uri matched_host service node=\"\"");
    assert_eq!(labels(&apisix, "http_latency"), "type route=\"\" service node");
    assert_eq!(labels(&apisix, "bandwidth"), "type route service node=\"\"");
    assert_eq!(labels(&apisix, "upstream_status"), "name ip port");
}
