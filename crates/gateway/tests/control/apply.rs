//! `export`, `diff`, `apply`, `store backup`: a gateway serves the contents of a file, and they come back unchanged.

use crate::shared::authority::Authority;
use crate::transfer::{KEY, Site, as_file, resources, run};
use serde_json::{Value as Json, json};
use std::time::Instant;
use stillgate_testkit::{EtcdServer, ReservedPort, Upstream, eventually, is_nightly, seeded};

/// One resource of most kinds, each referring to another where it can.
const ALL_KINDS: &str = r#"
secrets:
  - {id: vault/1, uri: "http://127.0.0.1:8200", prefix: secret, token: the-token}
upstreams:
  - {id: main, type: roundrobin, nodes: {"NODE": 1}}
plugin_metadata:
  - {id: http-logger, log_format: {host: $host}}
plugin_configs:
  - {id: 1, plugins: {response-rewrite: {headers: {set: {X-Config: "yes"}}}}}
consumer_groups:
  - {id: gold, plugins: {}}
services:
  - {id: shop, upstream_id: main}
consumers:
  - username: jack
    group_id: gold
    plugins: {}
    credentials:
      - {id: phone, plugins: {key-auth: {key: jacks-key}}}
  - {username: rose, plugins: {key-auth: {key: roses-key}}}
global_rules:
  - {id: everywhere, plugins: {request-id: {}}}
protos:
  - {id: p, content: "syntax = \"proto3\";"}
routes:
  - {id: shop, uri: "/shop/*", service_id: shop, plugin_config_id: 1}
  - {id: own, uris: ["/own", "/other"], status: 1, priority: 0, plugins: {key-auth: {}}, upstream: {nodes: [{host: 127.0.0.1, port: 9, weight: 1}]}}
"#;

fn all_kinds(node: &Upstream) -> String {
    ALL_KINDS.replace("NODE", &node.addr().to_string())
}

#[test]
fn a_file_is_served_and_comes_back() {
    let (site, node) = (Site::new(), Upstream::echo());
    let text = all_kinds(&node);
    let dry = site.apply(&text, &["--dry-run"]).expect(0);
    assert!(dry.summary().starts_with("dry run, nothing changed: 13 would be created, 0 would be"), "{dry:?}");
    assert_eq!(site.gateway.get("/shop/1").head.status(), 404);
    site.apply(&text, &[]).expect(0);
    let answer = site.gateway.get("/shop/1");
    assert_eq!((answer.head.status(), answer.head.get("x-config")), (200, Some("yes")));
    assert_eq!(site.gateway.get("/own").head.status(), 401);

    let again = site.apply(&text, &[]).expect(0);
    assert_eq!(again.out, "0 created, 0 changed, 0 deleted, 13 unchanged\n");
    let equal = site.run("diff", &site.path("apply.yaml"), &[]).expect(0);
    assert_eq!(equal.out, "0 only in the file, 0 different, 0 only in the gateway, 13 equal\n");

    let exported = site.export();
    let file = site.file("exported.yaml", &exported);
    site.run("diff", &file, &[]).expect(0);
    let other = Site::new();
    other.run("apply", &file, &[]).expect(0);
    assert_eq!(resources(&other.export()), resources(&exported));

    let checked = run("", &["check", "--offline", &file.display().to_string()]).expect(0);
    assert!(checked.out.contains("no plugin uses protos, so they have no effect here"), "{checked:?}");

    let masked = run(KEY, &["export", "--from", site.url()]).expect(0);
    for secret in ["the-token", "jacks-key", "roses-key"] {
        assert!(exported.contains(secret) && !masked.out.contains(secret), "{secret}: {}", masked.out);
    }
    assert!(masked.err.contains("3 resources with masks"), "{masked:?}");
    let refused = other.apply(&masked.out, &[]).expect(1);
    let place = "consumers[0].credentials[0].plugins.key-auth.key: ******** is a mask in place of a secret";
    assert!(refused.err.contains(place), "{refused:?}");
    let file = site.file("masked.yaml", &masked.out).display().to_string();
    for checked in [run("", &["check", "--offline", &file]), run("", &["run", "--config", &file])] {
        let said = format!("{}{}", checked.out, checked.err);
        assert!(checked.code == 1 && said.contains(place), "{checked:?}");
    }
    assert_eq!(resources(&other.export()), resources(&exported));
}

#[test]
fn differences_are_listed_and_prune_deletes_dependants_first() {
    let (site, node) = (Site::new(), Upstream::echo());
    let text = all_kinds(&node);
    site.apply(&text, &[]).expect(0);
    let changed = text
        .replace("/shop/*", "/market/*")
        .replace("roses-key", "another-key")
        .replace("  - {id: everywhere, plugins: {request-id: {}}}\n", "  - {id: renamed, plugins: {request-id: {}}}\n");
    let file = site.file("changed.yaml", &changed);
    let listed = site.run("diff", &file, &[]).expect(3).out;
    let expected = "- global_rules/everywhere\n~ consumers/rose\n    plugins.key-auth.key (a secret)\n\
        + global_rules/renamed\n~ routes/shop\n    uri: \"/shop/*\" -> \"/market/*\"\n\
        1 only in the file, 2 different, 1 only in the gateway, 10 equal\n";
    assert_eq!(listed, expected);
    // Two rules with the same plugin are not allowed: the message names the resource and its place.
    let refused = site.run("apply", &file, &[]).expect(1);
    assert!(refused.err.contains("changed.yaml:") && refused.err.contains("global_rules/renamed: "), "{refused:?}");
    let done = site.run("apply", &file, &["--prune"]).expect(0);
    assert_eq!(done.summary(), "1 created, 2 changed, 1 deleted, 10 unchanged");
    assert_eq!(site.gateway.get("/market/1").head.status(), 200);

    let gone = site.apply("routes: []\n", &["--prune"]).expect(0);
    assert_eq!(gone.summary(), "0 created, 0 changed, 13 deleted, 0 unchanged");
    let at = |name: &str| gone.out.find(&format!("- {name}\n")).unwrap_or_else(|| panic!("{name}: {}", gone.out));
    for (user, used) in [
        ("routes/shop", "services/shop"),
        ("services/shop", "upstreams/main"),
        ("routes/shop", "plugin_configs/1"),
        ("consumers/jack/credentials/phone", "consumers/jack"),
        ("consumers/jack", "consumer_groups/gold"),
    ] {
        assert!(at(user) < at(used), "{user} before {used}: {}", gone.out);
    }
    assert_eq!(resources(&site.export()), "routes: []\n");
}

/// A store makes any number of changes as one: what is refused changes nothing, and changes cannot conflict with each other.
#[test]
fn changes_of_a_store_are_made_together() {
    /// Routes, and about as many consumers: together more than a transaction of etcd has.
    const COUNT: usize = 100;
    let site = Site::new();
    let consumer = |name: &str, key: &str| json!({"username": name, "plugins": {"key-auth": {"key": key}}});
    let consumers = |first: usize, named: &str| {
        let consumer = |id: usize| consumer(&format!("{named}{id}"), &format!("key-of-{id}"));
        (first..COUNT).map(consumer).collect::<Vec<_>>()
    };
    let authority = Authority::new();
    authority.issue("a", &["a.example"]);
    let pem = |name: &str| std::fs::read_to_string(authority.file(name)).expect("a file of the authority");
    let ssl = |id: &str| json!([{"id": id, "snis": ["a.example"], "cert": pem("a.pem"), "key": pem("a.key")}]);
    let route = |id: usize, more: Json| {
        let mut route = json!({"id": format!("r{id}"), "uri": format!("/{id}/*")});
        route.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        route
    };
    let routes = |more: Json| (0..COUNT).map(|id| route(id, more.clone())).collect::<Vec<_>>();
    let before = json!({
        "upstreams": [{"id": "old", "nodes": {"127.0.0.1:9": 1}}],
        "ssls": ssl("1"),
        "global_rules": [{"id": "1", "plugins": {"request-id": {}}}],
        "consumers": consumers(0, "c"),
        "routes": routes(json!({"upstream_id": "old"})),
    });
    site.apply(&as_file(&before), &[]).expect(0);
    let exported = resources(&site.export());

    // Everything moves: ids of certificates and rules, names of consumers with their keys, two keys are swapped.
    let mut moved = consumers(2, "d");
    moved.extend([consumer("c0", "key-of-1"), consumer("c1", "key-of-0")]);
    let mut after = json!({
        "ssls": ssl("2"),
        "global_rules": [{"id": "2", "plugins": {"request-id": {}}}],
        "consumers": moved,
        "routes": routes(json!({"plugins": {"key-auth": {}}, "upstream": {"nodes": {"127.0.0.1:9": 1}}})),
    });
    let bad = route(COUNT, json!({"plugins": {"csrf": {"key": "$env://STILLGATE_NOT_SET_ANYWHERE"}}}));
    after["routes"].as_array_mut().unwrap().push(bad);
    let refused = site.apply(&as_file(&after), &["--prune"]).expect(1);
    assert!(
        refused.err.contains(&format!("routes/r{COUNT}: ")) && refused.err.contains("stopped: 0 of "),
        "{refused:?}"
    );
    assert_eq!(resources(&site.export()), exported);
    after["routes"].as_array_mut().unwrap().pop();
    let done = site.apply(&as_file(&after), &["--prune"]).expect(0);
    assert_eq!(done.summary(), format!("{COUNT} created, {} changed, {} deleted, 0 unchanged", COUNT + 2, COUNT + 1));
    assert_eq!(site.gateway.get("/7/").head.status(), 401);
    let back = site.apply(&as_file(&before), &["--prune"]).expect(0);
    assert_eq!(back.summary(), format!("{} created, {} changed, {COUNT} deleted, 0 unchanged", COUNT + 1, COUNT + 2));
    assert_eq!(resources(&site.export()), exported);
}

#[test]
fn routes_that_are_tried_in_another_order_than_in_the_file_are_warned_of() {
    let site = Site::new();
    let file = |priority: i64| {
        let guarded = json!({"id": "z", "uri": "/x", "priority": priority, "plugins": {"key-auth": {}}, "upstream": {"nodes": {"127.0.0.1:9": 1}}});
        let open = json!({"id": "a", "uri": "/x", "upstream": {"nodes": {"127.0.0.1:9": 1}}});
        as_file(&json!({"routes": [guarded, open]}))
    };
    let done = site.apply(&file(0), &[]).expect(0);
    assert!(done.err.contains("routes/a before routes/z"), "{done:?}");
    assert_eq!(site.gateway.get("/x").head.status(), 502, "the order that the warning names");
    let done = site.apply(&file(1), &[]).expect(0);
    assert!(!done.err.contains("another order"), "{done:?}");
    assert_eq!(site.gateway.get("/x").head.status(), 401);
}

#[test]
fn what_an_etcd_refuses_in_the_middle_leaves_whole_batches() {
    let etcd = EtcdServer::start();
    let site = Site::on_etcd(&etcd, "/apisix");
    let route = |id: usize| {
        // A variable that is not set on the gateway's machine cannot be checked in a file.
        let plugins = if id == 200 { "{csrf: {key: $env://STILLGATE_NOT_SET_ANYWHERE}}" } else { "{cors: {}}" };
        format!("  - {{id: {id}, uri: /{id}, plugins: {plugins}, upstream: {{nodes: {{\"127.0.0.1:9\": 1}}}}}}\n")
    };
    let text = format!("routes:\n{}", (1..=300).map(route).collect::<String>());
    let refused = site.apply(&text, &[]).expect(1);
    assert!(refused.err.contains("apply.yaml:201:5: routes/200: "), "{refused:?}");
    assert!(refused.err.contains("STILLGATE_NOT_SET_ANYWHERE"), "{refused:?}");
    assert!(refused.err.contains("stopped: 128 of 300 changes were made, 172 were not"), "{refused:?}");
    assert_eq!(refused.summary(), "128 created, 0 changed, 0 deleted, 0 unchanged");
    assert_eq!(site.export().matches("id: ").count(), 128);
    let done = site.apply(&text.replace("{csrf: {key: $env://STILLGATE_NOT_SET_ANYWHERE}}", "{}"), &[]).expect(0);
    assert_eq!(done.summary(), "172 created, 0 changed, 0 deleted, 128 unchanged");
}

/// A guard moves in an etcd, and the second batch is refused: what was guarded before and is guarded in the file stays so.
#[test]
fn no_guard_is_missing_between_batches() {
    let node = Upstream::echo();
    let upstream = json!({"type": "roundrobin", "nodes": {node.addr().to_string(): 1}});
    let guard = || json!({"key-auth": {}});
    let consumers = |count: usize| {
        let consumer =
            |id: usize| json!({"username": format!("c{id}"), "plugins": {"key-auth": {"key": format!("key-of-{id}")}}});
        (0..count).map(consumer).collect::<Vec<_>>()
    };
    let routes = |more: Json| {
        let route = |id: usize| {
            let mut route = json!({"id": format!("r{id:03}"), "uri": format!("/{id}/*"), "upstream": upstream});
            route.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            route
        };
        (0..200).map(route).collect::<Vec<_>>()
    };
    let rule = |id: &str| json!([{"id": id, "plugins": guard()}]);
    let config = |plugins: Json| json!([{"id": "p", "plugins": plugins}]);
    let guarded = |more: Json| {
        let mut routes = routes(more);
        routes.iter_mut().for_each(|route| route["plugins"] = guard());
        // What is not set on the gateway's machine cannot be checked in a file.
        routes.push(json!({"id": "z", "uri": "/z", "plugins": {"csrf": {"key": "$env://STILLGATE_NOT_SET_ANYWHERE"}}}));
        routes
    };
    let bad = || guarded(json!({})).pop().unwrap();
    let mut with_bad = routes(json!({}));
    with_bad.push(bad());
    let service = |plugins: Json| json!([{"id": "s", "plugins": plugins}]);
    let etcd = EtcdServer::start();
    for (index, (what, before, after)) in [
        (
            "from a global rule to routes",
            json!({"global_rules": rule("1"), "routes": routes(json!({}))}),
            json!({"routes": guarded(json!({}))}),
        ),
        (
            "from a plugin config to routes",
            json!({"plugin_configs": config(guard()), "routes": routes(json!({"plugin_config_id": "p"}))}),
            json!({"plugin_configs": config(json!({"cors": {}})), "routes": guarded(json!({"plugin_config_id": "p"}))}),
        ),
        (
            "to a global rule with another id",
            json!({"global_rules": rule("1"), "routes": routes(json!({}))}),
            json!({"global_rules": rule("auth"), "consumers": consumers(200), "routes": with_bad}),
        ),
        (
            "from a service to routes",
            json!({"services": service(guard()), "routes": routes(json!({"service_id": "s"}))}),
            json!({"services": service(json!({})), "routes": guarded(json!({"service_id": "s"}))}),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let site = Site::on_etcd(&etcd, &format!("/apisix{index}"));
        site.apply(&as_file(&before), &[]).expect(0);
        let refused = site.apply(&as_file(&after), &["--prune"]).expect(1);
        assert!(refused.err.contains("stopped: 128 of "), "{what}: {refused:?}");
        for target in ["/0/", "/199/"] {
            assert_eq!(site.gateway.get(target).head.status(), 401, "{what}: {target}");
        }
        let text = as_file(&after)
            .replace("$$env://STILLGATE_NOT_SET_ANYWHERE", "a-key")
            .replace("$env://STILLGATE_NOT_SET_ANYWHERE", "a-key");
        site.apply(&text, &["--prune"]).expect(0);
        assert_eq!(site.gateway.get("/199/").head.status(), 401, "{what}");
    }
}

#[test]
fn what_cannot_be_used_says_so() {
    let site = Site::new();
    let file = site.file("good.yaml", "routes: []\n");
    let good = file.display().to_string();
    let check = |key: &str, arguments: &[&str], code: i32, expected: &str| {
        let done = run(key, arguments).expect(code);
        assert!(done.err.contains(expected), "{arguments:?}: {done:?}");
    };
    let url = site.url();
    for command in ["apply", "diff"] {
        check("wrong", &[command, &good, "--to", url], 1, "401: wrong apikey; set another admin key with");
        check("", &[command, &good, "--to", url], 1, "401: missing apikey; set the admin key with");
        check(KEY, &[command, "/nowhere/x.yaml", "--to", url], 2, "cannot read /nowhere/x.yaml");
        check(KEY, &[command, &good, "--to", "127.0.0.1:1"], 2, "not an http or https URL");
        check(KEY, &[command, &good, "--to", url, "--ca", "/nowhere.pem"], 0, "");
    }
    let closed = format!("http://{}", ReservedPort::new().addr());
    check(KEY, &["export", "--from", &closed], 1, "is a gateway running there");
    check(KEY, &["export", "--from", "/nowhere/config.redb"], 2, "/nowhere/config.redb: No such file");
    check(KEY, &["export", "--from", &good], 2, "not a store of Stillgate");
    let wrong = site.file("wrong.yaml", "routes:\n  - {id: 1, uri: /a, upstream_id: none}\n  - {id: 2, urri: /a}\n");
    let wrong = wrong.display().to_string();
    check(KEY, &["apply", &wrong, "--to", url], 1, "wrong.yaml:2:");
    check(KEY, &["apply", &wrong, "--to", url], 1, "wrong.yaml:3:");
    let of_file = Site::with("config: {source: file}");
    check(KEY, &["apply", &good, "--to", of_file.url()], 1, "come from its file");
}

#[test]
fn a_part_refers_to_what_the_gateway_has() {
    let (site, node) = (Site::new(), Upstream::echo());
    site.apply(&all_kinds(&node), &[]).expect(0);
    let part = "routes:\n  - {id: part, uri: /part, upstream_id: main, plugin_config_id: 1}\n\
                consumers:\n  - {username: lily, group_id: gold, plugins: {key-auth: {key: lilys-key}}}\n";
    let done = site.apply(part, &[]).expect(0);
    assert!(
        done.summary().starts_with("2 created, 0 changed, 0 deleted, 0 unchanged; 13 resources not in"),
        "{done:?}"
    );
    assert_eq!(site.gateway.get("/part").head.status(), 200);
    site.run("diff", &site.path("apply.yaml"), &[]).expect(3);
    let pruned = site.apply(part, &["--prune"]).expect(1);
    assert!(pruned.err.contains("apply.yaml:2:"), "{pruned:?}");
    assert!(pruned.err.contains("there is no upstream with the id \"main\""), "{pruned:?}");
    let neither = site.apply("routes: [{id: x, uri: /x, upstream_id: neither}]\n", &[]).expect(1);
    assert!(neither.err.contains("there is no upstream with the id \"neither\""), "{neither:?}");
}

/// A position in a file is the id of whatever else the gateway has under that number.
#[test]
fn resources_without_an_id_are_refused() {
    let (site, node) = (Site::new(), Upstream::echo());
    let node = node.addr();
    let guard = format!(
        "global_rules:\n  - {{id: 1, plugins: {{ip-restriction: {{whitelist: [10.0.0.0/8]}}}}}}\n\
         routes:\n  - {{id: 1, uri: /hello, upstream: {{nodes: {{\"{node}\": 1}}}}}}\n"
    );
    site.apply(&guard, &[]).expect(0);
    let before = site.export();
    let team = format!(
        "upstreams: [{{nodes: {{\"{node}\": 1}}}}]\n\
         routes:\n  - {{id: own, uri: /own, upstream: {{nodes: {{\"{node}\": 1}}}}}}\n  \
         - {{uri: /hello, upstream: {{nodes: {{\"{node}\": 1}}}}}}\n\
         global_rules: [{{plugins: {{cors: {{}}}}}}]\n"
    );
    let file = site.file("team.yaml", &team);
    let arguments: [(&str, &[&str]); 4] =
        [("apply", &[]), ("apply", &["--prune"]), ("apply", &["--dry-run"]), ("diff", &[])];
    for (command, more) in arguments {
        let refused = site.run(command, &file, more).expect(1);
        for expected in [
            "team.yaml:1:13: upstreams[0]: it has no id, and its position would make it upstreams/1 of the gateway; \
             give it an `id`",
            "team.yaml:4:5: routes[1]: it has no id, and its position would make it routes/2 of the gateway",
            "team.yaml:5:16: global_rules[0]: it has no id, and its position would make it global_rules/1",
        ] {
            assert!(refused.err.contains(expected), "{command} {more:?}: {expected}: {refused:?}");
        }
        assert!(!refused.err.contains("routes[0]"), "{refused:?}");
    }
    assert_eq!(site.export(), before);
    assert_eq!(site.gateway.get("/hello").head.status(), 403);
    // The file's own gateway has nobody else's resources.
    run("", &["check", "--offline", &file.display().to_string()]).expect(0);
    let named = "routes:\n  - {id: team, uri: /team, status: 1, upstream_id: team}\n\
                 upstreams:\n  - {id: team, nodes: {\"127.0.0.1:9\": 1}}\n";
    let done = site.apply(named, &[]).expect(0);
    assert!(done.summary().starts_with("2 created, 0 changed, 0 deleted"), "{done:?}");
}

#[test]
fn a_store_is_copied_and_read_offline() {
    let (mut site, node) = (Site::new(), Upstream::echo());
    site.apply(&all_kinds(&node), &[]).expect(0);
    let exported = resources(&site.export());
    let store = site.gateway.dir().join("config.redb").display().to_string();
    let copy = site.path("copy.redb").display().to_string();
    let offline = |from: &str| run("", &["export", "--from", from, "--secrets"]);
    assert!(offline(&store).expect(1).err.contains("a gateway has the store open"));
    run(KEY, &["store", "backup", &copy, "--store", &store, "--to", site.url()]).expect(0);
    assert_eq!(resources(&offline(&copy).expect(0).out), exported);
    let viewer = run("wrong", &["store", "backup", &copy, "--to", site.url()]).expect(1);
    assert!(viewer.err.contains("401"), "{viewer:?}");
    let other = Site::new();
    let foreign = run(KEY, &["store", "backup", &copy, "--store", &store, "--to", other.url()]).expect(1);
    assert!(foreign.err.contains("another gateway"), "{foreign:?}");

    site.gateway.signal("TERM");
    site.gateway.wait();
    let second = site.path("second.redb").display().to_string();
    let before = std::fs::read(&store).expect("the store");
    run("", &["store", "backup", &second, "--store", &store]).expect(0);
    for file in [&store, &second] {
        assert_eq!(resources(&offline(file).expect(0).out), exported);
    }
    assert!(std::fs::read(&store).expect("the store") == before, "who only reads it writes nothing to it");
    let empty = site.file("empty.redb", "").display().to_string();
    assert!(offline(&empty).expect(2).err.contains("the file is empty, so it is not a store"));
    assert_eq!(std::fs::read(&empty).expect("the file"), b"");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&copy).expect("the copy").permissions());
    assert_eq!(mode & 0o777, 0o600);
    let left = std::fs::read_dir(site.gateway.dir()).expect("the folder").flatten();
    let left: Vec<_> =
        left.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().contains("backup")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn random_configurations_come_back_as_they_were() {
    let site = Site::new();
    for seed in 0..if is_nightly() { 40 } else { 5 } {
        let lists = random(seed);
        let applied = site.apply(&as_file(&lists), &["--prune"]).expect(0);
        let exported = site.export();
        let file = site.file("exported.yaml", &exported);
        site.run("diff", &file, &[]).expect(0);
        let again = site.run("apply", &file, &["--prune"]).expect(0);
        assert!(again.summary().starts_with("0 created, 0 changed, 0 deleted"), "seed {seed}: {again:?} {applied:?}");
        site.run("diff", &site.path("apply.yaml"), &[]).expect(0);
        assert_eq!(resources(&site.export()), resources(&exported), "seed {seed}");
    }
}

/// Upstreams, services, consumers and routes with texts that are hard to write.
fn random(seed: u64) -> Json {
    const TEXTS: [&str; 14] = [
        "plain",
        "null",
        "1.0",
        "yes",
        "a: b",
        "# no comment",
        "it's \"quoted\"",
        "${NOT_SET}",
        "$${x}",
        "é\u{2028}中",
        "two\nlines\n",
        " space ",
        "tab\tand\\",
        "-",
    ];
    let mut next = seeded(seed + 1);
    let mut below = move |count: usize| usize::try_from(next() % count as u64).expect("small");
    let mut text = {
        let mut counter = 0;
        move |pick: usize| {
            counter += 1;
            if counter % 5 == 0 { format!("text {counter}") } else { TEXTS[pick].to_owned() }
        }
    };
    let upstreams = 1 + below(4);
    let upstream = |id: usize, name: String, weight: usize| json!({"id": format!("u{id}"), "name": name, "nodes": {"127.0.0.1:9": weight}});
    let mut lists = json!({"upstreams": [], "services": [], "consumers": [], "routes": []});
    let mut add = |list: &str, item: Json| lists[list].as_array_mut().expect("a list").push(item);
    for id in 0..upstreams {
        add("upstreams", upstream(id, text(below(TEXTS.len())), below(3)));
    }
    for id in 0..below(4) {
        add(
            "services",
            json!({"id": id + 1, "desc": text(below(TEXTS.len())), "upstream_id": format!("u{}", below(upstreams))}),
        );
    }
    for id in 0..below(5) {
        let credentials: Vec<Json> = (0..below(3))
            .map(|n| json!({"id": format!("c{n}"), "plugins": {"key-auth": {"key": format!("k-{id}-{n}")}}}))
            .collect();
        add(
            "consumers",
            json!({"username": format!("user{id}"), "desc": text(below(TEXTS.len())), "credentials": credentials}),
        );
    }
    for id in 0..below(200) {
        // Labels have no blanks, as in APISIX.
        let label: String = text(below(TEXTS.len())).split_whitespace().collect();
        let labels = json!({"k e:y": label, "${k}": "v", "${{K}} ${k}": "yes"});
        let mut route =
            json!({"id": format!("r{id}"), "uri": format!("/{id}/*"), "labels": labels, "priority": below(2)});
        match below(3) {
            0 => route["upstream"] = json!({"nodes": [{"host": "a.example", "port": 80, "weight": below(9)}]}),
            _ => route["upstream_id"] = format!("u{}", below(upstreams)).into(),
        }
        if below(4) == 0 {
            route["plugins"] =
                json!({"response-rewrite": {"body": text(below(TEXTS.len())), "headers": {"set": {"X-A": "b"}}}});
        }
        add("routes", route);
    }
    lists
}

/// Several checks find the same, and each change of something else is a reason to check again.
#[test]
fn a_warning_is_said_once_and_blames_no_file() {
    let authority = Authority::new();
    authority.issue("other", &["other.example"]);
    let pem = |name: &str| {
        let text = std::fs::read_to_string(authority.dir().join(name)).expect("a file of the authority");
        serde_json::to_string(&text).expect("a text is JSON")
    };
    let site = Site::new();
    let text = format!(
        "upstreams: [{{id: u, nodes: {{\"{}\": 1}}}}]\nssls: [{{id: t, snis: [a.example], cert: {}, key: {}}}]\n\
         routes: [{{id: a, uri: /*, upstream_id: u, plugins: {{key-auth: {{}}}}}}, {{id: b, uri: /*, upstream_id: u}}]\n",
        site.gateway.addr(),
        pem("other.pem"),
        pem("other.key")
    );
    for (more, least) in [(&["--dry-run"][..], 2), (&[][..], 1)] {
        let done = site.apply(&text, more).expect(0);
        let mut lines: Vec<&str> = done.err.lines().filter(|line| line.contains("warning: ")).collect();
        assert!(lines.len() >= least, "{done:?}");
        let all = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), all, "{done:?}");
        assert!(lines.iter().all(|line| line.matches("warning: ").count() == 1), "{done:?}");
    }
    site.apply("routes: [{id: c, uri: /c, upstream_id: u}]\n", &[]).expect(0);
    let file = site.gateway.config_path().display().to_string();
    let published = || site.gateway.log().matches("configuration published").count();
    eventually("both changes in the log", || published() == 2);
    let log = site.gateway.log();
    for told in ["this gateway's own listener", "does not have the name"] {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(told)).collect();
        let [line] = lines[..] else { panic!("{told}: {lines:?}") };
        assert!(!line.contains(&file) && !line.contains("warning: "), "{line}");
    }
}

/// A few changes may have many bytes.
#[test]
fn a_hundred_large_documents_are_applied() {
    let site = Site::new();
    let long = "x".repeat(65_000);
    let plugins = json!({
        "mocking": {"response_example": long},
        "fault-injection": {"abort": {"http_status": 200, "body": long}},
    });
    let route = |id: usize| json!({"id": format!("r{id}"), "uri": format!("/{id}"), "plugins": plugins});
    let text = as_file(&json!({ "routes": (0..100).map(route).collect::<Vec<_>>() }));
    assert!(text.len() > 10_000_000);
    assert_eq!(site.apply(&text, &[]).expect(0).summary(), "100 created, 0 changed, 0 deleted, 0 unchanged");
}

#[test]
fn ten_thousand_routes_are_applied() {
    let site = Site::new();
    let route =
        |id: usize| format!("  - {{id: r{id}, uri: /{id}/*, host: h{}.example, upstream_id: main}}\n", id % 500);
    let routes: String = (0..10_000).map(route).collect();
    let text = format!("upstreams:\n  - {{id: main, nodes: {{\"127.0.0.1:9\": 1}}}}\nroutes:\n{routes}");
    let timed = |what: &str, work: &dyn Fn() -> String| {
        let began = Instant::now();
        let summary = work();
        println!("{what} of 10,000 routes: {:?}: {summary}", began.elapsed());
        summary
    };
    let apply = || site.apply(&text, &[]).expect(0).summary().to_owned();
    assert_eq!(timed("apply", &apply), "10001 created, 0 changed, 0 deleted, 0 unchanged");
    assert_eq!(timed("apply again", &apply), "0 created, 0 changed, 0 deleted, 10001 unchanged");
    timed("export", &|| site.export().lines().count().to_string());
    let prune = || site.apply("routes: []\n", &["--prune"]).expect(0).summary().to_owned();
    assert_eq!(timed("prune", &prune), "0 created, 0 changed, 10001 deleted, 0 unchanged");
}
