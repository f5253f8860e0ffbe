//! Replaces an unusable resource whose requests only its plugins know: by a plugin that answers each of them with 503.

use std::sync::Arc;
use stillgate_plugin_api::{
    Answer, BodyArguments, ChainEntry, Flow, Identity, Meta, Phase, Phases, Plugin, PluginLevel, PluginOrigin, Request,
};
use stillgate_schema::text::diagnostic::Position;

/// The name in `explain` and metrics.
const NAME: &str = "unavailable";

struct Unavailable;

impl Plugin for Unavailable {
    fn rewrite(&self, _: &mut Request<'_>) -> Flow {
        Flow::Answer(unavailable_resource_answer())
    }

    fn access(&self, _: &mut Request<'_>) -> Flow {
        Flow::Answer(unavailable_resource_answer())
    }
}

fn unavailable_resource_answer() -> Answer {
    Answer::json(503, r#"{"error_msg":"503 Service Unavailable"}"#)
}

/// Replaces the plugins of a resource.
pub(crate) fn unavailable(level: PluginLevel, id: &str) -> Arc<ChainEntry> {
    Arc::new(ChainEntry {
        name: NAME,
        priority: i32::MAX,
        phases: Phases::of(&[Phase::Rewrite, Phase::Access]),
        authenticates: false,
        meta: Meta::default(),
        awaited: BodyArguments::default(),
        origin: PluginOrigin { level, id: id.into() },
        at: Position::NOWHERE,
        identity: Identity::of(&[NAME.as_bytes(), level.name().as_bytes(), id.as_bytes()]),
        plugin: Box::new(Unavailable),
    })
}
