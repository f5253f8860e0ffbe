//! Functions in Lua, wherever a configuration has them.
//!
//! ```text
//!  serverless-pre-function, serverless-post-function ─┐
//!  _meta.pre_function of any plugin ──────────────────┼─▶ functions ─▶ stillgate-lua ─▶ hosts: the request
//! ```

mod functions;
mod hosts;
mod pre_function;
mod serverless;
mod variables;

pub(crate) use pre_function::precede;
pub(crate) use serverless::{PostFunction, PreFunction};
