//! `GET /v1/slow`: the slowest requests with where their time went, switched on and off by a reload.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::shared::STILLGATE;
use serde_json::Value as Json;
use std::thread;
use std::time::{Duration, Instant};
use stillgate_testkit::{
    BufferedSocket, Client, Gateway, Setup, Upstream, eventually, eventually_within, with_longer_times,
};

/// How long the node takes at first. Far more than everything else, unless the machine holds up the gateway.
const SLOW: Duration = Duration::from_millis(800);

fn slow(gateway: &Gateway) -> (u16, Json) {
    page(gateway, "/v1/slow")
}

fn page(gateway: &Gateway, path: &str) -> (u16, Json) {
    let answer = Client::connect(gateway.admin_addr()).get(path);
    (answer.head.status(), serde_json::from_slice(&answer.body).unwrap())
}

/// The slow request with this path, as soon as it is listed.
fn told(gateway: &Gateway, path: &str) -> Json {
    let mut found = Json::Null;
    eventually(&format!("{path} to be told"), || {
        let (_, told) = slow(gateway);
        let minutes = told["minutes"].as_array().unwrap().clone();
        let all = minutes.iter().flat_map(|minute| minute["requests"].as_array().unwrap().clone());
        found = all.into_iter().find(|request| request["path"] == path).unwrap_or_default();
        !found.is_null()
    });
    found
}

fn ask(gateway: &Gateway, target: &str) -> Client {
    let mut client = gateway.client();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n"));
    client
}

fn answer(node: &mut BufferedSocket, slow: Duration) {
    node.expect_request();
    thread::sleep(slow);
    node.send("HTTP/1.1 204 No Content\r\n\r\n");
}

#[test]
fn slow_requests_are_reported_with_their_cause_while_that_is_switched_on() {
    let upstream = Upstream::bind();
    let setup = Setup::to(upstream.addr()).upstream("limits: {requests: 1, queue: 4, queue_timeout: 1h}\nretries: 0");
    let on = setup.clone().gateway("debug: {slow: true}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let (status, said) = slow(&gateway);
    assert!(status == 404 && said["error_msg"].as_str().unwrap().contains("set gateway.debug.slow"), "{said}");
    gateway.reload(&on);
    assert_eq!(slow(&gateway).0, 200);

    let mut node = None;
    with_longer_times(SLOW, "a node that takes most of the time", |slow| {
        check_causes(&gateway, &upstream, &mut node, slow)
    });

    gateway.reload(&setup);
    assert_eq!(slow(&gateway).0, 404);
}

/// Two requests: the first waits for the node, and the second for the first. False: the machine took more time than the node.
fn check_causes(gateway: &Gateway, upstream: &Upstream, node: &mut Option<BufferedSocket>, slow: Duration) -> bool {
    let [first, second] = ["first", "second"].map(|name| format!("/{name}-{}", slow.as_millis()));
    let mut asked = ask(gateway, &format!("{first}?token=secret"));
    let node = node.get_or_insert_with(|| upstream.accept());
    let mut waits = ask(gateway, &second);
    eventually("it to wait", || page(gateway, "/v1/upstreams").1["upstreams"][0]["requests_waiting"] == 1);
    answer(node, slow);
    assert_eq!(asked.expect_response("GET").head.status(), 204);
    node.expect_request();
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(waits.expect_response("GET").head.status(), 200);

    let ms = |of: &Json, name: &str| of[name].as_f64().unwrap();
    let slow_ms = slow.as_secs_f64() * 1000.0;
    let (first, second) = (told(gateway, &first), told(gateway, &second));
    assert_eq!((&first["status"], &first["method"]), (&204.into(), &"GET".into()));
    assert_eq!((&first["worker"], &first["node"]), (&0.into(), &upstream.addr().to_string().into()));
    assert!(!first.to_string().contains("secret"), "{first}");
    assert!(ms(&first, "node_ms") >= slow_ms && ms(&first, "took_ms") >= ms(&first, "node_ms"), "{first}");
    assert!(
        ms(&second, "queued_ms") > slow_ms / 2.0 && ms(&second, "before_ms") >= ms(&second, "queued_ms"),
        "{second}"
    );
    let is_told = first["cause"] == "node" && second["cause"] == "queue";
    assert!(
        is_told || ms(&first, "took_ms") > 2.0 * slow_ms || ms(&second, "took_ms") > 2.0 * slow_ms,
        "{first} {second}"
    );
    is_told
}

/// A function in Lua that computes blocks the worker's event loop. Each request that had to wait is listed with its stack.
#[test]
fn what_a_plugin_blocked_the_event_loop_with_is_reported() {
    let upstream = Upstream::echo();
    let function =
        "return function() local sum = 0 for at = 1, 1e7 do sum = (function() return sum + at % 7 end)() end end";
    let plugin = format!("plugins: {{serverless-pre-function: {{phase: access, functions: [{function:?}]}}}}");
    let setup = Setup::to(upstream.addr()).route("uri: /*").route(&plugin).gateway("debug: {slow: true}\nworkers: 1");
    let gateway = Gateway::start(STILLGATE, &setup);
    // The first may come before the list is read, and without optimisation everything done with a stack takes long.
    let (mut told_of, mut next) = (Json::Null, Instant::now());
    eventually_within(Duration::from_secs(600), "a turn with its stack", || {
        if Instant::now() >= next {
            // It is stopped after 50 ms, and answered with an error.
            let _ = ask(&gateway, "/stalled").read_response("GET");
            next = Instant::now() + Duration::from_secs(4);
        }
        thread::sleep(Duration::from_millis(100));
        let told = slow(&gateway).1["minutes"].as_array().unwrap().clone();
        let mut requests = told.iter().flat_map(|minute| minute["requests"].as_array().unwrap());
        told_of = requests.find_map(|request| request["turns"].get(0)).cloned().unwrap_or_default();
        !told_of.is_null()
    });
    assert!(told_of["took_ms"].as_f64().unwrap() >= 20.0, "{told_of}");
    let stacks = told_of["stacks"].as_array().unwrap();
    let has_plugin = |stack: &Json| stack["route"].is_string() && stack["plugin"] == "serverless-pre-function";
    assert!(stacks.iter().any(has_plugin), "{told_of:#}");
    let mut frames = stacks.iter().flat_map(|stack| stack["frames"].as_array().unwrap());
    let of_lua = |frame: &&Json| frame.as_str().unwrap().contains("lj_func_newL_gc");
    let frame = frames.find(of_lua).unwrap_or_else(|| panic!("{told_of:#}")).as_str().unwrap();
    let (file, line) = frame.rsplit_once(' ').unwrap().1.rsplit_once(':').unwrap();
    assert!(file.ends_with("lj_func.c") && line.parse::<u32>().unwrap() > 0, "{frame}");
}
