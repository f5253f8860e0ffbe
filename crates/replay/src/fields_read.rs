//! The request fields that routes read, by the names of variables: a log must contain them, and an explanation needs them.

use stillgate_route::condition::{Condition, Field};
use stillgate_route::{RouteMatch, RouteSpec, Variable};

/// Calls `visit` with every field that a route reads, possibly more than once.
pub(crate) fn each_field(spec: &RouteSpec, visit: &mut dyn FnMut(&Field)) {
    let mut of_condition = |condition: &Condition| condition.each_predicate(&mut |predicate| visit(&predicate.field));
    match &spec.takes {
        RouteMatch::Expression(expression) => of_condition(expression.condition()),
        RouteMatch::Uri(uri) => {
            uri.vars.iter().for_each(|vars| of_condition(vars.condition()));
            if !uri.hosts.is_empty() {
                visit(&Field::Host);
            }
            if !uri.methods.is_empty() {
                visit(&Field::Method);
            }
            if !uri.remote_addrs.is_empty() {
                visit(&Field::SourceIp);
            }
        }
    }
}

/// The variable that a field is, or is part of; `None` for the path, which every request has.
pub(crate) fn variable_of(field: &Field) -> Option<Variable> {
    Some(match field {
        Field::Path | Field::Segment(_) | Field::Segments(..) | Field::SegmentCount => return None,
        Field::Method => Variable::RequestMethod,
        Field::Host => Variable::Host,
        Field::Header(name) => Variable::Header(name.clone()),
        Field::Query(_) => Variable::Args,
        Field::Protocol => Variable::Scheme,
        Field::SourceIp => Variable::RemoteAddr,
        Field::SourcePort => Variable::RemotePort,
        Field::DestinationIp => Variable::ServerAddr,
        Field::DestinationPort => Variable::ServerPort,
        Field::Sni => Variable::SslServerName,
        Field::Variable(variable) => variable.clone(),
    })
}
