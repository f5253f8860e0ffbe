//! `/debug/pprof/`: profiles of this process, in pprof's format or as JSON, where `gateway.debug.pprof` allows it.
//!
//! A profile is taken by a thread of its own, one at a time in the process. It stops when the client goes away.

use super::context::{PageContext, PageRefusal, Question, error, json, refuse};
use super::lua_profile;
use crate::configuration::reload::ServedPlan;
use axum::body::Body;
use axum::extract::{Extension, RawQuery};
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use std::borrow::Cow;
use std::time::Duration;
use std::{io, thread};
use stillgate_admin::Page;
use stillgate_door::{Caller, Peer};
use stillgate_profiler::continuous::NoProfile;
use stillgate_profiler::cpu::{self, ThreadScope};
use stillgate_profiler::output::html::stacks_of;
use stillgate_profiler::output::pprof;
use stillgate_profiler::profile::Profile;
use stillgate_profiler::session::{Cancel, ProfileSession};
use stillgate_profiler::{continuous, heap, stalls};
use stillgate_proxy::PROFILE_PHASES;
use tokio::sync::oneshot;
use tracing::{info, warn};

/// The answer, with 404, where profiles are switched off.
pub(crate) const OFF: &str = "profiles are off; set gateway.debug.pprof to true (it takes effect on reload)";
const NOT_RECORDED: &str = "CPU profiles are not recorded; set gateway.debug.profiles (it takes effect on reload)";
const CPU_FILE: &str = "attachment; filename=\"cpu.pb.gz\"";
const NO_HEAP: &str = "the heap is not sampled; set gateway.debug.heap, for example to 512KiB";

const INDEX: &str = concat!(
    "<!doctype html>\n<html lang=\"en\"><head><title>Profiles</title></head>\n<body><h1>Profiles</h1>\n",
    "<p>In pprof's format: <code>go tool pprof URL</code>, or <code>stillgate profile -o cpu.html</code>.</p>\n<ul>\n",
    "<li><a href=\"profile?seconds=30&amp;hz=99\">profile?seconds=30&amp;hz=99</a>: CPU time of the workers; of all threads with threads=all</li>\n",
    "<li><a href=\"lua?kind=bytecode&amp;seconds=30\">lua?kind=bytecode&amp;seconds=30</a>: functions in Lua by their own stacks, in the interpreter only; kind=cpu: all of their CPU time</li>\n",
    "<li><a href=\"heap\">heap</a>: what is allocated and not freed, sampled</li>\n",
    "<li><a href=\"allocs\">allocs</a>: all that was allocated since sampling began</li>\n",
    "<li><a href=\"stalls?seconds=30&amp;over=10ms\">stalls?seconds=30&amp;over=10ms</a>: what workers did in turns of the event loop that took longer</li>\n",
    "</ul></body></html>\n",
);

/// The requested profile, with checked arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProfileRequest {
    Cpu(cpu::CpuOptions),
    Lua(LuaKind, Duration, u32),
    Heap(heap::MainValue),
    Stalls(stalls::StallOptions),
}

/// The unit that is counted in functions in Lua.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LuaKind {
    /// All CPU time.
    Cpu,
    /// CPU time of the interpreter.
    Bytecode,
}

impl LuaKind {
    /// Title of a note.
    pub(super) fn title(self) -> &'static str {
        match self {
            LuaKind::Cpu => "CPU profile of Lua",
            LuaKind::Bytecode => "Profile of interpreted bytecode",
        }
    }

    /// The type of the values.
    pub(super) fn value(self) -> &'static str {
        match self {
            LuaKind::Cpu => "cpu",
            LuaKind::Bytecode => "bytecode",
        }
    }
}

/// A parser of arguments.
type Read = fn(&QueryArguments<'_>) -> Result<ProfileRequest, String>;

/// All pages of profiles.
pub(super) fn pages(api: &PageContext) -> Vec<Page> {
    let page = |path, summary, answer| Page { method: Method::GET, path, summary, answer };
    vec![
        page("/debug/pprof/", "List the profiles", index(api)),
        page("/debug/pprof/profile", "Take a profile of CPU time (seconds, hz, threads)", profile_page(api, read_cpu)),
        page(
            "/debug/pprof/lua",
            "Take a profile of functions in Lua by their own stacks (kind, seconds, hz)",
            profile_page(api, read_lua),
        ),
        page("/debug/pprof/heap", "Get what is allocated and not freed, sampled", profile_page(api, |_| live_heap())),
        page("/debug/pprof/allocs", "Get all that was allocated, sampled", profile_page(api, |_| all_allocated())),
        page(
            "/debug/pprof/stalls",
            "Watch for turns of event loops that take long (seconds, over)",
            profile_page(api, read_stalls),
        ),
        page("/debug/profiles", "Get the state of the recorded CPU profiles", get(async || recorded_state().await)),
        page("/debug/profiles/cpu", "Get the recorded CPU profile of a time (from, to)", recorded_page(api)),
    ]
}

/// The state is on disk.
async fn recorded_state() -> Response {
    on_thread(|| {}, continuous::status).await.map_or_else(|refused| refused, |state| json(StatusCode::OK, &state))
}

fn recorded_page(api: &PageContext) -> MethodRouter {
    let give_back = api.give_back;
    get(move |RawQuery(query): RawQuery| async move {
        read_recorded(give_back, query.unwrap_or_default()).await.unwrap_or_else(|refused| refused)
    })
}

async fn read_recorded(give_back: fn(), query: String) -> Result<Response, Response> {
    let bad = |why: String| error(StatusCode::BAD_REQUEST, Cow::Owned(why));
    let arguments = QueryArguments(&query);
    let time = arguments.number("from", 0)..arguments.number("to", u64::MAX);
    let format = ProfileFormat::of(&arguments).map_err(bad)?;
    let read = on_thread(give_back, move || continuous::read(&time).map(|profile| format.write(&profile))).await?;
    read.map(|bytes| format.response(bytes, CPU_FILE)).map_err(|why| match why {
        NoProfile::Off => error(StatusCode::NOT_FOUND, NOT_RECORDED.into()),
        NoProfile::Nothing => error(StatusCode::NOT_FOUND, "no CPU profile was recorded in this time".into()),
        NoProfile::Busy => error(StatusCode::CONFLICT, "another recorded profile is being read".into()),
    })
}

fn index(api: &PageContext) -> MethodRouter {
    let api = api.clone();
    get(async move |headers: HeaderMap| match check_enabled(&api).await {
        // The form for the dashboard.
        Ok(()) if headers.get(ACCEPT).is_some_and(|accept| accept == "application/json") => {
            json(StatusCode::OK, &serde_json::json!({ "heap_mean_bytes": heap::mean_bytes() }))
        }
        Ok(()) => {
            let mut response = Response::new(Body::from(INDEX));
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
            headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'"));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        Err(refused) => refused,
    })
}

fn profile_page(api: &PageContext, read: Read) -> MethodRouter {
    let api = api.clone();
    get(move |Extension(caller): Extension<Caller>, Extension(peer): Extension<Peer>, RawQuery(query): RawQuery| {
        let api = api.clone();
        async move {
            let who = match caller.name.as_str() {
                "" => peer.0.to_string(),
                name => format!("{name} ({})", peer.0),
            };
            take_profile(&api, read, &query.unwrap_or_default(), &who).await.unwrap_or_else(|refused| refused)
        }
    })
}

async fn check_enabled(api: &PageContext) -> Result<(), Response> {
    match api.ask(Question::Served).await {
        Some(ServedPlan { loaded, .. }) if loaded.config.gateway.debug.pprof => Ok(()),
        Some(_) => Err(error(StatusCode::NOT_FOUND, OFF.into())),
        None => Err(refuse(&PageRefusal::Ending)),
    }
}

async fn take_profile(api: &PageContext, read: Read, query: &str, who: &str) -> Result<Response, Response> {
    check_enabled(api).await?;
    let bad = |why: String| error(StatusCode::BAD_REQUEST, Cow::Owned(why));
    let wanted = read(&QueryArguments(query)).map_err(bad)?;
    let answered = ProfileFormat::of(&QueryArguments(query)).map_err(bad)?;
    let session = ProfileSession::begin(wanted.name(), who, wanted.duration());
    let session = session.map_err(|busy| error(StatusCode::CONFLICT, Cow::Owned(busy.to_string())))?;
    info!(target: "audit", who, what = wanted.name(), seconds = wanted.duration().as_secs(), "taking a profile");
    // This is dropped when the client has gone away.
    let waiting = ProfileGuard(Cancel::default());
    let cancel = waiting.0.clone();
    let work = move || {
        wanted.take(session, &cancel).map(|mut profile| {
            profile.name_phases(PROFILE_PHASES);
            answered.write(&profile)
        })
    };
    let bytes = on_thread(api.give_back, work).await?.map_err(|error| failed(&error))?;
    Ok(answered.response(bytes, wanted.disposition()))
}

fn failed(error: &dyn std::fmt::Display) -> Response {
    warn!(%error, "a profile cannot be taken");
    refuse(&PageRefusal::Failed)
}

/// Works on a thread of its own, then returns the memory that symbols took for a moment.
async fn on_thread<T: Send + 'static>(
    give_back: fn(),
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Response> {
    let (send, sent) = oneshot::channel();
    let work = move || {
        // The receiver may have gone.
        let _ = send.send(work());
        give_back();
    };
    thread::Builder::new().name("profiler".to_owned()).spawn(work).map_err(|error| failed(&error))?;
    sent.await.map_err(|_| failed(&"its thread has ended, which is a bug"))
}

/// The format of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProfileFormat {
    Pprof,
    /// JSON for the dashboard.
    Json,
}

impl ProfileFormat {
    fn of(arguments: &QueryArguments<'_>) -> Result<ProfileFormat, String> {
        match arguments.text("format").as_deref() {
            None | Some("pprof") => Ok(ProfileFormat::Pprof),
            Some("json") => Ok(ProfileFormat::Json),
            Some(_) => Err("format: pprof or json".to_owned()),
        }
    }

    fn write(self, profile: &Profile) -> Vec<u8> {
        match self {
            ProfileFormat::Pprof => pprof::write(profile),
            ProfileFormat::Json => stacks_of(profile, profile.main).to_string().into(),
        }
    }

    fn response(self, bytes: Vec<u8>, disposition: &'static str) -> Response {
        let mut response = Response::new(Body::from(bytes));
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match self {
            ProfileFormat::Json => drop(headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"))),
            ProfileFormat::Pprof => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
                headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static(disposition));
            }
        }
        response
    }
}

/// Ends the profile when it is dropped.
struct ProfileGuard(Cancel);

impl Drop for ProfileGuard {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl ProfileRequest {
    fn name(self) -> &'static str {
        match self {
            ProfileRequest::Cpu(_) => "CPU",
            ProfileRequest::Lua(..) => "Lua",
            ProfileRequest::Heap(_) => "heap",
            ProfileRequest::Stalls(_) => "stalls",
        }
    }

    fn disposition(self) -> &'static str {
        match self {
            ProfileRequest::Cpu(_) => CPU_FILE,
            ProfileRequest::Lua(..) => "attachment; filename=\"lua.pb.gz\"",
            ProfileRequest::Heap(_) => "attachment; filename=\"heap.pb.gz\"",
            ProfileRequest::Stalls(_) => "attachment; filename=\"stalls.pb.gz\"",
        }
    }

    fn duration(self) -> Duration {
        match self {
            ProfileRequest::Cpu(options) => options.duration(),
            ProfileRequest::Lua(_, duration, _) => duration,
            ProfileRequest::Heap(_) => Duration::ZERO,
            ProfileRequest::Stalls(options) => options.duration(),
        }
    }

    fn take(self, session: ProfileSession, cancel: &Cancel) -> io::Result<Profile> {
        match self {
            ProfileRequest::Cpu(options) => cpu::take(session, options, cancel),
            ProfileRequest::Lua(kind, duration, hz) => lua_profile::take(session, kind, duration, hz, cancel),
            ProfileRequest::Heap(shown) => heap::snapshot(session, shown),
            ProfileRequest::Stalls(options) => stalls::take(session, options, cancel),
        }
    }
}

/// Arguments of a query.
struct QueryArguments<'a>(&'a str);

impl QueryArguments<'_> {
    fn text(&self, name: &str) -> Option<String> {
        let mut all = form_urlencoded::parse(self.0.as_bytes());
        all.find(|(of, _)| of == name).map(|(_, value)| value.into_owned())
    }

    /// Text that is not a number is out of bounds.
    fn number(&self, name: &str, default: u64) -> u64 {
        self.text(name).map_or(default, |text| text.parse().unwrap_or(u64::MAX))
    }

    fn seconds(&self) -> u64 {
        self.number("seconds", cpu::SECONDS_DEFAULT)
    }
}

fn read_cpu(arguments: &QueryArguments<'_>) -> Result<ProfileRequest, String> {
    let hz = u32::try_from(arguments.number("hz", cpu::HZ_DEFAULT.into())).unwrap_or(u32::MAX);
    let of = match arguments.text("threads").as_deref() {
        None | Some("workers") => ThreadScope::EventLoops,
        Some("all") => ThreadScope::AllThreads,
        Some(_) => return Err("threads: workers or all".to_owned()),
    };
    cpu::CpuOptions::new(of, arguments.seconds(), hz).map(ProfileRequest::Cpu).map_err(|refused| refused.to_string())
}

fn read_lua(arguments: &QueryArguments<'_>) -> Result<ProfileRequest, String> {
    let kind = match arguments.text("kind").as_deref() {
        None | Some("cpu") => LuaKind::Cpu,
        Some("bytecode") => LuaKind::Bytecode,
        Some(_) => return Err("kind: cpu or bytecode".to_owned()),
    };
    let hz = u32::try_from(arguments.number("hz", cpu::HZ_DEFAULT.into())).unwrap_or(u32::MAX);
    // Checks both bounds.
    let options = cpu::CpuOptions::new(ThreadScope::EventLoops, arguments.seconds(), hz)
        .map_err(|refused| refused.to_string())?;
    Ok(ProfileRequest::Lua(kind, options.duration(), hz))
}

fn read_stalls(arguments: &QueryArguments<'_>) -> Result<ProfileRequest, String> {
    let duration = cpu::duration(arguments.seconds()).map_err(|refused| refused.to_string())?;
    let over = match arguments.text("over") {
        None => stalls::OVER_DEFAULT,
        Some(text) => span(&text).ok_or("over: a time such as 10ms or 1s")?,
    };
    stalls::StallOptions::new(duration, over).map(ProfileRequest::Stalls).map_err(|refused| refused.to_string())
}

/// Parses a duration such as `10ms` or `1s`.
fn span(text: &str) -> Option<Duration> {
    match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => number.parse().ok().map(Duration::from_millis),
        (None, Some(number)) => number.parse().ok().map(Duration::from_secs),
        (None, None) => None,
    }
}

fn live_heap() -> Result<ProfileRequest, String> {
    heap_profile_request(heap::MainValue::Live)
}

fn all_allocated() -> Result<ProfileRequest, String> {
    heap_profile_request(heap::MainValue::Allocated)
}

fn heap_profile_request(shown: heap::MainValue) -> Result<ProfileRequest, String> {
    heap::mean_bytes().map(|_| ProfileRequest::Heap(shown)).ok_or_else(|| NO_HEAP.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_bounded() {
        let seconds = Duration::from_secs;
        let cpu = |query: &str| read_cpu(&QueryArguments(query));
        assert_eq!(cpu(""), Ok(ProfileRequest::Cpu(cpu::CpuOptions::new(ThreadScope::EventLoops, 30, 99).unwrap())));
        assert_eq!(
            cpu("seconds=5&hz=250"),
            Ok(ProfileRequest::Cpu(cpu::CpuOptions::new(ThreadScope::EventLoops, 5, 250).unwrap()))
        );
        for query in ["seconds=0", "seconds=1000000000", "seconds=-1", "seconds=", "seconds=9e9", "seconds=241"] {
            assert_eq!(cpu(query), Err("seconds: a number from 1 to 240".to_owned()), "{query}");
        }
        for query in ["hz=0", "hz=1001", "hz=-5", "hz=99999999999999999999", "hz=x"] {
            assert_eq!(cpu(query), Err("hz: a number from 1 to 1000".to_owned()), "{query}");
        }
        let lua = |query: &str| read_lua(&QueryArguments(query));
        assert_eq!(lua("kind=bytecode&seconds=2"), Ok(ProfileRequest::Lua(LuaKind::Bytecode, seconds(2), 99)));
        assert_eq!(lua("kind=all"), Err("kind: cpu or bytecode".to_owned()));
        assert!(lua("hz=0").is_err() && lua("seconds=241").is_err());
        assert_eq!(
            cpu("threads=all&seconds=1"),
            Ok(ProfileRequest::Cpu(cpu::CpuOptions::new(ThreadScope::AllThreads, 1, 99).unwrap()))
        );
        assert_eq!(cpu("threads=some"), Err("threads: workers or all".to_owned()));
        assert_eq!(ProfileFormat::of(&QueryArguments("format=json")), Ok(ProfileFormat::Json));
        assert!(ProfileFormat::of(&QueryArguments("format=svg")).is_err());
        let stalls = |query: &str| read_stalls(&QueryArguments(query));
        let options = |over| ProfileRequest::Stalls(stalls::StallOptions::new(seconds(30), over).unwrap());
        assert_eq!(stalls(""), Ok(options(Duration::from_millis(10))));
        assert_eq!(stalls("over=1s"), Ok(options(seconds(1))));
        assert_eq!(stalls("over=1000"), Err("over: a time such as 10ms or 1s".to_owned()));
        for query in ["over=0ms", "over=11s", "over=18446744073709551615s"] {
            assert_eq!(stalls(query), Err("over: from 1 ms to 10 s".to_owned()), "{query}");
        }
    }
}
