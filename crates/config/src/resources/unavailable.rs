//! What stands for a resource that cannot be used where the requests that it is about are known by its plugins only: a plugin that
//! answers each of them 503.

use std::sync::Arc;
use stillgate_plugin::{Answer, Awaited, Entry, Flow, Identity, Level, Meta, Origin, Phase, Phases, Plugin, Request};
use stillgate_schema::text::diagnostic::Position;

/// As `explain` and metrics show it.
const NAME: &str = "unavailable";

struct Unavailable;

impl Plugin for Unavailable {
    fn rewrite(&self, _: &mut Request<'_>) -> Flow {
        Flow::Answer(answer())
    }

    fn access(&self, _: &mut Request<'_>) -> Flow {
        Flow::Answer(answer())
    }
}

fn answer() -> Answer {
    Answer::json(503, r#"{"error_msg":"503 Service Unavailable"}"#)
}

/// In the place of the plugins of a resource.
pub(crate) fn unavailable(level: Level, id: &str) -> Arc<Entry> {
    Arc::new(Entry {
        name: NAME,
        priority: i32::MAX,
        phases: Phases::of(&[Phase::Rewrite, Phase::Access]),
        authenticates: false,
        meta: Meta::default(),
        awaited: Awaited::default(),
        origin: Origin { level, id: id.into() },
        at: Position::NOWHERE,
        identity: Identity::of(&[NAME.as_bytes(), level.name().as_bytes(), id.as_bytes()]),
        plugin: Box::new(Unavailable),
    })
}
