//! Compiles routes into an immutable matcher; explains what it decides.

mod spec;

pub use spec::{HostPattern, MethodSet, RouteSpec, Variable};
