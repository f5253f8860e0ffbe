//! Plugins that are accepted and have no effect on a request.

/// Defines a plugin without phases, from its keys, name and priority.
macro_rules! without_phases {
    ($plugin:ty, $keys:ty, $name:literal, $priority:literal) => {
        impl stillgate_plugin_api::Plugin for $plugin {}

        impl stillgate_plugin_api::Define for $plugin {
            type Keys = $keys;
            const NAME: &'static str = $name;
            const PRIORITY: i32 = $priority;
            const PHASES: stillgate_plugin_api::Phases = stillgate_plugin_api::Phases::NONE;

            fn compile(_: $keys, _: &mut stillgate_plugin_api::Compile<'_>) -> Option<Self> {
                Some(Self)
            }
        }
    };
}
pub(crate) use without_phases;
