//! Custom plugins in the operator's files, written like APISIX's own.
//!
//! Unlike APISIX, they cannot authenticate consumers, and fields of a file other than its phases, `init`,
//! `check_schema` and `metadata_schema` have no effect, which a warning says. A file has its own global variables, and
//! starts over when it changes.

use super::functions::{Functions, before_the_node};
use super::modules::{Files, Sources};
use super::request_copy::Wishes;
use crate::request_validation::{check_json, check_schema};
use std::sync::Arc;
use stillgate_lua::{Description, Module, PHASES, Program};
use stillgate_plugin_api::custom::{CheckMetadata, CustomPlugin, PluginFile, name_for_ever};
use stillgate_plugin_api::{Compile, Phase, Phases, Plugin, Response};
use stillgate_schema::{Fault, Json, Node, json_of};

/// Longest name of a plugin.
const NAME_BYTES_MAX: usize = 64;

/// In the order of [`PHASES`].
const PHASE_OF: [Phase; PHASES.len()] =
    [Phase::Rewrite, Phase::Access, Phase::BeforeProxy, Phase::HeaderFilter, Phase::BodyFilter, Phase::Log];

/// The part of a program for a phase.
pub(super) fn part(phase: Phase) -> usize {
    PHASE_OF.iter().position(|of| *of == phase).expect("all phases are listed")
}

/// Makes the plugins of files: [`stillgate_plugin_api::Scripts::plugins`].
pub(crate) fn plugins(files: &[PluginFile], attributes: &Arc<Json>) -> Vec<Result<CustomPlugin, String>> {
    let mut known = Files::new(files, attributes);
    let beside = files.iter().filter(|file| !file.is_module());
    beside.filter_map(|file| plugin(file, &mut known).transpose()).collect()
}

/// The plugin of a file; `None`: it is a module of others.
fn plugin<'f>(file: &'f PluginFile, known: &mut Files<'f>) -> Result<Option<CustomPlugin>, String> {
    let Sources { module, version, files } = known.sources(file)?;
    if !module.has_plugin(check_json)? && known.is_required(file) {
        return Ok(None);
    }
    let path = file.path.display();
    let described = module.describe(check_json)?;
    let texts: Vec<&str> = files.iter().map(|file| &*file.text).collect();
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
    if let Some(schema) = &described.metadata_schema {
        check_schema(schema).map_err(|why| format!("{path}: the metadata_schema cannot be used: {why}"))?;
    }
    if phases.is_empty() {
        return Err(format!("{path}: the plugin has no function for a phase: {}", PHASES.join(", ")));
    }
    let phases: Vec<Phase> = phases.iter().map(|at| PHASE_OF[*at]).collect();
    // The filter of the body is set up with the head.
    let behind_head = phases.contains(&Phase::BodyFilter).then_some(Phase::HeaderFilter);
    let called = Phases::of(&phases.iter().copied().chain(behind_head).collect::<Vec<Phase>>());
    let warnings = unused.iter().map(|key| format!("{path}: {key} has no effect here")).collect();
    let own = Arc::new(FilePluginKind {
        name: name_for_ever(name),
        module,
        wants_documents: texts.iter().any(|text| text.contains("matched_route")),
        wishes: Arc::new(Wishes::of(&texts)),
        defined: Phases::of(&phases),
        called,
        schema: described.schema.clone(),
        checks: described.checks,
    });
    let check_metadata = described.metadata_schema.clone().map(|schema| check_metadata(own.clone(), schema));
    Ok(Some(CustomPlugin {
        path: file.path.clone(),
        check_metadata,
        name: own.name,
        priority: *priority,
        phases: called,
        schema: described.schema,
        version,
        warnings,
        compile: Box::new(move |node, cx| own.compile(node, cx)),
    }))
}

/// Like APISIX, it calls the plugin's own `check_schema` first.
fn check_metadata(own: Arc<FilePluginKind>, schema: Json) -> Box<CheckMetadata> {
    Box::new(move |metadata| match own.checks {
        true => own.module.check_metadata(&metadata, check_json),
        false => check_json(&schema, metadata),
    })
}

/// A plugin of a file, before it is configured.
struct FilePluginKind {
    name: &'static str,
    module: Arc<Module>,
    wants_documents: bool,
    wishes: Arc<Wishes>,
    /// The phases for which it has functions.
    defined: Phases,
    called: Phases,
    schema: Json,
    checks: bool,
}

impl FilePluginKind {
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

/// A configured plugin of a file.
struct Own {
    functions: Arc<Functions>,
    defined: Phases,
    called: Phases,
}

impl Plugin for Own {
    before_the_node!(self => self.functions);

    fn header_filter(&self, response: &mut Response<'_>) {
        let filters = self.defined.contains(Phase::BodyFilter);
        // Fields that the function sets in the head describe the new body.
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

    /// It does not code content, but its functions see the head at that time.
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
