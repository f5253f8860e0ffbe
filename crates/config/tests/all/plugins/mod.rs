//! Test doubles of the gateway's plugins.

use stillgate_plugin_api::secrets::SECRET;
use stillgate_plugin_api::{
    Authenticate, Compile, CompileCredential, CustomPlugins, Define, Descriptor, Identity, Ignorable, Metadata, Phase,
    Phases, Plugin, PluginTable, Scripts, Secret,
};
use stillgate_schema::kind::{TEXT, int};
use stillgate_schema::object;
use stillgate_schema::object::map;

object! {
    /// The keys of a plugin that authenticates.
    struct NoKeys {
        /// Stands for those that say nothing of themselves.
        anonymous_consumer: String = TEXT => optional;
    }
}

object! {
    /// The keys of a plugin whose configurations share something.
    struct CountKeys {
        /// What is shared.
        count: u32 = int(1, 100) => required;
        /// By what name.
        group: String = TEXT => optional;
        /// Something within, in which APISIX takes no other keys.
        inner: InnerKeys = map::<InnerKeys>() => optional;
    }
}

object! {
    /// Closed.
    struct InnerKeys {
        /// A key.
        key: String = TEXT => optional;
        closed: true;
    }
}

object! {
    /// A key.
    struct KeyOf {
        /// The key.
        key: Secret = SECRET => required;
    }
}

/// Represents any plugin that authenticates.
struct Auth(Option<String>);

impl Plugin for Auth {
    fn named_consumer(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

/// Represents any plugin with shared state, and with metadata.
struct Count(Option<String>, Identity);

impl Plugin for Count {
    fn shared(&self) -> Option<(&str, Identity)> {
        Some((self.0.as_deref()?, self.1))
    }
}

impl Define for Count {
    type Keys = CountKeys;
    const NAME: &'static str = "count";
    const PRIORITY: i32 = 1;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: CountKeys, _: &mut Compile<'_>) -> Option<Count> {
        Some(Count(keys.group, Identity::of(&[&keys.count.to_le_bytes()])))
    }
}

impl Metadata for Count {
    type Metadata = CountKeys;
}

impl Define for Auth {
    type Keys = NoKeys;
    const NAME: &'static str = "key-auth";
    const PRIORITY: i32 = 0;
    const PHASES: Phases = Phases::NONE;

    fn compile(keys: NoKeys, _: &mut Compile<'_>) -> Option<Auth> {
        Some(Auth(keys.anonymous_consumer))
    }
}

impl Authenticate for Auth {
    type Credential = KeyOf;
    type Verifier = Secret;

    fn lookup(credential: &KeyOf) -> &[u8] {
        credential.key.reveal().as_bytes()
    }

    fn verifier(credential: KeyOf, _: &mut CompileCredential<'_>) -> Option<Secret> {
        Some(credential.key)
    }
}

/// All of them.
pub(crate) const TABLE: PluginTable = PluginTable {
    plugins: &[Descriptor::of::<Auth>().authenticates::<Auth>(), Descriptor::of::<Count>().with_metadata::<Count>()],
    sought: &[],
    scripts: Scripts::NONE,
    custom: CustomPlugins::NONE,
    ignorable: Ignorable::of(&["count", "kafka-logger"]),
    drops_underscores: true,
};
