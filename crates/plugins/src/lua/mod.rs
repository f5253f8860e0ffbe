//! `serverless-pre-function` and `serverless-post-function`: functions in Lua, at the beginning and the end of a phase.
//!
//! The functions run in their worker's LuaJIT (`stillgate-lua`); what is here is between that and the phases of a plugin.
//!
//! Different from APISIX: a function runs for 50 ms at most, an answer ends the phase at once, and in `body_filter` there is the
//! body and `ctx` only.

mod hosts;
mod variables;

use hosts::{OfPiece, OfRequest, OfResponse};
use serde_json::json;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stillgate_lua::{Context, Kind, Outcome, Paused, Program, Wait, check, resume, run};
use stillgate_plugin::body::FILTER_BYTES_MAX;
use stillgate_plugin::{
    Answer, BodyError, BodyFilter, Compile, Define, Flow, Io, Phase, Phases, Plugin, Request, Response, Settled,
};
use stillgate_schema::kind::some;
use stillgate_schema::{At, Choice, Fault, Located, TEXT, object};
use stillgate_wire::{FieldName, FieldValue};

object! {
    /// Runs functions in Lua.
    pub(crate) struct ServerlessKeys {
        /// The phase that they run in.
        phase: Phase = PHASE => default(Phase::Access);
        /// Texts in Lua, each of which returns a function. They run one after the other.
        functions: Vec<At<String>> = some(Located(TEXT)) => required;
    }
}

const PHASE: Choice<Phase> = Choice {
    words: &[
        ("rewrite", Phase::Rewrite),
        ("access", Phase::Access),
        ("header_filter", Phase::HeaderFilter),
        ("body_filter", Phase::BodyFilter),
        ("log", Phase::Log),
        ("before_proxy", Phase::BeforeProxy),
    ],
    unbuilt: &[],
};

/// Longest that a function sleeps at once.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

const CONTENT_TYPE: FieldName<'static> = FieldName::constant("Content-Type");
const CONTENT_ENCODING: FieldName<'static> = FieldName::constant("Content-Encoding");

/// What both plugins are; shared with the requests that wait.
struct Functions {
    plugin: &'static str,
    phase: Phase,
    program: Arc<Program>,
    wants_documents: bool,
}

/// The plugin at the beginning of a phase.
pub(crate) struct PreFunction(Arc<Functions>);

/// The plugin at its end.
pub(crate) struct PostFunction(Arc<Functions>);

macro_rules! serverless {
    ($plugin:ident, $name:literal, $priority:literal) => {
        impl Define for $plugin {
            type Keys = ServerlessKeys;
            const NAME: &'static str = $name;
            const PRIORITY: i32 = $priority;
            const PHASES: Phases = Phases::of(&Phase::ALL);

            fn compile(keys: ServerlessKeys, cx: &mut Compile<'_>) -> Option<$plugin> {
                Functions::compile($name, keys, cx).map($plugin)
            }
        }

        impl Plugin for $plugin {
            fn rewrite(&self, request: &mut Request<'_>) -> Flow {
                self.0.run(Phase::Rewrite, request)
            }

            fn access(&self, request: &mut Request<'_>) -> Flow {
                self.0.run(Phase::Access, request)
            }

            fn before_proxy(&self, request: &mut Request<'_>) -> Flow {
                self.0.run(Phase::BeforeProxy, request)
            }

            fn header_filter(&self, response: &mut Response<'_>) {
                match self.0.phase {
                    Phase::BodyFilter => self.0.filter_body(response),
                    _ => self.0.run_behind(Phase::HeaderFilter, response),
                }
            }

            fn log(&self, response: &mut Response<'_>) {
                self.0.run_behind(Phase::Log, response);
            }

            fn phases(&self) -> Phases {
                match self.0.phase {
                    Phase::BodyFilter => Phases::of(&[Phase::HeaderFilter, Phase::BodyFilter]),
                    phase => Phases::of(&[phase]),
                }
            }

            fn wants_documents(&self) -> bool {
                self.0.wants_documents
            }
        }
    };
}

serverless!(PreFunction, "serverless-pre-function", 10_000);
serverless!(PostFunction, "serverless-post-function", -2_000);

impl Functions {
    fn compile(plugin: &'static str, keys: ServerlessKeys, cx: &mut Compile<'_>) -> Option<Arc<Functions>> {
        let path = cx.path.key("functions");
        let mut is_good = true;
        for (at, source) in keys.functions.iter().enumerate() {
            if let Err(why) = check(&source.value) {
                cx.sink.error(source.at, &path.index(at), Fault::new(why));
                is_good = false;
            }
        }
        if !is_good {
            return None;
        }
        let sources: Vec<String> = keys.functions.into_iter().map(|source| source.value).collect();
        // Resources are kept as they are written only where something asks for them.
        let wants_documents = sources.iter().any(|source| source.contains("matched_route"));
        let conf = json!({"phase": keys.phase.name(), "functions": &sources});
        let program = Program::new(cx.origin.to_string(), sources, conf, Kind::Plugin);
        Some(Arc::new(Functions { plugin, phase: keys.phase, program, wants_documents }))
    }

    fn run(self: &Arc<Self>, phase: Phase, request: &mut Request<'_>) -> Flow {
        let outcome = with_context(request, |request, context| {
            run(&self.program, &mut OfRequest::new(request, phase, self.plugin), context)
        });
        self.flow(phase, outcome, request)
    }

    fn go_on(self: &Arc<Self>, phase: Phase, paused: Paused, request: &mut Request<'_>) -> Flow {
        let outcome = with_context(request, |request, context| {
            resume(paused, &mut OfRequest::new(request, phase, self.plugin), context)
        });
        self.flow(phase, outcome, request)
    }

    /// What becomes of the request.
    fn flow(self: &Arc<Self>, phase: Phase, outcome: Outcome, request: &mut Request<'_>) -> Flow {
        match outcome {
            Outcome::Done(_) => Flow::Continue,
            Outcome::Answer { status, body: None } => Flow::Answer(Answer::page(status)),
            Outcome::Answer { status, body: Some(body) } => {
                let mut answer = Answer::owned(status, body);
                // A type that the function has set is the answer's.
                if request.response.added(CONTENT_TYPE).next().is_some() {
                    answer.content_type = None;
                }
                Flow::Answer(answer)
            }
            Outcome::Wait(Wait::Sleep(time), paused) => {
                let own = self.clone();
                let sleep = request.worker.io().sleep(time.min(SLEEP_MAX));
                Flow::wait(sleep, move |(), request| own.go_on(phase, paused, request))
            }
            Outcome::Wait(Wait::Body, paused) => {
                let own = self.clone();
                Flow::body(FILTER_BYTES_MAX, move |request| own.go_on(phase, paused, request))
            }
            Outcome::Failed(failure) => {
                request.worker.io().fail(self.plugin, &failure.text);
                Flow::Answer(Answer::page(500))
            }
        }
    }

    /// Runs behind the response's head. What functions return has no effect there, as in APISIX.
    fn run_behind(&self, phase: Phase, response: &mut Response<'_>) {
        let shared = context_of(response.settled);
        let outcome = {
            let context = &mut *shared.borrow_mut();
            run(&self.program, &mut OfResponse::new(response, phase, self.plugin), context)
        };
        if !shared.borrow().is_empty() {
            keep(response.settled, &shared);
        }
        let Outcome::Failed(failure) = outcome else { return };
        response.worker.io().fail(self.plugin, &failure.text);
        if phase == Phase::HeaderFilter {
            answer_500(response);
        }
    }

    fn filter_body(&self, response: &mut Response<'_>) {
        let context = context_of(response.settled);
        keep(response.settled, &context);
        let io = response.worker.io().clone();
        response.body.filter(Box::new(Pieces { plugin: self.plugin, program: self.program.clone(), context, io }));
    }
}

/// The page of 500 in place of a response.
fn answer_500(response: &mut Response<'_>) {
    let page = Answer::page(500);
    response.edits.set_status(500).expect("500 is a status");
    response.remove_header(CONTENT_ENCODING);
    response.set_header(CONTENT_TYPE, FieldValue::new(b"text/html; charset=utf-8").expect("no control characters"));
    response.body.replace(page.body.bytes());
}

/// What functions have of a request between its phases; in [`Settled::held`] where there is something.
type SharedContext = Rc<RefCell<Context>>;

fn context_of(settled: &Settled) -> SharedContext {
    let held = settled.held.iter().find_map(|held| held.downcast_ref::<SharedContext>());
    held.cloned().unwrap_or_default()
}

fn keep(settled: &mut Settled, context: &SharedContext) {
    if !settled.held.iter().any(|held| held.is::<SharedContext>()) {
        settled.held.push(Box::new(context.clone()));
    }
}

/// Runs functions for a request. What they keep takes memory only where they keep something.
fn with_context(request: &mut Request<'_>, then: impl FnOnce(&mut Request<'_>, &mut Context) -> Outcome) -> Outcome {
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

/// The functions of `body_filter`: each piece is given to them as `ngx.arg`.
struct Pieces {
    plugin: &'static str,
    program: Arc<Program>,
    context: SharedContext,
    io: Rc<dyn Io>,
}

impl Pieces {
    fn run(&mut self, piece: &[u8], is_last: bool, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let mut host = OfPiece { io: self.io.clone(), plugin: self.plugin, piece: piece.to_vec(), is_last };
        match run(&self.program, &mut host, &mut self.context.borrow_mut()) {
            Outcome::Failed(failure) => {
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

impl BodyFilter for Pieces {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.run(piece, false, out)
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.run(&[], true, out)
    }

    /// What functions hold is in their worker's VM, which has a bound of its own.
    fn held_bytes(&self) -> usize {
        0
    }
}
