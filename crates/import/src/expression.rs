//! The conditions of a Kong route as expressions, and the order in which Kong tries its routes.
//!
//! Kong's router (`traditional_compatible`, its default since 3.0) turns a route into an expression and a priority of
//! 64 bits, and tries the highest first. Here the same expressions are made, and the same numbers, which only their
//! order survives: the result numbers its routes by rank. A route with paths of several lengths or kinds becomes
//! several, because the length of a path is a part of the priority.

use crate::environment::{is_marked, lowercase};
use crate::object::{Field, Object};
use regex_syntax::Parser;
use stillgate_route::path::normalise;

/// What Kong compares with a request.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    pub(crate) methods: Vec<String>,
    pub(crate) hosts: Vec<String>,
    pub(crate) paths: Vec<Path>,
    /// Names in lower case with their values.
    pub(crate) headers: Vec<(String, Vec<HeaderValue>)>,
    pub(crate) snis: Vec<String>,
    pub(crate) sources: Vec<NetworkAddress>,
    pub(crate) destinations: Vec<NetworkAddress>,
    pub(crate) regex_priority: i64,
    /// The expression of a route that has one, which replaces all of the above.
    pub(crate) expression: Option<(String, u64)>,
}

/// A path of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Path {
    /// In the normal form of [`stillgate_route::path`].
    Prefix {
        text: String,
        /// Its length in Kong, which decides the order.
        length: usize,
    },
    /// Without the `~`.
    Regex(String),
}

#[derive(Debug, Clone)]
pub(crate) enum HeaderValue {
    Text(String),
    Regex(String),
}

#[derive(Debug, Clone)]
pub(crate) struct NetworkAddress {
    pub(crate) network: Option<String>,
    pub(crate) port: Option<i64>,
}

/// One route of the result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RoutePart {
    pub(crate) expression: String,
    /// Kong's number.
    pub(crate) priority: u64,
    /// The paths in the expression: one kind, and for prefixes one length.
    pub(crate) paths: Vec<Path>,
}

impl Conditions {
    /// Reads the keys of a route. `is_old_format`: paths are those of Kong 2. A value that cannot be read is left out,
    /// which can make the conditions wider: see [`crate::losses::Losses::watch`].
    pub(crate) fn read(route: &Object, is_old_format: bool) -> Conditions {
        let mut conditions = Conditions {
            methods: route.texts("methods"),
            hosts: hosts(route),
            snis: route.texts("snis").into_iter().map(|sni| lowercase(&sni)).collect(),
            headers: headers(route),
            sources: addresses(route, "sources"),
            destinations: addresses(route, "destinations"),
            regex_priority: route.whole("regex_priority").unwrap_or(0),
            ..Conditions::default()
        };
        conditions.paths = paths(route, is_old_format);
        if let Some(expression) = route.text("expression") {
            // An old name of the field.
            let expression = expression.replace("net.port", "net.dst.port");
            let priority = route.whole("priority").unwrap_or(0);
            conditions.expression = Some((expression, u64::try_from(priority).unwrap_or(0)));
        } else {
            route.skip(&["priority"]);
        }
        conditions
    }

    /// Whether an expression compares the path in a way that does not say which part `strip_path` takes off.
    pub(crate) fn hides_prefix(&self) -> bool {
        let is_hidden = |(expression, _): &(String, u64)| {
            let words: String = expression.split_whitespace().collect();
            words.contains("http.path~") || words.contains("lower(http.path)") || words.contains("!(")
        };
        self.expression.as_ref().is_some_and(is_hidden)
    }

    /// The routes that this one becomes. Empty if all its paths were refused.
    pub(crate) fn parts(&self, had_paths: bool) -> Vec<RoutePart> {
        if let Some((expression, priority)) = &self.expression {
            let priority = 0xff << 56 | priority;
            return vec![RoutePart { expression: expression.clone(), priority, paths: prefixes(expression) }];
        }
        if self.paths.is_empty() && had_paths {
            return Vec::new();
        }
        let mut groups: Vec<Vec<Path>> = Vec::new();
        for path in &self.paths {
            match groups.iter_mut().find(|group| kind(&group[0]) == kind(path)) {
                Some(group) => group.push(path.clone()),
                None => groups.push(vec![path.clone()]),
            }
        }
        if groups.is_empty() {
            groups.push(Vec::new());
        }
        let part = |paths: Vec<Path>| RoutePart {
            expression: self.expression(&paths),
            priority: self.priority(paths.first()),
            paths,
        };
        groups.into_iter().map(part).collect()
    }

    fn expression(&self, paths: &[Path]) -> String {
        let mut all = Vec::new();
        if !self.snis.is_empty() {
            // Without TLS there is no name to compare; Kong lets the request pass this condition.
            all.push(format!(
                "(net.protocol != \"https\" || {})",
                any_of(self.snis.iter().map(|sni| host("tls.sni", sni)))
            ));
        }
        for (field, addresses) in [("net.src", &self.sources), ("net.dst", &self.destinations)] {
            if !addresses.is_empty() {
                all.push(any_of(addresses.iter().map(|address| address.expression(field))));
            }
        }
        if !self.methods.is_empty() {
            all.push(any_of(self.methods.iter().map(|method| format!("http.method == {}", literal(method)))));
        }
        if !self.hosts.is_empty() {
            all.push(any_of(self.hosts.iter().map(|text| host_and_port(text))));
        }
        // Every path begins with a slash, so comparing that is left out.
        let is_root = |path: &Path| matches!(path, Path::Prefix { text, .. } if text == "/");
        if !paths.is_empty() && !paths.iter().any(is_root) {
            all.push(any_of(paths.iter().map(Path::expression)));
        }
        for (name, values) in &self.headers {
            let field = format!("any(lower(http.headers.{}))", name.replace('-', "_"));
            all.push(any_of(values.iter().map(|value| match value {
                HeaderValue::Text(text) => format!("{field} == {}", literal(&lowercase(text))),
                HeaderValue::Regex(regex) => format!("{field} ~ {}", literal(&format!("(?i){regex}"))),
            })));
        }
        match all.is_empty() {
            true => "http.path ^= \"/\"".to_owned(),
            false => all.join(" && "),
        }
    }

    /// Kong's number: how many kinds of conditions there are, then whether all hosts are plain, the number of headers,
    /// whether the path is a regex, its `regex_priority`, and the length of the path.
    fn priority(&self, path: Option<&Path>) -> u64 {
        const HEADERS_MAX: usize = 255;
        let kinds = [
            !self.sources.is_empty(),
            !self.destinations.is_empty(),
            !self.methods.is_empty(),
            !self.hosts.is_empty(),
            !self.headers.is_empty(),
            !self.snis.is_empty(),
            path.is_some(),
        ];
        let weight = kinds.iter().filter(|has| **has).count() as u64;
        let plain_hosts = u64::from(!self.hosts.is_empty() && self.hosts.iter().all(|host| !host.contains('*')));
        let headers = self.headers.len().min(HEADERS_MAX) as u64;
        let (is_regex, regex_priority, length) = match path {
            Some(Path::Regex(_)) => (1, self.regex_priority as u64, 0),
            Some(Path::Prefix { length, .. }) => (0, 0, *length as u64 & 0x7_ffff),
            None => (0, 0, 0),
        };
        weight << 61 | plain_hosts << 60 | headers << 52 | is_regex << 51 | regex_priority << 19 | length
    }
}

/// What splits a route: regexes go together, and prefixes of one length.
fn kind(path: &Path) -> Option<usize> {
    match path {
        Path::Prefix { length, .. } => Some(*length),
        Path::Regex(_) => None,
    }
}

impl Path {
    fn expression(&self) -> String {
        match self {
            Path::Prefix { text, .. } => format!("http.path ^= {}", literal(text)),
            Path::Regex(regex) => format!("http.path ~ {}", literal(&format!("^{regex}"))),
        }
    }
}

impl NetworkAddress {
    fn expression(&self, field: &str) -> String {
        let network = self.network.as_ref().map(|network| match network.contains('/') {
            true => format!("{field}.ip in {network}"),
            false => format!("{field}.ip == {network}"),
        });
        let port = self.port.map(|port| format!("{field}.port == {port}"));
        match (network, port) {
            (Some(network), Some(port)) => format!("({network} && {port})"),
            (network, port) => network.or(port).unwrap_or_default(),
        }
    }
}

/// The prefixes that an expression compares the path with, which Kong takes off like those of `paths`.
fn prefixes(expression: &str) -> Vec<Path> {
    let mut prefixes = Vec::new();
    for (at, field) in expression.match_indices("http.path") {
        let Some(value) = expression[at + field.len()..].trim_start().strip_prefix("^=") else { continue };
        let value = value.trim_start();
        let text = match value.strip_prefix("r#\"") {
            Some(raw) => raw.split_once("\"#").map(|(text, _)| text),
            None => value.strip_prefix('"').and_then(|text| text.split_once('"')).map(|(text, _)| text),
        };
        if let Some(text) = text.filter(|text| text.starts_with('/') && !text.contains('\\')) {
            prefixes.push(Path::Prefix { text: text.to_owned(), length: text.len() });
        }
    }
    prefixes
}

fn any_of(predicates: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = predicates.collect();
    match &*all {
        [one] => one.clone(),
        _ => format!("({})", all.join(" || ")),
    }
}

/// `*.a.example` matches the end of a name, `a.*` its beginning.
fn host(field: &str, pattern: &str) -> String {
    if let Some(end) = pattern.strip_prefix('*') {
        return format!("{field} =^ {}", literal(end));
    }
    match pattern.strip_suffix('*') {
        Some(begin) => format!("{field} ^= {}", literal(begin)),
        None => format!(
            "{field} == {}",
            literal(pattern.strip_suffix('.').filter(|rest| !rest.is_empty()).unwrap_or(pattern))
        ),
    }
}

fn host_and_port(pattern: &str) -> String {
    let port = pattern.split_once(':').filter(|(name, _)| !name.starts_with('['));
    match port.and_then(|(name, port)| Some((name, port.parse::<u16>().ok()?))) {
        Some((name, port)) => format!("({} && net.dst.port == {port})", host("http.host", name)),
        None => host("http.host", pattern),
    }
}

/// A text of the expression language. Texts with backslashes are raw, so that regexes stay readable.
fn literal(text: &str) -> String {
    if !text.contains(['"', '\\']) && !text.chars().any(char::is_control) {
        return format!("\"{text}\"");
    }
    if !text.contains("\"#") {
        return format!("r#\"{text}\"#");
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn hosts(route: &Object) -> Vec<String> {
    let host = |field: &Field| {
        let host = lowercase(&field.text()?);
        match host.rsplit_once(':').is_some_and(|(_, port)| is_marked(port)) {
            true => field.unreadable("the port comes from an environment variable; write it into the result by hand"),
            false => Some(host),
        }
    };
    route.items("hosts").iter().filter_map(host).collect()
}

fn paths(route: &Object, is_old_format: bool) -> Vec<Path> {
    let mut paths = Vec::new();
    for field in route.items("paths") {
        let Some(text) = field.text() else { continue };
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_~/%".contains(&byte));
        let regex = match is_old_format {
            true => (!is_plain(&text)).then(|| text.clone()),
            false => text.strip_prefix('~').map(str::to_owned),
        };
        match regex {
            Some(regex) => match regex_problem(&regex) {
                None => paths.push(Path::Regex(regex)),
                Some(problem) => route.losses().closed(
                    &field.path,
                    field.at,
                    format!(
                        "the regex cannot be used here ({problem}); its requests get 404, or another route takes them: \
                         write the path in another way before you use the result"
                    ),
                ),
            },
            None => {
                let length = text.len();
                if is_marked(&text) {
                    field.lost("the length of the path decides which route is tried first, and comes from an environment variable; compare the `priority` of routes whose paths begin alike");
                    paths.push(Path::Prefix { text, length });
                    continue;
                }
                let mut scratch = Vec::new();
                let normal = normalise(text.as_bytes(), &mut scratch).ok();
                let text =
                    normal.map(|path| String::from_utf8_lossy(path.bytes()).into_owned()).unwrap_or(text.clone());
                paths.push(Path::Prefix { text, length });
            }
        }
    }
    paths
}

/// Why a regex of Kong cannot be one of ours. Kong 3 takes the same syntax; that of Kong 2 is PCRE's.
pub(crate) fn regex_problem(regex: &str) -> Option<String> {
    if regex.contains("(?=") || regex.contains("(?!") || regex.contains("(?<=") || regex.contains("(?<!") {
        return Some("lookaround is not supported".to_owned());
    }
    if let Err(other) = stillgate_pcre::translate(regex, stillgate_pcre::Options::default()) {
        return Some(other.to_string());
    }
    Parser::new().parse(regex).err().map(|error| match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        _ => "it is not a regex".to_owned(),
    })
}

fn headers(route: &Object) -> Vec<(String, Vec<HeaderValue>)> {
    let mut headers = Vec::new();
    for (name, field) in route.object("headers").map_or_else(Vec::new, |object| object.all()) {
        let mut values = Vec::new();
        for value in field.items() {
            let Some(text) = value.text() else { continue };
            match text.strip_prefix("~*") {
                None => values.push(HeaderValue::Text(text)),
                Some(regex) => match regex_problem(regex) {
                    None => values.push(HeaderValue::Regex(regex.to_owned())),
                    Some(problem) => {
                        value.lost(&format!("the regex cannot be used here ({problem}); the value is left out"))
                    }
                },
            }
        }
        match values.is_empty() {
            // Without values the condition would hold for every request.
            true => headers.push((name.to_lowercase(), vec![HeaderValue::Regex("[^\\s\\S]".to_owned())])),
            false => headers.push((name.to_lowercase(), values)),
        }
        if name.contains('_') {
            let message = "header fields with `_` in their names are never read by expressions, so the route takes no request, and other routes may take them";
            route.losses().closed(&field.path, field.at, message);
        }
    }
    headers
}

fn addresses(route: &Object, key: &str) -> Vec<NetworkAddress> {
    let read = |object: Object| {
        let network = object.text("ip").map(|network| network_prefix(&network));
        let address = NetworkAddress { network, port: object.whole("port") };
        object.finish();
        if address.network.is_none() && address.port.is_none() {
            object.losses().unreadable(object.path(), object.at(), "neither `ip` nor `port` can be read");
            return None;
        }
        Some(address)
    };
    route.objects(key).into_iter().filter_map(read).collect()
}

/// A network without bits behind its prefix, as expressions want it.
fn network_prefix(text: &str) -> String {
    text.parse::<ipnet::IpNet>().map_or_else(|_| text.to_owned(), |network| network.trunc().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Path {
        Path::Prefix { text: text.to_owned(), length: text.len() }
    }

    fn check(conditions: &Conditions, want: &[(&str, u64)]) {
        let got: Vec<(String, u64)> =
            conditions.parts(false).into_iter().map(|part| (part.expression, part.priority)).collect();
        let want: Vec<(String, u64)> = want.iter().map(|(text, priority)| ((*text).to_owned(), *priority)).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn a_route_is_split_by_the_lengths_and_kinds_of_its_paths() {
        let paths =
            vec![Path::Regex("/r\\d".into()), prefix("/long"), prefix("/a"), prefix("/b"), Path::Regex("/s".into())];
        let conditions = Conditions { paths, regex_priority: 3, ..Conditions::default() };
        check(
            &conditions,
            &[
                ("(http.path ~ r#\"^/r\\d\"# || http.path ~ \"^/s\")", 1 << 61 | 1 << 51 | 3 << 19),
                ("http.path ^= \"/long\"", 1 << 61 | 5),
                ("(http.path ^= \"/a\" || http.path ^= \"/b\")", 1 << 61 | 2),
            ],
        );
    }

    #[test]
    fn all_kinds_of_conditions() {
        let address = |network: Option<&str>, port| NetworkAddress { network: network.map(str::to_owned), port };
        let conditions = Conditions {
            methods: vec!["GET".into(), "PUT".into()],
            hosts: vec!["a.example:8443".into(), "*.b.example".into(), "c.*".into()],
            headers: vec![("x-a".into(), vec![HeaderValue::Text("V".into()), HeaderValue::Regex("^w".into())])],
            snis: vec!["a.example.".into()],
            sources: vec![address(Some("10.0.0.0/8"), None), address(None, Some(4000))],
            destinations: vec![address(Some("10.0.0.1"), Some(80))],
            ..Conditions::default()
        };
        check(
            &conditions,
            &[(
                "(net.protocol != \"https\" || tls.sni == \"a.example\") \
                 && (net.src.ip in 10.0.0.0/8 || net.src.port == 4000) \
                 && (net.dst.ip == 10.0.0.1 && net.dst.port == 80) \
                 && (http.method == \"GET\" || http.method == \"PUT\") \
                 && ((http.host == \"a.example\" && net.dst.port == 8443) || http.host =^ \".b.example\" || http.host ^= \"c.\") \
                 && (any(lower(http.headers.x_a)) == \"v\" || any(lower(http.headers.x_a)) ~ \"(?i)^w\")",
                6 << 61 | 1 << 52,
            )],
        );
    }

    #[test]
    fn prefixes_of_expressions_are_found() {
        let all = prefixes(
            r##"http.path ^= "/a" && (http.path^=r#"/b"# || http.path.segments.0 == "x") && http.path ^= "b""##,
        );
        assert_eq!(all, [prefix("/a"), prefix("/b")]);
    }

    #[test]
    fn plain_hosts_go_before_wildcards() {
        let of = |host: &str| Conditions { hosts: vec![host.into()], ..Conditions::default() }.priority(None);
        assert!(of("a.example") > of("*.example"));
    }
}
