//! Tests of imports, in one executable.

mod kong;
