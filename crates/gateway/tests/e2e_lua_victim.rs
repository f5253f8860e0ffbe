//! The closure that made a cache slow, as profiles show it: under load, bytecode and CPU time together tell the victim, a look-up in a
//! cache, from the function that makes the closure; and the check names the cause.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod reflect;

use reflect::{reflecting, setup};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use stillgate_profiler::output::pprof;
use stillgate_profiler::profile::Profile;
use stillgate_testkit::{Client, Gateway};

const STILLGATE: &str = env!("CARGO_BIN_EXE_stillgate");

/// Keys that are made for a request: so many that a profile of a few seconds is one of these functions.
const TURNS_UNDER_LOAD: usize = 400;
const TURNS_CHECKED: usize = 4;
/// Where the look-up begins.
const LOOK_UP: u32 = 5;

/// A cache of 8 entries in order of their last use, and a route that is looked up by a key of several fields. The key is made with
/// a closure for each request in one form, and with a function that was made once in the other.
fn text(is_planted: bool, turns: usize) -> String {
    let (visit, key) = match is_planted {
        true => ("", "local key = '' each_field(function(name, value) key = key .. name .. value end)"),
        false => (
            "local key = ''  local function add(name, value) key = key .. name .. value end",
            "key = '' each_field(add)",
        ),
    };
    format!(
        "local fields = {{ 'uri', 'host', 'scheme' }}
local first

-- A list, the last used first.
local function look_up(key)
  local before, node = nil, first
  while node and node.key ~= key do
    before, node = node, node.after
  end
  if not node then
    node = {{ key = key, value = #key, after = first }}
    first = node
  elseif before then
    before.after, node.after = node.after, first
    first = node
  end
  return node.value
end

for at = 8, 1, -1 do look_up('filler ' .. at) end
{visit}
local function each_field(visit)
  for at = 1, #fields do
    visit(fields[at], ngx.var[fields[at]])
  end
end

return function(conf, ctx)
  local sum = 0
  for at = 1, {turns} do
    {key}
    sum = sum + look_up(key) + look_up('filler ' .. at % 8 + 1)
  end
  ctx.sum = sum
end
"
    )
}

/// A profile of some seconds with so many samples. A busy machine gives a gateway few: then one of more seconds.
fn profile(gateway: &Gateway, kind: &str, samples: i64) -> Profile {
    let mut seconds = 3;
    loop {
        let path = format!("/debug/pprof/lua?kind={kind}&seconds={seconds}&hz=250");
        let answer = Client::connect(gateway.admin_addr()).get(&path);
        assert_eq!(answer.head.status(), 200, "{}", String::from_utf8_lossy(&answer.body));
        let taken = pprof::read(&answer.body).unwrap();
        if taken.total(0) >= samples {
            return taken;
        }
        assert!(seconds < 12, "{kind}: {} samples in {seconds} s: {:?}", taken.total(0), taken.notes);
        seconds *= 2;
    }
}

/// The share of a profile, of 1, that the function that begins in a line is the innermost of.
fn share(profile: &Profile, line: u32) -> f64 {
    let name = format!(":{line}");
    let has = |sample: &stillgate_profiler::profile::Sample| {
        let innermost = profile.functions_of(sample).next_back();
        innermost.is_some_and(|found| profile.functions[found.function].name.ends_with(&name))
    };
    let of: i64 = profile.samples.iter().filter(|sample| has(sample)).map(|sample| sample.values[1]).sum();
    of as f64 / profile.total(1).max(1) as f64
}

/// Both profiles of a form under load: CPU time and bytecode, of which there have to be so many samples.
fn profiles(is_planted: bool, bytecode_samples: i64) -> (Profile, Profile) {
    let node = reflecting();
    let source = serde_json::to_string(&text(is_planted, TURNS_UNDER_LOAD)).unwrap();
    let route = format!(
        "routes:\n  - {{\"id\": \"r\", \"uri\": \"/r\", \"upstream_id\": \"node\", \"plugins\": {{\"serverless-pre-function\": {{\"phase\": \"access\", \"functions\": [{source}]}}}}}}\n"
    );
    let gateway = Gateway::start(STILLGATE, &setup(node.addr(), &route).gateway("debug: {pprof: true}"));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = gateway.client();
            while !is_over.load(Ordering::Relaxed) {
                client.send("GET /r HTTP/1.1\r\nHost: h\r\n\r\n");
                assert_eq!(client.expect_response("GET").head.status(), 200);
            }
        });
        let ending = Ending(&is_over);
        let both = (profile(&gateway, "cpu", 100), profile(&gateway, "bytecode", bytecode_samples));
        drop(ending);
        both
    })
}

/// Ends the load, also where the test fails: a scope waits for its threads.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the check says of a form, and its exit code.
fn check(is_planted: bool) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let (file, requests) = (folder.path().join("lru.lua"), folder.path().join("requests.txt"));
    std::fs::write(&file, text(is_planted, TURNS_CHECKED)).unwrap();
    std::fs::write(&requests, "GET http://h/r\n").unwrap();
    let output =
        Command::new(STILLGATE).args(["lua", "check"]).arg(file).arg("--requests").arg(requests).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn both_profiles_tell_the_victim_and_the_check_names_the_cause() {
    let (cpu, bytecode) = profiles(true, 20);
    let [of_cpu, of_bytecode] = [&cpu, &bytecode].map(|profile| share(profile, LOOK_UP));
    let (victim, rest) = (of_bytecode / of_cpu, (1.0 - of_bytecode) / (1.0 - of_cpu));
    let told = format!(
        "the look-up has {of_cpu:.3} of CPU time and {of_bytecode:.3} of bytecode, a ratio of {victim:.2}; all else {rest:.2}; {:?} {:?}",
        cpu.notes, bytecode.notes
    );
    println!("{told}");
    assert!(of_cpu > 0.02, "it stands out in CPU time: {told}");
    assert!(victim < rest / 2.0, "it is compiled, and what calls it is not: {told}");
    let interpreted = |profile: &Profile| {
        let shares = profile.shares("luajit", 0);
        let of: i64 = shares.iter().filter(|(doing, _)| *doing == "interpreter").map(|(_, samples)| samples).sum();
        of as f64 / profile.total(0) as f64
    };
    let (mended, _) = profiles(false, 0);
    println!("in the interpreter: {:.3} of CPU time, mended {:.3}", interpreted(&cpu), interpreted(&mended));
    assert!(
        interpreted(&mended) < interpreted(&cpu) / 2.0,
        "{:?} {:?}",
        mended.shares("luajit", 0),
        cpu.shares("luajit", 0)
    );
    let cause = "lru.lua:31: the bytecode is not compiled: FNEW (a function is made here)";
    let (code, text) = check(true);
    assert!(code == Some(1) && text.contains(cause), "{code:?} {text}");
    let (_, text) = check(false);
    assert!(!text.contains("FNEW"), "{text}");
}
