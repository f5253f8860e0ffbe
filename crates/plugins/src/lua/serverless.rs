//! `serverless-pre-function` and `serverless-post-function`: functions in the configuration, at the beginning and the
//! end of a phase.
//!
//! Unlike APISIX, a function runs for 50 ms at most, an answer ends the phase at once, and in `body_filter` the head
//! can be read and not changed.

use super::functions::{Functions, before_the_node};
use super::request_copy::Wishes;
use serde_json::json;
use std::sync::Arc;
use stillgate_lua::{CallKind, Program, check};
use stillgate_plugin_api::{Compile, Define, Phase, Phases, Plugin, Response};
use stillgate_schema::kind::some;
use stillgate_schema::{At, Choice, Fault, LocatedKind, TEXT, object};

object! {
    /// Runs functions in Lua.
    pub(crate) struct ServerlessKeys {
        /// The phase in which they run.
        phase: Phase = PHASE => default(Phase::Access);
        /// Texts in Lua, each of which returns a function; 64 at most. They run one after the other.
        functions: Vec<At<String>> = some(LocatedKind(TEXT)) => required;
    }
}

/// The most functions of one plugin. Each is run once when it is checked, which may take 50 ms.
const FUNCTIONS_MAX: usize = 64;

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

/// Common parts of both plugins.
struct Serverless {
    phase: Phase,
    functions: Arc<Functions>,
}

/// The plugin at the beginning of a phase.
pub(crate) struct PreFunction(Serverless);

/// The plugin at its end.
pub(crate) struct PostFunction(Serverless);

macro_rules! serverless {
    ($plugin:ident, $name:literal, $priority:literal) => {
        impl Define for $plugin {
            type Keys = ServerlessKeys;
            const NAME: &'static str = $name;
            const PRIORITY: i32 = $priority;
            const PHASES: Phases = Phases::of(&Phase::ALL);

            fn compile(keys: ServerlessKeys, cx: &mut Compile<'_>) -> Option<$plugin> {
                Serverless::compile($name, keys, cx).map($plugin)
            }
        }

        impl Plugin for $plugin {
            before_the_node!(self => self.0.functions);

            fn header_filter(&self, response: &mut Response<'_>) {
                match self.0.phase {
                    Phase::BodyFilter => {
                        let coding = self.0.functions.begin_body(response);
                        self.0.functions.filter_body(coding, response);
                    }
                    _ => _ = self.0.functions.run_behind(Phase::HeaderFilter, response),
                }
            }

            fn log(&self, response: &mut Response<'_>) {
                self.0.functions.run_behind(Phase::Log, response);
            }

            fn phases(&self) -> Phases {
                match self.0.phase {
                    Phase::BodyFilter => Phases::of(&[Phase::HeaderFilter, Phase::BodyFilter]),
                    phase => Phases::of(&[phase]),
                }
            }

            fn filters_responses(&self) -> bool {
                self.0.phase == Phase::BodyFilter
            }

            /// It does not code content, but its functions see the head at that time.
            fn codes_content(&self) -> bool {
                self.0.phase == Phase::BodyFilter
            }

            fn code_content(&self, response: &mut Response<'_>) {
                self.0.functions.note_head(response);
            }

            fn wants_documents(&self) -> bool {
                self.0.functions.wants_documents
            }
        }
    };
}

serverless!(PreFunction, "serverless-pre-function", 10_000);
serverless!(PostFunction, "serverless-post-function", -2_000);

impl Serverless {
    fn compile(plugin: &'static str, keys: ServerlessKeys, cx: &mut Compile<'_>) -> Option<Serverless> {
        let path = cx.path.key("functions");
        if let Some(first) = keys.functions.get(FUNCTIONS_MAX) {
            let fault = Fault::new(format!("{} functions; a plugin has at most {FUNCTIONS_MAX}", keys.functions.len()));
            cx.sink.error(first.at, &path, fault.hint("write several steps into one function"));
            return None;
        }
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
        let wishes = Arc::new(Wishes::of(&sources.iter().map(String::as_str).collect::<Vec<_>>()));
        // Resources are kept in their written form only if a plugin wants them.
        let wants_documents = sources.iter().any(|source| source.contains("matched_route"));
        let conf = json!({"phase": keys.phase.name(), "functions": &sources});
        // A route may have both plugins.
        let name = format!("{}, {plugin}", cx.origin);
        let program = Program::new(name, sources, conf, CallKind::Plugin);
        let functions = Functions { plugin, program, wants_documents, has_parts: false, wishes, then: None };
        Some(Serverless { phase: keys.phase, functions: Arc::new(functions) })
    }
}
