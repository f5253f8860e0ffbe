//! Profiles of functions in Lua by their own stacks, from what `stillgate_lua::sampler` has seen.
//!
//! The worker's position shows what LuaJIT did: its interpreter, machine code that it has made, its garbage collector, its
//! compiler, or anything in C. A profile of `cpu` covers all of them; one of `bytecode` the interpreter only, so machine code
//! counts nothing.

use super::profiling::LuaKind;
use serde_json::{Map, Value as Json, json};
use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stillgate_lua::sampler::{LuaFrame, LuaProfiling, SampledStack};
use stillgate_profiler::names_of;
use stillgate_profiler::profile::{Function, Label, Line, Location, Profile, Sample, THREAD, ValueType};
use stillgate_profiler::session::{Cancel, ProfileSession};

/// The label with the activity of LuaJIT.
pub(crate) const ACTIVITY_LABEL: &str = "luajit";

/// Interval of checks for new VMs.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Activities of LuaJIT, by prefixes of the names of its own functions; the first match counts.
const ACTIVITY_PREFIXES: [(&str, &str); 22] = [
    // Arithmetic that machine code calls, too, and the way out of it.
    ("lj_vm_mod", "c"),
    ("lj_vm_floor", "c"),
    ("lj_vm_ceil", "c"),
    ("lj_vm_trunc", "c"),
    ("lj_vm_pow", "c"),
    ("lj_vm_exit", "compiled"),
    ("lj_BC_", "interpreter"),
    ("lj_vm_", "interpreter"),
    ("lj_cont_", "interpreter"),
    ("lj_ff_", "interpreter"),
    ("lj_gc_", "gc"),
    ("gc_", "gc"),
    ("propagatemark", "gc"),
    ("lj_alloc_", "gc"),
    ("lj_record_", "recorder"),
    ("rec_", "recorder"),
    ("recff_", "recorder"),
    ("lj_trace_", "recorder"),
    ("lj_opt_", "recorder"),
    ("lj_asm_", "recorder"),
    ("asm_", "recorder"),
    ("lj_snap_", "recorder"),
];

/// The summary of the last profile of CPU time, for `GET /v1/lua/jit`; null: none with samples was taken yet.
static LAST_SHARES: Mutex<Json> = Mutex::new(Json::Null);

/// When the last profile of CPU time ended, its samples, and the share of each activity of LuaJIT.
pub(super) fn last_shares() -> Json {
    LAST_SHARES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn store_activity_shares(profile: &Profile, ended: SystemTime) {
    let samples = profile.total(0);
    if samples == 0 {
        return;
    }
    let shares = profile.shares(ACTIVITY_LABEL, 0).into_iter();
    let shares: Map<String, Json> =
        shares.map(|(activity, count)| (activity.to_owned(), json!(count as f64 / samples as f64))).collect();
    let ended_ms = ended.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    *LAST_SHARES.lock().unwrap_or_else(PoisonError::into_inner) =
        json!({ "ended_unix_ms": ended_ms, "samples": samples, "shares": shares });
}

/// Takes a profile on the calling thread.
pub(super) fn take(
    session: ProfileSession,
    kind: LuaKind,
    duration: Duration,
    hz: u32,
    cancel: &Cancel,
) -> io::Result<Profile> {
    let (began, began_at) = (Instant::now(), SystemTime::now());
    let mut sampling = LuaProfiling::begin(hz)?;
    while began.elapsed() < duration && !cancel.is_cancelled() {
        sleep(LOOK_EVERY.min(duration.saturating_sub(began.elapsed())));
        sampling.arm_new()?;
    }
    let (sampled, lost) = sampling.end();
    let took = began.elapsed();
    let mut addresses: Vec<u64> = sampled.iter().map(|sampled| sampled.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let names: HashMap<u64, Option<String>> = addresses.iter().copied().zip(names_of(&addresses)?).collect();
    let mut profile = ProfileBuilder::default();
    for sampled in &sampled {
        profile.add(sampled, names[&sampled.address].as_deref(), kind);
    }
    let period_ns = i64::try_from(Duration::from_secs(1).as_nanos()).unwrap_or(i64::MAX) / i64::from(hz.max(1));
    let since = began_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let profile = profile.finish(kind, period_ns);
    if kind == LuaKind::Cpu {
        store_activity_shares(&profile, SystemTime::now());
    }
    let seen: i64 = profile.samples.iter().map(|sample| sample.values[0]).sum();
    let mut notes =
        vec![format!("{} at {hz} Hz: {seen} samples of functions in Lua, by their own stacks", kind.title())];
    if lost > 0 {
        notes.push(format!("{lost} samples are lost: their function ended before its stack could be seen"));
    }
    drop(session);
    Ok(Profile {
        time_ns: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        duration_ns: i64::try_from(took.as_nanos()).unwrap_or(i64::MAX),
        notes,
        ..profile
    })
}

/// The activity of LuaJIT at an address of this name; `None`: it is in no file, as machine code that LuaJIT makes.
fn activity(name: Option<&str>) -> &'static str {
    let Some(name) = name else { return "compiled" };
    ACTIVITY_PREFIXES.iter().find(|(part, _)| name.starts_with(part)).map_or("c", |(_, activity)| activity)
}

/// A function of LuaJIT's library by the name that users know: `lj_cf_table_sort` is `table.sort`.
fn built_in(name: &str) -> Option<String> {
    let rest = ["lj_cf_", "lj_ffh_", "lj_ff_"].iter().find_map(|prefix| name.strip_prefix(prefix))?;
    match rest.split_once('_') {
        Some((library @ ("string" | "table" | "math" | "os" | "bit" | "coroutine" | "ffi"), function)) => {
            Some(format!("{library}.{function}"))
        }
        _ => Some(rest.to_owned()),
    }
}

/// Builds lists without duplicates.
#[derive(Default)]
struct ProfileBuilder {
    functions: HashMap<Function, usize>,
    places: HashMap<(usize, u32), usize>,
    samples: Vec<Sample>,
}

impl ProfileBuilder {
    fn add(&mut self, sampled: &SampledStack, name: Option<&str>, kind: LuaKind) {
        let activity = activity(name);
        if kind == LuaKind::Bytecode && activity != "interpreter" {
            return;
        }
        let mut stack: Vec<usize> = sampled.stack.iter().map(|frame| self.place(frame)).collect();
        if let Some(name) = name.and_then(built_in) {
            let function = self.function(Function { name, file: String::new() });
            stack.insert(0, self.line(function, 0));
        }
        let label = |name: &str, text: &str| (name.to_owned(), Label::Text(text.to_owned()));
        self.samples.push(Sample {
            stack,
            values: vec![i64::try_from(sampled.periods).unwrap_or(i64::MAX)],
            labels: vec![label(THREAD, &sampled.thread), label(ACTIVITY_LABEL, activity)],
        });
    }

    /// Functions in Lua have no name of their own: the place where they begin identifies them.
    fn place(&mut self, frame: &LuaFrame) -> usize {
        let name = match (frame.first_line, frame.line) {
            (0, 0) if frame.name.is_empty() => "a function of C".to_owned(),
            (0, 0) => frame.name.clone(),
            (first, _) => format!("{}:{first}", frame.source),
        };
        let function = self.function(Function { name, file: frame.source.clone() });
        self.line(function, frame.line)
    }

    fn function(&mut self, function: Function) -> usize {
        let next = self.functions.len();
        *self.functions.entry(function).or_insert(next)
    }

    fn line(&mut self, function: usize, line: u32) -> usize {
        let next = self.places.len();
        *self.places.entry((function, line)).or_insert(next)
    }

    fn finish(self, kind: LuaKind, period_ns: i64) -> Profile {
        let mut functions: Vec<(Function, usize)> = self.functions.into_iter().collect();
        functions.sort_unstable_by_key(|(_, number)| *number);
        let mut places: Vec<((usize, u32), usize)> = self.places.into_iter().collect();
        places.sort_unstable_by_key(|(_, number)| *number);
        let location = |((function, line), number): ((usize, u32), usize)| Location {
            // No location has an address of its own, and readers distinguish locations by it.
            address: number as u64 + 1,
            mapping: None,
            lines: vec![Line { function, line: line.into() }],
        };
        let mut samples = self.samples;
        for sample in &mut samples {
            sample.values.push(sample.values[0].saturating_mul(period_ns));
        }
        Profile {
            values: vec![ValueType::new("samples", "count"), ValueType::new(kind.value(), "nanoseconds")],
            main: 1,
            period: (ValueType::new("cpu", "nanoseconds"), period_ns),
            time_ns: 0,
            duration_ns: 0,
            notes: Vec::new(),
            mappings: Vec::new(),
            functions: functions.into_iter().map(|(function, _)| function).collect(),
            locations: places.into_iter().map(location).collect(),
            samples,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_say_what_luajit_did() {
        let check = |name: Option<&str>, expected: &str| assert_eq!(activity(name), expected, "{name:?}");
        check(None, "compiled");
        check(Some("lj_BC_ADDVV"), "interpreter");
        check(Some("lj_vm_modi"), "c");
        check(Some("lj_gc_step"), "gc");
        check(Some("lj_record_ins"), "recorder");
        check(Some("stillgate_lua::bridge::call"), "c");
        assert_eq!(built_in("lj_cf_table_sort").as_deref(), Some("table.sort"));
        assert_eq!(built_in("lj_ff_string_byte").as_deref(), Some("string.byte"));
        assert_eq!(built_in("lj_cf_print").as_deref(), Some("print"));
        assert_eq!(built_in("lj_BC_ADDVV"), None);
    }

    #[test]
    fn a_profile_of_bytecode_is_of_the_interpreter_only() {
        let frame = |first_line, line| LuaFrame { source: "a.lua".to_owned(), first_line, line, name: String::new() };
        let sampled = |address, periods| SampledStack {
            thread: "worker-0".to_owned(),
            stack: vec![frame(3, 4), frame(1, 9)],
            address,
            periods,
        };
        let built = |kind| {
            let mut building = ProfileBuilder::default();
            building.add(&sampled(1, 5), Some("lj_BC_CALL"), kind);
            building.add(&sampled(2, 7), None, kind);
            building.add(&sampled(3, 1), Some("lj_cf_table_sort"), kind);
            building.finish(kind, 1_000)
        };
        let cpu = built(LuaKind::Cpu);
        assert_eq!((cpu.total(0), cpu.total(1)), (13, 13_000));
        assert_eq!(cpu.shares(ACTIVITY_LABEL, 0), [("compiled", 7), ("interpreter", 5), ("c", 1)]);
        store_activity_shares(&cpu, UNIX_EPOCH + Duration::from_millis(7));
        // A profile without samples changes nothing.
        store_activity_shares(&ProfileBuilder::default().finish(LuaKind::Cpu, 1_000), UNIX_EPOCH);
        let shares = json!({ "compiled": 7.0 / 13.0, "interpreter": 5.0 / 13.0, "c": 1.0 / 13.0 });
        assert_eq!(last_shares(), json!({ "ended_unix_ms": 7, "samples": 13, "shares": shares }));
        let names: Vec<&str> = cpu.functions.iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, ["a.lua:3", "a.lua:1", "table.sort"]);
        let bytecode = built(LuaKind::Bytecode);
        assert_eq!((bytecode.total(0), bytecode.values[1].kind.as_str()), (5, "bytecode"));
    }
}
