//! `ua-restriction`: admits only requests of some user agents, or refuses those of some.

use crate::access_list::{AccessList, MESSAGE};
use crate::patterns::PATTERN;
use crate::rule_set::{RuleError, RuleSet};
use std::sync::Arc;
use stillgate_plugin_api::{Answer, Compile, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_schema::{Flag, object, some};
use stillgate_wire::FieldName;

object! {
    /// Admits only requests of some user agents, or refuses those of some.
    pub(crate) struct UaRestrictionKeys {
        /// Regular expressions, of which one must match somewhere in `User-Agent`. Cannot be combined with `denylist`.
        allowlist: Vec<String> = some(PATTERN) => optional;
        /// Regular expressions, none of which may match.
        denylist: Vec<String> = some(PATTERN) => optional;
        /// Whether requests without `User-Agent` are admitted.
        bypass_missing: bool = Flag => default(false);
        /// `message` of the answer.
        message: String = MESSAGE => default("Not allowed".to_owned());
        any_of { "there is no list": allowlist | denylist; }
    }
}

/// The plugin.
pub(crate) struct UaRestriction {
    rules: AccessList<Arc<RuleSet>>,
    bypasses_missing: bool,
    rejected: Answer,
}

impl Define for UaRestriction {
    type Keys = UaRestrictionKeys;
    const NAME: &'static str = "ua-restriction";
    const PRIORITY: i32 = 2999;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: UaRestrictionKeys, cx: &mut Compile<'_>) -> Option<UaRestriction> {
        let key = if keys.allowlist.is_some() { "allowlist" } else { "denylist" };
        let listed = AccessList::of(("allowlist", keys.allowlist), ("denylist", keys.denylist), cx)?;
        Some(UaRestriction {
            rules: listed.try_map(|patterns| rules(&patterns, key, cx))?,
            bypasses_missing: keys.bypass_missing,
            rejected: Answer::object(403, "message", &keys.message),
        })
    }
}

/// Compiles the patterns of a key, each separately.
fn rules(patterns: &[String], key: &str, cx: &mut Compile<'_>) -> Option<Arc<RuleSet>> {
    let set = RuleSet::of(patterns, &cx.sink.budget());
    set.map_err(|RuleError { rule, fault }| cx.sink.error(cx.at, &cx.path.key(key).index(rule), fault)).ok()
}

const USER_AGENT: FieldName<'static> = FieldName::constant("User-Agent");

impl Plugin for UaRestriction {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let (edits, fields, head) = (&request.edits.fields, &request.facts.request.fields, request.facts.head);
        let agents = || edits.values(fields, head, USER_AGENT).map(<[u8]>::trim_ascii);
        if agents().next().is_none() {
            return if self.bypasses_missing { Flow::Continue } else { Flow::Answer(self.rejected.clone()) };
        }
        let (rules, passes_if_found) = match &self.rules {
            AccessList::Allowed(rules) => (rules, true),
            AccessList::Denied(rules) => (rules, false),
        };
        let rejected = self.rejected.clone();
        rules.decide(agents, move |is_found| match is_found == passes_if_found {
            true => Flow::Continue,
            false => Flow::Answer(rejected),
        })
    }
}
