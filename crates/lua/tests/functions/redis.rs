//! `resty.redis`: the commands sent to the server, and the values that functions make of its replies.

use crate::fake::{Fake, program, run_with};
use std::time::Duration;
use stillgate_lua::{Context, LinkCall};

/// The output of a function with these replies of the server, and its operations on connections.
fn run(body: &str, replies: &[Result<&str, &str>]) -> (String, Vec<LinkCall>) {
    let to_text = |reply: &Result<&str, &str>| reply.map(|text| text.as_bytes().to_vec()).map_err(str::to_owned);
    let mut fake = Fake { replies: replies.iter().map(to_text).collect(), ..Fake::default() };
    let source = format!(
        "return function()
            local function told(...) ngx.say(require('cjson').encode({{ ... }})) end
            local red = require('resty.redis'):new()
            {body}
        end"
    );
    let outcome = run_with(&program(&[&source]), &mut fake, &mut Context::default());
    let text = match outcome.strip_prefix("200 ") {
        Some(text) => serde_json::from_str(text).unwrap(),
        None => outcome,
    };
    (text, fake.links)
}

/// Runs it after `connect`, for one exchange with these replies: the commands, and the output.
#[track_caller]
fn check(body: &str, replies: &str, sent: &str, said: &str) {
    let (text, links) = run(&format!("red:connect('h', 6379) {body}"), &[Ok(replies)]);
    assert_eq!(text, format!("{said}\n"), "{body}");
    let Some(LinkCall::Exchange { message, .. }) = links.get(1) else { panic!("{links:?}") };
    assert_eq!(String::from_utf8_lossy(message), sent.replace('|', "\r\n"), "{body}");
}

#[test]
fn commands_and_replies() {
    check("told(red:get('k'))", "$3\r\na\r\n\r\n", "*2|$3|get|$1|k|", r#"["a\r\n"]"#);
    check("told(red:get('k'))", "$-1\r\n", "*2|$3|get|$1|k|", "[null]");
    check("told(red:get('k') == ngx.null)", "$-1\r\n", "*2|$3|get|$1|k|", "[true]");
    check("told(red:set('k', 'a b'))", "+OK\r\n", "*3|$3|set|$1|k|$3|a b|", r#"["OK"]"#);
    check("told(red:incr('n'))", ":12\r\n", "*2|$4|incr|$1|n|", "[12]");
    check("told(red:set('k'))", "-ERR wrong number\r\n", "*2|$3|set|$1|k|", r#"[false,"ERR wrong number"]"#);
    check("told(red:expire('k', 60))", ":1\r\n", "*3|$6|expire|$1|k|$2|60|", "[1]");
    check("told(red:set('k', 2 ^ 53, true))", "+OK\r\n", "*4|$3|set|$1|k|$16|9007199254740992|$4|true|", r#"["OK"]"#);
    check("told(red:set('k', 1.5, nil))", "+OK\r\n", "*3|$3|set|$1|k|$3|1.5|", r#"["OK"]"#);
    check(
        "told(red:hgetall('h'), red:array_to_hash({ 'a', 1 }))",
        "*2\r\n$1\r\na\r\n:1\r\n",
        "*2|$7|hgetall|$1|h|",
        r#"[["a",1],{"a":1}]"#,
    );
    check("told(red:hmset('h', { a = 1 }))", "+OK\r\n", "*4|$5|hmset|$1|h|$1|a|$1|1|", r#"["OK"]"#);
    check("told(red:hmget('h', 'a', 'b'))", "*2\r\n$-1\r\n$0\r\n\r\n", "*4|$5|hmget|$1|h|$1|a|$1|b|", r#"[[null,""]]"#);
    check(
        "told(red:eval('x', 0))",
        "*3\r\n*1\r\n:1\r\n-ERR inner\r\n*-1\r\n",
        "*3|$4|eval|$1|x|$1|0|",
        r#"[[[1],[false,"ERR inner"],null]]"#,
    );
    check(
        "red:init_pipeline() told(red:set('a', 1), red:get('a')) told(red:commit_pipeline()) told(red:commit_pipeline())",
        "+OK\r\n-ERR no\r\n",
        "*3|$3|set|$1|a|$1|1|*2|$3|get|$1|a|",
        "{}\n[[\"OK\",[false,\"ERR no\"]]]\n[null,\"no pipeline\"]",
    );
}

#[test]
fn connections_are_made_kept_and_closed() {
    let (text, links) = run(
        "red:set_timeouts(100, 200, 300)
         told(red:connect('h', '6379', { pool_size = 3, ssl = true, ssl_verify = false }))
         told(red:get_reused_times())
         told(red:set_keepalive(1000))
         told(red:get('k')) told(red:close()) told(red:set_keepalive())
         red:set_timeout(50)
         told(red:connect('h', 2, { password = 'p', db = 4 })) told(red:get_reused_times()) told(red:close())
         told(red:connect('h', 1))",
        &[],
    );
    assert_eq!(
        text,
        "[1]\n[0]\n[1]\n[null,\"closed\"]\n[null,\"closed\"]\n[null,\"closed\"]\n[1]\n[1]\n[1]\n[null,\"connection refused\"]\n"
    );
    let connect = |port, verifies, pool: &str, ms| LinkCall::Connect {
        host: "h".to_owned(),
        port,
        verifies,
        pool: pool.to_owned(),
        timeout: Duration::from_millis(ms),
    };
    let expected = [
        connect(6379, Some(false), "h:6379", 100),
        LinkCall::Keep { link: 7, idle: Duration::from_secs(1), connections: 3 },
        connect(2, None, "h:2//4", 50),
        LinkCall::Close { link: 7 },
        connect(1, None, "h:1", 50),
    ];
    assert_eq!(links, expected);
}

#[test]
fn a_new_connection_is_introduced() {
    let options = "{ username = 'u', password = 'p', db = 2 }";
    let (text, links) = run(&format!("told(red:connect('h', 6379, {options}))"), &[Ok("+OK\r\n"), Ok("+OK\r\n")]);
    assert_eq!((text.as_str(), links.len()), ("[1]\n", 3));
    let (text, links) = run(&format!("told(red:connect('h', 6379, {options}))"), &[Ok("-WRONGPASS no\r\n")]);
    assert_eq!(text, "[null,\"failed to authenticate: WRONGPASS no\"]\n");
    assert_eq!(links.last(), Some(&LinkCall::Close { link: 7 }));
    let (text, _) = run("told(red:connect('h', 6379, { db = 99 }))", &[Ok("-ERR out of range\r\n")]);
    assert_eq!(text, "[null,\"failed to select database 99: ERR out of range\"]\n");
}

#[test]
fn what_went_wrong_ends_the_connection() {
    let (text, _) = run(
        "red:connect('h', 6379) told(red:get('k')) told(red:get('k'))
         red:connect('h', 6379) red:multi() told(red:set_keepalive()) red:exec() told(red:set_keepalive())",
        &[Err("timeout"), Ok("+OK\r\n"), Ok("*0\r\n")],
    );
    assert_eq!(text, "[null,\"timeout\"]\n[null,\"closed\"]\n[null,\"in transaction\"]\n[1]\n");
}

#[test]
fn what_is_not_built_is_named() {
    for (body, expected) in [
        ("red:subscribe('c')", "resty.redis.subscribe is not supported"),
        ("red:read_reply()", "resty.redis.read_reply is not supported"),
        ("red:set('k', ngx.null)", "bad argument #2 to 'set' (a text or number expected, got null)"),
        ("red:set('k', {})", "bad argument #2 to 'set' (a text or number expected, got table)"),
        ("red:connect('unix:/tmp/s')", "sockets of the file system are not supported"),
        ("red:connect(1, 2)", "bad argument #1 host: string expected, got number"),
        ("red:connect('h')", "bad argument #2 port: number expected, got nil"),
        ("red:connect('h', 1, 2)", "bad argument #3 opts: nil or table expected, got number"),
        ("red:connect('h\\0', 1)", "it has a zero byte"),
        ("red:connect('h', 1, { server_name = 'other' })", "server_name is not supported"),
        ("red:set_timeout('a')", "a timeout is not a number"),
        ("require('resty.redis').nothing()", "resty.redis.nothing is not supported"),
    ] {
        let (text, links) = run(body, &[]);
        assert!(text.starts_with("error: test:") && text.contains(expected), "{body}: {text}");
        assert_eq!(links, []);
    }
    let source = "return function() require('resty.redis'):new():connect('h', 6379) end";
    let mut fake = Fake { phase: "log", ..Fake::default() };
    assert_eq!(
        run_with(&program(&[source]), &mut fake, &mut Context::default()),
        "error: test:1: API disabled in the context of log: resty.redis"
    );
}
