//! How runs end, wait, and keep the data of a request.

use crate::fake::{Fake, answer, program, run_with};
use stillgate_lua::{CallKind, Context, Program, RunOutcome, check, run};

#[test]
fn functions_run_one_after_the_other() {
    let check = |sources: &[&str], expected: &str| {
        assert_eq!(run_with(&program(sources), &mut Fake::default(), &mut Context::default()), expected);
    };
    check(&["return function() end"], "done");
    check(
        &["return function(conf, ctx) ctx.n = 1 end", "return function(conf, ctx) ngx.say(ctx.n) end"],
        "200 \"1\\n\"",
    );
    // As a plugin's: a status, a body or both end it.
    check(&["return function() return 403 end", "return function() ngx.say('never') end"], "403 nothing");
    check(&["return function() return 403, { error_msg = 'no' } end"], "403 \"{\\\"error_msg\\\":\\\"no\\\"}\\n\"");
    check(&["return function() return nil, 'text' end"], "200 \"text\"");
    check(&["return function() return 99 end"], "error: 99 is not a valid status; use 200 to 599");
    // Locals of a chunk outlive a request.
    let counting = program(&["local count = 1 return function() count = count + 1 ngx.say(count) end"]);
    for expected in ["200 \"2\\n\"", "200 \"3\\n\""] {
        assert_eq!(run_with(&counting, &mut Fake::default(), &mut Context::default()), expected);
    }
    check(&["return function(conf) ngx.say(conf.phase, conf.list[2]) end"], "200 \"accessb\\n\"");
}

#[test]
fn answers() {
    let check = |body: &str, expected: &str| assert_eq!(answer(body), expected, "{body}");
    check("ngx.exit(403)", "403 nothing");
    check("ngx.exit(ngx.OK) ngx.say('never')", "done");
    check("pcall(ngx.exit, 418) ngx.say('never')", "418 nothing");
    check("ngx.status = 201 ngx.say('a', 1, true, nil, { 'b', { 'c' } })", "201 \"a1truenilbc\\n\"");
    check("ngx.print('a') ngx.say('b') ngx.exit(200)", "200 \"ab\\n\"");
    check("ngx.say('a') ngx.exit(ngx.OK)", "200 \"a\\n\"");
    check("ngx.status = 403 ngx.eof()", "403 \"\"");
    check("ngx.status = 403 ngx.send_headers() ngx.flush(true) return", "403 \"\"");
    check("ngx.status = 401 ngx.say('no') ngx.exit(ngx.HTTP_OK)", "401 \"no\\n\"");
    check("ngx.status = 410 ngx.exit(200)", "410 nothing");
    check("ngx.status = 410 ngx.exit(404)", "404 nothing");
    check("core.response.exit(401, { message = 'x' })", "401 \"{\\\"message\\\":\\\"x\\\"}\\n\"");
    check("core.response.exit(200, 'a', 'b')", "200 \"ab\"");
    check("core.response.exit(204)", "204 nothing");
    check("ngx.redirect('/x', 301)", "301 nothing");
    check(
        "ngx.redirect('/x', 200)",
        "error: test:1: only ngx.HTTP_MOVED_TEMPORARILY, ngx.HTTP_MOVED_PERMANENTLY, ngx.HTTP_PERMANENT_REDIRECT, ngx.HTTP_SEE_OTHER, and ngx.HTTP_TEMPORARY_REDIRECT are allowed",
    );
    check("ngx.exit(700)", "error: 700 is not a valid status; use 200 to 599");
}

#[test]
fn functions_wait() {
    assert_eq!(answer("ngx.sleep(0.25) ngx.say('later')"), "slept 250ms, 200 \"later\\n\"");
    assert_eq!(
        answer("pcall(ngx.sleep, 1) ctx.a = 1 ngx.sleep(0) ngx.say(ctx.a)"),
        "slept 1s, slept 0ns, 200 \"1\\n\""
    );
    assert_eq!(answer("ngx.sleep(-1)"), "error: test:1: invalid sleep duration \"-1\"");
    assert!(answer("ngx.sleep(0/0)").starts_with("error: test:1: invalid sleep duration"));
    let mut fake = Fake { body: None, ..Fake::default() };
    let reading = program(&["return function() ngx.req.read_body() ngx.say(ngx.req.get_body_data()) end"]);
    assert_eq!(run_with(&reading, &mut fake, &mut Context::default()), "read the body, 200 \"the body\\n\"");
    let mut fake = Fake { phase: "log", ..Fake::default() };
    let sleeping = program(&["return function() ngx.sleep(1) end"]);
    let expected = "error: test:1: API disabled in the context of log: ngx.sleep";
    assert_eq!(run_with(&sleeping, &mut fake, &mut Context::default()), expected);
}

#[test]
fn requests_that_wait_do_not_meet() {
    let waiting = program(&[
        "return function(conf, ctx) ctx.who = ngx.var.who_asks or ctx.var.me ngx.sleep(1) ngx.say(ctx.who) end",
    ]);
    let naming = |name: &str| program(&[&format!("return function(conf, ctx) ctx.var.me = '{name}' end")]);
    let mut requests: Vec<(Fake, Context)> = (0..3).map(|_| Default::default()).collect();
    let mut paused = Vec::new();
    for (at, (fake, context)) in requests.iter_mut().enumerate() {
        assert_eq!(run_with(&naming(&format!("n{at}")), fake, context), "done");
        match run(&waiting, fake, context) {
            RunOutcome::Wait(_, waits) => paused.push(waits),
            other => panic!("{other:?}"),
        }
    }
    for ((at, (fake, context)), paused) in requests.iter_mut().enumerate().zip(paused).rev() {
        match stillgate_lua::resume(paused, fake, context) {
            RunOutcome::Answer { body: Some(body), .. } => assert_eq!(body, format!("n{at}\n").into_bytes()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_belongs_to_a_request_goes_with_it() {
    let setting = program(&["return function(conf, ctx) ctx.a, ngx.ctx.b, ctx.var.c = 1, 2, 3 end"]);
    let reading = program(&[
        "return function(conf, ctx) ngx.say(tostring(ctx.a), tostring(ngx.ctx.b), tostring(ctx.var.c), tostring(ngx.ctx.api_ctx == ctx)) end",
    ]);
    let (mut fake, mut context) = (Fake::default(), Context::default());
    assert_eq!(run_with(&setting, &mut fake, &mut context), "done");
    assert_eq!(run_with(&reading, &mut fake, &mut context), "200 \"123true\\n\"");
    drop(context);
    for _ in 0..2 {
        assert_eq!(run_with(&reading, &mut fake, &mut Context::default()), "200 \"nilnilniltrue\\n\"");
    }
}

#[test]
fn conditions() {
    let holds = |source: &str| {
        let program =
            Program::new("test".to_owned(), vec![source.to_owned()], serde_json::Value::Null, CallKind::Condition);
        match run(&program, &mut Fake::default(), &mut Context::default()) {
            RunOutcome::Done(holds) => holds,
            other => panic!("{other:?}"),
        }
    };
    assert!(holds("return function() return ngx.var.host == 'h.example' end"));
    assert!(!holds("return function() return false end"));
    assert!(!holds("return function() end"));
}

#[test]
fn texts_that_are_not_functions() {
    assert_eq!(check("return function() end"), Ok(()));
    assert_eq!(check("local count = 1; return function() count = count + 1 end"), Ok(()));
    let why = |source: &str| check(source).unwrap_err();
    assert_eq!(why("local a = 123;"), "only accept Lua function, the input code type is nil");
    assert_eq!(why("a"), "failed to loadstring: [string \"a\"]:1: '=' expected near '<eof>'");
    assert_eq!(why("error('no')"), "pcall error: [string \"error('no')\"]:1: no");
    let request = why("return ngx.var.host");
    assert!(
        request.ends_with("there is no request while the configuration is loaded; do it in the function"),
        "{request}"
    );
}

#[test]
fn other_servers_are_asked() {
    let call = |rest: &str| answer(&format!("local http = require('resty.http').new() {rest}"));
    let told = call(
        "http:set_timeout(250) local res, err = http:request_uri('http://a.test/x?y', { method = 'PUT', query = 'z', headers = { A = { 1, 'b' } }, body = 'a\\0\\255', ssl_verify = false, keepalive_timeout = 10, keepalive_pool = 3 }) \
         ngx.print(res.status, #res.body, res.headers['x-a'], res.headers.X_A, table.concat(res.headers['X-TWO']), tostring(res.headers.none))",
    );
    assert!(told.ends_with("}, 203 \"20331 1abnil\"") || told.ends_with("}, 200 \"203311abnil\""), "{told}");
    for part in [
        "method: [80, 85, 84], url: \"http://a.test/x?z\", verifies: false, keep: Some((10ms, 3))",
        "headers: [([65], [49]), ([65], [98])], body: [97, 0, 255], timeout: 250ms",
    ] {
        assert!(told.contains(part), "{part}\n{told}");
    }
    let told = call("local res, err = http:request_uri('http://down.test', {}) ngx.print(tostring(res), err)");
    assert!(told.contains("keep: Some((60s, 5))") && told.contains("timeout: 60s"), "{told}");
    assert!(told.ends_with("200 \"niltimeout\""), "{told}");
    for (times, expected) in [
        ("keepalive_timeout = 1e15, keepalive_pool = 1e300", "keep: Some((1000000000000s, 9007199254740992))"),
        ("keepalive_timeout = math.huge, keepalive_pool = -1", "keep: Some((9007199254740.992s, 0))"),
        ("keepalive_timeout = 1.4", "keep: Some((1ms, 5))"),
    ] {
        let told = call(&format!("http:request_uri('http://a.test/', {{ {times} }})"));
        assert!(told.contains(expected), "{times}: {told}");
    }
    for (rest, expected) in [
        ("http:request_uri('http://a', { keepalive_timeout = 'long' })", "keepalive_timeout is not a number"),
        ("http:request_uri('http://a', { keepalive_pool = 0 / 0 })", "keepalive_pool is not a number"),
        ("http:request_uri(7)", "bad argument #1 to 'request_uri'"),
        ("http:request_uri('http://a', { method = 'G\\0T' })", "the method has a zero byte"),
        ("http:request_uri('http://a', { headers = { a = 'b\\0' } })", "the header a has a zero byte"),
        ("http:request_uri('http://a', { body = function() end })", "a function as body is not supported"),
        ("http:request_pipeline({})", "resty.http.request_pipeline is not supported"),
        ("ngx.print(tostring(http:request({})))", "200 \"nil\""),
        ("local u = http:parse_uri('https://h/p?q') ngx.print(u[1], u[2], u[3], u[4], u[5])", "200 \"httpsh443/pq\""),
    ] {
        let told = call(rest);
        assert!(told.contains(expected), "{rest}: {told}");
    }
}
