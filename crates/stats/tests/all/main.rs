//! The statistics compared with R and SciPy, their properties, and whole simulated experiments.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod bisections;
mod golden;
mod properties;
mod simulated;
mod simulations;
