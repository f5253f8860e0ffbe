//! Runs functions for a request, and handles their outcome when they end, wait, answer or fail.
//!
//! The functions run in their worker's LuaJIT (`stillgate-lua`); this module connects it with the phases of a plugin.

use super::custom::part;
use super::hosts::{PieceHost, RequestHost, ResponseHost};
use super::http::{call_of, reply_of};
use super::redis::Links;
use super::request_copy::{RequestCopy, Wishes};
use super::timers::ScheduledTimers;
use crate::body_fields::{CONTENT_ENCODING, CONTENT_TYPE, forget_old_body};
use crate::decoding::{BodyCoding, Decoder, STREAMED_BYTES};
use std::cell::{OnceCell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stillgate_lua::{
    CallReply, Context, FailureKind, HttpCall, MEMORY_BYTES_MAX, PausedRun, Program, RunFailure, RunOutcome, RunWait,
    WorkCall, memory_in_use, resume, resume_with, run_part,
};
use stillgate_plugin_api::body::FILTER_BYTES_MAX;
use stillgate_plugin_api::client_bound::{ClientBound, Full, Lease};
use stillgate_plugin_api::{
    Answer, BodyError, BodyFilter, Flow, Io, Phase, Plugin, QueueFull, Request, RequestState, Response,
};
use stillgate_wire::FieldValue;

/// Duration of a call that cannot be made, or for which the queue is full.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

/// Longest sleep of a function.
pub(super) const SLEEP_MAX: Duration = Duration::from_secs(3600);

thread_local! {
    /// Memory that runs hold while they wait: of the VM, which each worker has.
    static HELD: Rc<ClientBound> = ClientBound::new(MEMORY_BYTES_MAX, CLIENT_MEMORY_BYTES_MAX);
}

/// How much of it runs of one client may hold while more than half is held.
const CLIENT_MEMORY_BYTES_MAX: usize = MEMORY_BYTES_MAX / 8;

/// A run that waits, and its memory.
struct HeldRun {
    paused: PausedRun,
    memory: Lease,
}

impl HeldRun {
    /// Fails with a message for the log.
    fn begin(paused: PausedRun, client: IpAddr) -> Result<HeldRun, &'static str> {
        let mut memory = HELD.with(|held| held.begin(client));
        match memory.set(paused.memory_bytes()) {
            // What is counted has garbage in it. While the VM has room, it does not matter.
            Err(Full::Client) if memory_in_use() > MEMORY_BYTES_MAX / 2 => {
                Err("functions that wait for one client hold as much memory as they may")
            }
            // Beyond the bound of the worker, the VM refuses what does not fit.
            Ok(()) | Err(Full::Client | Full::Worker) => Ok(HeldRun { paused, memory }),
        }
    }
}

/// Functions, and their owner; shared with the requests that wait.
pub(super) struct Functions {
    /// The plugin's name in messages and counters.
    pub(super) plugin: &'static str,
    pub(super) program: Arc<Program>,
    pub(super) wants_documents: bool,
    /// Whether the program has a part for each phase.
    pub(super) has_parts: bool,
    /// The data that functions of `body_filter` need.
    pub(super) wishes: Arc<Wishes>,
    /// The plugin that runs after them.
    pub(super) then: Option<Arc<dyn Plugin>>,
}

impl Functions {
    pub(super) fn run(self: &Arc<Self>, phase: Phase, request: &mut Request<'_>) -> Flow {
        let outcome = with_context(request, |request, context| {
            let mut host = RequestHost::new(request, phase, self.plugin);
            let outcome = run_part(&self.program, self.part(phase), &mut host, context);
            self.ran(host, outcome)
        });
        self.flow(phase, outcome, request)
    }

    /// Starts the timers that a run has scheduled.
    fn ran(&self, host: RequestHost<'_, '_>, outcome: RunOutcome) -> RunOutcome {
        let RequestHost { timers, request, .. } = host;
        timers.spawn(self.plugin, &self.program, request.worker.io());
        outcome
    }

    fn go_on(self: &Arc<Self>, phase: Phase, HeldRun { paused, memory }: HeldRun, request: &mut Request<'_>) -> Flow {
        let outcome = with_context(request, |request, context| {
            let mut host = RequestHost::new(request, phase, self.plugin);
            let outcome = resume(paused, &mut host, context);
            self.ran(host, outcome)
        });
        // If it waits again, it is counted again.
        drop(memory);
        self.flow(phase, outcome, request)
    }

    /// Continues with the reply of another server or thread.
    fn resume_with_reply(
        self: &Arc<Self>,
        phase: Phase,
        HeldRun { paused, memory }: HeldRun,
        reply: Result<CallReply, String>,
        request: &mut Request<'_>,
    ) -> Flow {
        let outcome = with_context(request, |request, context| {
            let mut host = RequestHost::new(request, phase, self.plugin);
            let outcome = resume_with(paused, reply, &mut host, context);
            self.ran(host, outcome)
        });
        drop(memory);
        self.flow(phase, outcome, request)
    }

    /// Translates an outcome for the request.
    fn flow(self: &Arc<Self>, phase: Phase, outcome: RunOutcome, request: &mut Request<'_>) -> Flow {
        match outcome {
            RunOutcome::Done(_) => self.run_wrapped_plugin(phase, request),
            RunOutcome::Answer { status, body: None } => Flow::Answer(Answer::page(status)),
            RunOutcome::Answer { status, body: Some(body) } => {
                let mut answer = Answer::owned(status, body);
                // If the function has set a type, the answer has that.
                if request.response.added(CONTENT_TYPE).next().is_some() {
                    answer.content_type = None;
                }
                Flow::Answer(answer)
            }
            RunOutcome::Wait(wait, paused) => match HeldRun::begin(paused, request.facts.client) {
                Ok(held) => self.wait(phase, wait, held, request),
                Err(full) => {
                    request.worker.io().fail(self.plugin, full);
                    Flow::Answer(Answer::page(503))
                }
            },
            RunOutcome::Failed(failure) => {
                request.worker.io().fail(self.plugin, &failure.text);
                match self.goes_on(&failure) {
                    true => self.run_wrapped_plugin(phase, request),
                    false => Flow::Answer(Answer::page(500)),
                }
            }
        }
    }

    /// Waits for what a run needs.
    fn wait(self: &Arc<Self>, phase: Phase, wait: RunWait, held: HeldRun, request: &mut Request<'_>) -> Flow {
        match wait {
            RunWait::Sleep(time) => {
                let own = self.clone();
                let sleep = request.worker.io().sleep(time.min(SLEEP_MAX));
                Flow::wait(sleep, move |(), request| own.go_on(phase, held, request))
            }
            RunWait::Body => {
                let own = self.clone();
                Flow::body(FILTER_BYTES_MAX, move |request| own.go_on(phase, held, request))
            }
            RunWait::Call(call) => self.call(phase, *call, held, request),
            RunWait::Work(asked) => self.work(phase, *asked, held),
            RunWait::Link(call) => {
                let (own, links) = (self.clone(), Links::of(request.settled));
                let performed = links.perform(*call, request.worker.io().clone(), Some(request.facts.client));
                Flow::wait(performed, move |done, request| {
                    own.resume_with_reply(phase, held, done.map(CallReply::Link), request)
                })
            }
        }
    }

    /// Calls another server.
    fn call(self: &Arc<Self>, phase: Phase, call: HttpCall, held: HeldRun, request: &mut Request<'_>) -> Flow {
        let own = self.clone();
        let call = call_of(call).map(|call| request.call(call));
        // A function may repeat a call that cannot be made for ever: this lets others run.
        let pause = request.worker.io().sleep(REFUSED_PAUSE);
        let answered = async move {
            match call {
                Ok(call) => reply_of(call.await).map(CallReply::Http),
                Err(why) => {
                    pause.await;
                    Err(why)
                }
            }
        };
        Flow::wait(answered, move |reply, request| own.resume_with_reply(phase, held, reply, request))
    }

    /// Calls another thread.
    fn work(self: &Arc<Self>, phase: Phase, asked: WorkCall, held: HeldRun) -> Flow {
        let own = self.clone();
        let module = self.program.module().and_then(|module| module.find(&asked.module));
        let work = move || match module {
            Some(module) => module.work(&asked),
            None => {
                Err(format!("unknown module {:?}; use the plugin's own file, or one that it requires", asked.module))
            }
        };
        Flow::offload(work, move |done, request| match done {
            Ok(reply) => own.resume_with_reply(phase, held, reply.map(CallReply::Work), request),
            Err(QueueFull) => {
                let pause = request.worker.io().sleep(REFUSED_PAUSE);
                let why = || Err("too many calls are waiting already; try again later".to_owned());
                Flow::wait(pause, move |(), request| own.resume_with_reply(phase, held, why(), request))
            }
        })
    }

    /// Whether a failure is only logged: APISIX runs a plugin whose `pre_function` has failed. A function that had to
    /// be stopped is different.
    fn goes_on(&self, failure: &RunFailure) -> bool {
        self.then.is_some() && failure.kind == FailureKind::Error
    }

    /// Runs the plugin after the functions.
    fn run_wrapped_plugin(&self, phase: Phase, request: &mut Request<'_>) -> Flow {
        match (&self.then, phase) {
            (None, _) => Flow::Continue,
            (Some(plugin), Phase::Rewrite) => plugin.rewrite(request),
            (Some(plugin), Phase::Access) => plugin.access(request),
            (Some(plugin), _) => plugin.before_proxy(request),
        }
    }

    #[inline]
    fn part(&self, phase: Phase) -> usize {
        if self.has_parts { part(phase) } else { 0 }
    }

    /// Runs functions after the response's head; `false`: the response is a 500 now. Return values have no effect
    /// there, as in APISIX.
    pub(super) fn run_behind(&self, phase: Phase, response: &mut Response<'_>) -> bool {
        let shared = context_of(response.settled);
        let outcome = {
            let context = &mut *shared.borrow_mut();
            let mut host = ResponseHost::new(response, phase, self.plugin);
            let outcome = run_part(&self.program, self.part(phase), &mut host, context);
            let ResponseHost { timers, response, .. } = host;
            timers.spawn(self.plugin, &self.program, response.worker.io());
            outcome
        };
        if !shared.borrow().is_empty() {
            keep_context(response.settled, &shared);
        }
        let RunOutcome::Failed(failure) = outcome else { return true };
        response.worker.io().fail(self.plugin, &failure.text);
        let goes_on = phase != Phase::HeaderFilter || self.goes_on(&failure);
        if !goes_on {
            answer_500(response);
        }
        goes_on
    }

    /// Prepares filtering the body: removes fields of the head that describe the old one. Returns its coding.
    pub(super) fn begin_body(&self, response: &mut Response<'_>) -> BodyCoding {
        let coding = BodyCoding::of(response.header(CONTENT_ENCODING, &mut Vec::new()));
        forget_old_body(response);
        coding
    }

    /// Passes the decoded body to the functions.
    pub(super) fn filter_body(&self, coding: BodyCoding, response: &mut Response<'_>) {
        let context = context_of(response.settled);
        keep_context(response.settled, &context);
        let io = response.worker.io().clone();
        let seen: Rc<SeenBy> = Rc::new(SeenBy { program: self.program.clone(), seen: OnceCell::new() });
        response.settled.held.push(Box::new(seen.clone()));
        response.body.filter(Box::new(Pieces {
            plugin: self.plugin,
            program: self.program.clone(),
            part: self.part(Phase::BodyFilter),
            wishes: self.wishes.clone(),
            seen,
            is_over: false,
            decoder: (coding != BodyCoding::Identity).then(|| Decoder::new(coding, FILTER_BYTES_MAX)),
            context,
            io,
        }));
    }
}

/// The data that functions of `body_filter` see, for the program that owns them.
struct SeenBy {
    program: Arc<Program>,
    seen: OnceCell<RequestCopy>,
}

impl Functions {
    /// Copies the data that functions of `body_filter` may see, as the head is final.
    pub(super) fn note_head(&self, response: &mut Response<'_>) {
        let mut held = response.settled.held.iter().filter_map(|held| held.downcast_ref::<Rc<SeenBy>>());
        if let Some(of) = held.find(|of| Arc::ptr_eq(&of.program, &self.program)).cloned() {
            of.seen.get_or_init(|| RequestCopy::of(response, &self.wishes));
        }
    }
}

/// The phases before the request is forwarded, for implementations of `Plugin` with functions.
macro_rules! before_the_node {
    ($this:ident => $functions:expr) => {
        fn rewrite(&$this, request: &mut stillgate_plugin_api::Request<'_>) -> stillgate_plugin_api::Flow {
            $functions.run(stillgate_plugin_api::Phase::Rewrite, request)
        }

        fn access(&$this, request: &mut stillgate_plugin_api::Request<'_>) -> stillgate_plugin_api::Flow {
            $functions.run(stillgate_plugin_api::Phase::Access, request)
        }

        fn before_proxy(&$this, request: &mut stillgate_plugin_api::Request<'_>) -> stillgate_plugin_api::Flow {
            $functions.run(stillgate_plugin_api::Phase::BeforeProxy, request)
        }
    };
}

pub(super) use before_the_node;

/// Replaces a response by the page of 500.
fn answer_500(response: &mut Response<'_>) {
    let page = Answer::page(500);
    response.edits.set_status(500).expect("500 is a status");
    forget_old_body(response);
    response.set_header(CONTENT_TYPE, FieldValue::new(b"text/html; charset=utf-8").expect("no control characters"));
    response.body.replace(page.body.bytes());
}

/// State that functions keep for a request between its phases; in [`RequestState::held`] if there is any.
type SharedContext = Rc<RefCell<Context>>;

/// The fields that functions have set in `ctx` of a request.
pub(crate) fn fields_in_context(settled: &RequestState, name: &str) -> Option<serde_json::Value> {
    let held = settled.held.iter().find_map(|held| held.downcast_ref::<SharedContext>())?;
    stillgate_lua::fields_in_context(&held.borrow(), name)
}

fn context_of(settled: &RequestState) -> SharedContext {
    let held = settled.held.iter().find_map(|held| held.downcast_ref::<SharedContext>());
    held.cloned().unwrap_or_default()
}

fn keep_context(settled: &mut RequestState, context: &SharedContext) {
    if !settled.held.iter().any(|held| held.is::<SharedContext>()) {
        settled.held.push(Box::new(context.clone()));
    }
}

/// Runs functions for a request. Their state takes memory only if there is any.
fn with_context(
    request: &mut Request<'_>,
    then: impl FnOnce(&mut Request<'_>, &mut Context) -> RunOutcome,
) -> RunOutcome {
    let held = request.settled.held.iter().find_map(|held| held.downcast_ref::<SharedContext>()).cloned();
    if let Some(context) = held {
        return then(request, &mut context.borrow_mut());
    }
    let mut context = Context::default();
    let outcome = then(request, &mut context);
    if !context.is_empty() {
        request.settled.held.push(Box::new(Rc::new(RefCell::new(context))));
    }
    outcome
}

/// The functions of `body_filter`: each piece is passed to them as `ngx.arg`.
struct Pieces {
    plugin: &'static str,
    program: Arc<Program>,
    part: usize,
    /// For a coded body, which is sent decoded.
    decoder: Option<Decoder>,
    wishes: Arc<Wishes>,
    seen: Rc<SeenBy>,
    /// Functions have ended the body: further pieces are dropped.
    is_over: bool,
    context: SharedContext,
    io: Rc<dyn Io>,
}

impl Pieces {
    fn run(&mut self, piece: &[u8], is_last: bool, out: &mut Vec<u8>) -> Result<(), BodyError> {
        if self.is_over {
            return Ok(());
        }
        let mut host = PieceHost {
            io: self.io.clone(),
            plugin: self.plugin,
            piece: piece.to_vec(),
            is_last,
            ends_body: false,
            timers: ScheduledTimers::default(),
            seen: &self.seen.seen,
            wishes: &self.wishes,
        };
        let outcome = run_part(&self.program, self.part, &mut host, &mut self.context.borrow_mut());
        std::mem::take(&mut host.timers).spawn(self.plugin, &self.program, &self.io);
        self.is_over = host.ends_body;
        match outcome {
            RunOutcome::Failed(failure) => {
                self.io.fail(self.plugin, &failure.text);
                Err(BodyError::Failed)
            }
            _ => {
                out.append(&mut host.piece);
                Ok(())
            }
        }
    }
}

/// Size of decoded pieces for functions.
const DECODED_BYTES: usize = 16 * 1024;

impl Pieces {
    /// Runs the functions with decoded data.
    fn run_decoded(&mut self, decoded: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        decoded.chunks(DECODED_BYTES).try_for_each(|piece| self.run(piece, false, out))
    }
}

impl BodyFilter for Pieces {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        let Some(mut decoder) = self.decoder.take() else { return self.run(piece, false, out) };
        let done = decoder.stream(piece, &mut |decoded| self.run_decoded(decoded, out));
        self.decoder = Some(decoder);
        done
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        if let Some(decoder) = &mut self.decoder {
            let decoded = decoder.end()?;
            self.run_decoded(&decoded, out)?;
        }
        self.run(&[], true, out)
    }

    /// Memory held by functions is in their worker's VM, which has a limit of its own.
    fn held_bytes(&self) -> usize {
        self.decoder.as_ref().map_or(0, Decoder::held_bytes)
    }

    fn piece_bytes_max(&self) -> usize {
        if self.decoder.is_some() { STREAMED_BYTES } else { usize::MAX }
    }
}
