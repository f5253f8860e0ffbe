//! Which resource's plugins apply to a request, and in what order they run, compared with a plain model of APISIX's rules.
//!
//! The results are observed from outside: each configuration of response-rewrite and proxy-rewrite writes its position into a
//! header field.

use crate::shared::reflect::{ask, asked, check, gateway, reflecting, route};
use std::fmt::Write;
use stillgate_testkit::{Gateway, Message, Upstream};

/// A resource's statement about one plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    Nothing,
    Runs,
    Disabled,
}

const ALL: [Says; 3] = [Says::Nothing, Says::Runs, Says::Disabled];

/// The levels from the weakest to the strongest.
const LEVELS: [&str; 5] = ["service", "plugin-config", "route", "group", "consumer"];

/// The model: the strongest statement holds, as a whole; a disabled plugin does not run.
fn runs(says: [Says; 5]) -> Option<&'static str> {
    let at = says.iter().rposition(|says| *says != Says::Nothing)?;
    (says[at] == Says::Runs).then_some(LEVELS[at])
}

/// `response-rewrite` of a resource: names the resource in two fields; `X-Of` is set by all.
fn marks(level: &str, says: Says) -> String {
    let disabled = says == Says::Disabled;
    format!(
        r#""response-rewrite": {{"headers": {{"set": {{"X-Of": "{level}", "X-Of-{level}": "1"}}}}, "_meta": {{"disable": {disabled}}}}}"#
    )
}

fn plugins(of: &[String]) -> String {
    format!("{{{}}}", of.join(", "))
}

fn some(level: &str, says: Says) -> Vec<String> {
    if says == Says::Nothing { Vec::new() } else { vec![marks(level, says)] }
}

/// Every combination of what five resources can say: 27 routes, each asked by 9 consumers.
#[test]
fn the_strongest_resource_holds_whole() {
    let (mut services, mut configs, mut groups, mut consumers, mut routes) = (
        "services:\n".to_owned(),
        "plugin_configs:\n".to_owned(),
        "consumer_groups:\n".to_owned(),
        "consumers:\n".to_owned(),
        "routes:\n".to_owned(),
    );
    for (at, says) in ALL.into_iter().enumerate() {
        writeln!(
            services,
            "  - {{\"id\": \"s{at}\", \"upstream_id\": \"node\", \"plugins\": {}}}",
            plugins(&some("service", says))
        )
        .unwrap();
        writeln!(configs, "  - {{\"id\": \"c{at}\", \"plugins\": {}}}", plugins(&some("plugin-config", says))).unwrap();
        writeln!(groups, "  - {{\"id\": \"g{at}\", \"plugins\": {}}}", plugins(&some("group", says))).unwrap();
    }
    for group in 0..3 {
        for (at, says) in ALL.into_iter().enumerate() {
            let mut own = some("consumer", says);
            own.push(format!(r#""key-auth": {{"key": "k{group}{at}"}}"#));
            writeln!(
                consumers,
                "  - {{\"username\": \"u{group}{at}\", \"group_id\": \"g{group}\", \"plugins\": {}}}",
                plugins(&own)
            )
            .unwrap();
        }
    }
    for service in 0..3 {
        for config in 0..3 {
            for (at, says) in ALL.into_iter().enumerate() {
                let mut own = some("route", says);
                own.push(r#""key-auth": {}"#.to_owned());
                writeln!(
                    routes,
                    "  - {{\"id\": \"r{service}{config}{at}\", \"uri\": \"/{service}/{config}/{at}\", \"service_id\": \"s{service}\", \
                     \"plugin_config_id\": \"c{config}\", \"plugins\": {}}}",
                    plugins(&own)
                )
                .unwrap();
            }
        }
    }
    let node = reflecting();
    let mut gateway = gateway(node.addr(), &[services, configs, groups, consumers, routes].concat());
    let mut client = gateway.client();
    let mut wrong = Vec::new();
    for number in 0..3usize.pow(5) {
        let digit = |place: u32| number / 3usize.pow(place) % 3;
        let says = [0, 1, 2, 3, 4].map(|place| ALL[digit(place)]);
        let target = format!("GET /{}/{}/{}", digit(0), digit(1), digit(2));
        let response = ask(&mut client, &target, &[&format!("apikey: k{}{}", digit(3), digit(4))]);
        assert_eq!(response.head.status(), 200, "{response:?}");
        let of = response.head.get("x-of");
        let all: Vec<&str> =
            LEVELS.into_iter().filter(|level| response.head.get(&format!("x-of-{level}")).is_some()).collect();
        let expected = runs(says);
        if of != expected || all != Vec::from_iter(expected) {
            wrong.push(format!("{says:?}: expected {expected:?}, got {of:?} and {all:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    gateway.assert_healthy();
}

/// The route's plugins have run in `rewrite` when the consumer becomes known: its own run where the route has none of that name.
#[test]
fn a_consumers_rewrite_runs_after_authentication_where_the_route_has_none() {
    let set = |of: &str| {
        format!(r#""proxy-rewrite": {{"headers": {{"set": {{"X-Of": "{of}", "X-Of-{of}": "$consumer_name"}}}}}}"#)
    };
    let resources = [
        "consumers:\n".to_owned(),
        format!(
            "  - {{\"username\": \"plain\", \"plugins\": {{\"key-auth\": {{\"key\": \"plain\"}}, {}}}}}\n",
            set("consumer")
        ),
        "  - {\"username\": \"grouped\", \"group_id\": \"g\", \"plugins\": {\"key-auth\": {\"key\": \"grouped\"}}}\n"
            .to_owned(),
        format!("consumer_groups:\n  - {{\"id\": \"g\", \"plugins\": {{{}}}}}\n", set("group")),
        "routes:\n".to_owned(),
        route("/bare", r#"{"key-auth": {}}"#),
        route("/own", &format!(r#"{{"key-auth": {{}}, {}}}"#, set("route"))),
        route("/open", &format!("{{{}}}", set("route"))),
    ];
    let node = reflecting();
    let gateway = gateway(node.addr(), &resources.concat());
    let mut client = gateway.client();
    let mut of = |start: &str, key: &str| {
        let head = asked(&ask(&mut client, start, &[&format!("apikey: {key}")]));
        (head.all("x-of").join("|"), head.get("x-consumer-username").unwrap_or("").to_owned(), head)
    };
    for (start, key, expected, name) in [
        ("GET /bare", "plain", "consumer", "plain"),
        ("GET /bare", "grouped", "group", "grouped"),
        ("GET /own", "plain", "route", "plain"),
        ("GET /own", "grouped", "route", "grouped"),
        ("GET /open", "plain", "route", ""),
    ] {
        let (of, username, head) = of(start, key);
        assert_eq!((&*of, &*username), (expected, name), "{start} by {key}: {head:?}");
    }
    // It knows whose it is.
    assert_eq!(of("GET /bare", "plain").2.get("x-of-consumer"), Some("plain"));
}

/// A client's own claims do not count: it cannot say who it is.
#[test]
fn a_client_cannot_say_who_it_is() {
    let resources = [
        "consumers:\n  - {\"username\": \"plain\", \"plugins\": {\"key-auth\": {\"key\": \"plain\"}}}\n",
        "  - {\"username\": \"labelled\", \"labels\": {\"custom_id\": \"c-7\"}, \"credentials\": [{\"id\": \"first\", \"plugins\": {\"key-auth\": {\"key\": \"second\"}}}]}\n",
        "routes:\n",
        &route("/a", r#"{"key-auth": {}}"#),
    ];
    let node = reflecting();
    let gateway = gateway(node.addr(), &resources.concat());
    let mut client = gateway.client();
    let mut told = |key: &str| {
        let lines = [
            &*format!("apikey: {key}"),
            "X-Consumer-Username: root",
            "X-Credential-Identifier: root",
            "x-consumer-custom-id: root",
        ];
        let head = asked(&ask(&mut client, "GET /a", &lines));
        ["x-consumer-username", "x-credential-identifier", "x-consumer-custom-id"].map(|name| head.all(name).join("|"))
    };
    assert_eq!(told("plain"), ["plain", "", ""]);
    assert_eq!(told("second"), ["labelled", "first", "c-7"]);
}

struct Gate {
    _node: Upstream,
    gateway: Gateway,
}

impl Gate {
    fn of(resources: &[String]) -> Gate {
        let node = reflecting();
        let gateway = gateway(node.addr(), &resources.concat());
        Gate { _node: node, gateway }
    }

    #[track_caller]
    fn ask(&self, start: &str, lines: &[&str]) -> Message {
        ask(&mut self.gateway.client(), start, lines)
    }
}

const CONSUMER: &str = "consumers:\n  - {\"username\": \"jack\", \"plugins\": {\"key-auth\": {\"key\": \"jacks\"}}}\n";

#[test]
fn priorities_order_a_list() {
    let rewrite = |meta: &str| {
        format!(
            r#"{{"cors": {{"allow_origins": "https://a.example"}}, "response-rewrite": {{"headers": {{"set": {{"Access-Control-Max-Age": "rewritten"}}}}{meta}}}}}"#
        )
    };
    let gate = Gate::of(&[
        CONSUMER.to_owned(),
        "routes:\n".to_owned(),
        route("/usual", r#"{"cors": {}, "key-auth": {}}"#),
        route("/turned", r#"{"cors": {"_meta": {"priority": 2499}}, "key-auth": {}}"#),
        route("/turned-too", r#"{"cors": {}, "key-auth": {"_meta": {"priority": 4001}}}"#),
        route("/headers", &rewrite("")),
        route("/headers-turned", &rewrite(r#", "_meta": {"priority": 4001}"#)),
    ]);
    // cors (4000) answers a preflight before key-auth (2500) requires a key.
    assert_eq!(gate.ask("OPTIONS /usual", &[]).head.status(), 200);
    assert_eq!(gate.ask("GET /usual", &[]).head.status(), 401);
    assert_eq!(gate.ask("OPTIONS /turned", &[]).head.status(), 401);
    assert_eq!(gate.ask("OPTIONS /turned-too", &[]).head.status(), 401);
    assert_eq!(gate.ask("OPTIONS /turned-too", &["apikey: jacks"]).head.status(), 200);
    let age = |path: &str| gate.ask(path, &["Origin: https://a.example"]).head.all("access-control-max-age").join("|");
    assert_eq!(age("GET /headers"), "rewritten");
    assert_eq!(age("GET /headers-turned"), "5");
}

/// Whatever their priorities; `_meta.priority` sorts within one list.
#[test]
fn global_rules_run_before_the_route() {
    let rewrite = |of: &str, meta: &str| {
        format!(
            r#"{{"proxy-rewrite": {{"headers": {{"set": {{"X-Of": "{of}"}}}}{meta}}}, "response-rewrite": {{"headers": {{"set": {{"X-Of": "{of}"}}}}{meta}}}}}"#
        )
    };
    let gate = Gate::of(&[
        format!(
            "global_rules:\n  - {{\"id\": \"last\", \"plugins\": {}}}\n",
            rewrite("global", r#", "_meta": {"priority": -9}"#)
        ),
        "routes:\n".to_owned(),
        route("/bare", "{}"),
        route("/own", &rewrite("route", "")),
        route("/own-first", &rewrite("route", r#", "_meta": {"priority": 9999}"#)),
    ]);
    let of = |path: &str| {
        let response = gate.ask(path, &["X-Of: client"]);
        (asked(&response).all("x-of").join("|"), response.head.all("x-of").join("|"))
    };
    let both = |of: &str| (of.to_owned(), of.to_owned());
    assert_eq!(of("GET /bare"), both("global"));
    assert_eq!(of("GET /own"), both("route"));
    assert_eq!(of("GET /own-first"), both("route"));
}

/// Global rules run without a route, too, and see our local reply.
#[test]
fn global_rules_run_without_a_route() {
    let gate = Gate::of(&[
        CONSUMER.to_owned(),
        "global_rules:\n  - {\"id\": \"1\", \"plugins\": {\"key-auth\": {}}}\n  - {\"id\": \"2\", \"plugins\": {\"response-rewrite\": {\"headers\": {\"set\": {\"X-Global\": \"$status\"}}}}}\n".to_owned(),
        "routes:\n".to_owned(),
        route("/there", "{}"),
    ]);
    let response = gate.ask("GET /nowhere", &[]);
    assert_eq!((response.head.status(), response.head.get("x-global")), (401, Some("401")), "{response:?}");
    let response = gate.ask("GET /nowhere", &["apikey: jacks"]);
    assert_eq!((response.head.status(), response.head.get("x-global")), (404, Some("404")), "{response:?}");
    assert_eq!(response.body, b"{\"error_msg\":\"404 Route Not Found\"}\n");
    let response = gate.ask("GET /there", &["apikey: jacks"]);
    assert_eq!((response.head.status(), response.head.get("x-global")), (200, Some("200")), "{response:?}");
}

#[test]
fn an_error_response_takes_the_place_of_a_body() {
    let key_auth = |meta: &str| format!(r#"{{"key-auth": {{"_meta": {{"error_response": {meta}}}}}}}"#);
    let gate = Gate::of(&[
        CONSUMER.to_owned(),
        "routes:\n".to_owned(),
        route("/text", &key_auth(r#""no key, no entry""#)),
        route("/empty", &key_auth(r#""""#)),
        route("/object", &key_auth(r#"{"code": 7, "why": {"key": "none \"given\""}}"#)),
        route(
            "/limit",
            r#"{"limit-count": {"count": 1, "time_window": 600, "rejected_code": 429, "rejected_msg": "slow", "_meta": {"error_response": {"slow": "down"}}}}"#,
        ),
        route("/preflight", r#"{"cors": {"_meta": {"error_response": "never seen"}}}"#),
    ]);
    let answer = |start: &str| {
        let response = gate.ask(start, &[]);
        (response.head.status(), String::from_utf8(response.body).unwrap())
    };
    assert_eq!(answer("GET /text"), (401, "no key, no entry".to_owned()));
    assert_eq!(answer("GET /empty"), (401, String::new()));
    let (status, body) = answer("GET /object");
    assert_eq!(status, 401);
    let json: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(json, serde_json::json!({"code": 7, "why": {"key": "none \"given\""}}));
    assert_eq!(answer("GET /limit").0, 200);
    assert_eq!(answer("GET /limit"), (429, "{\"slow\":\"down\"}\n".to_owned()));
    let (status, body) = answer("OPTIONS /preflight");
    assert_eq!((status, body.contains("never seen")), (200, false), "an answer below 400 stays");
}

/// A plugin that guards runs in its own phase; a filter that does not hold lets the request pass it.
#[test]
fn a_filter_decides_in_every_phase() {
    let filtered = |plugin: &str, keys: &str| {
        format!(r#"{{"{plugin}": {{{keys}"_meta": {{"filter": [["arg_run", "==", "1"]]}}}}}}"#)
    };
    let gate = Gate::of(&[
        CONSUMER.to_owned(),
        "routes:\n".to_owned(),
        route("/auth", &filtered("key-auth", "")),
        route("/limit", &filtered("limit-count", r#""count": 1, "time_window": 600, "rejected_code": 429, "#)),
        route("/rewrite", &filtered("proxy-rewrite", r#""uri": "/rewritten", "#)),
        route("/cors", &filtered("cors", "")),
        route(
            "/status",
            r#"{"response-rewrite": {"headers": {"set": {"X-Runs": "1"}}, "_meta": {"filter": [["status", "==", 404]]}}}"#,
        ),
        route(
            "/or",
            r#"{"key-auth": {"_meta": {"filter": ["OR", ["arg_run", "==", "1"], ["http_x_run", "~~", "^y"]]}}}"#,
        ),
        route("/none", r#"{"key-auth": {"_meta": {"filter": []}}}"#),
    ]);
    let status = |start: &str, lines: &[&str]| gate.ask(start, lines).head.status();
    assert_eq!(status("GET /auth?run=1", &[]), 401);
    assert_eq!(status("GET /auth?run=2", &[]), 200);
    assert_eq!([1; 3].map(|_| status("GET /limit", &[])), [200; 3]);
    assert_eq!([1; 3].map(|_| status("GET /limit?run=1", &[])), [200, 429, 429]);
    let target = |start: &str| asked(&gate.ask(start, &[])).start;
    assert_eq!(target("GET /rewrite?run=1"), "GET /rewritten?run=1 HTTP/1.1");
    assert_eq!(target("GET /rewrite?run=0"), "GET /rewrite?run=0 HTTP/1.1");
    let origin = |start: &str| gate.ask(start, &[]).head.get("access-control-allow-origin").map(str::to_owned);
    assert_eq!(origin("GET /cors?run=1"), Some("*".to_owned()));
    assert_eq!(origin("GET /cors"), None);
    let runs = |start: &str| gate.ask(start, &[]).head.get("x-runs").is_some();
    assert!(runs("GET /status?status=404"));
    assert!(!runs("GET /status?status=403"));
    assert_eq!(status("GET /or?run=1", &[]), 401);
    assert_eq!(status("GET /or", &["X-Run: yes"]), 401);
    assert_eq!(status("GET /or", &["X-Run: no"]), 200);
    assert_eq!(status("GET /none", &[]), 401);
}

/// A reference to something that does not exist is refused, and named.
#[test]
fn what_is_missing_is_refused() {
    let refused = |resources: &str, names: &[&str]| {
        let (good, text) = check(resources);
        assert!(!good, "taken: {resources}");
        for name in names {
            assert!(text.contains(name), "{name:?} is not in: {text}");
        }
    };
    let routes =
        |keys: &str| format!("routes:\n  - {{\"id\": \"r\", \"uri\": \"/\", \"upstream_id\": \"node\"{keys}}}\n");
    refused(&routes(r#", "plugin_config_id": "nowhere""#), &["routes[0].plugin_config_id", "nowhere"]);
    refused(
        &format!(
            "consumers:\n  - {{\"username\": \"u\", \"group_id\": \"nowhere\", \"plugins\": {{}}}}\n{}",
            routes("")
        ),
        &["consumers[0].group_id", "nowhere"],
    );
    refused(&routes(r#", "plugins": {"key-atuh": {}}"#), &["key-atuh", "key-auth"]);
    refused(&routes(r#", "plugins": {"key-auth": {"_meta": {"prioritiy": 1}}}"#), &["_meta.prioritiy", "priority"]);
    refused(&routes(r#", "filter_func": "function(vars""#), &["routes[0].filter_func", "failed to load 'filter_func'"]);
    refused(&routes(r#", "filter_func": "17""#), &["routes[0].filter_func", "should be a function"]);
    refused(
        &routes(r#", "plugins": {"key-auth": {"_meta": {"pre_function": "return function( end"}}}"#),
        &["routes[0].plugins.key-auth._meta.pre_function", ":1: ", "expected"],
    );
    refused(
        &routes(r#", "plugins": {"key-auth": {"_meta": {"filter": [["nothing_like_it", "==", "1"]]}}}"#),
        &["filter"],
    );
    refused(&routes(r#", "plugins": {"limit-count": {"count": 0, "time_window": 1}}"#), &["count"]);
    refused(
        &format!(
            "consumers:\n  - {{\"username\": \"u\", \"plugins\": {{\"key-auth\": {{\"key\": \"same\"}}}}}}\n  - {{\"username\": \"v\", \"plugins\": {{\"key-auth\": {{\"key\": \"same\"}}}}}}\n{}",
            routes("")
        ),
        &["consumers[1]", "\"u\""],
    );
}

/// APISIX would leave the plugin out of both, so that a second rule could switch off what the first guards. Here the first keeps it.
#[test]
fn of_two_global_rules_with_one_plugin_the_first_keeps_it() {
    let rules = "global_rules:\n  - {\"id\": \"one\", \"plugins\": {\"key-auth\": {\"realm\": \"one\"}}}\n  - {\"id\": \"two\", \"plugins\": {\"key-auth\": {\"realm\": \"two\"}, \"cors\": {}}}\n";
    let resources = [CONSUMER.to_owned(), rules.to_owned(), "routes:\n".to_owned(), route("/a", "{}")];
    let (good, said) = check(&resources.concat());
    assert!(good && said.contains("global_rules[1].plugins.key-auth") && said.contains("\"one\""), "{said}");
    let gate = Gate::of(&resources);
    let response = gate.ask("GET /a", &[]);
    assert_eq!((response.head.status(), response.head.get("www-authenticate")), (401, Some("apikey realm=\"one\"")));
    assert_eq!(response.head.get("access-control-allow-origin"), Some("*"), "the rest of the second rule holds");
}
