//! Removes LuaJIT's hook so that its compiler can continue.
//!
//! A call of a hook aborts the compiler's recording. The compiler tidies up at the next instruction, but only if a hook
//! is still set. If the first call removes the hook, nothing tidies up: LuaJIT compiles nothing more, and an exit of
//! machine code that has become hot starts on a half-finished recording, which can end the process. So an empty
//! function is run before the hook is removed. It is never compiled, so it starts no recording either.

use mlua::ffi;
use mlua::{Function, Lua, Table};
use std::ffi::CStr;

/// Registry key of the function.
const IDLE: &CStr = c"stillgate.idle";

/// Registers the function in a new VM.
pub(crate) fn prepare(lua: &Lua) -> mlua::Result<()> {
    let jit: Table = lua.globals().get("jit")?;
    let text = "local jit = ...  local function idle() end  jit.off(idle)  return idle";
    let idle: Function = lua.load(text).set_name("=(hook)").call(jit)?;
    lua.set_named_registry_value(&IDLE.to_string_lossy(), idle)
}

/// Removes the hook.
///
/// # Safety
///
/// The state belongs to a VM that was prepared and that runs on this thread, in a hook or outside of all functions.
pub(crate) unsafe fn take_away(state: *mut ffi::lua_State) {
    // SAFETY: by the caller's contract; there is room for two values, and the stack is left unchanged.
    unsafe {
        if ffi::lua_checkstack(state, 2) != 0 {
            ffi::lua_sethook(state, Some(nothing), ffi::LUA_MASKCOUNT, 1);
            ffi::lua_getfield(state, ffi::LUA_REGISTRYINDEX, IDLE.as_ptr());
            if ffi::lua_pcall(state, 0, 0, 0) != 0 {
                ffi::lua_pop(state, 1);
            }
        }
        ffi::lua_sethook(state, None, 0, 0);
    }
}

unsafe extern "C-unwind" fn nothing(_: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {}
