//! `uri-blocker`: answers requests whose URI matches a rule.
//!
//! Rules see path and query as they came, like APISIX's. Since `/%61dmin` would pass a rule of `/admin` that way, they see the
//! normalised path with the query, too, where it is another one.

use crate::patterns::PATTERN;
use crate::rule_set::{self, RuleSet};
use regex_syntax::ast::{self, Ast};
use std::sync::Arc;
use stillgate_plugin::{Answer, Compile, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_route::path::target_path;
use stillgate_schema::{Fault, Flag, Text, int, list, object, text};

object! {
    /// Answers requests whose URI matches a rule.
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
        let rules = compile(&keys.block_rules, keys.case_insensitive).map_err(|(rule, fault)| {
            cx.sink.error(cx.at, &cx.path.key("block_rules").index(rule), fault);
        });
        Some(UriBlocker {
            rules: Arc::new(rules.ok()?),
            rejected: Answer::rejection(keys.rejected_code, keys.rejected_msg.as_deref()),
        })
    }
}

/// As if the rules were joined by `|`, which is what APISIX does: flags that one sets hold for those behind it.
fn compile(rules: &[String], ignores_case: bool) -> Result<RuleSet, (usize, Fault)> {
    let mut flags = if ignores_case { "(?i)".to_owned() } else { String::new() };
    let mut parsed = Vec::with_capacity(rules.len());
    for (number, rule) in rules.iter().enumerate() {
        if rules[..number].contains(rule) {
            return Err((number, Fault::new(format!("the rule {rule:?} is there twice")).hint("remove it")));
        }
        parsed.push(rule_set::parse(&format!("{flags}{rule}")).map_err(|fault| (number, fault))?);
        leave_flags(rule, &mut flags);
    }
    RuleSet::compile(&parsed).map_err(|refused| (refused.rule, refused.why.into()))
}

/// Adds the flags that a rule sets for all that follows. Not `x`, with which a comment would switch the other rules off.
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
        match request.facts.path.filter(|normal| normal.bytes() != path) {
            None => self.rules.decide(|| std::iter::once(came), then),
            Some(normal) => request.worker.with_buffers(|text, _| {
                text.extend_from_slice(normal.bytes());
                if let Some(query) = query {
                    text.push(b'?');
                    text.extend_from_slice(query);
                }
                let text = &text[..];
                self.rules.decide(|| [came, text].into_iter(), then)
            }),
        }
    }
}
