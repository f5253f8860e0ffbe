//! Plugins that are read and do nothing to a request.

/// Makes a plugin of a type without values, from its keys, name and priority.
macro_rules! without_phases {
    ($plugin:ty, $keys:ty, $name:literal, $priority:literal) => {
        impl stillgate_plugin::Plugin for $plugin {}

        impl stillgate_plugin::Define for $plugin {
            type Keys = $keys;
            const NAME: &'static str = $name;
            const PRIORITY: i32 = $priority;
            const PHASES: stillgate_plugin::Phases = stillgate_plugin::Phases::NONE;

            fn compile(_: $keys, _: &mut stillgate_plugin::Compile<'_>) -> Option<Self> {
                Some(Self)
            }
        }
    };
}
pub(crate) use without_phases;
