//! `GET /v1/routes` and `GET /v1/routes/{id}`: the routes that are served, whatever their source, for searching and viewing.
//!
//! The Admin API shows documents as they were written; these pages show their effect: which routes take requests, through which
//! plugins they go and where each of those is written.

use super::context::{PageContext, PageRefusal, Question, error, json, refuse};
use super::route_list::{PAGE_MAX, RouteList, RouteQuery, RouteSort, RouteStatus, refusal};
use crate::configuration::reload::ServedPlan;
use axum::response::Response;
use hyper::StatusCode;
use serde_json::{Value as Json, json};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use stillgate_datastore::Documents;
use stillgate_live::Live;
use stillgate_live::traffic::RouteTraffic;
use stillgate_replay::explain::chain;
use stillgate_replay::explain::explanation::upstream_of;
use tokio::task::spawn_blocking;
use tracing::warn;

/// Default number of routes on a page.
pub(super) const PAGE_DEFAULT: usize = 50;

/// A page of the search results. `sees_secrets`: whether expressions show all values that they compare with.
pub(super) async fn search(api: PageContext, query: &str, sees_secrets: bool) -> Response {
    let arguments: Vec<(Cow<'_, str>, Cow<'_, str>)> = form_urlencoded::parse(query.as_bytes()).collect();
    let argument = |name: &str| arguments.iter().find(|(of, _)| of == name).map(|(_, value)| &**value);
    let number = |name: &str, default: usize| argument(name).map_or(Some(default), |text| text.parse::<usize>().ok());
    let (Some(page @ 1..), Some(size @ 1..=PAGE_MAX)) = (number("page", 1), number("page_size", PAGE_DEFAULT)) else {
        let message = format!("page must be a number from 1, and page_size a number from 1 to {PAGE_MAX}");
        return error(StatusCode::BAD_REQUEST, message.into());
    };
    let of_table = |name: &'static str, known: Vec<&'static str>| match argument(name) {
        None | Some("") => Ok(None),
        Some(wanted) => match known.iter().position(|known| *known == wanted) {
            Some(place) => Ok(Some(place)),
            None => Err(format!("{name}: one of {}", known.join(", "))),
        },
    };
    let status = of_table("status", RouteStatus::ALL.map(RouteStatus::name).to_vec());
    let sort = of_table("sort", RouteSort::ALL.map(|(name, _)| name).to_vec());
    let order = of_table("order", vec!["asc", "desc"]);
    let (status, sort, order) = match (status, sort, order) {
        (Ok(status), Ok(sort), Ok(order)) => (status, sort, order),
        (Err(wrong), ..) | (_, Err(wrong), _) | (.., Err(wrong)) => {
            return error(StatusCode::BAD_REQUEST, wrong.into());
        }
    };
    let query = RouteQuery {
        search: argument("search").unwrap_or_default().to_owned(),
        status: status.map(|place| RouteStatus::ALL[place]),
        sort: sort.map(|place| RouteSort::ALL[place].1),
        is_descending: order == Some(1),
        page: (page, size),
        sees_secrets,
    };
    let live = api.live.clone();
    answer(api, move |list, _| {
        let traffic = live.traffic();
        let mut found = list.page(&query, &traffic);
        found["has_traffic"] = json!(live.has_metrics());
        for route in found["list"].as_array_mut().into_iter().flatten() {
            add_traffic(route, &live, &traffic);
        }
        Some(found)
    })
    .await
}

/// Adds a route's figures of the last minute, and its requests over fifteen.
fn add_traffic(route: &mut Json, live: &Live, traffic: &HashMap<Arc<str>, RouteTraffic>) {
    let id = route["id"].as_str().unwrap_or_default().to_owned();
    let figures = traffic.get(&*id).and_then(|figures| serde_json::to_value(figures).ok());
    route["traffic"] = figures.map_or(Json::Null, |mut figures| {
        figures["spark"] = json!(live.points(&id));
        figures
    });
}

/// One route.
pub(super) async fn route(api: PageContext, id: String, sees_secrets: bool) -> Response {
    let live = api.live.clone();
    answer(api, move |list, served| {
        let listed = list.get(&id)?;
        let mut route = listed.summary(sees_secrets);
        add_traffic(&mut route, &live, &live.traffic());
        if let Some((reason, serving)) = refusal(&served.loaded, &id) {
            route["reason"] = json!(reason);
            route["serving"] = json!(serving.to_string());
        }
        let config = &served.loaded.config;
        if let Some((of, line)) = listed.served_route() {
            (route["chain"], route["left_out"]) = chain::of_route(config, of);
            route["target"] = upstream_of(config, &of.target);
            route["line"] = json!(Some(line).filter(|line| *line > 0));
        }
        Some(route)
    })
    .await
}

/// Evaluates the list of what is served, on a thread that may take its time.
async fn answer(
    api: PageContext,
    look: impl FnOnce(&RouteList, &ServedPlan) -> Option<Json> + Send + 'static,
) -> Response {
    let place = api.explaining.clone().acquire_owned().await.expect("the semaphore is never closed");
    let Some(served) = api.ask(Question::Served).await else {
        return refuse(&PageRefusal::Ending);
    };
    let lists = api.lists.clone();
    let looked = spawn_blocking(move || {
        let documents = api.kept.as_ref().map(|kept| &*kept.keeper as &dyn Documents);
        let list = api.lists.list(served.plan.generation, &served.loaded, documents);
        let found = look(&list, &served).map(|mut found| {
            found["generation"] = json!(served.plan.generation);
            json(StatusCode::OK, &found)
        });
        drop(place);
        found
    });
    let looked = looked.await;
    lists.watch();
    match looked {
        Ok(Some(answer)) => answer,
        Ok(None) => {
            let message = "there is no such route; routes that are switched off in a file are not listed";
            error(StatusCode::NOT_FOUND, message.into())
        }
        Err(error) => {
            warn!(%error, "admin API: listing routes failed, which is a bug");
            refuse(&PageRefusal::Failed)
        }
    }
}
