//! A request that is only texts, for functions to read and change.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use stillgate_lua::{
    CallKind, CallReply, Context, HeaderChange, Host, HttpReply, LinkCall, MessageSide, NginxLevel, OpenedLink,
    Program, RequestDocument, RunOutcome, RunWait, resume, resume_with, run_part,
};

/// The request, and its changes.
pub(crate) struct Fake {
    pub(crate) phase: &'static str,
    pub(crate) request: Vec<(String, Vec<u8>)>,
    pub(crate) response: Vec<(String, Vec<u8>)>,
    pub(crate) status: Option<u16>,
    pub(crate) method: String,
    pub(crate) target: Vec<u8>,
    pub(crate) path: &'static [u8],
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) piece: Option<(Vec<u8>, bool)>,
    pub(crate) log: RefCell<Vec<String>>,
    pub(crate) route: serde_json::Value,
    pub(crate) now_ms: u64,
    pub(crate) is_body_over: bool,
    /// The timers that were started, with their delays in seconds.
    pub(crate) timers: Vec<(u64, f64)>,
    /// The metadata of the plugin `own`, with its version.
    pub(crate) metadata: Option<(u64, serde_json::Value)>,
    /// The operations on connections.
    pub(crate) links: Vec<LinkCall>,
    /// The replies of their server.
    pub(crate) replies: VecDeque<Result<Vec<u8>, String>>,
}

impl Default for Fake {
    fn default() -> Fake {
        let field = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        Fake {
            phase: "access",
            request: vec![field("Host", "h.example"), field("X-A", "1"), field("X-Two", "a"), field("x-two", "b")],
            response: Vec::new(),
            status: None,
            method: "GET".to_owned(),
            path: b"/hello",
            target: b"/hello?name=Rose%20M&x=1&x=2&flag".to_vec(),
            body: Some(b"{\"a\":[1,2]}".to_vec()),
            piece: None,
            log: RefCell::default(),
            route: serde_json::json!({"id": "r", "labels": {"key": "v"}}),
            now_ms: 1_795_220_833_250,
            is_body_over: false,
            timers: Vec::new(),
            metadata: None,
            links: Vec::new(),
            replies: VecDeque::new(),
        }
    }
}

impl Fake {
    fn fields(&self, side: MessageSide) -> &Vec<(String, Vec<u8>)> {
        if side == MessageSide::Request { &self.request } else { &self.response }
    }
}

impl Host for Fake {
    fn phase(&self) -> &'static str {
        self.phase
    }

    fn variable(&self, name: &str, out: &mut Vec<u8>) -> Result<bool, String> {
        let value: &[u8] = match name {
            "uri" | "document_uri" => self.path,
            "host" => b"h.example",
            "request_method" => b"GET",
            "server_protocol" => b"HTTP/1.1",
            "remote_addr" => b"192.0.2.7",
            "scheme" => b"http",
            "uri_param_id" => b"17",
            "args" => match self.target.iter().position(|byte| *byte == b'?') {
                Some(at) => &self.target[at + 1..],
                None => return Ok(false),
            },
            _ => return Ok(false),
        };
        out.extend_from_slice(value);
        Ok(true)
    }

    fn set_variable(&mut self, name: &str, value: &[u8]) -> Result<bool, String> {
        if name == "upstream_uri" {
            self.target = value.to_vec();
        }
        Ok(name == "upstream_uri")
    }

    fn field(&self, side: MessageSide, name: &[u8], visit: &mut dyn FnMut(&[u8])) {
        let of_name = self.fields(side).iter().filter(|(of, _)| of.as_bytes().eq_ignore_ascii_case(name));
        of_name.for_each(|(_, value)| visit(value));
    }

    fn each_field(&self, side: MessageSide, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.fields(side).iter().for_each(|(name, value)| visit(name.as_bytes(), value));
    }

    fn change_field(&mut self, side: MessageSide, name: &[u8], change: HeaderChange<'_>) -> Result<(), String> {
        let name = String::from_utf8_lossy(name).into_owned();
        let fields = if side == MessageSide::Request { &mut self.request } else { &mut self.response };
        if !matches!(change, HeaderChange::Add(_)) {
            fields.retain(|(of, _)| !of.eq_ignore_ascii_case(&name));
        }
        match change {
            HeaderChange::Set(value) | HeaderChange::Add(value) if value.contains(&b'\n') => {
                Err("a line break".to_owned())
            }
            HeaderChange::Set(value) | HeaderChange::Add(value) => {
                fields.push((name, value.to_vec()));
                Ok(())
            }
            HeaderChange::Remove => Ok(()),
        }
    }

    fn status(&self) -> Option<u16> {
        self.status
    }

    fn set_status(&mut self, status: u16) -> Result<(), String> {
        self.status = Some(status);
        Ok(())
    }

    fn set_method(&mut self, method: &[u8]) -> Result<(), String> {
        self.method = String::from_utf8_lossy(method).into_owned();
        Ok(())
    }

    fn target(&self) -> &[u8] {
        &self.target
    }

    fn set_target(&mut self, target: &[u8]) -> Result<(), String> {
        self.target = target.to_vec();
        Ok(())
    }

    fn body(&self) -> Result<Option<&[u8]>, String> {
        Ok(self.body.as_deref())
    }

    fn set_body(&mut self, body: &[u8]) -> Result<(), String> {
        self.body = Some(body.to_vec());
        Ok(())
    }

    fn piece(&self) -> Option<(&[u8], bool)> {
        self.piece.as_ref().map(|(piece, is_last)| (&piece[..], *is_last))
    }

    fn set_piece(&mut self, piece: &[u8]) -> Result<(), String> {
        self.piece.as_mut().ok_or("no piece")?.0 = piece.to_vec();
        Ok(())
    }

    fn end_body(&mut self) -> Result<(), String> {
        self.is_body_over = true;
        Ok(())
    }

    fn rewritten_path(&self, out: &mut Vec<u8>) -> bool {
        let path = self.target.split(|byte| *byte == b'?').next().filter(|path| *path != b"/hello");
        path.map(|path| out.extend_from_slice(path)).is_some()
    }

    fn start_timer(&mut self, delay: std::time::Duration) -> Result<Option<u64>, String> {
        let number = stillgate_lua::timer_number();
        self.timers.push((number, delay.as_secs_f64()));
        Ok((self.timers.len() < 3).then_some(number))
    }

    fn consumer(&self) -> Option<serde_json::Value> {
        Some(serde_json::json!({"username": "jack", "labels": {"team": "blue"}}))
    }

    fn can_wait(&self) -> bool {
        matches!(self.phase, "rewrite" | "access" | "timer")
    }

    fn can_answer(&self) -> bool {
        matches!(self.phase, "rewrite" | "access" | "before_proxy")
    }

    fn is_logged(&self, level: NginxLevel) -> bool {
        level <= NginxLevel::Warn
    }

    fn log(&self, level: NginxLevel, text: &str) {
        self.log.borrow_mut().push(format!("{level:?} {text}"));
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn matched_path(&mut self) -> Option<&str> {
        Some("/hello/:id")
    }

    fn metadata(&self, plugin: &str) -> Result<Option<(u64, &serde_json::Value)>, String> {
        let own = self.metadata.as_ref().filter(|_| plugin == "own");
        Ok(own.map(|(version, value)| (*version, value)))
    }

    fn document(&self, of: RequestDocument) -> Option<&serde_json::Value> {
        (of == RequestDocument::Route).then_some(&self.route)
    }
}

/// A program of these functions.
pub(crate) fn program(sources: &[&str]) -> Arc<Program> {
    let sources = sources.iter().map(|source| source.to_string()).collect();
    Program::new("test".to_owned(), sources, serde_json::json!({"phase": "access", "list": [1, "b"]}), CallKind::Plugin)
}

/// The outcome of a run, as a text. Everything that it waits for is available at once.
pub(crate) fn run_with(program: &Arc<Program>, fake: &mut Fake, context: &mut Context) -> String {
    run_with_part(program, 0, fake, context)
}

/// The outcome of one part, as a text.
pub(crate) fn run_with_part(program: &Arc<Program>, part: usize, fake: &mut Fake, context: &mut Context) -> String {
    let mut outcome = run_part(program, part, fake, context);
    let mut waited = String::new();
    loop {
        outcome = match outcome {
            RunOutcome::Wait(RunWait::Sleep(time), paused) => {
                waited += &format!("slept {time:?}, ");
                resume(paused, fake, context)
            }
            RunOutcome::Wait(RunWait::Body, paused) => {
                waited += "read the body, ";
                fake.body = Some(b"the body".to_vec());
                resume(paused, fake, context)
            }
            RunOutcome::Wait(RunWait::Call(call), paused) => {
                waited += &format!("{call:?}, ");
                let mut reply = HttpReply { status: 203, body: vec![0xff, 0, b'a'], ..HttpReply::default() };
                [("X-A", "1"), ("X-Two", "a"), ("x-two", "b")]
                    .iter()
                    .for_each(|(name, value)| reply.header(name.as_bytes(), value.as_bytes()));
                let is_down = call.url.contains("down");
                let reply = if is_down { Err("timeout".to_owned()) } else { Ok(CallReply::Http(reply)) };
                resume_with(paused, reply, fake, context)
            }
            RunOutcome::Wait(RunWait::Link(call), paused) => {
                fake.links.push(*call.clone());
                let reply = match *call {
                    LinkCall::Connect { port: 1, .. } => Err("connection refused".to_owned()),
                    LinkCall::Connect { port, .. } => Ok(OpenedLink { link: 7, reused: u32::from(port == 2) }.text()),
                    LinkCall::Exchange { .. } => fake.replies.pop_front().unwrap_or(Err("timeout".to_owned())),
                    LinkCall::Keep { .. } | LinkCall::Close { .. } => Ok(Vec::new()),
                };
                resume_with(paused, reply.map(CallReply::Link), fake, context)
            }
            RunOutcome::Wait(RunWait::Work(call), paused) => {
                let module = program.module().unwrap().clone();
                let work = std::thread::spawn(move || module.work(&call)).join().unwrap();
                resume_with(paused, work.map(CallReply::Work), fake, context)
            }
            ended => return waited + &told(ended),
        };
    }
}

/// An outcome as a text.
pub(crate) fn told(outcome: RunOutcome) -> String {
    match outcome {
        RunOutcome::Done(_) => "done".to_owned(),
        RunOutcome::Answer { status, body } => {
            let body = body.map_or("nothing".to_owned(), |body| format!("{:?}", String::from_utf8_lossy(&body)));
            format!("{status} {body}")
        }
        RunOutcome::Failed(failure) => format!("{}: {}", failure.kind.name(), failure.text),
        RunOutcome::Wait(wait, _) => format!("waits for {wait:?}"),
    }
}

/// The outcome of one function's body.
pub(crate) fn answer(body: &str) -> String {
    let source = format!("return function(conf, ctx) local core = require('apisix.core') {body} end");
    run_with(&program(&[&source]), &mut Fake::default(), &mut Context::default())
}
