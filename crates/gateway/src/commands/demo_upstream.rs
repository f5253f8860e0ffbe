//! A small upstream for the demo: it answers its name and the request, and can be slow, stream or echo.
//!
//! It has a thread of its own, which ends with the process. It is for looking at, not for measuring.

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Interval, interval, sleep};

/// Appliances that live in a browser, for the demo with devices.
const APPLIANCES: &str = include_str!("../../assets/demo_appliances.html");

const SLOW: Duration = Duration::from_secs(2);
const STREAM_LINES: u32 = 5;
const STREAM_PAUSE: Duration = Duration::from_millis(500);

/// How long accepting pauses after it failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

/// Starts an upstream on any free loopback port.
pub(crate) fn start(name: &'static str) -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name(format!("demo-{name}")).spawn(move || runtime.block_on(serve(listener, name)))?;
    Ok(address)
}

async fn serve(listener: std::net::TcpListener, name: &'static str) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return eprintln!("stillgate: the demo's upstream {name} cannot start: {error}"),
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(serve_connection(stream, name));
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn serve_connection(stream: TcpStream, name: &'static str) {
    let service = service_fn(|request| async move { Ok::<_, Infallible>(answer(name, request).await) });
    // It fails when the gateway closes the connection, which it may.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(name: &str, request: Request<Incoming>) -> Answer {
    match request.uri().path() {
        "/stream" => plain(Ticks { left: STREAM_LINES, pause: interval(STREAM_PAUSE) }),
        "/appliances" => page(APPLIANCES),
        "/payments/declined" => {
            let mut answer = json_answer(&json!({ "error": "declined" }));
            *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            answer
        }
        "/echo" if request.method() == Method::POST => plain(request.into_body()),
        path => {
            if path == "/slow" {
                sleep(SLOW).await;
            }
            json_answer(&describe(name, &request))
        }
    }
}

fn describe(name: &str, request: &Request<Incoming>) -> Value {
    let headers: Map<String, Value> = request
        .headers()
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.to_string(), Value::String(value))
        })
        .collect();
    json!({
        "upstream": name,
        "method": request.method().as_str(),
        "path": request.uri().to_string(),
        "headers": headers,
    })
}

fn json_answer(value: &Value) -> Answer {
    let body = Full::new(Bytes::from(format!("{value:#}\n")));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed());
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn page(text: &'static str) -> Answer {
    let mut response =
        Response::new(Full::new(Bytes::from_static(text.as_bytes())).map_err(|never| match never {}).boxed());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

fn plain<B>(body: B) -> Answer
where
    B: Body<Data = Bytes, Error = hyper::Error> + Send + Sync + 'static,
{
    let mut response = Response::new(body.boxed());
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A body that sends one line at a time.
struct Ticks {
    left: u32,
    pause: Interval,
}

impl Body for Ticks {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        ready!(self.pause.poll_tick(context));
        self.left -= 1;
        let line = format!("line {} of {STREAM_LINES}\n", STREAM_LINES - self.left);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(line)))))
    }
}
