//! `stillgate lua check`: whether LuaJIT compiles a function, before it is in a gateway.
//!
//! What is compiled and what is not is found by `stillgate_lua::jit`; here requests are read, one `METHOD URL` a line or lines of
//! an access log, and findings printed.

use super::cli::{EXIT_ERRORS, EXIT_GOOD, EXIT_UNPROVEN, EXIT_UNUSABLE, LuaCheck};
use super::stdout::show;
use crate::configuration::lua_files;
use serde_json::{Value as Json, json};
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};
use stillgate_files::read_bounded;
use stillgate_lua::jit::examine::{CodeToExamine, Examination, Finding, examine, step};
use stillgate_lua::jit::steps;
use stillgate_lua::{HeaderChange, Host, MessageSide, Module, NginxLevel, check as check_text};
use stillgate_plugin_api::PluginFile;
use stillgate_plugins::{check_json, module_of, required_paths};
use stillgate_replay::explain::request_head::{Buffers, RequestHead, RequestLine};
use stillgate_replay::replay::LogReader;
use stillgate_route::Variable;
use stillgate_schema::lenient_json;

/// Bytes of a file with a function.
const FILE_BYTES_MAX: usize = 1 << 20;

/// How a text is refused that returns the table of a plugin.
const RETURNS_TABLE: &str = "only accept Lua function, the input code type is table";

/// Runs whose instructions are counted, at least and at most: each request of the list once where that is between them.
const COUNTED_RUNS: (usize, usize) = (20, 100);
/// Number of counting processes, whose median is used: the addresses of LuaJIT's tables differ.
const COUNTS: usize = 3;

/// Checks a function, and returns the exit code.
pub(crate) fn check(arguments: &LuaCheck) -> u8 {
    if arguments.stepped {
        // The process that counts ends it, unless something is wrong.
        return stepped(arguments).map_or_else(unusable, |()| EXIT_GOOD);
    }
    match examined(arguments) {
        Ok((examined, instructions)) => {
            let instructions = instructions.zip(arguments.instructions);
            show(printed(&arguments.file, &examined, instructions));
            code(&examined, instructions)
        }
        Err(why) => unusable(why),
    }
}

fn unusable(why: String) -> u8 {
    eprintln!("stillgate: {why}");
    EXIT_UNUSABLE
}

/// `instructions`: those of a request, and how many there may be.
fn code(examined: &Examination, instructions: Option<(u64, u64)>) -> u8 {
    match examined {
        Examination { findings, .. } if !findings.is_empty() => EXIT_ERRORS,
        _ if instructions.is_some_and(|(found, most)| found > most) => EXIT_ERRORS,
        Examination { lines_compiled: 0, .. } => EXIT_UNPROVEN,
        _ => EXIT_GOOD,
    }
}

fn printed(file: &Path, examined: &Examination, instructions: Option<(u64, u64)>) -> String {
    let Examination { findings, notes, lines_compiled, traces, late, flushes, runs, .. } = examined;
    let name = file.display();
    let line = |finding: &Finding, kind: &str| format!("{name}:{}: {kind}{}\n", finding.line, finding.reason);
    let mut text: String = findings.iter().map(|finding| line(finding, "")).collect();
    text.extend(notes.iter().map(|note| line(note, "note: ")));
    text.extend(instructions.map(|(found, most)| match found > most {
        true => format!("{name}: {found} instructions a request, more than {most}\n"),
        false => format!("{name}: {found} instructions a request, of {most}\n"),
    }));
    let verdict = match code(examined, instructions) {
        EXIT_GOOD => "good",
        EXIT_UNPROVEN => "not proven, as nothing of it was compiled",
        _ => "not good",
    };
    text + &format!(
        "{name}: {verdict} ({lines_compiled} lines in machine code, {traces} traces, {late} events after the warm-up, {flushes} flushes, {runs} runs)\n"
    )
}

/// What was found, and instructions of a request where they are asked for.
fn examined(arguments: &LuaCheck) -> Result<(Examination, Option<u64>), String> {
    let (name, subject, heads) = read(arguments)?;
    let examined = examine(&subject, heads.len(), |at, phase| ReplayedRequest::new(&heads[at], phase))
        .map_err(|failure| format!("the function failed: {}", failure.text))?;
    let instructions = arguments.instructions.map(|_| counted(counted_runs(&heads))).transpose()?;
    if let Some(path) = &arguments.json {
        let text = format!("{:#}\n", as_json(&name, &examined, instructions));
        fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok((examined, instructions))
}

/// Runs in single steps, for [`counted`].
fn stepped(arguments: &LuaCheck) -> Result<(), String> {
    let (_, subject, heads) = read(arguments)?;
    step(&subject, heads.len(), counted_runs(&heads), |at, phase| ReplayedRequest::new(&heads[at], phase))
        .map_err(|failure| failure.text)
}

fn counted_runs(heads: &[RequestHead]) -> usize {
    heads.len().clamp(COUNTED_RUNS.0, COUNTED_RUNS.1)
}

/// Instructions of a request: this very command does `runs` of them, step by step.
fn counted(runs: usize) -> Result<u64, String> {
    let count = || -> io::Result<u64> {
        let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
        let at = arguments.iter().position(|argument| argument.to_string_lossy().starts_with("--instructions"));
        if let Some(at) = at {
            // The value is skipped, too, where it is a word of its own.
            let words = if arguments[at] == "--instructions" { 2 } else { 1 };
            arguments.drain(at..at + words);
        }
        steps::count(Command::new(std::env::current_exe()?).args(arguments).arg("--stepped").stdout(Stdio::null()))
    };
    let counts: io::Result<Vec<u64>> = (0..COUNTS).map(|_| count()).collect();
    let mut counts = counts.map_err(|error| format!("cannot count instructions: {error}"))?;
    counts.sort_unstable();
    Ok(counts[COUNTS / 2] / runs as u64)
}

/// The name of the file, what is in it, and the requests.
fn read(arguments: &LuaCheck) -> Result<(String, CodeToExamine, Vec<RequestHead>), String> {
    let file = &arguments.file;
    let bytes =
        read_bounded(file, FILE_BYTES_MAX).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let source = String::from_utf8(bytes).map_err(|_| format!("{}: it is not UTF-8", file.display()))?;
    let conf: Json = match &arguments.conf {
        None => json!({}),
        Some(text) => lenient_json::read(text).map_err(|(error, _)| format!("--conf: {error}"))?,
    };
    let heads = match (&arguments.requests, &arguments.replay) {
        (Some(requests), _) => requests_of_lines(requests)?,
        (None, Some(log)) => requests_of_log(log)?,
        (None, None) => return Err("--requests or --replay is needed".to_owned()),
    };
    let name = file.display().to_string();
    let subject = subject(file, &name, source, conf)?;
    Ok((name, subject, heads))
}

/// A function, or a plugin with a configuration that it takes.
fn subject(file: &Path, name: &str, source: String, conf: Json) -> Result<CodeToExamine, String> {
    match check_text(&source) {
        Ok(()) => Ok(CodeToExamine::function(name, &source, conf)),
        // A file with modules runs only together with them.
        Err(why) if why == RETURNS_TABLE || has_modules(file, &source) => {
            let module = module(file, name, source)?;
            let described = module.describe(check_json)?;
            let conf = match described.checks {
                true => module.check_conf(&conf, check_json),
                false => check_json(&described.schema, conf),
            };
            Ok(CodeToExamine::plugin(module, &described.phases, conf.map_err(|why| format!("--conf: {why}"))?))
        }
        Err(why) => Err(format!("{name}: {why}")),
    }
}

/// The module of a file. Other files of its folder are read only where it requires them.
fn module(file: &Path, name: &str, text: String) -> Result<Arc<Module>, String> {
    let path = file.canonicalize().map_err(|error| format!("cannot read {name}: {error}"))?;
    let folder = path.parent().unwrap_or(&path).to_owned();
    let has_modules = has_modules(&path, &text);
    let own = PluginFile { path, name: name.to_owned(), text, folder };
    let mut files = if has_modules { lua_files::read(std::slice::from_ref(&own.folder))? } else { Vec::new() };
    files.retain(|other| other.path != own.path);
    files.push(own.clone());
    module_of(&own, &files)
}

/// Whether a file requires another one in its folder.
fn has_modules(file: &Path, text: &str) -> bool {
    required_paths(text).iter().any(|end| file.with_file_name("").join(end).is_file())
}

fn as_json(name: &str, examined: &Examination, instructions: Option<u64>) -> Json {
    let list = |findings: &[Finding]| -> Vec<Json> {
        findings.iter().map(|finding| json!({"line": finding.line, "reason": finding.reason})).collect()
    };
    let functions = examined.functions.iter().map(|(line, state)| json!({"line": line, "state": state.name()}));
    json!({
        "file": name,
        "findings": list(&examined.findings),
        "notes": list(&examined.notes),
        "functions": functions.collect::<Vec<_>>(),
        "lines_compiled": examined.lines_compiled,
        "traces": examined.traces,
        "events_after_warm_up": examined.late,
        "flushes": examined.flushes,
        "runs": examined.runs,
        "instructions_per_request": instructions,
    })
}

// A request without a connection, as functions in Lua see it. Their changes are visible to them, and go nowhere else.

/// The body of the response.
const BODY: &[u8] = b"{\"message\":\"hello\"}\n";

thread_local! {
    /// Names of variables, parsed once, as the gateway does it.
    static PARSED: RefCell<HashMap<String, Option<Rc<Variable>>>> = RefCell::default();
}

/// One run's request.
struct ReplayedRequest<'a> {
    head: &'a RequestHead,
    phase: &'static str,
    target: Option<Vec<u8>>,
    /// `None`: as it came.
    request: Option<Vec<Field>>,
    response: Vec<Field>,
    /// The current piece of the response's body.
    piece: Vec<u8>,
}

type Field = (Vec<u8>, Vec<u8>);

impl<'a> ReplayedRequest<'a> {
    fn new(head: &'a RequestHead, phase: &'static str) -> ReplayedRequest<'a> {
        ReplayedRequest { head, phase, target: None, request: None, response: Vec::new(), piece: BODY.to_vec() }
    }

    fn is_behind_head(&self) -> bool {
        matches!(self.phase, "header_filter" | "body_filter" | "log")
    }
}

fn parsed(name: &str) -> Option<Rc<Variable>> {
    PARSED.with_borrow_mut(|parsed| match parsed.get(name) {
        Some(known) => known.clone(),
        None => {
            let variable = Variable::parse(name).ok().map(Rc::new);
            parsed.insert(name.to_owned(), variable.clone());
            variable
        }
    })
}

impl Host for ReplayedRequest<'_> {
    fn phase(&self) -> &'static str {
        self.phase
    }

    fn variable(&self, name: &str, out: &mut Vec<u8>) -> Result<bool, String> {
        if name == "upstream_uri" {
            out.extend_from_slice(self.target());
            return Ok(true);
        }
        let Some(variable) = parsed(name) else { return Ok(false) };
        let (mut buffers, mut buffer) = (Buffers::default(), Vec::new());
        let found = self.head.with_request(&mut buffers, |request| {
            let value = request.vars.value(&variable, &mut buffer);
            value.map(|value| out.extend_from_slice(value)).is_some()
        });
        found.map_err(|error| format!("{error:?}"))
    }

    fn set_variable(&mut self, name: &str, value: &[u8]) -> Result<bool, String> {
        if name == "upstream_uri" {
            self.target = Some(value.to_vec());
        }
        Ok(matches!(name, "upstream_uri" | "upstream_host" | "args"))
    }

    fn field(&self, side: MessageSide, name: &[u8], visit: &mut dyn FnMut(&[u8])) {
        self.each_field(side, &mut |of, value| {
            if of.eq_ignore_ascii_case(name) {
                visit(value);
            }
        });
    }

    fn each_field(&self, side: MessageSide, visit: &mut dyn FnMut(&[u8], &[u8])) {
        match (side, &self.request) {
            (MessageSide::Response, _) => self.response.iter().for_each(|(name, value)| visit(name, value)),
            (MessageSide::Request, Some(fields)) => fields.iter().for_each(|(name, value)| visit(name, value)),
            (MessageSide::Request, None) => {
                visit(b"Host", self.head.authority.as_bytes());
                self.head.headers.iter().for_each(|(name, value)| visit(name.as_bytes(), value.as_bytes()));
            }
        }
    }

    fn change_field(&mut self, side: MessageSide, name: &[u8], change: HeaderChange<'_>) -> Result<(), String> {
        let mut fields = Vec::new();
        self.each_field(side, &mut |of, value| fields.push((of.to_vec(), value.to_vec())));
        if !matches!(change, HeaderChange::Add(_)) {
            fields.retain(|(of, _)| !of.eq_ignore_ascii_case(name));
        }
        if let HeaderChange::Set(value) | HeaderChange::Add(value) = change {
            fields.push((name.to_vec(), value.to_vec()));
        }
        match side {
            MessageSide::Request => self.request = Some(fields),
            MessageSide::Response => self.response = fields,
        }
        Ok(())
    }

    fn set_method(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn target(&self) -> &[u8] {
        self.target.as_deref().unwrap_or(self.head.target.as_bytes())
    }

    fn set_target(&mut self, target: &[u8]) -> Result<(), String> {
        self.target = Some(target.to_vec());
        Ok(())
    }

    fn body(&self) -> Result<Option<&[u8]>, String> {
        Ok(Some(b""))
    }

    fn set_body(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn status(&self) -> Option<u16> {
        self.is_behind_head().then_some(200)
    }

    fn set_status(&mut self, _: u16) -> Result<(), String> {
        Ok(())
    }

    fn piece(&self) -> Option<(&[u8], bool)> {
        (self.phase == "body_filter").then_some((&self.piece, true))
    }

    fn set_piece(&mut self, piece: &[u8]) -> Result<(), String> {
        self.piece = piece.to_vec();
        Ok(())
    }

    /// It is the last already.
    fn end_body(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn rewritten_path(&self, out: &mut Vec<u8>) -> bool {
        let path = self.target.as_ref().and_then(|target| target.split(|byte| *byte == b'?').next());
        path.map(|path| out.extend_from_slice(path)).is_some()
    }

    /// None runs here.
    fn start_timer(&mut self, _: Duration) -> Result<Option<u64>, String> {
        Ok(None)
    }

    fn can_wait(&self) -> bool {
        matches!(self.phase, "rewrite" | "access")
    }

    fn can_answer(&self) -> bool {
        !self.is_behind_head()
    }

    fn check_schema(&self, schema: &Json, value: Json) -> Result<Json, String> {
        check_json(schema, value)
    }

    fn is_logged(&self, _: NginxLevel) -> bool {
        false
    }

    fn log(&self, _: NginxLevel, _: &str) {}

    fn now_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Requests that are kept of a file; more of them would not make a function warmer.
const REQUESTS_MAX: usize = 10_000;
const REQUEST_FILE_BYTES_MAX: usize = 64 << 20;

/// Reads `METHOD URL` lines. What follows a `#` at the beginning of a line is a comment.
fn requests_of_lines(file: &Path) -> Result<Vec<RequestHead>, String> {
    let bytes = read_bounded(file, REQUEST_FILE_BYTES_MAX)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut heads = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || heads.len() == REQUESTS_MAX {
            continue;
        }
        let wrong = |why: String| format!("{}:{}: {why}", file.display(), at + 1);
        let asked: RequestLine = line.parse().map_err(wrong)?;
        let head = RequestHead {
            method: asked.method,
            scheme: asked.scheme,
            authority: asked.authority.unwrap_or_else(|| "localhost".to_owned()),
            target: asked.target,
            headers: [("User-Agent", "stillgate-lua-check"), ("Accept", "*/*")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..RequestHead::new(IpAddr::V4(Ipv4Addr::LOCALHOST))
        };
        if let Some(flaw) = head.flaw() {
            return Err(wrong(flaw));
        }
        heads.push(head);
    }
    match heads.is_empty() {
        true => Err(format!("{}: there is no request in it", file.display())),
        false => Ok(heads),
    }
}

/// Reads an access log of JSON objects, as far as lines hold a request.
fn requests_of_log(file: &Path) -> Result<Vec<RequestHead>, String> {
    LogReader::read(file, REQUESTS_MAX).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_instructions_as_allowed_are_good_and_one_more_is_not() {
        let examined = Examination { lines_compiled: 1, ..Examination::default() };
        assert_eq!(code(&examined, None), EXIT_GOOD);
        assert_eq!(code(&examined, Some((500, 500))), EXIT_GOOD);
        assert_eq!(code(&examined, Some((501, 500))), EXIT_ERRORS);
        let text = |found| printed(Path::new("small.lua"), &examined, Some((found, 500)));
        let good = text(500);
        assert!(good.starts_with("small.lua: 500 instructions a request, of 500\nsmall.lua: good ("), "{good}");
        let more = text(501);
        assert!(
            more.starts_with("small.lua: 501 instructions a request, more than 500\nsmall.lua: not good ("),
            "{more}"
        );
    }
}
