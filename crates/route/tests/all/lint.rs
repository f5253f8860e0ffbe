//! Compares the findings of lint with files. `UPDATE_EXPECT=1` writes them again.
//!
//! In `tests/data/lint/*.routes` a line is a route: `ID PRIORITY EXPRESSION`, or `ID PRIORITY uri` with `PATH…` and
//! `hosts=A,B`, `methods=A,B`, `remote_addrs=A,B`, `vars=JSON` in any order. A line that begins with `#` begins another
//! list.

use expect_test::expect_file;
use std::sync::Arc;
use stillgate_route::lint::{FINDINGS_MAX, lint};
use stillgate_route::{
    Expression, HostPattern, InvalidParts, PathPattern, RouteMatch, RouteSpec, UriRoute, parse_method, vars,
};

#[test]
fn never() {
    expect_file!["../data/lint/never.findings"].assert_eq(&findings(include_str!("../data/lint/never.routes")));
}

#[test]
fn shadowed() {
    expect_file!["../data/lint/shadowed.findings"].assert_eq(&findings(include_str!("../data/lint/shadowed.routes")));
}

#[test]
fn shadowed_uris() {
    expect_file!["../data/lint/uris.findings"].assert_eq(&findings(include_str!("../data/lint/uris.routes")));
}

#[test]
fn mixed() {
    expect_file!["../data/lint/mixed.findings"].assert_eq(&findings(include_str!("../data/lint/mixed.routes")));
}

#[test]
fn findings_beyond_the_bound_are_counted() {
    let route = |id: usize| spec(&format!("r{id} 0 http.method == \"GET\""));
    let found = lint(&(0..FINDINGS_MAX + 8).map(route).collect::<Vec<_>>());
    assert_eq!((found.findings.len(), found.omitted), (FINDINGS_MAX, 7));
}

#[test]
fn long_expressions_and_many_places_are_borne() {
    let chain = |operator: &str, compared: &str| {
        let part = |n: usize| format!("http.{compared}{n}\"");
        (0..1200).map(part).collect::<Vec<_>>().join(operator)
    };
    let paths = (0..300).map(|n| format!(" /{n}")).collect::<String>();
    let hosts = (0..300).map(|n| format!("h{n}")).collect::<Vec<_>>().join(",");
    let both = format!("({}) && ({})", chain(" || ", "path == \"/"), chain(" || ", "host == \"h"));
    let routes = [
        format!("a 0 {}", chain(" || ", "path == \"/")),
        format!("b 0 {}", chain(" && ", "path != \"/")),
        format!("c 0 {}", chain(" || ", "path == \"/")),
        format!("d 0 {both}"),
        format!("e 0 {both}"),
        format!("f 0 uri{paths} hosts={hosts}"),
        format!("g 0 uri{paths} hosts={hosts}"),
    ];
    let found = lint(&routes.iter().map(|line| spec(line)).collect::<Vec<_>>());
    let told: Vec<usize> = found.findings.iter().map(|finding| finding.route).collect();
    assert_eq!(told, [2, 3, 4], "{found:?}");
}

fn findings(lists: &str) -> String {
    let mut out = String::new();
    for list in lists.split("\n#").filter(|list| !list.trim().is_empty()) {
        let (title, lines) = list.split_once('\n').unwrap();
        out += &format!("#{}\n", title.trim_start_matches('#'));
        let specs: Vec<Arc<RouteSpec>> = lines.lines().filter(|line| !line.is_empty()).map(spec).collect();
        lint(&specs).findings.iter().for_each(|finding| out += &format!("{finding}\n"));
        out.push('\n');
    }
    out
}

fn spec(line: &str) -> Arc<RouteSpec> {
    let mut parts = line.splitn(3, ' ');
    let (id, priority, rest) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    let takes = match rest.strip_prefix("uri ") {
        Some(rest) => RouteMatch::Uri(uri(rest)),
        None => RouteMatch::Expression(Expression::parse(rest).unwrap_or_else(|errors| panic!("{rest}: {errors:?}"))),
    };
    Arc::new(RouteSpec { id: id.to_owned(), priority: priority.parse().unwrap(), takes })
}

fn uri(text: &str) -> UriRoute {
    let mut uri = UriRoute {
        hosts: Vec::new(),
        paths: Vec::new(),
        methods: [].into_iter().collect(),
        remote_addrs: Vec::new(),
        vars: None,
        function: None,
        invalid: InvalidParts::default(),
    };
    for word in text.split(' ') {
        let (key, value) = word.split_once('=').unwrap_or(("path", word));
        let values = value.split(',');
        match key {
            "path" => uri.paths.push(PathPattern::parse(value).unwrap()),
            "hosts" => uri.hosts = values.map(|host| HostPattern::parse(host).unwrap()).collect(),
            "methods" => uri.methods = values.map(|method| parse_method(method).unwrap()).collect(),
            "remote_addrs" => uri.remote_addrs = values.map(|network| network.parse().unwrap()).collect(),
            "vars" => uri.vars = Some(vars::Expr::parse(&serde_json::from_str(value).unwrap()).unwrap()),
            _ => panic!("{word}"),
        }
    }
    uri
}
