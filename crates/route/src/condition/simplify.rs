//! Conditions in their simplest form, with the same meaning.
