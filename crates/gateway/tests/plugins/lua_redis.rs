//! `resty.redis` with a real Redis, and with servers that stall, close and send nonsense.

use crate::lua::{pre, text};
use crate::shared::STILLGATE;
use crate::shared::reflect::{ask, reflecting, setup};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use stillgate_testkit::{Gateway, Redis, RedisSetup, ReservedPort, eventually};

/// A gateway of one worker with these functions, each as the body of one in `access` that has a client `red` and answers by `told`.
fn started(functions: &[(&str, &str)]) -> (stillgate_testkit::Upstream, Gateway) {
    let node = reflecting();
    let routes = functions.iter().map(|(uri, body)| {
        let source = format!(
            "return function(conf, ctx)
                local function told(...) ngx.say(require('cjson').encode({{ ... }})) end
                local red = require('resty.redis'):new()
                {body}
            end"
        );
        pre(uri, "access", &source)
    });
    let resources = format!("routes:\n{}", routes.collect::<String>());
    let gateway = Gateway::start(STILLGATE, &setup(node.addr(), &resources).gateway("workers: 1"));
    (node, gateway)
}

fn get(gateway: &Gateway, target: &str) -> String {
    let response = ask(&mut gateway.client(), &format!("GET {target}"), &[]);
    format!("{} {}", response.head.status(), text(&response).trim_end())
}

fn connect(at: SocketAddr, options: &str) -> String {
    format!(
        "local ok, why = red:connect('{}', {}{options}) if not ok then return told(ok, why) end",
        at.ip(),
        at.port()
    )
}

#[test]
fn commands_reach_a_real_redis() {
    let redis = Redis::start();
    let connected = connect(redis.addr(0), "");
    let all = format!(
        "{connected}
         told(red:set('k', 'a\\r\\nb'), red:get('k'), red:get('none'), red:del('k'), red:incr('n'), red:expire('n', 100))
         told(red:hmset('h', {{ f = 'v' }}), red:hget('h', 'f'), red:hgetall('h'))
         told(red:lpush('l', 1, 2, 3), red:lrange('l', 0, -1))
         told(red:incr('l'))
         told(red:eval('return {{1, {{ARGV[1]}}, redis.error_reply(\\'X own\\')}}', 0, 'a'))
         red:init_pipeline() red:set('p', 1) red:incr('p') red:nonsense() told(red:commit_pipeline())
         red:multi() red:incr('p') told(red:exec())
         told(red:set_keepalive(10000, 10))"
    );
    let counted = format!("{connected} told(red:get_reused_times()) told(red:get('n')) red:set_keepalive(10000, 10)");
    let closed = format!("{connected} told(red:get_reused_times(), red:close(), red:close())");
    let left = format!("{connected} told(red:get_reused_times())");
    let database = format!(
        "{} told(red:set('d', 1)) red:set_keepalive()",
        connect(redis.addr(0), ", {{ db = 3 }}").replace("{{", "{").replace("}}", "}")
    );
    let in_timer = format!(
        "ngx.timer.at(0, function()
            local red = require('resty.redis'):new()
            {connected}
            red:set('from-timer', 'yes')
            red:set_keepalive()
        end) told('started')"
    );
    let (_node, mut gateway) = started(&[
        ("/all", &all),
        ("/counted", &counted),
        ("/closed", &closed),
        ("/left", &left),
        ("/database", &database),
        ("/timer", &in_timer),
    ]);
    let expected = [
        r#"["OK","a\r\nb",null,1,1,1]"#,
        r#"["OK","v",["f","v"]]"#,
        r#"[3,["3","2","1"]]"#,
        r#"[false,"WRONGTYPE Operation against a key holding the wrong kind of value"]"#,
        r#"[[1,["a"],[false,"X own"]]]"#,
    ];
    let told = get(&gateway, "/all");
    let lines: Vec<&str> = told.strip_prefix("200 ").expect(&told).lines().collect();
    assert_eq!(lines[..5], expected);
    assert!(lines[5].starts_with(r#"[["OK",2,[false,"ERR unknown command"#), "{}", lines[5]);
    assert_eq!(lines[6..], ["[[3]]", "[1]"]);
    // A connection that was given back is taken again; one that was left open, or closed, is not.
    assert_eq!(get(&gateway, "/counted"), "200 [1]\n[\"1\"]");
    assert_eq!(get(&gateway, "/left"), "200 [2]");
    assert_eq!(get(&gateway, "/closed"), r#"200 [0,1,null,"closed"]"#);
    assert_eq!(get(&gateway, "/database"), r#"200 ["OK"]"#);
    assert_eq!(redis.cli(&["-n", "3", "get", "d"]), "1");
    assert_eq!(get(&gateway, "/timer"), r#"200 ["started"]"#);
    eventually("the timer's write", || redis.cli(&["get", "from-timer"]) == "yes");
    eventually("connections that are left are closed", || {
        redis.cli(&["client", "list"]).lines().filter(|line| !line.contains("cmd=client")).count() == 2
    });
    gateway.assert_healthy();
}

#[test]
fn a_password_is_asked_for_once() {
    let redis = Redis::start_with(RedisSetup { password: Some("secret".to_owned()), ..RedisSetup::default() });
    let at = redis.addr(0);
    let (_node, mut gateway) = started(&[
        ("/none", &format!("{} told(red:get('k'))", connect(at, ""))),
        ("/wrong", &connect(at, ", { password = 'wrong' }")),
        (
            "/right",
            &format!(
                "{} told(red:get('k')) red:set_keepalive()",
                connect(at, ", { password = 'secret', pool = 'own' }")
            ),
        ),
        ("/auth", &format!("{} told(red:auth('secret')) told(red:get('k'))", connect(at, ""))),
    ]);
    assert_eq!(get(&gateway, "/none"), r#"200 [false,"NOAUTH Authentication required."]"#);
    let wrong = get(&gateway, "/wrong");
    assert!(wrong.starts_with(r#"200 [null,"failed to authenticate: WRONGPASS"#), "{wrong}");
    for _ in 0..2 {
        assert_eq!(get(&gateway, "/right"), "200 [null]");
    }
    assert_eq!(get(&gateway, "/auth"), "200 [\"OK\"]\n[null]");
    gateway.assert_healthy();
}

/// A server that gives each connection these bytes once it has read something, and then stays or closes.
fn saying(bytes: &'static [u8], stays: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut space = [0; 1024];
                if stream.read(&mut space).is_ok() {
                    // It may be gone.
                    let _ = stream.write_all(bytes);
                    while stays && stream.read(&mut space).is_ok_and(|length| length > 0) {}
                }
            });
        }
    });
    at
}

#[test]
fn servers_that_misbehave_cost_their_request_only() {
    let nobody = ReservedPort::new();
    // Only those that wait in vain have a short time, which a busy machine may exceed.
    let ask_for = |at: SocketAddr, why: &str| {
        let read_ms = if why == "timeout" { 100 } else { 60_000 };
        format!(
            "red:set_timeouts(60000, 60000, {read_ms})
             {} told(red:get('k')) told(red:get('k')) told(red:set_keepalive())",
            connect(at, "")
        )
    };
    let closed = "\n[null,\"closed\"]\n[null,\"closed\"]";
    let cases = [
        ("/stalls", saying(b"", true), "timeout"),
        ("/half", saying(b"$5\r\nab", true), "timeout"),
        ("/closes", saying(b"$5\r\nab", false), "closed"),
        ("/nonsense", saying(b"HTTP/1.1 400 Bad Request\r\n\r\n", true), "the reply is not valid Redis protocol"),
        // A second reply belongs to no command: it must not become that of the next one.
        ("/two", saying(b"+one\r\n+two\r\n", true), "the reply is not valid Redis protocol"),
        ("/large", saying(b"$99999999\r\n", true), "a reply of more than 1048576 bytes"),
    ];
    let bodies: Vec<(&str, String)> = cases.iter().map(|(uri, at, why)| (*uri, ask_for(*at, why))).collect();
    let mut functions: Vec<(&str, &str)> = bodies.iter().map(|(uri, body)| (*uri, body.as_str())).collect();
    let refused = connect(nobody.addr(), "");
    let many = format!(
        "local ends = {{}}
         for n = 1, 20 do
            local red = require('resty.redis'):new()
            local ok, why = red:connect('127.0.0.1', {})
            ends[#ends + 1] = ok or why
         end
         told(#ends, ends[16], ends[17])",
        cases[0].1.port()
    );
    functions.extend([
        ("/refused", refused.as_str()),
        ("/many", &many),
        ("/name", "told(red:connect('no-such-host.invalid', 6379))"),
        ("/tls", "told(red:connect('127.0.0.1', 1, { ssl = true }))"),
    ]);
    let (_node, mut gateway) = started(&functions);
    for (uri, _, why) in cases {
        assert_eq!(get(&gateway, uri), format!("200 [null,\"{why}\"]{closed}"), "{uri}");
    }
    assert_eq!(get(&gateway, "/refused"), r#"200 [null,"connection refused"]"#);
    assert_eq!(get(&gateway, "/tls"), r#"200 [null,"connection refused"]"#);
    assert_eq!(get(&gateway, "/many"), r#"200 [20,1,"a request has at most 16 connections; give some back"]"#);
    assert!(get(&gateway, "/name").contains("no-such-host.invalid could not be resolved"));
    gateway.assert_healthy();
}

#[test]
fn others_are_served_while_a_function_waits() {
    let stalls = saying(b"", true);
    let body = format!("red:set_timeout(60000) {} told(red:get('k'))", connect(stalls, ""));
    let (_node, mut gateway) = started(&[("/waits", &body), ("/other", "told('other')")]);
    let mut waiting = gateway.client();
    waiting.send("GET /waits HTTP/1.1\r\nHost: h\r\n\r\n");
    for _ in 0..10 {
        assert_eq!(get(&gateway, "/other"), r#"200 ["other"]"#);
    }
    // Its client goes away, and so does the call.
    drop(waiting);
    assert_eq!(get(&gateway, "/other"), r#"200 ["other"]"#);
    gateway.assert_healthy();
}
