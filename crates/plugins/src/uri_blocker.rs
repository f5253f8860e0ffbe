//! `uri-blocker`: refuses requests whose URI matches a rule.
//!
//! Rules see path and query as they came, like APISIX's. Since `/%61dmin` or `/x%2F..%2Fadmin` would evade a rule for
//! `/admin` that way, they also see the text that a node may read, if it differs.

use crate::patterns::PATTERN;
use crate::rule_set::{RuleError, RuleSet};
use regex_syntax::ast::{self, Ast};
use std::collections::HashSet;
use std::sync::Arc;
use stillgate_plugin_api::query::decoded;
use stillgate_plugin_api::{Answer, Compile, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_route::NormalisedPath;
use stillgate_route::path::target_path;
use stillgate_schema::{CompileBudget, Fault, Flag, Text, int, list, object, text};

object! {
    /// Refuses requests whose URI matches a rule.
    pub(crate) struct UriBlockerKeys {
        /// Regular expressions. A request whose path and query match one of them is refused.
        block_rules: Vec<String> = list(PATTERN) => required;
        /// The status of the answer.
        rejected_code: u16 = int(200, 599) => default(403);
        /// `error_msg` of the answer; without it the answer is an error page.
        rejected_msg: String = REJECTED_MSG => optional;
        /// Whether rules match in any case.
        case_insensitive: bool = Flag => default(false);
    }
}

/// `rejected_msg` of several plugins.
pub(crate) const REJECTED_MSG: Text<String> = text("a text", |text| match text.is_empty() {
    true => Err(Fault::new("the message is empty").hint("write one, or remove the key")),
    false => Ok(text.to_owned()),
});

/// The plugin.
pub(crate) struct UriBlocker {
    rules: Arc<RuleSet>,
    rejected: Answer,
}

impl Define for UriBlocker {
    type Keys = UriBlockerKeys;
    const NAME: &'static str = "uri-blocker";
    const PRIORITY: i32 = 2900;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(keys: UriBlockerKeys, cx: &mut Compile<'_>) -> Option<UriBlocker> {
        let rules = compile(&keys.block_rules, keys.case_insensitive, &cx.sink.budget()).map_err(
            |RuleError { rule, fault }| {
                cx.sink.error(cx.at, &cx.path.key("block_rules").index(rule), fault);
            },
        );
        Some(UriBlocker {
            rules: rules.ok()?,
            rejected: Answer::rejection(keys.rejected_code, keys.rejected_msg.as_deref()),
        })
    }
}

/// Compiles the rules as if they were joined by `|`, like APISIX: flags that one sets apply to those after it.
fn compile(rules: &[String], ignores_case: bool, budget: &CompileBudget) -> Result<Arc<RuleSet>, RuleError> {
    let mut flags = if ignores_case { "(?i)".to_owned() } else { String::new() };
    let (mut with_flags, mut known) = (Vec::with_capacity(rules.len()), HashSet::new());
    for (number, rule) in rules.iter().enumerate() {
        if !known.insert(rule) {
            let fault = Fault::new(format!("the rule {rule:?} is given twice")).hint("remove it");
            return Err(RuleError { rule: number, fault });
        }
        with_flags.push(format!("{flags}{rule}"));
        leave_flags(rule, &mut flags);
    }
    RuleSet::of(&with_flags, budget)
}

/// Adds the flags that a rule sets for all that follow. Not `x`, with which a comment would switch the other rules off.
fn leave_flags(rule: &str, flags: &mut String) {
    let Ok(ast) = ast::parse::Parser::new().parse(rule) else { return };
    let mut add = |part: &Ast| {
        if let Ast::Flags(set) = part
            && set.flags.flag_state(ast::Flag::IgnoreWhitespace).is_none()
        {
            flags.push_str(&rule[set.span.start.offset..set.span.end.offset]);
        }
    };
    let mut of_branch = |branch: &Ast| match branch {
        Ast::Concat(concat) => concat.asts.iter().for_each(&mut add),
        single => add(single),
    };
    match &ast {
        Ast::Alternation(alternation) => alternation.asts.iter().for_each(of_branch),
        single => of_branch(single),
    }
}

impl Plugin for UriBlocker {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        let came = request.facts.path_and_query();
        let (path, query) = target_path(came);
        let rejected = self.rejected.clone();
        let then = move |is_found| if is_found { Flow::Answer(rejected) } else { Flow::Continue };
        let normal = request.facts.path.map_or(path, NormalisedPath::bytes);
        let is_written_otherwise = |byte: &u8| matches!(byte, b'%' | b'\\');
        let has_plus = query.is_some_and(|query| query.contains(&b'+'));
        if normal == path && !came.iter().any(is_written_otherwise) && !has_plus {
            return self.rules.decide(|| std::iter::once(came), then);
        }
        request.worker.with_buffers(|texts, _| {
            let ends = spellings(path, normal, query, texts);
            let texts = &texts[..];
            let others = [&texts[..ends[0]], &texts[ends[0]..ends[1]], &texts[ends[1]..ends[2]]];
            let as_sent = (ends[2] < ends[3]).then(|| &texts[ends[2]..ends[3]]);
            self.rules.decide(|| std::iter::once(came).chain(others).chain(as_sent), then)
        })
    }
}

/// Other texts that a node may read from a request's path and query, concatenated, and the end of each: the normal path
/// with the query as it came; both decoded; the decoded path with `%2F` and backslashes as slashes, and its dot segments
/// resolved; and, unless the path came in its normal form, the path as it came, decoded.
fn spellings(came: &[u8], normal: &[u8], query: Option<&[u8]>, out: &mut Vec<u8>) -> [usize; 4] {
    out.extend_from_slice(normal);
    if let Some(query) = query {
        out.push(b'?');
        out.extend_from_slice(query);
    }
    let first = out.len();
    let decoded_query = |out: &mut Vec<u8>| {
        if let Some(query) = query {
            out.push(b'?');
            out.extend(decoded(query));
        }
    };
    decode(normal, out);
    decoded_query(out);
    let second = out.len();
    decode(normal, out);
    resolve(out, second);
    decoded_query(out);
    let third = out.len();
    if came != normal {
        decode(came, out);
        decoded_query(out);
    }
    [first, second, third, out.len()]
}

/// Appends a path with its `%XX` decoded. A `%` that is not followed by two digits stays.
fn decode(path: &[u8], out: &mut Vec<u8>) {
    let digit = |at: usize| path.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut at = 0;
    while let Some(byte) = path.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                out.push(*byte);
                at += 1;
            }
        }
    }
}

/// Replaces the backslashes of the path from `begin` on by slashes, and removes empty segments and dot segments.
fn resolve(path: &mut Vec<u8>, begin: usize) {
    let (mut from, mut to) = (begin, begin);
    while from < path.len() {
        let is_slash = |byte: &u8| matches!(byte, b'/' | b'\\');
        let len = path[from..].iter().position(is_slash).unwrap_or(path.len() - from);
        let has_slash = from + len < path.len();
        match &path[from..from + len] {
            b"" if from > begin => {}
            b"." => {}
            b".." => {
                // `to` is after a slash; the root is kept.
                let parent = path[begin..to.max(begin + 1) - 1].iter().rposition(|byte| *byte == b'/');
                to = parent.map_or(to.min(begin + 1), |slash| begin + slash + 1);
            }
            _ => {
                path.copy_within(from..from + len, to);
                to += len;
                if has_slash {
                    path[to] = b'/';
                    to += 1;
                }
            }
        }
        from += len + 1;
    }
    path.truncate(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_nodes_may_read_them() {
        let check = |normal: &str, query: Option<&str>, expected: [&str; 3]| {
            let mut out = Vec::new();
            let [a, b, c, d] = spellings(normal.as_bytes(), normal.as_bytes(), query.map(str::as_bytes), &mut out);
            assert_eq!(c, d, "it came in its normal form");
            let text = |range: std::ops::Range<usize>| String::from_utf8_lossy(&out[range]).into_owned();
            assert_eq!([text(0..a), text(a..b), text(b..c)], expected, "{normal}");
        };
        check("/a%20b", None, ["/a%20b", "/a b", "/a b"]);
        check("/a", Some("q=%3Cx+y%26"), ["/a?q=%3Cx+y%26", "/a?q=<x y&", "/a?q=<x y&"]);
        check("/x%2F..%2Fadmin", None, ["/x%2F..%2Fadmin", "/x/../admin", "/admin"]);
        check("/x%5C..%5C.%5Cadmin/", Some(""), ["/x%5C..%5C.%5Cadmin/?", "/x\\..\\.\\admin/?", "/admin/?"]);
        check("/..%2F..%2Fa", None, ["/..%2F..%2Fa", "/../../a", "/a"]);
        check("/a%2F%2Fb%2F..", None, ["/a%2F%2Fb%2F..", "/a//b/..", "/a/"]);
        check("/a/%2E.%5C", None, ["/a/%2E.%5C", "/a/..\\", "/"]);
        check("/%2525", None, ["/%2525", "/%25", "/%25"]);
        check("/", None, ["/", "/", "/"]);
    }

    #[test]
    fn a_path_that_is_not_normal_is_also_read_as_it_came() {
        let check = |came: &str, normal: &str, query: Option<&str>, expected: &str| {
            let mut out = Vec::new();
            let ends = spellings(came.as_bytes(), normal.as_bytes(), query.map(str::as_bytes), &mut out);
            assert_eq!(String::from_utf8_lossy(&out[ends[2]..ends[3]]), expected, "{came}");
        };
        check("/x/%2e%2e/etc", "/etc", None, "/x/../etc");
        check("/a%2", "/a%252", Some("q=+%3C"), "/a%2?q= <");
    }
}
