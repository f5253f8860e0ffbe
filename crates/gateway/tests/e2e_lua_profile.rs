//! Profiles of functions in Lua by their own stacks, of a running gateway under load.

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

/// A loop that is compiled, and one in a function that is not: it makes a function in each turn. Few of these, since most of their
/// time is memory's, in C, and far more so on a busy machine.
const FUNCTION: &str = "local function compiled()
  local sum = 0
  for at = 1, 1000000 do sum = sum + at % 7 end
  return sum
end
local function interpreted()
  local sum = 0
  for at = 1, 4000 do sum = (function() return sum + at % 7 end)() end
  return sum
end
return function()
  compiled() interpreted()
end";

fn profile(gateway: &Gateway, target: &str) -> Profile {
    let answer = Client::connect(gateway.admin_addr()).get(target);
    assert_eq!(answer.head.status(), 200, "{}", String::from_utf8_lossy(&answer.body));
    pprof::read(&answer.body).unwrap()
}

/// A profile of some seconds with at least this many samples. A busy machine gives a gateway few: then one of more seconds.
fn profile_of(gateway: &Gateway, kind: &str, samples: i64) -> Profile {
    let mut seconds = 3;
    loop {
        let taken = profile(gateway, &format!("/debug/pprof/lua?kind={kind}&seconds={seconds}&hz=250"));
        if taken.total(0) >= samples {
            return taken;
        }
        assert!(seconds < 24, "{kind}: {} samples in {seconds} s: {:?}", taken.total(0), taken.notes);
        seconds *= 2;
    }
}

/// How much of a profile the function that begins in this line is the innermost of, of 1.
fn share(profile: &Profile, line: u32) -> f64 {
    let name = format!(":{line}");
    let has = |sample: &stillgate_profiler::profile::Sample| {
        let innermost = profile.functions_of(sample).next_back();
        innermost.is_some_and(|found| profile.functions[found.function].name.ends_with(&name))
    };
    let of: i64 = profile.samples.iter().filter(|sample| has(sample)).map(|sample| sample.values[1]).sum();
    of as f64 / profile.total(1).max(1) as f64
}

#[test]
fn machine_code_counts_no_bytecode() {
    let node = reflecting();
    let source = serde_json::to_string(FUNCTION).unwrap();
    let route = format!(
        "routes:\n  - {{\"id\": \"r\", \"uri\": \"/r\", \"upstream_id\": \"node\", \"plugins\": {{\"serverless-pre-function\": {{\"phase\": \"access\", \"functions\": [{source}]}}}}}}\n"
    );
    let setup = setup(node.addr(), &route).gateway("debug: {pprof: true}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = gateway.client();
            while !is_over.load(Ordering::Relaxed) {
                client.send("GET /r HTTP/1.1\r\nHost: h\r\n\r\n");
                assert_eq!(client.expect_response("GET").head.status(), 200);
            }
        });
        let cpu = profile_of(&gateway, "cpu", 50);
        let bytecode = profile_of(&gateway, "bytecode", 20);
        let output = tempfile::tempdir().unwrap();
        let file = output.path().join("lua.html");
        let said = Command::new(STILLGATE)
            .args(["profile", "--kind", "lua-bytecode", "--seconds", "1", "--admin"])
            .arg(format!("http://{}", gateway.admin_addr()))
            .arg("-o")
            .arg(&file)
            .output()
            .unwrap();
        is_over.store(true, Ordering::Relaxed);
        assert!(share(&cpu, 1) > 0.1, "{}: {:#?}", share(&cpu, 1), cpu.shares("luajit", 0));
        assert!(share(&bytecode, 1) < 0.1, "{}", share(&bytecode, 1));
        let interpreted = share(&bytecode, 6) + share(&bytecode, 8);
        assert!(interpreted > 0.8, "{interpreted} {:?}", bytecode.functions);
        let doing: Vec<&str> = cpu.shares("luajit", 0).into_iter().map(|(doing, _)| doing).collect();
        assert!(doing.contains(&"compiled") && doing.contains(&"interpreter"), "{doing:?}");
        let text = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success() && text.contains("by what LuaJIT did: interpreter 100.0%"), "{text}");
        assert!(std::fs::read_to_string(&file).unwrap().contains("<html"));
    });
}
