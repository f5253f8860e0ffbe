//! Compares the matcher with a linear oracle and expressions with Kong's parser; tests the explainer.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod cached;
mod corpus;
mod differential;
mod documented;
mod explain;
mod explain_expressions;
mod explained;
mod expression_errors;
mod expression_hostile;
mod expression_parse;
mod expression_reference;
mod filed;
mod hostile;
mod linear_oracle;
mod lint;
mod lint_soundness;
mod memory;
mod oracle;
mod update;
