//! The libraries measured beside us: Kong's `atc-router`, which evaluates one expression after the other, and `matchit`, a
//! radix tree for paths alone.

use crate::families::{Family, Sample};
use atc_router::ast::{Type, Value};
use atc_router::context::Context;
use atc_router::router::Router;
use atc_router::schema::Schema;
use uuid::Uuid;

/// The fields of our families, as Kong declares them.
pub(crate) fn schema() -> Schema {
    let mut schema = Schema::default();
    for field in ["http.method", "http.host", "http.path", "http.headers.*", "http.queries.*"] {
        schema.add_field(field, Type::String);
    }
    schema.add_field("net.src.ip", Type::IpAddr);
    schema
}

/// The reference with the first routes of a family; `None` where they are not expressions.
pub(crate) fn reference<'a>(family: &Family, routes: usize, schema: &'a Schema) -> Option<Router<'a>> {
    let expression = family.expression?;
    let mut router = Router::new(schema);
    for n in 0..routes {
        // Among equal priorities the reference tries the greater id first.
        let id = Uuid::from_u128(u128::MAX - n as u128);
        router.add_matcher(0, id, &expression(n)).expect("an expression of ours");
    }
    Some(router)
}

/// One request: its values are put into a context, as Kong does for every request, and matched.
pub(crate) fn ask_reference(router: &Router<'_>, schema: &Schema, sample: &Sample, method: &str) -> bool {
    let mut context = Context::new(schema);
    context.add_value("http.method", Value::String(method.to_owned()));
    context.add_value("http.host", Value::String(sample.host.clone()));
    context.add_value("http.path", Value::String(sample.path.clone()));
    context.add_value("net.src.ip", Value::IpAddr([127, 0, 0, 1].into()));
    for (name, value) in &sample.headers {
        if name == "x-tenant" || name == "x-beta" {
            context.add_value(&format!("http.headers.{}", name.replace('-', "_")), Value::String(value.clone()));
        }
    }
    for pair in sample.query.split('&') {
        if let Some(value) = pair.strip_prefix("tag=") {
            context.add_value("http.queries.tag", Value::String(value.to_owned()));
        }
    }
    router.execute(&mut context)
}

/// A tree of the paths alone; `None` where the routes of a family do not differ by path.
pub(crate) fn tree(family: &Family, routes: usize) -> Option<matchit::Router<usize>> {
    if !matches!(family.name, "uri exact" | "uri prefix" | "uri params") {
        return None;
    }
    let mut tree = matchit::Router::new();
    for n in 0..routes {
        let path = (family.uri)(n).1;
        let path = match path.strip_suffix('*') {
            Some(prefix) => format!("{prefix}{{*rest}}"),
            None => path.replace(":tenant", "{tenant}").replace(":action", "{action}"),
        };
        tree.insert(path, n).expect("a path of ours");
    }
    Some(tree)
}
