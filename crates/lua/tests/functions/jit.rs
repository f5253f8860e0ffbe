//! State of LuaJIT's compiler on this thread, after functions became warm.

use crate::fake::Fake;
use std::sync::Arc;
use stillgate_lua::jit::examine::{CodeToExamine, Examination, Finding, examine};
use stillgate_lua::jit::{self, CompileState, JitStats, TraceAbortReason, VmJitReport};
use stillgate_lua::{CallKind, Context, Module, Program, RunOutcome, run, run_part};

const RUNS: usize = 3000;
/// LuaJIT waits longer after each recording that has failed, until it blacklists the code.
const RUNS_UNTIL_BLACKLISTED: usize = 200_000;

fn named(name: &str, sources: &[&str]) -> Arc<Program> {
    let sources = sources.iter().map(|source| source.to_string()).collect();
    Program::new(name.to_owned(), sources, serde_json::json!({}), CallKind::Plugin)
}

fn warm(program: &Arc<Program>, runs: usize) {
    for _ in 0..runs {
        let outcome = run(program, &mut Fake::default(), &mut Context::default());
        assert!(matches!(outcome, RunOutcome::Done(_)), "{outcome:?}");
    }
}

/// The published state of this thread.
fn worker() -> VmJitReport {
    let name = std::thread::current().name().unwrap().to_owned();
    let mut all = jit::of_all_threads();
    all.retain(|worker| worker.thread == name);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn published() -> Arc<JitStats> {
    worker().stats
}

#[test]
fn a_vm_tells_its_memory_and_that_it_was_replaced() {
    let keeps = named("keeps", &["kept = ''\nreturn function() kept = kept .. ('x'):rep(1e6) end"]);
    warm(&keeps, 1);
    let first = worker();
    assert!(first.is_compiling && first.memory_bytes > 100_000, "{first:?}");
    warm(&keeps, 4);
    assert!(worker().memory_bytes > first.memory_bytes + 3_000_000, "{first:?} {:?}", worker().memory_bytes);
    // Data that fills the memory, and cannot be freed, costs the VM.
    let fills = named(
        "fills",
        &["all = {}\nreturn function() for at = 1, 100 do all[#all + 1] = ('x'):rep(1e6 + #all) end end"],
    );
    let outcome = run(&fills, &mut Fake::default(), &mut Context::default());
    assert!(matches!(outcome, RunOutcome::Failed(_)), "{outcome:?}");
    warm(&keeps, 1);
    let second = worker();
    assert_eq!((first.generation, second.generation), (1, 2));
    assert!(second.memory_bytes < 16_000_000, "{second:?}");
}

fn states(stats: &JitStats, source: &str) -> Vec<(u32, CompileState)> {
    let source = &stats.sources[source];
    source.functions.iter().map(|function| (function.first_line, source.state(function))).collect()
}

fn aborts(stats: &JitStats, source: &str) -> Vec<(u32, &'static str, Option<&'static str>, String)> {
    let of_source = stats.aborts.keys().filter(|abort| abort.source == source);
    let mut all: Vec<_> =
        of_source.map(|abort| (abort.line, abort.reason.name(), abort.instruction, abort.called.clone())).collect();
    // Recordings that began elsewhere may end there, too.
    all.dedup();
    all
}

#[test]
fn functions_are_compiled_blacklisted_or_never_tried() {
    let good = named(
        "good",
        &[
            "local seldom = function()\n  return 1\nend\nreturn function(conf, ctx)\n  ngx.header['X-A'] = ngx.var.uri\n  if ngx.var.uri == '/never' then seldom() end\nend",
        ],
    );
    warm(&good, RUNS);
    let stats = published();
    assert_eq!(
        states(&stats, "good"),
        [(0, CompileState::Interpreted), (1, CompileState::Interpreted), (4, CompileState::Compiled)]
    );
    assert!(stats.traces > 0 && stats.machine_code_bytes > 0, "{stats:?}");
    assert!(stats.sources["good"].text.starts_with("local seldom"));

    let before = jit::totals();
    let bad = named(
        "bad",
        &[
            "return function(conf, ctx)\n  local made =\n    function()\n      return conf\n    end\n  return made() == 1 and 1 or nil\nend",
        ],
    );
    warm(&bad, RUNS_UNTIL_BLACKLISTED);
    let stats = published();
    assert_eq!(
        states(&stats, "bad"),
        [(0, CompileState::Interpreted), (1, CompileState::Blacklisted), (3, CompileState::Compiled)]
    );
    assert!(aborts(&stats, "bad").contains(&(3, "bytecode", Some("FNEW"), String::new())), "{stats:#?}");
    let reason = TraceAbortReason::all().find(|reason| reason.name() == "bytecode").unwrap();
    assert!(jit::totals().aborts[reason.number()] > before.aborts[reason.number()]);
}

#[test]
fn calls_that_leave_compiled_code_are_laid_at_the_user_s_line() {
    let stitched = named(
        "stitched",
        &[
            "return function(conf, ctx)\n  local core = require('apisix.core')\n  local all = 0\n  for at = 1, 3 do\n    all = all + #core.json.encode(ctx)\n  end\n  ngx.header['X-A'] = all\nend",
        ],
    );
    warm(&stitched, RUNS);
    let stats = published();
    let source = &stats.sources["stitched"];
    let (_, line) = source.lines.iter().find(|((_, line), _)| *line == 5).unwrap();
    assert_eq!(line.state(), CompileState::Stitched, "{stats:#?}");
    assert_eq!(line.stitches.keys().collect::<Vec<_>>(), ["core.json.encode"]);
}

#[test]
fn a_program_that_is_gone_is_forgotten() {
    let first = named("route", &["return function() end"]);
    warm(&first, RUNS);
    let second = named("route", &["return function() end", "\nreturn function() end"]);
    warm(&second, RUNS);
    drop(first);
    // The next run of any function notices it.
    warm(&named("other", &["return function() end"]), RUNS);
    let stats = published();
    assert_eq!(stats.sources.keys().collect::<Vec<_>>(), ["other", "route[1]", "route[2]"]);
    assert_eq!(states(&stats, "route[2]"), [(0, CompileState::Interpreted), (2, CompileState::Compiled)]);
}

#[test]
fn a_new_text_of_a_name_has_nothing_of_the_old_one() {
    let closing =
        "return function(conf, ctx)\n  local made = function() return conf end\n  return made() == 1 and 1 or nil\nend";
    let old = named("route", &[closing]);
    warm(&old, RUNS);
    assert!(!aborts(&published(), "route").is_empty());
    let new = named("route", &["\n\nreturn function() end"]);
    warm(&new, 1);
    drop(old);
    warm(&new, 1);
    let stats = published();
    assert_eq!((aborts(&stats, "route"), states(&stats, "route").len()), (Vec::new(), 2), "{stats:#?}");
    drop(new);
    warm(&named("other", &["return function() end"]), 1);
    assert_eq!(published().sources.keys().collect::<Vec<_>>(), ["other"]);
}

#[test]
fn a_file_s_text_is_known_for_as_long_as_a_program_runs_it() {
    let module = Module::new(
        "own.lua".to_owned(),
        "return { name = 'own', version = 1, priority = 1, schema = {}, access = function() end }".to_owned(),
    );
    let part = stillgate_lua::PHASES.iter().position(|phase| *phase == "access").unwrap();
    let run = |program: &Arc<Program>| run_part(program, part, &mut Fake::default(), &mut Context::default());
    let [first, second] =
        ["a", "b"].map(|name| Program::of_module(name.to_owned(), module.clone(), serde_json::json!({})));
    let other = named("other", &["return function() end"]);
    let known = || -> Vec<String> {
        warm(&other, 1);
        published().sources.keys().cloned().collect()
    };
    assert!(matches!((run(&first), run(&second)), (RunOutcome::Done(_), RunOutcome::Done(_))));
    assert_eq!(known(), ["other", "own.lua"]);
    drop(first);
    assert_eq!(known(), ["other", "own.lua"]);
    drop(second);
    assert_eq!(known(), ["other"]);
    // Another configuration may use the same text again.
    let third = Program::of_module("c".to_owned(), module.clone(), serde_json::json!({}));
    run(&third);
    assert_eq!(known(), ["other", "own.lua"]);
}

#[test]
fn what_is_compiled_while_a_text_is_loaded_is_known() {
    let looping = "local list = {}
local function fill(to)
  for at = 1, to do
    list[at] = at
  end
end
fill(5000)
return function() fill(1) end";
    for _ in 0..2 {
        // The second replaces the first.
        let early = named("early", &[looping]);
        warm(&early, 1);
        assert_eq!(
            states(&published(), "early"),
            [(0, CompileState::Interpreted), (2, CompileState::Compiled), (8, CompileState::Interpreted)]
        );
    }
    // A text that cannot be loaded is not listed.
    let failing = named("failing", &["return function() end", "local x = nil\nreturn x.y"]);
    let outcome = run(&failing, &mut Fake::default(), &mut Context::default());
    assert!(
        matches!(&outcome, RunOutcome::Failed(failure) if failure.text.starts_with("failing[2]:2: ")),
        "{outcome:?}"
    );
    warm(&named("other", &["return function() end"]), 1);
    let stats = published();
    assert!(!stats.sources.keys().any(|name| name.starts_with("failing")), "{:?}", stats.sources.keys());
}

/// Calls the most common functions from code that LuaJIT does not compile: a closure is made first.
const FROM_INTERPRETER: &str = "local core = require('apisix.core')
return function(conf, ctx)
  local made = function() return ctx end
  local text = ngx.var.uri .. ctx.var.host .. (core.request.header(ctx, 'X-A') or '')
  ngx.header['X-B'] = text
  core.response.set_header('X-C', #(ngx.req.get_headers()['x-two'] or ''))
  ngx.ctx.found = text:find('l+') or text:match('h') or ngx.re.find(text, 'o')
  ngx.ctx.made = made
  ngx.ctx.coded = ngx.encode_base64(ngx.escape_uri(text)) .. ngx.time() .. ngx.req.get_uri_args().name
end";

#[test]
fn what_is_not_compiled_takes_nothing_else_with_it() {
    let closing = named("closing", &[FROM_INTERPRETER]);
    warm(&closing, RUNS_UNTIL_BLACKLISTED);
    let mended = named("mended", &[include_str!("../../../../docs/jit-health/closure_mended.lua")]);
    warm(&mended, RUNS_UNTIL_BLACKLISTED);
    let stats = published();
    assert_eq!(states(&stats, "closing")[1], (2, CompileState::Blacklisted), "{stats:#?}");
    assert_eq!(
        states(&stats, "mended")[1..],
        [(5, CompileState::Compiled), (9, CompileState::Compiled), (14, CompileState::Compiled)]
    );
    // A function of the prelude that could not be compiled by itself would be blacklisted, and its callers with it.
    let lost: Vec<_> = stats.aborts.iter().filter(|(abort, _)| abort.reason.name() == "lower_frame").collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

#[test]
fn counting_lines_keeps_no_loop_from_being_compiled() {
    // The counted request has as many turns as LuaJIT needs to try, many times over.
    let looping = "local list = {}
for at = 1, 30 do list[at] = { key = 'k' .. at } end
local function look_up(key)
  local at = 1
  while list[at].key ~= key do
    at = at + 1
  end
  return at
end
return function(conf, ctx)
  local sum = 0
  for at = 1, 300 do sum = sum + look_up(list[at % 30 + 1].key) end
  ctx.sum = sum
end";
    let host = |_, phase| Fake { phase, ..Fake::default() };
    let found = examine(&CodeToExamine::function("loops.lua", looping, serde_json::json!({})), 1, host).unwrap();
    assert_eq!((&found.findings[..], found.late), (&[][..], 0), "{found:#?}");
    let aborts = published().aborts.iter().filter(|(abort, _)| abort.reason.name() == "error").count();
    assert_eq!(aborts, 0, "{:#?}", published().aborts);
}

fn examined(source: &str) -> Examination {
    let targets = ["/a?x=1", "/b", "/c", "/d?y=2"];
    let host = |run: usize, phase| Fake { target: targets[run].into(), phase, ..Fake::default() };
    examine(&CodeToExamine::function("key.lua", source, serde_json::json!({})), targets.len(), host).unwrap()
}

/// Checks the examples of the documentation: the bad one has a finding with this reason at this line, and the good one
/// has none.
fn check(bad: &str, line: u32, part: &str, mended: &str) {
    let found = examined(bad);
    let is_it = |finding: &Finding| finding.line == line && finding.reason.contains(part);
    assert!(found.findings.iter().any(is_it), "{found:#?}");
    let good = std::thread::scope(|scope| scope.spawn(|| examined(mended)).join().unwrap());
    assert_eq!((&good.findings[..], good.late, good.flushes), (&[][..], 0, 0), "{good:#?}");
    assert!(good.lines_compiled > 0, "{good:#?}");
}

#[test]
fn a_closure_for_each_request_is_found_where_it_is_made() {
    let (bad, mended) = (
        include_str!("../../../../docs/jit-health/closure.lua"),
        include_str!("../../../../docs/jit-health/closure_mended.lua"),
    );
    check(bad, 11, "FNEW (a function is made here); make it once, outside", mended);
}

#[test]
fn a_loop_that_leaves_machine_code_is_found() {
    let (bad, mended) = (
        include_str!("../../../../docs/jit-health/stitch.lua"),
        include_str!("../../../../docs/jit-health/stitch_mended.lua"),
    );
    check(bad, 8, "core.json.encode is not compiled, so each call leaves machine code, 5.0 times a request", mended);
}

#[test]
fn a_table_that_is_list_and_map_is_found() {
    let (bad, mended) = (
        include_str!("../../../../docs/jit-health/shape.lua"),
        include_str!("../../../../docs/jit-health/shape_mended.lua"),
    );
    check(bad, 8, "both list and map is made; keep what is a list", mended);
    assert!(examined(bad).functions.contains(&(4, CompileState::Blacklisted)));
}

#[test]
fn a_sort_for_each_request_is_found() {
    let bad = "return function(conf, ctx)
  local names = { 'c', ngx.var.host, 'a' }
  table.sort(names)
  ngx.header['X-A'] = names[1]
end";
    let mended = "local names = { 'c', 'b', 'a' }
table.sort(names)
return function(conf, ctx)
  ngx.header['X-A'] = names[1] .. ngx.var.host
end";
    check(bad, 3, "in a call of table.sort; sort once, where the list is made", mended);
}

#[test]
fn functions_that_usually_answer_are_good() {
    for source in [
        "return function(conf, ctx)\n  if ngx.var.host ~= 'x' then return 403, { message = 'no' } end\nend",
        "return function() ngx.status = 401 ngx.say('no') ngx.exit(401) end",
        "local core = require('apisix.core')\nreturn function(conf, ctx)\n  core.response.set_header('X-A', ctx.var.remote_addr)\n  core.request.set_header(ctx, 'X-B', core.request.header(ctx, 'User-Agent'))\nend",
        "return function()\n  if ngx.re.match(ngx.var.uri, '^/hel+o') then ngx.header['X-A'] = 'b' end\nend",
        // The examples of the page on functions: what they call creates no closures.
        "return function(conf, ctx)\n  local core = require('apisix.core')\n  local uri_args = core.request.get_uri_args(ctx)\n  if not uri_args.name then\n    uri_args.name = 'world'\n    core.request.set_uri_args(ctx, uri_args)\n  end\nend",
        "return function()\n  local args = ngx.req.get_uri_args()\n  args.n, args.a, args.z = 1, 2, { 3, 4 }\n  ngx.req.set_header('X-A', ngx.encode_args(args))\nend",
    ] {
        let examined = std::thread::scope(|scope| scope.spawn(|| examined(source)).join().unwrap());
        assert_eq!(examined.findings, [], "{source}: {examined:#?}");
    }
}

/// The benchmark's function: it reads a header and a variable, and sets two headers.
#[test]
fn a_function_that_reads_and_sets_headers_compiles_whole() {
    let source = "local core = require('apisix.core')\nreturn function(conf, ctx)\n  core.request.set_header(ctx, 'X-Agent', core.request.header(ctx, 'User-Agent'))\n  core.response.set_header('X-Client', ctx.var.remote_addr)\nend";
    let examined = std::thread::scope(|scope| scope.spawn(|| examined(source)).join().unwrap());
    assert_eq!((&examined.findings[..], examined.late, examined.flushes), (&[][..], 0, 0), "{examined:#?}");
    assert!(examined.functions.contains(&(2, CompileState::Compiled)), "{examined:#?}");
}
