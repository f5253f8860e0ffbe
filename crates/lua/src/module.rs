//! Plugins of files, as APISIX's own are written: a chunk that returns a table with a name, a priority, a schema and functions.
//!
//! What a file says is found out once, off the workers; each worker loads it when it first runs it. A file that changed is
//! another [`Module`], which shares nothing with the one before: requests that began with that go on with it.

use crate::bridge::{CheckSchema, ON_A_THREAD, WHILE_LOADING};
use crate::call::WorkCall;
use crate::json::{self, Style};
use crate::vm::{Vm, with_checker};
use crate::watchdog::WORK_TIME_MAX;
use mlua::{FromLua, LuaString, Table, Value};
use serde_json::Value as Json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The phases that a plugin may have functions for, in the order that parts of its programs are counted in.
pub const PHASES: [&str; 6] = ["rewrite", "access", "before_proxy", "header_filter", "body_filter", "log"];

/// One version of a file.
#[derive(Debug)]
pub struct Module {
    /// Tells it from every other in this process.
    pub(crate) id: u64,
    /// What stands before a line's number in messages.
    pub(crate) file: String,
    pub(crate) source: String,
}

/// What a file says of its plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// Its place among others: higher first.
    pub priority: i32,
    /// JSON Schema of its configuration.
    pub schema: Json,
    /// Whether it has a `check_schema` of its own.
    pub checks: bool,
    /// The phases it has functions for, as places in [`PHASES`].
    pub phases: Vec<usize>,
    /// What of it has no effect here.
    pub unused: Vec<String>,
}

impl Module {
    /// Of the text of a file.
    pub fn new(file: String, source: String) -> Arc<Module> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Module { id: NEXT.fetch_add(1, Ordering::Relaxed), file, source })
    }

    /// What the file says of its plugin; the error says what is wrong with it, and in which line. It is run for that, within the
    /// bounds of memory and time that hold for functions.
    pub fn describe(&self, check: CheckSchema) -> Result<Description, String> {
        with_checker(Some(check), WHILE_LOADING, |vm| {
            let arguments = (self.id, self.file.as_str(), self.source.as_str());
            let (described, _) = vm.watched.run(|| vm.entries.describe.call::<Table>(arguments));
            self.read(&described?, vm)
        })
        .and_then(|described| described)
    }

    /// Has the plugin's own `check_schema` look at a configuration, and returns what it has made of it.
    pub fn check_conf(&self, conf: &Json, check: CheckSchema) -> Result<Json, String> {
        with_checker(Some(check), WHILE_LOADING, |vm| {
            let conf = json::to_lua(&vm.lua, conf, &vm.array_mt)?;
            let arguments = (self.id, self.file.as_str(), self.source.as_str(), conf);
            let (checked, _) = vm.watched.run(|| vm.entries.check_conf.call::<(Value, Option<String>)>(arguments));
            let (conf, why) = checked?;
            match why {
                Some(why) => Ok(Err(why)),
                None => as_json(&conf, vm).map(Ok),
            }
        })
        .and_then(|checked| checked)
    }

    /// The file's name without its folders and its ending.
    pub fn name(&self) -> &str {
        let name = self.file.rsplit_once('/').map_or(&*self.file, |(_, name)| name);
        name.rsplit_once('.').map_or(name, |(name, _)| name)
    }

    /// Runs a function of the file on this thread, which serves no request: for [`crate::WORK_TIME_MAX`] at most.
    pub fn work(&self, call: &WorkCall) -> Result<Vec<u8>, String> {
        with_checker(None, ON_A_THREAD, |vm| {
            let WorkCall { function, arguments, .. } = call;
            let arguments = vm.lua.create_string(arguments)?;
            let arguments = (self.id, self.file.as_str(), self.source.as_str(), function.as_str(), arguments);
            let (result, _) = vm.watched.run_for(WORK_TIME_MAX, || vm.entries.work.call::<LuaString>(arguments));
            Ok(result?.as_bytes().to_vec())
        })
    }

    fn read(&self, described: &Table, vm: &Vm) -> mlua::Result<Result<Description, String>> {
        let wrong = |what: &str| Ok(Err(format!("{}: {what}", self.file)));
        if described.get::<bool>("authenticates")? {
            return wrong("plugins that authenticate consumers are not built; remove type and consumer_schema");
        }
        let Some(name) = is::<String>(described, "name", vm)? else { return wrong("name is missing") };
        let Some(priority) = is::<f64>(described, "priority", vm)? else { return wrong("priority is missing") };
        if priority.fract() != 0.0 || priority.abs() > f64::from(i32::MAX) {
            return wrong("priority is no whole number of 32 bits");
        }
        if is::<f64>(described, "version", vm)?.is_none() {
            return wrong("version is missing");
        }
        let Value::Table(schema) = described.get::<Value>("schema")? else {
            return wrong("schema is missing; write {type = \"object\"} for a plugin without keys");
        };
        Ok(Ok(Description {
            name,
            priority: priority as i32,
            schema: as_json(&Value::Table(schema), vm)?,
            checks: described.get("checks")?,
            phases: described.get("phases")?,
            unused: described.get("unused")?,
        }))
    }
}

/// A value of a type; `None`: there is none.
fn is<T: FromLua>(table: &Table, key: &str, vm: &Vm) -> mlua::Result<Option<T>> {
    match table.get::<Value>(key)? {
        Value::String(text) if key != "name" => Err(mlua::Error::runtime(format!("{key} is not a number: {text:?}"))),
        value => Option::from_lua(value, &vm.lua),
    }
}

fn as_json(value: &Value, vm: &Vm) -> mlua::Result<Json> {
    let text = json::write(value, &vm.array_mt, Style { forced: true, ..Style::default() })?;
    serde_json::from_slice(&text).map_err(mlua::Error::external)
}
