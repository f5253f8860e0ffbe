//! Unknown variables: in texts they are empty, as in APISIX, and the configuration is accepted with a warning.
//!
//! Conditions and keys of limits refuse them: an empty value there would turn a rule on or off, or count all clients as one.

use stillgate_plugin_api::Template;
use stillgate_route::VariableError;
use stillgate_schema::text::diagnostic::Position;
use stillgate_schema::{Fault, Path, Sink};

/// Called with each unknown variable.
pub(crate) type Unknown<'a> = dyn FnMut(VariableError) + 'a;

/// A text with variables, with its position in the configuration.
pub(crate) fn template(text: &str, at: Position, path: &Path<'_>, sink: &mut Sink) -> Template {
    Template::parse_lenient(text, &mut |error| warn(&error, at, path, sink))
}

/// Like [`template`], for a plugin that waits for the body if the text uses its arguments.
pub(crate) fn template_with_body(text: &str, at: Position, path: &Path<'_>, sink: &mut Sink) -> Template {
    Template::parse_lenient_with_body(text, &mut |error| warn(&error, at, path, sink))
}

/// Warns that a variable is empty.
pub(crate) fn warn(error: &VariableError, at: Position, path: &Path<'_>, sink: &mut Sink) {
    sink.warning(at, path, Fault::new(format!("{error}; it is empty here")));
}
