//! Functions in Lua, wherever a configuration has them.
//!
//! ```text
//!  serverless-pre-function, serverless-post-function ─┐
//!  _meta.pre_function of any plugin ──────────────────┼─▶ functions ─┬▶ stillgate-lua ─▶ hosts: the request
//!  plugins of files ──────────────────────────────────┘              │
//!  filter_func of routes ────────────────────────────────────────────┘
//! ```

mod custom;
mod filter_func;
mod functions;
mod hosts;
mod http;
mod modules;
mod pre_function;
mod redis;
mod request_copy;
mod serverless;
mod timers;
mod variables;

pub(crate) use custom::plugins;
pub(crate) use filter_func::filter;
pub(crate) use functions::fields_in_context;
pub use modules::{module_of, required_paths};
pub(crate) use pre_function::precede;
pub(crate) use serverless::{PostFunction, PreFunction};
