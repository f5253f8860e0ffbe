//! The list of routes that was searched last, kept while pages use it.

use super::route_list::RouteList;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stillgate_config::LoadedConfig;
use stillgate_datastore::Documents;
use tokio::time::sleep;

/// A list that is not used for this time is dropped: it takes some two hundred bytes a route.
const IDLE: Duration = Duration::from_secs(60);

/// The list of the configuration that was searched last.
#[derive(Default)]
pub(super) struct RouteListCache(Mutex<CachedRouteList>);

#[derive(Default)]
struct CachedRouteList {
    list: Option<Arc<RouteList>>,
    /// Whether it has been used since the last check.
    is_used: bool,
    /// Whether a task checks that.
    is_watched: bool,
}

impl RouteListCache {
    /// The list of this configuration. Only one is made at a time: its maker holds the place.
    pub(super) fn list(
        &self,
        generation: u64,
        loaded: &LoadedConfig,
        documents: Option<&dyn Documents>,
    ) -> Arc<RouteList> {
        let former = self.lock().list.clone();
        let list = match former {
            Some(list) if list.is_of(generation, loaded) => list,
            former => Arc::new(RouteList::new(generation, loaded, documents, former.as_deref())),
        };
        let mut cached = self.lock();
        cached.list = Some(list.clone());
        cached.is_used = true;
        list
    }

    fn lock(&self) -> MutexGuard<'_, CachedRouteList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the list when it is not used any more.
    pub(super) fn watch(self: &Arc<Self>) {
        if std::mem::replace(&mut self.lock().is_watched, true) {
            return;
        }
        let lists = self.clone();
        tokio::spawn(async move {
            loop {
                sleep(IDLE).await;
                let mut kept = lists.lock();
                if !std::mem::take(&mut kept.is_used) {
                    *kept = CachedRouteList::default();
                    return;
                }
            }
        });
    }
}
