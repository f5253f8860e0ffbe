//! A program: the functions of one configuration, compiled on each worker that runs them; and plugins in files, written like
//! APISIX's own: a chunk that returns a table with a name, a priority, a schema and functions.
//!
//! A file's description is read once, off the workers; each worker loads the file when it first runs it. A changed file
//! is another [`Module`], which shares nothing with the previous one: requests that began with that finish with it.

use crate::bridge::{CheckSchema, ON_A_THREAD, WHILE_LOADING};
use crate::call::WorkCall;
use crate::json::{self, Style};
use crate::vm::{self, Vm, with_checker};
use crate::watchdog::WORK_TIME_MAX;
use mlua::{FromLua, LuaString, Table, Value};
use serde_json::Value as Json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How the functions of a program are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// As a plugin: they may answer, by `ngx.exit` and similar functions, or by returning a status and a body like
    /// APISIX's plugins.
    Plugin,
    /// As a condition: the first return value decides; it holds unless that is `nil` or `false`.
    Condition,
    /// As a condition whose function gets the request's variables instead of `conf`.
    Filter,
}

/// The functions of one configuration. It is created once, off the workers; the workers' compiled copies are dropped
/// with it.
#[derive(Debug)]
pub struct Program {
    /// Unique in this process.
    pub(crate) id: u64,
    /// The name that precedes line numbers in messages.
    pub(crate) name: String,
    /// Texts that each return a function.
    pub(crate) sources: Vec<String>,
    /// The argument `conf` of the functions.
    pub(crate) conf: Json,
    pub(crate) kind: CallKind,
    /// Instead of sources, the plugin whose functions they are: a part for each phase.
    pub(crate) module: Option<Arc<Module>>,
}

/// Number of programs that were dropped.
static GONE: AtomicU64 = AtomicU64::new(0);

/// Number of dropped programs: when it grows, a VM can forget some.
#[inline]
pub(crate) fn dropped_programs() -> u64 {
    GONE.load(Ordering::Acquire)
}

impl Drop for Program {
    fn drop(&mut self) {
        GONE.fetch_add(1, Ordering::Release);
    }
}

/// Reserves numbers for a program: one for each part.
fn next_id(parts: usize) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(parts as u64, Ordering::Relaxed)
}

impl Program {
    /// Creates a program from sources that [`check`] accepts.
    pub fn new(name: String, sources: Vec<String>, conf: Json, kind: CallKind) -> Arc<Program> {
        Arc::new(Program { id: next_id(1), name, sources, conf, kind, module: None })
    }

    /// The file whose functions it has.
    pub fn module(&self) -> Option<&Arc<Module>> {
        self.module.as_ref()
    }

    /// Creates a program from a plugin's file and a configuration that its schema accepts. It has a part for each of
    /// [`PHASES`].
    pub fn of_module(name: String, module: Arc<Module>, conf: Json) -> Arc<Program> {
        let (id, sources) = (next_id(PHASES.len()), Vec::new());
        Arc::new(Program { id, name, sources, conf, kind: CallKind::Plugin, module: Some(module) })
    }
}

/// Checks that a text is a chunk that returns a function; the error is APISIX's. The text is run for that, with the
/// memory and time limits of functions.
pub fn check(source: &str) -> Result<(), String> {
    vm::check(source)
}

/// The phases for which a plugin may have functions, in the order of the parts of its programs.
pub const PHASES: [&str; 6] = ["rewrite", "access", "before_proxy", "header_filter", "body_filter", "log"];

/// One version of a file.
#[derive(Debug)]
pub struct Module {
    /// Unique in this process.
    pub(crate) id: u64,
    /// The name that precedes line numbers in messages.
    pub(crate) file: String,
    source: String,
    /// Modules for `require` by name, which take precedence over the built-in ones.
    requires: Vec<(String, Arc<Module>)>,
    /// Attributes for `plugin_attr` of `apisix.plugin`, by names of plugins.
    attributes: Arc<Json>,
}

/// The description of a plugin in its file.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// Its priority: higher runs first.
    pub priority: i32,
    /// JSON Schema of its configuration.
    pub schema: Json,
    /// Whether it has a `check_schema` of its own.
    pub checks: bool,
    /// The phases for which it has functions, as indices into [`PHASES`].
    pub phases: Vec<usize>,
    /// Parts of it that have no effect here.
    pub unused: Vec<String>,
    /// JSON Schema of its metadata; `None`: it has none.
    pub metadata_schema: Option<Json>,
}

impl Module {
    /// Creates a module from the text of a file that requires no other.
    pub fn new(file: String, source: String) -> Arc<Module> {
        Module::with(file, source, Vec::new(), Arc::new(Json::Object(serde_json::Map::new())))
    }

    /// Creates a module from the text of a file, with the modules for `require` and the attributes for `plugin_attr` by
    /// name.
    pub fn with(
        file: String,
        source: String,
        requires: Vec<(String, Arc<Module>)>,
        attributes: Arc<Json>,
    ) -> Arc<Module> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Module { id: NEXT.fetch_add(1, Ordering::Relaxed), file, source, requires, attributes })
    }

    /// This module and all that it requires, directly or not: each once, and after those that it requires.
    fn in_load_order(&self) -> Vec<&Module> {
        fn collect_requires_first<'m>(module: &'m Module, modules: &mut Vec<&'m Module>) {
            if modules.iter().any(|known| known.id == module.id) {
                return;
            }
            module.requires.iter().for_each(|(_, other)| collect_requires_first(other, modules));
            modules.push(module);
        }
        let mut modules = Vec::new();
        collect_requires_first(self, &mut modules);
        modules
    }

    /// The form that the prelude reads: a list of modules, of which this is the last.
    pub(crate) fn to_lua(&self, vm: &Vm) -> mlua::Result<Table> {
        let list = vm.lua.create_table()?;
        for module in self.in_load_order() {
            let of_module = vm.lua.create_table()?;
            of_module.set("id", module.id)?;
            of_module.set("file", module.file.as_str())?;
            of_module.set("source", module.source.as_str())?;
            let requires = vm.lua.create_table()?;
            for (name, other) in &module.requires {
                requires.set(name.as_str(), other.id)?;
            }
            of_module.set("requires", requires)?;
            list.push(of_module)?;
        }
        list.set("attributes", json::to_lua(&vm.lua, &self.attributes, &vm.array_mt)?)?;
        Ok(list)
    }

    /// This module, or one that it requires, directly or not, by the name of its file without folders and extension.
    pub fn find(self: &Arc<Module>, name: &str) -> Option<Arc<Module>> {
        if self.name() == name {
            return Some(self.clone());
        }
        self.requires.iter().find_map(|(_, other)| other.find(name))
    }

    /// Whether the file looks like a plugin. It is run for that, as for [`Module::describe`].
    pub fn has_plugin(&self, check: CheckSchema) -> Result<bool, String> {
        with_checker(Some(check), WHILE_LOADING, |vm| {
            let module = self.to_lua(vm)?;
            vm.watched.run(|| vm.entries.has_plugin.call::<bool>(module)).0
        })
    }

    /// The description of the file's plugin; the error says what is wrong with it, and in which line. The file is run
    /// for that, with the memory and time limits of functions.
    pub fn describe(&self, check: CheckSchema) -> Result<Description, String> {
        with_checker(Some(check), WHILE_LOADING, |vm| {
            let module = self.to_lua(vm)?;
            let (described, _) = vm.watched.run(|| vm.entries.describe.call::<Table>(module));
            self.read(&described?, vm)
        })
        .and_then(|described| described)
    }

    /// Calls the plugin's own `check_schema` for a configuration, and returns what it made of it.
    pub fn check_conf(&self, conf: &Json, check: CheckSchema) -> Result<Json, String> {
        self.run_check_conf(conf, None, check)
    }

    /// Calls the plugin's own `check_schema` for its metadata.
    pub fn check_metadata(&self, metadata: &Json, check: CheckSchema) -> Result<Json, String> {
        /// `core.schema.TYPE_METADATA`
        const METADATA: u8 = 2;
        self.run_check_conf(metadata, Some(METADATA), check)
    }

    fn run_check_conf(&self, conf: &Json, kind: Option<u8>, check: CheckSchema) -> Result<Json, String> {
        with_checker(Some(check), WHILE_LOADING, |vm| {
            let conf = json::to_lua(&vm.lua, conf, &vm.array_mt)?;
            let arguments = (self.to_lua(vm)?, conf, kind);
            let (checked, _) = vm.watched.run(|| vm.entries.check_conf.call::<(Value, Option<String>)>(arguments));
            let (conf, why) = checked?;
            match why {
                Some(why) => Ok(Err(why)),
                None => as_json(&conf, vm).map(Ok),
            }
        })
        .and_then(|checked| checked)
    }

    /// The file's name without folders and extension.
    pub fn name(&self) -> &str {
        let name = self.file.rsplit_once('/').map_or(&*self.file, |(_, name)| name);
        name.rsplit_once('.').map_or(name, |(name, _)| name)
    }

    /// Runs a function of the file on this thread, which does not serve requests: for [`crate::WORK_TIME_MAX`] at most.
    pub fn work(&self, call: &WorkCall) -> Result<Vec<u8>, String> {
        with_checker(None, ON_A_THREAD, |vm| {
            let WorkCall { function, arguments, .. } = call;
            let arguments = vm.lua.create_string(arguments)?;
            let arguments = (self.to_lua(vm)?, function.as_str(), arguments);
            let (result, _) = vm.watched.run_for(WORK_TIME_MAX, || vm.entries.work.call::<LuaString>(arguments));
            Ok(result?.as_bytes().to_vec())
        })
    }

    fn read(&self, described: &Table, vm: &Vm) -> mlua::Result<Result<Description, String>> {
        let wrong = |what: &str| Ok(Err(format!("{}: {what}", self.file)));
        if described.get::<bool>("authenticates")? {
            return wrong("plugins that authenticate consumers are not supported; remove type and consumer_schema");
        }
        let Some(name) = typed_value::<String>(described, "name", vm)? else { return wrong("name is missing") };
        let Some(priority) = typed_value::<f64>(described, "priority", vm)? else {
            return wrong("priority is missing");
        };
        if priority.fract() != 0.0 || priority.abs() > f64::from(i32::MAX) {
            return wrong("priority is not a 32-bit integer");
        }
        if typed_value::<f64>(described, "version", vm)?.is_none() {
            return wrong("version is missing");
        }
        let Value::Table(schema) = described.get::<Value>("schema")? else {
            return wrong("schema is missing; write {type = \"object\"} for a plugin without keys");
        };
        let metadata_schema = match described.get::<Value>("metadata_schema")? {
            Value::Nil => None,
            schema @ Value::Table(_) => Some(as_json(&schema, vm)?),
            _ => return wrong("metadata_schema is not a table"),
        };
        Ok(Ok(Description {
            metadata_schema,
            name,
            priority: priority as i32,
            schema: as_json(&Value::Table(schema), vm)?,
            checks: described.get("checks")?,
            phases: described.get("phases")?,
            unused: described.get("unused")?,
        }))
    }
}

/// A value of a type; `None`: it is absent.
fn typed_value<T: FromLua>(table: &Table, key: &str, vm: &Vm) -> mlua::Result<Option<T>> {
    match table.get::<Value>(key)? {
        Value::String(text) if key != "name" => Err(mlua::Error::runtime(format!("{key} is not a number: {text:?}"))),
        value => Option::from_lua(value, &vm.lua),
    }
}

fn as_json(value: &Value, vm: &Vm) -> mlua::Result<Json> {
    let text = json::write(value, &vm.array_mt, Style { forced: true, ..Style::default() })?;
    serde_json::from_slice(&text).map_err(mlua::Error::external)
}
