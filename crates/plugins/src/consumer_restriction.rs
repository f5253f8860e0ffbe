//! consumer-restriction: admits consumers, groups, services or routes, with all or some methods.

use serde_json::json;
use stillgate_plugin_api::{Answer, Compile, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_route::{Lookup, Variable};
use stillgate_schema::kind::Text;
use stillgate_schema::{Choice, Fault, TEXT, int, map, object, some, text};

object! {
    /// Admits requests by consumer, group, service or route.
    pub struct ConsumerRestrictionKeys {
        /// What the lists name: consumers, groups of consumers, services or routes.
        r#type: RestrictedName = KIND => default(RestrictedName::ConsumerName);
        /// Only these are admitted.
        whitelist: Vec<String> = some(TEXT) => optional;
        /// These are refused.
        blacklist: Vec<String> = some(TEXT) => optional;
        /// The methods that each name may use. A name that is not listed here may use all.
        allowed_by_methods: Vec<MethodsOfKeys> = some(map::<MethodsOfKeys>()) => optional;
        /// The status for a request that is refused.
        rejected_code: u16 = int(200, 599) => default(403);
        /// `message` of that answer.
        rejected_msg: String = TEXT => optional;
        any_of {
            "nothing is restricted": whitelist | blacklist | allowed_by_methods;
        }
    }
}

object! {
    /// The methods of one name.
    pub struct MethodsOfKeys {
        /// A name, of the kind that `type` says.
        user: String = TEXT => required;
        /// The methods.
        methods: Vec<String> = some(METHOD) => required;
    }
}

/// The kind of names in the lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestrictedName {
    /// Consumers, by `username`.
    ConsumerName,
    /// Groups, by the consumer's `group_id`.
    ConsumerGroupId,
    /// Services.
    ServiceId,
    /// Routes.
    RouteId,
}

const KINDS: &[(&str, RestrictedName)] = &[
    ("consumer_name", RestrictedName::ConsumerName),
    ("consumer_group_id", RestrictedName::ConsumerGroupId),
    ("service_id", RestrictedName::ServiceId),
    ("route_id", RestrictedName::RouteId),
];

const KIND: Choice<RestrictedName> = Choice { words: KINDS, unbuilt: &[] };

/// APISIX's list.
const METHODS: [&str; 10] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];

const METHOD: Text<String> = text("a method", |text| match METHODS.contains(&text) {
    true => Ok(text.to_owned()),
    false => Err(Fault::new(format!("{text:?} is not a method")).hint(format!("use one of {}", METHODS.join(", ")))),
});

/// consumer-restriction with one configuration.
pub(crate) struct ConsumerRestriction {
    kind: RestrictedName,
    variable: Variable,
    /// Empty: all are admitted.
    whitelist: NameList,
    blacklist: NameList,
    /// Sorted by name; the first entry of a name counts.
    allowed_by_methods: Box<[MethodsOf]>,
    unknown: Answer,
    rejected: Answer,
}

/// A name, and the methods that it may use.
type MethodsOf = (Box<str>, Box<[String]>);

/// Names, sorted.
struct NameList(Box<[String]>);

impl NameList {
    fn new(names: Option<Vec<String>>) -> NameList {
        let mut names = names.unwrap_or_default();
        names.sort_unstable();
        NameList(names.into())
    }

    fn has(&self, name: &[u8]) -> bool {
        self.0.binary_search_by(|known| known.as_bytes().cmp(name)).is_ok()
    }
}

impl Define for ConsumerRestriction {
    type Keys = ConsumerRestrictionKeys;
    const NAME: &'static str = "consumer-restriction";
    const PRIORITY: i32 = 2400;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: ConsumerRestrictionKeys, _: &mut Compile<'_>) -> Option<ConsumerRestriction> {
        let kind = keys.r#type;
        let word = KINDS.iter().find(|(_, of)| *of == kind).map_or("", |(word, _)| word);
        let unknown = format!("The request is rejected, please check the {word} for this request");
        let rejected = keys.rejected_msg.unwrap_or_else(|| format!("The {word} is forbidden."));
        let methods = keys.allowed_by_methods.unwrap_or_default().into_iter();
        let mut allowed_by_methods: Vec<_> = methods.map(|of| (of.user.into(), of.methods.into())).collect();
        // Stable: the first entry of a name stays the first.
        allowed_by_methods.sort_by(|(a, _): &MethodsOf, (b, _)| a.cmp(b));
        allowed_by_methods.dedup_by(|later, earlier| later.0 == earlier.0);
        Some(ConsumerRestriction {
            kind,
            variable: match kind {
                RestrictedName::ConsumerName => Variable::ConsumerName,
                RestrictedName::ConsumerGroupId => Variable::ConsumerGroupId,
                RestrictedName::ServiceId => Variable::ServiceId,
                RestrictedName::RouteId => Variable::RouteId,
            },
            whitelist: NameList::new(keys.whitelist),
            blacklist: NameList::new(keys.blacklist),
            allowed_by_methods: allowed_by_methods.into(),
            unknown: message(401, &unknown),
            rejected: message(keys.rejected_code, &rejected),
        })
    }
}

/// An answer with a text from the configuration.
fn message(status: u16, text: &str) -> Answer {
    Answer::shared(status, format!("{}\n", json!({"message": text})).into_bytes().into())
}

impl Plugin for ConsumerRestriction {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let mut buffer = Vec::new();
        let Some(value) = request.value(&self.variable, &mut buffer) else {
            return Flow::Answer(self.unknown.clone());
        };
        match self.lets_through(value, request.facts.method()) {
            true => Flow::Continue,
            false => Flow::Answer(self.rejected.clone()),
        }
    }

    fn reads_consumer(&self) -> bool {
        matches!(self.kind, RestrictedName::ConsumerName | RestrictedName::ConsumerGroupId)
    }
}

impl ConsumerRestriction {
    /// As in APISIX, names in the whitelist may use all methods.
    fn lets_through(&self, name: &[u8], method: &[u8]) -> bool {
        if self.blacklist.has(name) {
            return false;
        }
        if !self.whitelist.0.is_empty() {
            return self.whitelist.has(name);
        }
        let found = self.allowed_by_methods.binary_search_by(|(user, _)| user.as_bytes().cmp(name));
        found.map_or(true, |at| self.allowed_by_methods[at].1.iter().any(|allowed| allowed.as_bytes() == method))
    }
}
