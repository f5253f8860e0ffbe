//! Profiles of functions in Lua by their own stacks, of a running gateway under load; and how they distinguish a slow function's
//! victim from its cause, as in the third reference text.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::shared::STILLGATE;
use crate::shared::reflect::{reflecting, setup};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use stillgate_profiler::output::pprof;
use stillgate_profiler::profile::{Label, Profile, Sample};
use stillgate_testkit::{Client, Gateway, eventually_within, is_nightly};

/// A loop that is compiled, and one in a function that is not: it makes a function in each turn. Few of these, since making one is
/// memory's time, in C, and far more so on a busy machine; the interpreter's own work is the arithmetic after it.
const FUNCTION: &str = "local function compiled()
  local sum = 0
  for at = 1, 1000000 do sum = sum + at % 7 end
  return sum
end
local function interpreted()
  local sum = 0
  for at = 1, 2000 do sum = (function() return sum + at % 7 end)()
    sum = (sum * 3 + at) % 97 sum = (sum * 5 + at) % 89 sum = (sum * 7 + at) % 83 sum = (sum * 9 + at) % 79
    sum = (sum * 3 + at) % 97 sum = (sum * 5 + at) % 89 sum = (sum * 7 + at) % 83 sum = (sum * 9 + at) % 79
    sum = (sum * 3 + at) % 97 sum = (sum * 5 + at) % 89 sum = (sum * 7 + at) % 83 sum = (sum * 9 + at) % 79
    sum = (sum * 3 + at) % 97 sum = (sum * 5 + at) % 89 sum = (sum * 7 + at) % 83 sum = (sum * 9 + at) % 79
  end
  return sum
end
return function()
  compiled() interpreted()
end";

/// How long a profile takes at first, and where a busy machine gives few samples: longer ones rather than more of them, since the
/// symbols of each are read by a nice thread.
const SECONDS: u64 = 2;
const SECONDS_MAX: u64 = 64;
const PROFILES_MAX: usize = 50;
const PROFILE_PATIENCE: Duration = Duration::from_secs(900);

/// How long a machine takes to begin a profile, at first and where it is very busy.
const BEGIN: Duration = Duration::from_secs(1);
const BEGIN_MAX: Duration = Duration::from_secs(60);

fn profile(gateway: &Gateway, kind: &str, seconds: u64, begin: Duration) -> Profile {
    let mut client = Client::connect(gateway.admin_addr());
    client.set_patience(PROFILE_PATIENCE);
    let target = format!("/debug/pprof/lua?kind={kind}&seconds={seconds}&hz=250");
    let answer = loaded(gateway, Duration::from_secs(seconds) + begin, || client.get(&target));
    assert_eq!(answer.head.status(), 200, "{}", String::from_utf8_lossy(&answer.body));
    pprof::read(&answer.body).unwrap()
}

/// Takes a profile while requests are sent. They end with it: its symbols are read by a nice thread, which would wait for a core.
fn loaded<R>(gateway: &Gateway, load: Duration, take: impl FnOnce() -> R) -> R {
    let end = Instant::now() + load;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = gateway.client();
            while Instant::now() < end {
                client.send("GET /r HTTP/1.1\r\nHost: h\r\n\r\n");
                assert_eq!(client.expect_response("GET").head.status(), 200);
            }
        });
        take()
    })
}

/// Profiles with at least this many samples together.
fn profiles_of(gateway: &Gateway, kind: &str, samples: i64) -> Vec<Profile> {
    let (mut all, mut seconds, mut begin): (Vec<Profile>, u64, Duration) = (Vec::new(), SECONDS, BEGIN);
    while all.iter().map(|profile| profile.total(0)).sum::<i64>() < samples {
        assert!(all.len() < PROFILES_MAX, "{kind}: {:?}", all.iter().map(|profile| &profile.notes).collect::<Vec<_>>());
        let next = profile(gateway, kind, seconds, begin);
        if next.total(0) < samples / 4 {
            // Or it began when the load was over.
            (seconds, begin) = (SECONDS_MAX.min(2 * seconds), longer(begin));
        }
        all.push(next);
    }
    all
}

fn longer(begin: Duration) -> Duration {
    BEGIN_MAX.min(2 * begin)
}

/// How much of them is in samples with this property, of 1.
fn part(profiles: &[Profile], has: impl Fn(&Profile, &Sample) -> bool) -> f64 {
    let of = |profile: &Profile| -> i64 {
        profile.samples.iter().filter(|sample| has(profile, sample)).map(|sample| sample.values[0]).sum()
    };
    let all: i64 = profiles.iter().map(|profile| profile.total(0)).sum();
    profiles.iter().map(of).sum::<i64>() as f64 / all.max(1) as f64
}

/// Whether a sample is in the function that begins in this line, and in none that it calls.
fn is_in(profile: &Profile, sample: &Sample, line: u32) -> bool {
    let innermost = profile.functions_of(sample).next_back();
    innermost.is_some_and(|found| profile.functions[found.function].name.ends_with(&format!(":{line}")))
}

fn is_doing(sample: &Sample, what: &str) -> bool {
    sample.labels.iter().any(|(name, label)| name == "luajit" && *label == Label::Text(what.to_owned()))
}

/// How much of them the function that begins in this line is the innermost of, of 1.
fn share(profiles: &[Profile], line: u32) -> f64 {
    part(profiles, |profile, sample| is_in(profile, sample, line))
}

/// How much of them was spent in this, of 1.
fn doing(profiles: &[Profile], what: &str) -> f64 {
    part(profiles, |_, sample| is_doing(sample, what))
}

/// How much of them was spent in the interpreter, for the function that begins in this line or for all; of 1.
fn interpreted(profiles: &[Profile], line: Option<u32>) -> f64 {
    part(profiles, |profile, sample| {
        is_doing(sample, "interpreter") && line.is_none_or(|line| is_in(profile, sample, line))
    })
}

/// Looks at a gateway that runs a function for each request.
fn with_function<R>(source: &str, look: impl FnOnce(&Gateway) -> R) -> R {
    let node = reflecting();
    let source = serde_json::to_string(source).unwrap();
    let route = format!(
        "routes:\n  - {{\"id\": \"r\", \"uri\": \"/r\", \"upstream_id\": \"node\", \"plugins\": {{\"serverless-pre-function\": {{\"phase\": \"access\", \"functions\": [{source}]}}}}}}\n"
    );
    look(&Gateway::start(STILLGATE, &setup(node.addr(), &route).gateway("debug: {pprof: true}")))
}

/// How much of them is of the function that is not compiled, and of those that it makes.
fn by_closures(profiles: &[Profile]) -> f64 {
    share(profiles, 6) + share(profiles, 8)
}

#[test]
fn machine_code_counts_no_bytecode() {
    with_function(FUNCTION, |gateway| {
        let mut cpu = profiles_of(gateway, "cpu", 50);
        // The interpreter has few samples, since most of what is not compiled is memory's: until there is one.
        while doing(&cpu, "interpreter") == 0.0 && cpu.len() < PROFILES_MAX {
            cpu.extend(profiles_of(gateway, "cpu", 50));
        }
        let bytecode = profiles_of(gateway, "bytecode", 20);
        let output = tempfile::tempdir().unwrap();
        let file = output.path().join("lua.html");
        let (mut text, mut begin) = (String::new(), BEGIN);
        eventually_within(PROFILE_PATIENCE, "a profile with samples by the command", || {
            let admin = format!("http://{}", gateway.admin_addr());
            let mut command = Command::new(STILLGATE);
            let seconds = SECONDS.to_string();
            command
                .args(["profile", "--kind", "lua-bytecode", "--seconds", &seconds, "--admin", &admin, "-o"])
                .arg(&file);
            let said = loaded(gateway, Duration::from_secs(SECONDS) + begin, || command.output().unwrap());
            begin = longer(begin);
            text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
            assert!(said.status.success(), "{text}");
            !text.contains(" 0 samples")
        });
        let in_compiled = doing(&cpu, "compiled");
        assert!(share(&cpu, 1) > 0.1, "{}, and {in_compiled} of machine code", share(&cpu, 1));
        assert!(share(&bytecode, 1) < 0.1, "{} of bytecode is of machine code", share(&bytecode, 1));
        assert!(by_closures(&bytecode) > 0.8, "{} {:?}", by_closures(&bytecode), bytecode[0].functions);
        let in_interpreter = doing(&cpu, "interpreter");
        assert!(in_compiled > 0.0 && in_interpreter > 0.0, "{in_compiled} and {in_interpreter} of CPU time");
        assert!(text.contains("by what LuaJIT did: interpreter 100.0%"), "{text}");
        assert!(std::fs::read_to_string(&file).unwrap().contains("<html"));
    });
}

/// Where the look-up in the cache begins, and where the closure is made.
const LOOK_UP: u32 = 4;
const CLOSURE: u32 = 32;

/// A cache in order of the last use, and a route with lookups by a key of several fields, as many as many plugins would do. In the
/// planted form the key is made with a closure for each, in the other with a function that was made once.
fn with_cache(is_planted: bool) -> String {
    let (once, each) = match is_planted {
        true => ("", "key = ''  each_field(values, function(name, value) key = key .. name .. value end)"),
        false => {
            ("local function add(name, value) key = key .. name .. value end", "key = ''  each_field(values, add)")
        }
    };
    format!(
        "local fields, first, key = {{ 'uri', 'host', 'scheme' }}, nil, ''

-- The list begins with what was used last.
local function look_up(wanted)
  local before, node = nil, first
  while node and node.key ~= wanted do
    before, node = node, node.after
  end
  if not node then
    node = {{ key = wanted, value = #wanted, after = first }}
    first = node
  elseif before then
    before.after, node.after = node.after, first
    first = node
  end
  return node.value
end

local function each_field(values, visit)
  for at = 1, #fields do
    visit(fields[at], values[at])
  end
end

local names = {{}}
for at = 1, 24 do names[at] = 'filler ' .. at look_up(names[at]) end
{once}
return function(conf, ctx)
  local sum, values = 0, {{ ngx.var.uri, ngx.var.host, ngx.var.scheme }}
  for at = 1, 100 do
    -- The key, and two look-ups.
    {each}
    sum = sum + look_up(key) + look_up(names[at % 24 + 1])
  end
  ctx.sum = sum
end
"
    )
}

/// What the check says of a form, and its exit code.
fn check(is_planted: bool) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let (file, requests) = (folder.path().join("cache.lua"), folder.path().join("requests.txt"));
    std::fs::write(&file, with_cache(is_planted)).unwrap();
    std::fs::write(&requests, "GET http://h/r\n").unwrap();
    let said =
        Command::new(STILLGATE).args(["lua", "check"]).arg(file).arg("--requests").arg(requests).output().unwrap();
    (said.status.code(), String::from_utf8([said.stdout, said.stderr].concat()).unwrap())
}

#[test]
fn both_profiles_show_the_victim() {
    if !is_nightly() {
        return;
    }
    let (cpu, bytecode) = with_function(&with_cache(true), |gateway| {
        (profiles_of(gateway, "cpu", 200), profiles_of(gateway, "bytecode", 50))
    });
    let mended = with_function(&with_cache(false), |gateway| profiles_of(gateway, "cpu", 200));
    let [of_cpu, of_bytecode] = [&cpu, &bytecode].map(|profiles| share(profiles, LOOK_UP));
    println!(
        "the look-up has {of_cpu:.3} of CPU time and {of_bytecode:.3} of bytecode; {:?}",
        cpu[0].shares("luajit", 0)
    );
    assert!(of_cpu > 0.02 && of_bytecode > 0.05, "it stands out in both: {of_cpu} {of_bytecode}");
    // Not a letter of it differs, and in the mended form it is part of its caller's machine code.
    let [victim, all] = [Some(LOOK_UP), None].map(|line| {
        let [before, after] = [&cpu, &mended].map(|profiles| interpreted(profiles, line));
        println!("in the interpreter: {before:.3} of CPU time, mended {after:.3}, of {line:?}");
        (before, after)
    });
    assert!(victim.1 < victim.0 / 2.0 && all.1 < all.0 / 2.0, "{victim:?} {all:?}");
}

#[test]
fn the_check_names_the_cause() {
    let cause = format!("cache.lua:{CLOSURE}: the bytecode is not compiled: FNEW (a function is made here)");
    let (code, text) = check(true);
    assert!(code == Some(1) && text.contains(&cause) && text.lines().count() == 2, "{code:?} {text}");
    let (code, text) = check(false);
    assert_eq!((code, text.contains("cache.lua: good (")), (Some(0), true), "{text}");
}
