//! Plugins of the operator's files, written as APISIX's own are.
//!
//! Different from APISIX: none of them authenticates consumers, and what a file has besides its phases, `init` and
//! `check_schema` has no effect, which a warning says. A file has its own global variables, and begins anew when it changes.

use super::functions::{Functions, before_the_node};
use super::seen::Wishes;
use crate::request_validation::{check_json, check_schema};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use stillgate_lua::{Description, Module, PHASES, Program};
use stillgate_plugin::own::{OwnFile, OwnPlugin, identity, name_for_ever};
use stillgate_plugin::{Compile, Identity, Phase, Phases, Plugin, Response};
use stillgate_schema::{Fault, Json, Node, json_of};

/// The longest name of a plugin.
const NAME_BYTES_MAX: usize = 64;

/// In the order of [`PHASES`].
const PHASE_OF: [Phase; PHASES.len()] =
    [Phase::Rewrite, Phase::Access, Phase::BeforeProxy, Phase::HeaderFilter, Phase::BodyFilter, Phase::Log];

/// The part of a program that a phase is.
pub(super) fn part(phase: Phase) -> usize {
    PHASE_OF.iter().position(|of| *of == phase).expect("all phases are listed")
}

/// Makes the plugin of a file: [`stillgate_plugin::Scripts::plugin`].
pub(crate) fn plugin(file: &OwnFile) -> Result<OwnPlugin, String> {
    let version = identity(std::slice::from_ref(file));
    let module = module(file, version);
    let path = file.path.display();
    let described = module.describe(check_json)?;
    let Description { name, priority, phases, unused, .. } = &described;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_name) {
        let what = format!("up to {NAME_BYTES_MAX} letters, digits, \"-\" and \"_\"");
        return Err(format!("{path}: a plugin cannot be named {name:?}; use {what}"));
    }
    if described.schema.pointer("/properties/_meta").is_some() {
        return Err(format!("{path}: the schema has the property _meta, which every plugin has; remove it"));
    }
    check_schema(&described.schema).map_err(|why| format!("{path}: the schema cannot be used: {why}"))?;
    if phases.is_empty() {
        return Err(format!("{path}: the plugin has no function for a phase: {}", PHASES.join(", ")));
    }
    let phases: Vec<Phase> = phases.iter().map(|at| PHASE_OF[*at]).collect();
    // The body is filtered by what is set up with the head.
    let behind_head = phases.contains(&Phase::BodyFilter).then_some(Phase::HeaderFilter);
    let called = Phases::of(&phases.iter().copied().chain(behind_head).collect::<Vec<Phase>>());
    let warnings = unused.iter().map(|key| format!("{path}: {key} has no effect here")).collect();
    let own = Arc::new(Kind {
        name: name_for_ever(name),
        module,
        wants_documents: file.text.contains("matched_route"),
        wishes: Arc::new(Wishes::of(&[&file.text])),
        defined: Phases::of(&phases),
        called,
        schema: described.schema.clone(),
        checks: described.checks,
    });
    Ok(OwnPlugin {
        name: own.name,
        priority: *priority,
        phases: called,
        schema: described.schema,
        version,
        warnings,
        compile: Box::new(move |node, cx| own.compile(node, cx)),
    })
}

/// The version of a file that workers may have loaded already: what it keeps goes on where the file is as it was.
fn module(file: &OwnFile, version: Identity) -> Arc<Module> {
    static KNOWN: Mutex<Option<HashMap<u128, Weak<Module>>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    known.retain(|_, module| module.strong_count() > 0);
    if let Some(module) = known.get(&version.0).and_then(Weak::upgrade) {
        return module;
    }
    let module = Module::new(file.name.clone(), file.text.clone());
    known.insert(version.0, Arc::downgrade(&module));
    module
}

/// A plugin of a file, before it is configured.
struct Kind {
    name: &'static str,
    module: Arc<Module>,
    wants_documents: bool,
    wishes: Arc<Wishes>,
    /// Those that it has functions for.
    defined: Phases,
    called: Phases,
    schema: Json,
    checks: bool,
}

impl Kind {
    fn compile(&self, node: &Node, cx: &mut Compile<'_>) -> Option<Box<dyn Plugin>> {
        let conf = json_of(node, cx.path, cx.sink)?;
        let checked = match self.checks {
            true => self.module.check_conf(&conf, check_json),
            false => check_json(&self.schema, conf),
        };
        let conf = checked.map_err(|why| cx.sink.error(cx.at, cx.path, Fault::new(why))).ok()?;
        let program = Program::of_module(cx.origin.to_string(), self.module.clone(), conf);
        let functions = Functions {
            plugin: self.name,
            program,
            wants_documents: self.wants_documents,
            has_parts: true,
            wishes: self.wishes.clone(),
            then: None,
        };
        Some(Box::new(Own { functions: Arc::new(functions), defined: self.defined, called: self.called }))
    }
}

/// A plugin of a file, configured.
struct Own {
    functions: Arc<Functions>,
    defined: Phases,
    called: Phases,
}

impl Plugin for Own {
    before_the_node!(self => self.functions);

    fn header_filter(&self, response: &mut Response<'_>) {
        let filters = self.defined.contains(Phase::BodyFilter);
        // What the function sets in the head is of the new body.
        let coding = filters.then(|| self.functions.begin_body(response));
        let is_good =
            !self.defined.contains(Phase::HeaderFilter) || self.functions.run_behind(Phase::HeaderFilter, response);
        if let Some(coding) = coding.filter(|_| is_good) {
            self.functions.filter_body(coding, response);
        }
    }

    fn log(&self, response: &mut Response<'_>) {
        self.functions.run_behind(Phase::Log, response);
    }

    fn phases(&self) -> Phases {
        self.called
    }

    fn filters_responses(&self) -> bool {
        self.defined.contains(Phase::BodyFilter)
    }

    /// It codes nothing, but its functions see the head as it is by then.
    fn codes_content(&self) -> bool {
        self.defined.contains(Phase::BodyFilter)
    }

    fn code_content(&self, response: &mut Response<'_>) {
        self.functions.note_head(response);
    }

    fn wants_documents(&self) -> bool {
        self.functions.wants_documents
    }
}
