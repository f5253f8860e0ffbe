//! An axum server whose scrapes cost its requests nothing: each thread counts in memory of its own, and `/metrics` is made by a
//! thread for blocking work.
//!
//! ```text
//! cargo run -p stillgate-metrics --example axum
//! curl http://127.0.0.1:3000/hello/you
//! curl http://127.0.0.1:3000/metrics
//! ```

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use std::cell::RefCell;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stillgate_metrics::encode::Format;
use stillgate_metrics::{
    Collector, CollectorOptions, DeclaredFamily, Family, Registry, RegistryOptions, SegmentProcess, Writer,
};

#[derive(Clone)]
struct Metrics {
    registry: Arc<Registry>,
    requests: Arc<DeclaredFamily>,
    collector: Arc<Mutex<Collector>>,
}

thread_local! {
    static WRITER: RefCell<Option<Writer>> = const { RefCell::new(None) };
}

async fn count(State(metrics): State<Metrics>, route: MatchedPath, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    WRITER.with_borrow_mut(|writer| {
        // A thread that gets no writer serves on, uncounted.
        *writer = writer.take().or_else(|| metrics.registry.writer().ok());
        if let Some(writer) = writer {
            let code = response.status();
            let series = writer.series(&metrics.requests, &[route.as_str().as_bytes(), code.as_str().as_bytes()]);
            // A handle that was just returned is never out of date.
            let _ = writer.add(series, 1);
        }
    });
    response
}

async fn scrape(State(metrics): State<Metrics>) -> Vec<u8> {
    let encode = move || locked(&metrics.collector).exposition(Format::Text, now_ms()).unwrap_or_default();
    tokio::task::spawn_blocking(encode).await.unwrap_or_default()
}

/// Folds labels that exploded, and drops series that expired.
fn tend(collector: &Mutex<Collector>) {
    loop {
        while locked(collector).tend(now_ms()) {}
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn locked(collector: &Mutex<Collector>) -> MutexGuard<'_, Collector> {
    collector.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let process = SegmentProcess { pid: std::process::id(), start: 0 };
    // Take the seed from the system's random numbers where clients choose label values.
    let registry = Arc::new(Registry::start(RegistryOptions::new(process, now_ms(), 42))?);
    let requests =
        registry.declare(Family::counter("http_requests_total", "Requests answered.", &["route", "code"]))?;
    let collector = Arc::new(Mutex::new(Collector::of_registry(registry.clone(), CollectorOptions::default())?));
    let tended = collector.clone();
    std::thread::spawn(move || tend(&tended));
    let metrics = Metrics { registry, requests, collector };
    let app = axum::Router::new()
        .route("/hello/{name}", get(async || "hello\n"))
        .route("/metrics", get(scrape))
        .route_layer(from_fn_with_state(metrics.clone(), count))
        .with_state(metrics);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    Ok(axum::serve(listener, app).await?)
}
