//! An axum server whose scrapes cost its requests nothing: each thread counts in memory of its own, and a thread for blocking work
//! makes the text.
//!
//! ```text
//! cargo run -p stillgate-metrics --example axum
//! curl http://127.0.0.1:3000/hello/you
//! curl http://127.0.0.1:3000/metrics
//! ```

use axum::extract::{MatchedPath, Request};
use axum::middleware::{Next, from_fn};
use axum::{Router, routing::get};
use std::error::Error;
use stillgate_metrics::{Family, ProcessMetrics, encode::Format};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let metrics = ProcessMetrics::start()?;
    let requests = metrics.declare(Family::counter("http_requests_total", "Requests answered.", &["route", "code"]))?;
    let scrape = async move || {
        let text = tokio::task::spawn_blocking(move || metrics.exposition(Format::Text)).await;
        text.expect("it does not panic").expect("its own memory is always there")
    };
    let count = move |route: MatchedPath, request: Request, next: Next| {
        let requests = requests.clone();
        async move {
            let response = next.run(request).await;
            requests.add(&[route.as_str(), response.status().as_str()], 1);
            response
        }
    };
    let app = Router::new().route("/hello/{name}", get(async || "hello\n")).route("/metrics", get(scrape));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    Ok(axum::serve(listener, app.route_layer(from_fn(count))).await?)
}
