//! Runs the prelude in a new VM: the part of the sandbox and of the functions' API that is written in Lua, with the
//! Rust functions that it needs.
//!
//! The prelude takes the dangerous libraries into locals and closes them, before any code of a configuration is loaded.

use crate::bridge::{self, Bridge, DECLARATIONS};
use crate::host::RequestDocument;
use crate::json::{self, Invalid, Style};
use crate::operations::Operation;
use mlua::{Error, Function, LightUserData, Lua, LuaString, Table, Value};
use std::ffi::c_void;
use std::rc::Rc;

/// Longest text that `string.rep` makes.
const STRING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Longest value, as JSON, that `core.schema.check` takes, which converts it to a tree outside of the VM.
const SCHEMA_BYTES_MAX: usize = 1024 * 1024;

/// The parts of the prelude, in the order in which they run.
const PRELUDE: [(&str, &str); 17] = [
    ("jit.lua", include_str!("../prelude/jit.lua")),
    ("base.lua", include_str!("../prelude/base.lua")),
    ("sort.lua", include_str!("../prelude/sort.lua")),
    ("ngx.lua", include_str!("../prelude/ngx.lua")),
    ("regex.lua", include_str!("../prelude/regex.lua")),
    ("json.lua", include_str!("../prelude/json.lua")),
    ("core.lua", include_str!("../prelude/core.lua")),
    ("resolve.lua", include_str!("../prelude/resolve.lua")),
    ("run.lua", include_str!("../prelude/run.lua")),
    ("timers.lua", include_str!("../prelude/timers.lua")),
    ("plugins.lua", include_str!("../prelude/plugins.lua")),
    ("apisix_plugin.lua", include_str!("../prelude/apisix_plugin.lua")),
    ("http.lua", include_str!("../prelude/http.lua")),
    ("redis.lua", include_str!("../prelude/redis.lua")),
    ("jwt_validators.lua", include_str!("../prelude/jwt_validators.lua")),
    ("jwt.lua", include_str!("../prelude/jwt.lua")),
    ("threads.lua", include_str!("../prelude/threads.lua")),
];

/// The functions of the prelude that Rust calls.
pub(crate) struct PreludeFunctions {
    pub(crate) runner: Function,
    /// Throws compiled code away.
    pub(crate) flush: Function,
    pub(crate) load: Function,
    pub(crate) release: Function,
    pub(crate) kept: Function,
    pub(crate) check: Function,
    pub(crate) failed: Function,
    pub(crate) forget: Function,
    pub(crate) load_plugin: Function,
    pub(crate) forget_plugin: Function,
    pub(crate) has_plugin: Function,
    pub(crate) describe: Function,
    pub(crate) check_conf: Function,
    pub(crate) work: Function,
}

/// Runs the prelude: creates the sandbox and everything that functions can call.
pub(crate) fn run(lua: &Lua, shared: &Table, bridge: &Rc<Bridge>, array_mt: &Table) -> mlua::Result<PreludeFunctions> {
    let globals = lua.globals();
    let require: Function = globals.get("require")?;
    shared.set("ffi", require.call::<Value>("ffi")?)?;
    shared.set("jit", globals.get::<Table>("jit")?)?;
    shared.set("jit_util", require.call::<Value>("jit.util")?)?;
    shared.set("table_new", require.call::<Value>("table.new")?)?;
    shared.set("table_clear", require.call::<Value>("table.clear")?)?;
    shared.set("sethook", globals.get::<Table>("debug")?.get::<Function>("sethook")?)?;
    shared.set("getinfo", globals.get::<Table>("debug")?.get::<Function>("getinfo")?)?;
    shared.set("metatable_of", globals.get::<Table>("debug")?.get::<Function>("getmetatable")?)?;
    shared.set("yield", globals.get::<Table>("coroutine")?.get::<Function>("yield")?)?;
    shared.set("declarations", DECLARATIONS)?;
    shared.set("call", LightUserData(bridge::call as *const () as *mut c_void))?;
    shared.set("bridge", LightUserData(Rc::as_ptr(bridge).cast_mut().cast()))?;
    shared.set("null", Value::NULL)?;
    shared.set("array_mt", array_mt)?;
    shared.set("string_bytes_max", STRING_BYTES_MAX)?;
    shared.set("json_depth_max", json::DEPTH_MAX)?;
    shared.set("json_digits_max", json::DIGITS_MAX)?;
    let operations = lua.create_table()?;
    for (at, name) in Operation::NAMES.iter().enumerate() {
        operations.set(*name, at)?;
    }
    shared.set("operations", operations)?;
    let algorithms = lua.create_table()?;
    for (at, (name, _)) in stillgate_jws::ALGORITHMS.iter().enumerate() {
        algorithms.set(*name, at)?;
    }
    shared.set("jws_algorithms", algorithms)?;
    shared.set("json_decode", json_decode(lua, array_mt)?)?;
    shared.set("json_encode", json_encode(lua, array_mt)?)?;
    shared.set("document", document(lua, bridge, array_mt)?)?;
    shared.set("metadata", metadata(lua, bridge, array_mt)?)?;
    shared.set("check_schema", check_schema(lua, bridge, array_mt)?)?;
    let mut last = Value::Nil;
    for (name, source) in PRELUDE {
        last = lua.load(source).set_name(format!("=({name})")).call(shared)?;
    }
    let Value::Table(entries) = last else { return Err(Error::runtime("the prelude gives no entries")) };
    Ok(PreludeFunctions {
        runner: entries.get("runner")?,
        flush: entries.get("flush")?,
        load: entries.get("load")?,
        release: entries.get("release")?,
        kept: entries.get("kept")?,
        check: entries.get("check")?,
        failed: entries.get("failed")?,
        forget: entries.get("forget")?,
        load_plugin: entries.get("load_plugin")?,
        forget_plugin: entries.get("forget_plugin")?,
        has_plugin: entries.get("has_plugin")?,
        describe: entries.get("describe")?,
        check_conf: entries.get("check_conf")?,
        work: entries.get("work")?,
    })
}

/// `ok, value` or `false, nil, why`: a value can be `nil` itself.
fn json_decode(lua: &Lua, array_mt: &Table) -> mlua::Result<Function> {
    let array_mt = array_mt.clone();
    lua.create_function(move |lua, text: LuaString| {
        Ok(match json::read(lua, &text.as_bytes(), &array_mt) {
            Ok(Some(value)) => (true, value, None),
            // Its hook stops the function as soon as it continues.
            Ok(None) => return Err(Error::runtime("it was stopped while it read JSON")),
            Err(error) => match error.to_string() {
                why if why.starts_with(json::VM_ERROR) => return Err(Error::MemoryError(why)),
                why => (false, Value::Nil, Some(why)),
            },
        })
    })
}

/// `settings`: those of an instance of cjson, if they are not the defaults.
fn json_encode(lua: &Lua, array_mt: &Table) -> mlua::Result<Function> {
    let array_mt = array_mt.clone();
    lua.create_function(move |lua, (value, forced, sorted, settings): (Value, bool, bool, Option<Table>)| {
        let style = settings.map_or_else(|| Ok(Style::default()), |settings| style_of(&settings))?;
        Ok(match json::write(&value, &array_mt, Style { forced, sorted, ..style }) {
            Ok(text) => (Some(lua.create_string(text)?), None),
            Err(Error::RuntimeError(why)) => (None, Some(why)),
            Err(error) => return Err(error),
        })
    })
}

/// The settings, which the prelude has checked.
fn style_of(settings: &Table) -> mlua::Result<Style> {
    Ok(Style {
        empty_is_array: settings.get("empty_is_array")?,
        sparse_is_object: settings.get("sparse_is_object")?,
        sparse_ratio: settings.get("sparse_ratio")?,
        sparse_safe: settings.get("sparse_safe")?,
        depth_max: settings.get("depth_max")?,
        digits: settings.get("digits")?,
        escapes_slash: settings.get("escapes_slash")?,
        invalid: match settings.get::<u8>("invalid")? {
            0 => Invalid::Refused,
            1 => Invalid::Written,
            _ => Invalid::Null,
        },
        ..Style::default()
    })
}

/// A document of the request.
fn document(lua: &Lua, bridge: &Rc<Bridge>, array_mt: &Table) -> mlua::Result<Function> {
    let (bridge, array_mt) = (Rc::clone(bridge), array_mt.clone());
    lua.create_function(move |lua, name: String| {
        let of = match name.as_str() {
            "route" => RequestDocument::Route,
            "service" => RequestDocument::Service,
            "claims" => RequestDocument::Claims,
            _ => {
                let consumer = bridge.with_host(|host| host.consumer());
                return consumer.map(|json| json::to_lua(lua, &json, &array_mt)).transpose();
            }
        };
        bridge.with_host(|host| host.document(of).map(|json| json::to_lua(lua, json, &array_mt)).transpose())
    })
}

/// The metadata of a plugin that has some.
fn metadata(lua: &Lua, bridge: &Rc<Bridge>, array_mt: &Table) -> mlua::Result<Function> {
    let (bridge, array_mt) = (Rc::clone(bridge), array_mt.clone());
    lua.create_function(move |lua, plugin: String| {
        bridge.with_host(|host| match host.metadata(&plugin) {
            Ok(Some((_, value))) => json::to_lua(lua, value, &array_mt).map(Some),
            Ok(None) => Ok(None),
            Err(why) => Err(Error::runtime(why)),
        })
    })
}

/// `true, value with defaults` or `false, why`.
fn check_schema(lua: &Lua, bridge: &Rc<Bridge>, array_mt: &Table) -> mlua::Result<Function> {
    let (bridge, array_mt) = (Rc::clone(bridge), array_mt.clone());
    lua.create_function(move |lua, (schema, value): (Value, Value)| {
        let json = |value: &Value| {
            let style = Style { forced: true, bytes_max: SCHEMA_BYTES_MAX, ..Style::default() };
            let text = json::write(value, &array_mt, style)?;
            serde_json::from_slice::<serde_json::Value>(&text).map_err(Error::external)
        };
        let (schema, value) = (json(&schema)?, json(&value)?);
        match bridge.with_host(|host| host.check_schema(&schema, value)) {
            Ok(filled) => Ok((true, json::to_lua(lua, &filled, &array_mt)?)),
            Err(why) => Ok((false, Value::String(lua.create_string(why)?))),
        }
    })
}
