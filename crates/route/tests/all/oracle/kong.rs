//! The reference: Kong's own router, called with a request as Kong calls it.

use super::asked::{RequestFacts, Value};
use atc_router::ast::{Type, Value as Atc};
use atc_router::context::Context;
use atc_router::router::Router;
use atc_router::schema::Schema;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use uuid::Uuid;

/// The fields of HTTP requests as Kong declares them.
static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let mut schema = Schema::default();
    let text = ["net.protocol", "tls.sni", "http.method", "http.host", "http.path"];
    let many = ["http.path.segments.*", "http.headers.*", "http.queries.*"];
    for field in text.into_iter().chain(many) {
        schema.add_field(field, Type::String);
    }
    for field in ["net.src.port", "net.dst.port", "http.path.segments.len"] {
        schema.add_field(field, Type::Int);
    }
    for field in ["net.src.ip", "net.dst.ip"] {
        schema.add_field(field, Type::IpAddr);
    }
    schema
});

/// Expressions with their priorities, as the reference keeps them.
pub(crate) struct Reference(Router<'static>);

/// The expression that takes a request: its position in the list, and the captures of its named groups.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MatchedExpression {
    pub(crate) position: usize,
    pub(crate) captures: BTreeMap<String, String>,
}

/// Why the reference has no answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Silence {
    /// It refuses an expression.
    Refused(String),
    /// It panics on it.
    Panicked,
}

impl Reference {
    /// Expressions with priorities; among equal ones the first in the list is first.
    pub(crate) fn new<'a>(expressions: impl IntoIterator<Item = (usize, &'a str)>) -> Result<Reference, Silence> {
        let mut router = Router::new(&SCHEMA);
        for (position, (priority, text)) in expressions.into_iter().enumerate() {
            // The reference tries the greater of two ids first.
            let id = Uuid::from_u128(u128::MAX - position as u128);
            let added = catch_unwind(AssertUnwindSafe(|| router.add_matcher(priority, id, text)));
            added.map_err(|_| Silence::Panicked)?.map_err(Silence::Refused)?;
        }
        Ok(Reference(router))
    }

    /// Names of the fields that the expressions read.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.fields.keys().map(String::as_str)
    }

    /// The expression that takes the request, if its path is read as `path`. `None` if one of its values is not UTF-8,
    /// which the reference cannot hold.
    pub(crate) fn find(&self, asked: &RequestFacts, path: &str) -> Option<Option<MatchedExpression>> {
        let mut context = Context::new(&SCHEMA);
        for field in self.fields() {
            for value in asked.values(field, path) {
                context.add_value(
                    field,
                    match value {
                        Value::Text(text) => Atc::String(String::from_utf8(text).ok()?),
                        Value::Int(number) => Atc::Int(number),
                        Value::Ip(address) => Atc::IpAddr(address),
                    },
                );
            }
        }
        self.0.execute(&mut context);
        Some(context.result.map(|found| MatchedExpression {
            position: (u128::MAX - found.uuid.as_u128()) as usize,
            captures: found.captures.into_iter().filter(|(name, _)| name.parse::<usize>().is_err()).collect(),
        }))
    }
}

/// Whether an expression, on its own, takes the request.
pub(crate) fn takes(expression: &str, asked: &RequestFacts, path: &str) -> bool {
    let reference = Reference::new([(0, expression)]).expect("the expression is right");
    reference.find(asked, path).expect("its values are UTF-8").is_some()
}
