//! Limits: no function blocks its worker, fills its memory or leaves the sandbox.

use crate::fake::{Fake, answer, program, run_with};
use std::time::{Duration, Instant};
use stillgate_lua::{Context, check};

/// Reached only by a failure, however little CPU time the test gets: each function takes 50 ms at most.
const PATIENCE: Duration = Duration::from_secs(300);
const STOPPED: &str = "it ran for more than 50 ms of CPU time and was stopped";

#[track_caller]
fn is_stopped(body: &str) {
    let began = Instant::now();
    let outcome = answer(body);
    assert!(outcome.starts_with("time: test:") && outcome.ends_with(STOPPED), "{body}: {outcome}");
    assert!(began.elapsed() < PATIENCE, "{body}: {:?}", began.elapsed());
    // The worker continues.
    assert_eq!(answer("ngx.say('x')"), "200 \"x\\n\"");
}

/// The outcome of a function that a busy machine may stop for its time: it is run again until it ends.
#[track_caller]
fn outcome_of_much(body: &str) -> String {
    let began = Instant::now();
    loop {
        let outcome = answer(body);
        if !outcome.ends_with(STOPPED) {
            return outcome;
        }
        assert!(began.elapsed() < PATIENCE, "{body}: {outcome}");
    }
}

#[test]
fn endless_loops_are_stopped() {
    is_stopped("while true do end");
    is_stopped("local n = 0 while true do n = n + 1 end");
    is_stopped("for at = 1, math.huge do local t = { at } end");
    is_stopped("local function again() return again() end again()");
    is_stopped("while true do ngx.header['X-A'] = 'b' end");
    is_stopped("repeat until false");
    is_stopped(
        "local t = setmetatable({}, { __index = function(t, k) return t[k .. ''] end }) while true do pcall(function() return t.x end) end",
    );
}

#[test]
fn what_a_run_leaves_is_not_missing_in_the_next_one() {
    // LuaJIT alone would collect later, and refuse the second one its memory.
    let fills = "local t = {} for at = 1, 6 do t[at] = ('x'):rep(8e6 + at) end";
    let needs_much = "local a, b = ('y'):rep(8e6), ('z'):rep(8e6) ngx.say(#a + #b)";
    for left in [1, 2, 3, 4, 5, 6] {
        let leaves = fills.replace("6 do", &format!("{left} do"));
        assert_eq!(outcome_of_much(&format!("{leaves} ngx.say(#t)")), format!("200 \"{left}\\n\""));
        assert_eq!(outcome_of_much(&format!("{fills} ngx.say(#t)")), "200 \"6\\n\"", "after {left}");
        is_stopped(&format!("{fills} while true do end"));
        assert_eq!(outcome_of_much(needs_much), "200 \"16000000\\n\"");
        assert_eq!(outcome_of_much(&format!("{fills} ngx.say(#t)")), "200 \"6\\n\"");
        assert_eq!(outcome_of_much(needs_much), "200 \"16000000\\n\"");
    }
}

#[test]
fn what_compiled_code_keeps_is_not_missing() {
    // LuaJIT computes the texts when it compiles the loops, whose code keeps them as long as it lives.
    let sources = ('A'..='Z').chain('a'..='z').map(|letter| {
        format!("return function() for _ = 1, 150 do local s = ('{letter}'):rep(1e6) ngx.say(#s) end end")
    });
    let programs: Vec<_> = sources.map(|source| program(&[&source])).collect();
    for program in &programs {
        let said = run_with(program, &mut Fake::default(), &mut Context::default());
        assert!(said.starts_with("200 "), "{said}");
    }
    let needs_much = "local t = {} for at = 1, 5 do t[at] = ('x'):rep(8e6 + at) end ngx.say(#t)";
    assert_eq!(outcome_of_much(needs_much), "200 \"5\\n\"");
}

#[test]
fn no_pcall_keeps_a_stopped_function() {
    is_stopped("while true do pcall(function() while true do end end) end");
    is_stopped("while true do xpcall(function() while true do end end, function() while true do end end) end");
    is_stopped("local ok = pcall(function() while true do end end) while ok == false do end");
    is_stopped(
        "local t = {} for at = 1, 1000 do t[at] = at end while true do table.sort(t, function(a, b) while true do end end) end",
    );
    is_stopped("while true do local _ = ('x'):gsub('x', function() while true do end end) end");
}

#[test]
fn the_bound_is_one_for_all_of_a_run_however_often_it_waits() {
    let piece = "local n = 0 for at = 1, 1e6 do n = n + at % 3 end";
    let outcome = answer(&format!("for _ = 1, 3000 do {piece} ngx.sleep(0) end"));
    let (waited, end) = outcome.rsplit_once(", ").unwrap();
    assert!(end.starts_with("time: test:1: ") && end.ends_with(STOPPED), "{end}");
    assert!(waited.contains("slept 0ns, slept 0ns"), "each piece is shorter than the bound: {outcome}");
    // A function that waits and does little may run for long.
    let outcome = answer("for _ = 1, 500 do ngx.sleep(0) end ngx.say('x')");
    assert!(outcome.ends_with("slept 0ns, 200 \"x\\n\""), "{}", outcome.replace("slept 0ns, ", ""));
}

#[test]
fn a_wait_that_is_refused_leaves_the_function_its_request() {
    let refused = "local _, why = load(function() ngx.sleep(0) end)";
    let boundary = "attempt to yield across C-call boundary";
    let outcome = answer(&format!("{refused} ngx.say(why, ' ', ngx.var.uri)"));
    assert!(outcome.starts_with("200 ") && outcome.ends_with(&format!("{boundary} /hello\\n\"")), "{outcome}");
    let outcome = answer("ctx.x = 1 local _, why = load(function() ngx.exit(403) end) error(why, 0)");
    assert!(outcome.starts_with("error: ") && outcome.ends_with(boundary), "{outcome}");
    // Other functions see nothing of it.
    assert_eq!(answer("ngx.say(tostring(ctx.x))"), "200 \"nil\\n\"");
}

#[test]
fn sorting_is_stopped_and_may_wait() {
    // Each comparison reads a megabyte: all of them together take minutes.
    is_stopped(
        "local s, t = ('x'):rep(1e6), {} local one, two = s .. '1', s .. '2' for at = 1, 20000 do t[at] = at % 2 == 0 and one or two end table.sort(t)",
    );
    is_stopped(
        "local t = {} for at = 1, 1000 do t[at] = at end while true do table.sort(t, function(a, b) return a > b end) end",
    );
    let waits = "local t = { 3, 1, 2 } table.sort(t, function(a, b) ngx.sleep(0) return a < b end) ngx.say(t, ctx.x)";
    assert!(answer(waits).ends_with("200 \"123nil\\n\""), "{}", answer(waits));
}

#[test]
fn a_text_without_end_is_stopped_when_it_is_loaded() {
    let why = check("while true do end").unwrap_err();
    assert_eq!(why, format!("pcall error: {STOPPED}"));
}

#[test]
fn memory_is_bounded() {
    let memory = "memory: test: a worker's functions have 64 MiB of memory";
    assert_eq!(outcome_of_much("local s = 'x' while true do s = s .. s end"), memory);
    let outcome = answer("local t = {} for at = 1, 1e9 do t[at] = { at } end");
    assert!(outcome == memory || outcome.ends_with(STOPPED), "{outcome}");
    assert!(answer("return ('x'):rep(2 ^ 30)").ends_with("string.rep: a text of more than 8388608 bytes"));
    assert_eq!(answer("local function deep() return 1 + deep() end deep()"), "error: test:1: stack overflow");
    // Other functions continue.
    assert_eq!(answer("ngx.say('x')"), "200 \"x\\n\"");
}

/// OpenResty builds LuaJIT with what it took over from Lua 5.2.
#[test]
fn functions_may_use_what_openresty_has_of_lua_5_2() {
    let body = "if true then; ngx.say('a'); end;; for at = 1, 9 do break; end \
                local t = setmetatable({}, { __len = function() return 7 end }) \
                local all = setmetatable({}, { __pairs = function() return next, { b = 1 } end }) \
                for name in pairs(all) do ngx.say(name, #t, table.pack(1, nil).n) end";
    assert!(answer(body).ends_with("200 \"a\\nb72\\n\""), "{}", answer(body));
}

#[test]
fn patterns_are_bounded() {
    let complex = "pattern too complex: it takes more steps than a function may use";
    for (call, more) in [("find", ""), ("match", ""), ("gsub", ", ''"), ("gmatch", "")] {
        let body = format!(
            "local found = (('a'):rep(5000)):{call}('a-a-a-a-a-a-a-a-b'{more}) if type(found) == 'function' then found() end"
        );
        let outcome = answer(&body);
        assert!(outcome.ends_with(complex), "{call}: {outcome}");
    }
    // No backtracking, however long the text.
    assert_eq!(answer("ngx.say(tostring(ngx.re.match(('a'):rep(100000), '(a+)+b')))"), "200 \"nil\\n\"");
}

#[test]
fn regular_expressions_are_bounded() {
    let complex = "it takes more steps than a function may use";
    // A new set of states for each byte, and so many states that each step takes long.
    let states = "local text, seed = {}, 1 for at = 1, 20000 do seed = seed * 16807 % 2147483647 text[at] = seed % 2 == 0 and 'a' or 'b' end text = table.concat(text)";
    for (call, more) in [("match", ""), ("find", ""), ("gsub", ", 'x'"), ("gmatch", "")] {
        let body = format!(
            "{states} local one, two, three = ngx.re.{call}(text, '(a|b)*a(a|b){{300}}c'{more}) \
             if type(one) == 'function' then one, two = one() end ngx.say(tostring(one), three or two)"
        );
        let began = Instant::now();
        let outcome = answer(&body);
        let by_steps =
            outcome.starts_with("200 \"nilthe pattern is too complex for 20000 bytes") && outcome.contains(complex);
        // On a slow CPU, functions that do more may reach the time limit first.
        let by_time = call != "match" && outcome.ends_with("ms of CPU time and was stopped");
        assert!(by_steps || by_time, "{call}: {outcome}");
        assert!(began.elapsed() < PATIENCE, "{call}: {:?}", began.elapsed());
    }
    // Groups of a long match.
    let groups = "ngx.say(select(2, ngx.re.match(('ab'):rep(500000), '(?:(a|ab)(c|bcd)?(b*))+')))";
    assert!(answer(groups).contains(complex), "{}", answer(groups));
    assert!(answer("ngx.say(select(3, ngx.re.find(('x'):rep(2^23) .. 'x', 'y')))").contains("more than 8388608 bytes"));
    // What takes long to compile.
    for (call, pattern) in [
        ("find('', {})", "'[a-z]{0,30000}x'"),
        ("gsub('', {}, '')", "('()'):rep(101)"),
        ("find('', {}, 'iu')", r"[=[[\s\S][\s\S]]=]"),
        ("find('', {})", "('a'):rep(10000)"),
    ] {
        let outcome = answer(&format!("ngx.say(select(3, ngx.re.{}))", call.replace("{}", pattern)));
        assert!(outcome.contains("cannot be compiled: it ") || outcome.contains("more than 8192 bytes"), "{outcome}");
    }
    // Large and easy, or complex and short, are both accepted.
    for (text, pattern) in [
        ("('a'):rep(1000000) .. '!'", "[a-z]+!"),
        ("('a'):rep(100000) .. '!'", "^(.*)!$"),
        ("('ab'):rep(500)", "(?:(a|ab)(c|bcd)?(b*))+"),
        ("('ab'):rep(200)", "(a|b)*b(a|b){100}"),
    ] {
        let outcome = answer(&format!("local text = {text} ngx.say(#ngx.re.match(text, '{pattern}')[0] == #text)"));
        assert_eq!(outcome, "200 \"true\\n\"", "{pattern}");
    }
}

#[test]
fn what_is_closed_is_closed() {
    for name in [
        "io.open",
        "io.popen",
        "io.lines",
        "io.read",
        "io.stdout",
        "os.execute",
        "os.exit",
        "os.remove",
        "os.rename",
        "os.tmpname",
        "os.setlocale",
        "debug.getinfo",
        "debug.sethook",
        "debug.getupvalue",
        "debug.getregistry",
        "debug.setmetatable",
        "package.loadlib",
        "package.loaded",
        "package.preload",
        "package.path",
        "coroutine.create",
        "coroutine.wrap",
        "coroutine.yield",
        "jit.on",
        "jit.attach",
        "jit.off",
        "ffi.cdef",
        "ffi.cast",
        "ffi.C",
    ] {
        assert_eq!(answer(&format!("return {name}")), format!("error: test:1: {name} is closed to functions"));
    }
    for name in ["dofile", "loadfile", "module", "newproxy", "getfenv", "setfenv"] {
        assert_eq!(answer(&format!("{name}('x')")), format!("error: test:1: {name} is closed to functions"));
    }
    for name in ["string.dump", "string.gfind", "_G.unknown", "math.nothing"] {
        assert_eq!(answer(&format!("ngx.print(tostring({name}))")), "200 \"nil\"", "{name}");
    }
    for what in ["collect", "stop", "step", "setpause"] {
        let expected =
            format!("error: test:1: collectgarbage({what}) is not available to functions; only \"count\" is");
        assert_eq!(answer(&format!("collectgarbage('{what}')")), expected);
    }
    // A metatable of the prelude gives no access to what it protects.
    for table in
        ["ngx", "ngx.var", "ngx.header", "ngx.shared", "ngx.req", "core", "core.string", "ctx", "ctx.var", "''", "io"]
    {
        let body = format!(
            "local found = {{}} for name, value in pairs(getmetatable({table}) or {{}}) do \
             if name ~= '__index' and name ~= '__newindex' and name ~= '__call' then found[#found + 1] = name end \
             if type(value) == 'table' and (value.ffi or value.operations or value.bridge or value.getinfo) then found[#found + 1] = 'S' end end \
             ngx.print(table.concat(found, ' '))"
        );
        assert_eq!(answer(&body), "200 \"\"", "{table}");
    }
    for name in ["ffi", "jit", "jit.util", "jit.opt", "socket", "resty.shell", "ngx.pipe", "debug", "io", "os"] {
        let expected = format!("error: test:1: the module '{name}' is not supported; docs/lua.md lists what is");
        assert_eq!(answer(&format!("require('{name}')")), expected);
    }
    // Bytecode of `return 1`, up to its header.
    for load in ["loadstring", "load"] {
        let outcome =
            answer(&format!("local chunk, why = {load}('\\27LJ\\2\\8\\0') ngx.say(tostring(chunk), ' ', why)"));
        assert!(outcome.contains("nil") && outcome.contains("attempt to load chunk with wrong mode"), "{outcome}");
    }
    assert_eq!(answer("ngx.say(loadstring('return 1 + 1')())"), "200 \"2\\n\"");
}

#[test]
fn what_is_not_built_is_named() {
    let check = |body: &str, expected: &str| {
        assert_eq!(answer(body), format!("error: test:1: {expected} is not supported; docs/lua.md lists what is"));
    };
    check("ngx.timer.every(0, print)", "ngx.timer.every");
    check("ngx.location.capture('/')", "ngx.location");
    check("ngx.thread.spawn(print)", "ngx.thread");
    check("ngx.socket.tcp()", "ngx.socket");
    check("ngx.worker.id()", "ngx.worker");
    check("ngx.semaphore.new()", "ngx.semaphore");
    check("core.etcd.get('x')", "core.etcd");
    check("core.request.nothing()", "core.request.nothing");
    check("core.string.nothing()", "core.string.nothing");
}

#[test]
fn a_function_that_fails_leaves_nothing_behind() {
    let mut fake = Fake::default();
    let failing = program(&["return function(conf, ctx) ctx.left = 1 ngx.print('said') error('no') end"]);
    let mut context = Context::default();
    assert_eq!(run_with(&failing, &mut fake, &mut context), "error: test:1: no");
    // A later phase of the same request still has the fields that were set, but not the output.
    let later = program(&["return function(conf, ctx) ngx.say(ctx.left) end"]);
    assert_eq!(run_with(&later, &mut fake, &mut context), "200 \"1\\n\"");
    drop(context);
    assert_eq!(run_with(&later, &mut fake, &mut Context::default()), "200 \"nil\\n\"");
}

/// Texts are built only in the VM's memory, and reading and writing JSON checks the time.
#[test]
fn json_has_the_bounds_of_its_function() {
    // Lists of numbers, of lists, of objects, and one text of many escapes.
    for part in ["1,", "[],", "{\"a\":1},", "\"\\\\u0041\","] {
        let body = format!(
            "local s = '[' .. ('{part}'):rep(math.floor(8e6 / #'{part}')) .. '1]' local _ = core.json.decode(s)"
        );
        let said = answer(&body);
        assert!(["time: ", "memory: "].iter().any(|kind| said.starts_with(kind)), "{part}: {said}");
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB");
    assert!(peak.parse::<u64>().unwrap() < 400 * 1024, "{peak} KiB");
    let written = answer("local t = {} for at = 1, 200000 do t[at] = at end while true do core.json.encode(t) end");
    assert!(written.starts_with("time: "), "{written}");
    let sorted =
        answer("local t = {} for at = 1, 100000 do t['k' .. at] = at end while true do core.json.stably_encode(t) end");
    assert!(sorted.starts_with("time: "), "{sorted}");
    let long = outcome_of_much(
        "local t = {} for at = 1, 9 do t[at] = ('x'):rep(2 ^ 21) end local _, why = core.json.encode(t) ngx.say(why)",
    );
    assert_eq!(long, "200 \"Cannot serialise, the text is longer than 16 MiB\\n\"");
    let sparse = outcome_of_much(
        "local c = require('cjson.safe').new() c.encode_sparse_array(false, 0) local _, why = c.encode({ [1e8] = 1 }) ngx.say(why)",
    );
    assert!(sparse.contains("longer than 16 MiB"), "{sparse}");
    // The schema is checked against a tree outside of the VM.
    let checked = answer("core.schema.check({ type = 'object' }, { a = ('x'):rep(2 ^ 21) })");
    assert!(checked.contains("longer than 1 MiB"), "{checked}");
}

#[test]
fn a_run_waits_a_bounded_number_of_times() {
    let sleeping = |times: u32| answer(&format!("for _ = 1, {times} do ngx.sleep(0) end ngx.say('over')"));
    assert!(sleeping(stillgate_lua::WAITS_MAX).ends_with("200 \"over\\n\""));
    let said = answer("while true do ngx.sleep(0) end");
    assert!(
        said.ends_with("time: test: it waited more than 2500 times and was stopped"),
        "{}",
        &said[said.len() - 100..]
    );
    let caught = answer("while true do pcall(function() while true do ngx.sleep(0) end end) end");
    assert!(caught.contains("time: "), "no pcall keeps it");
}
