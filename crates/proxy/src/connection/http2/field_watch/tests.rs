//! Compares what is marked with what `h2` makes of the same bytes.

use super::super::bounds::RESETS_PER_SECOND_MAX;
use super::super::frames::{END_STREAM, FrameWatch, PREFACE};
use super::*;
use bytes::Bytes;
use http::{HeaderMap, Request};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use stillgate_wire::checks::{FieldEncoder, HpackRepresentation, expected_block};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

type Pair = (Vec<u8>, Vec<u8>);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn pairs(fields: &[(&str, &str)]) -> Vec<Pair> {
    fields.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

/// How a block is split into frames.
#[derive(Debug, Clone)]
struct Shape {
    form: HpackRepresentation,
    is_short: bool,
    padding: Option<u8>,
    /// The stream that the priority depends on, relative to the stream itself.
    depends_on: Option<u32>,
    cuts: Vec<usize>,
}

fn shape() -> impl Strategy<Value = Shape> {
    let form = select(
        &[
            HpackRepresentation::Indexed,
            HpackRepresentation::Indexed,
            HpackRepresentation::Inserted,
            HpackRepresentation::Literal,
            HpackRepresentation::NeverIndexed,
        ][..],
    );
    let padding = proptest::option::weighted(0.3, 0..20_u8);
    // Few depend on themselves.
    let depends_on = proptest::option::weighted(0.3, 0..5_u32);
    (form, any::<bool>(), padding, depends_on, vec(0..200_usize, 0..3))
        .prop_map(|(form, is_short, padding, depends_on, cuts)| Shape { form, is_short, padding, depends_on, cuts })
}

impl Shape {
    /// The stream depends on itself: `h2` resets it, and skips its block.
    fn is_left_out(&self) -> bool {
        self.depends_on == Some(0)
    }

    fn frames(&self, encoder: &mut FieldEncoder, stream: u32, fields: &[Pair], flags: u8) -> Vec<u8> {
        // A block that is never decoded changes no table.
        let mut unused = encoder.clone();
        let encoder = if self.is_left_out() { &mut unused } else { encoder };
        let mut block = Vec::new();
        for (name, value) in fields {
            encoder.field(&mut block, name, value, self.form, self.is_short);
        }
        let mut cuts: Vec<usize> = self.cuts.iter().map(|cut| cut % (block.len() + 1)).collect();
        if self.is_left_out() {
            cuts.clear();
        }
        cuts.sort_unstable();
        let ends = cuts.iter().copied().chain([block.len()]);
        let begins = [0].into_iter().chain(cuts.iter().copied());
        let pieces: Vec<&[u8]> = begins.zip(ends).map(|(begin, end)| &block[begin..end]).collect();
        let last = pieces.len() - 1;
        let mut bytes = Vec::new();
        for (at, piece) in pieces.into_iter().enumerate() {
            let end = if at == last { END_HEADERS } else { 0 };
            if at > 0 {
                bytes.extend(frame(kind::CONTINUATION, end, stream, piece));
                continue;
            }
            let (mut payload, mut flags) = (Vec::new(), flags | end);
            if let Some(padding) = self.padding {
                flags |= PADDED;
                payload.push(padding);
            }
            if let Some(distance) = self.depends_on {
                flags |= PRIORITY;
                payload.extend_from_slice(&(0x8000_0000 | (stream + distance)).to_be_bytes());
                payload.push(7);
            }
            payload.extend_from_slice(piece);
            payload.resize(payload.len() + usize::from(self.padding.unwrap_or(0)), 0);
            bytes.extend(frame(kind::HEADERS, flags, stream, &payload));
        }
        bytes
    }
}

#[derive(Debug, Clone)]
struct SentRequest {
    path: &'static str,
    fields: Vec<Pair>,
    shape: Shape,
    trailers: Option<(Vec<Pair>, Shape)>,
}

fn asked() -> impl Strategy<Value = SentRequest> {
    let path = select(&["/", "/a", "/a#b", "/?q#", "#", "/index.html", "/a%23b?c"][..]);
    let field = (select(&["x", "y", "accept", "referer"][..]), select(&["", "a#b", "1", ":path", "text/html"][..]));
    let fields = vec(field.prop_map(|(name, value)| pairs(&[(name, value)]).remove(0)), 0..4);
    let pseudo = select(&[":path", ":status", ":method", ":authority", "x", "x", "x", "x"][..]);
    let trailers = (pseudo, fields.clone(), shape()).prop_map(|(pseudo, fields, shape)| {
        let value = match pseudo {
            ":status" => "200",
            ":method" => "GET",
            _ => "/",
        };
        ([pairs(&[(pseudo, value)]), fields].concat(), Shape { depends_on: None, ..shape })
    });
    (path, fields, shape(), proptest::option::of(trailers)).prop_map(|(path, fields, shape, trailers)| SentRequest {
        path,
        fields,
        shape,
        trailers,
    })
}

/// The requests' bytes, and the streams that are to be marked.
fn sent(requests: &[SentRequest]) -> (Vec<u8>, Vec<u32>) {
    let mut encoder = FieldEncoder::default();
    let mut bytes = [PREFACE, &frame(4, 0, 0, &[])].concat();
    let mut malformed = Vec::new();
    for (at, SentRequest { path, fields, shape, trailers }) in requests.iter().enumerate() {
        let stream = 2 * at as u32 + 1;
        let head = pairs(&[(":method", "POST"), (":scheme", "http"), (":authority", "h"), (":path", path)]);
        let head = [head, fields.clone()].concat();
        let ends = trailers.is_none() || shape.is_left_out();
        let flags = if ends { END_STREAM } else { 0 };
        bytes.extend(shape.frames(&mut encoder, stream, &head, flags));
        if path.contains('#') && !shape.is_left_out() {
            malformed.push(stream);
        }
        if let Some((trailers, shape)) = trailers.as_ref().filter(|_| !ends) {
            bytes.extend(frame(kind::DATA, 0, stream, b"body"));
            bytes.extend(shape.frames(&mut encoder, stream, trailers, END_STREAM));
            if trailers[0].0.starts_with(b":") {
                malformed.push(stream);
            }
        }
    }
    (bytes, malformed)
}

/// What `h2` decodes: the stream, path and fields of the first `count` requests.
async fn served(bytes: &[u8], count: usize) -> Vec<(u32, String, HeaderMap)> {
    let (mut near, far) = tokio::io::duplex(1 << 20);
    near.write_all(bytes).await.unwrap();
    let mut connection = h2::server::handshake(far).await.unwrap();
    let (mut seen, mut kept) = (Vec::new(), Vec::new());
    while seen.len() < count {
        let Some(Ok((request, respond))) = connection.accept().await else { break };
        let stream = respond.stream_id().as_u32();
        seen.push((stream, request.uri().path_and_query().unwrap().to_string(), request.headers().clone()));
        kept.push((request, respond));
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_h2_repairs_is_marked(requests in vec(asked(), 1..12), step in 1..100_usize) {
        let (bytes, malformed) = sent(&requests);
        let marked = Rc::new(ServedStreams::default());
        let mut watch = FrameWatch::of_client(marked.clone());
        bytes.chunks(step).for_each(|piece| watch.observe_received(piece, 0));
        prop_assert_eq!(&*marked.streams.borrow(), &malformed);
        // This helps only if `h2` reads the same.
        let mut expected = Vec::new();
        for (at, request) in requests.iter().enumerate().filter(|(_, request)| !request.shape.is_left_out()) {
            let path = request.path.split('#').next().filter(|path| !path.is_empty()).unwrap_or("/");
            let mut fields = HeaderMap::new();
            for (name, value) in &request.fields {
                let name = http::HeaderName::from_bytes(name).unwrap();
                fields.append(name, http::HeaderValue::from_bytes(value).unwrap());
            }
            expected.push((2 * at as u32 + 1, path.to_owned(), fields));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let served = async { tokio::time::timeout(PATIENCE, served(&bytes, expected.len())).await };
        let seen = runtime.block_on(served).expect("as many requests as that");
        prop_assert_eq!(seen, expected);
    }
}

fn marks(watch: &mut FrameWatch, marked: &ServedStreams, bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(3).for_each(|piece| watch.observe_received(piece, 0));
    marked.streams.take()
}

#[test]
fn responses() {
    let marked = Rc::new(ServedStreams::default());
    let mut watch = FrameWatch::of_node(marked.clone());
    let head = |stream, flags, fields: &[(&str, &str)]| {
        let mut block = Vec::new();
        for (name, value) in fields {
            FieldEncoder::default().field(
                &mut block,
                name.as_bytes(),
                value.as_bytes(),
                HpackRepresentation::Literal,
                false,
            );
        }
        frame(kind::HEADERS, flags | END_HEADERS, stream, &block)
    };
    let ok = [(":status", "200")];
    let mut check = |frames: &[Vec<u8>], expected: &[u32]| {
        assert_eq!(marks(&mut watch, &marked, &frames.concat()), expected);
    };
    check(&[head(1, 0, &[(":status", "103")]), head(1, 0, &ok), head(1, END_STREAM, &[("a", "b")])], &[]);
    check(&[head(3, END_STREAM, &ok), head(5, 0, &ok), frame(kind::DATA, END_STREAM, 5, b"a")], &[]);
    check(&[head(7, 0, &ok), frame(kind::DATA, 0, 7, b"a"), head(9, 0, &ok)], &[]);
    check(&[head(7, END_STREAM, &ok), head(9, END_STREAM, &[("a", "b"), (":path", "/")])], &[7, 9]);
    check(&[head(15, 0, &[(":status", "200"), (":path", "/")])], &[15]);
    // The stream has ended, on their side or ours: the same number then means another stream.
    check(&[head(11, 0, &ok), frame(kind::RST_STREAM, 0, 11, &[0; 4]), head(11, END_STREAM, &ok)], &[]);
    check(&[head(13, 0, &ok)], &[]);
    watch.observe_sent(&[PREFACE, &frame(kind::RST_STREAM, 0, 13, &[0; 4])].concat());
    assert_eq!(marks(&mut watch, &marked, &head(13, END_STREAM, &ok)), [0; 0]);
}

#[test]
fn waiting_interim_responses_are_counted_until_they_are_taken() {
    let marked = Rc::new(ServedStreams::default());
    let mut watch = FrameWatch::of_node(marked.clone());
    let mut block = Vec::new();
    FieldEncoder::default().field(&mut block, b":status", b"103", HpackRepresentation::Literal, false);
    let mut interims = |stream, count| {
        watch.observe_received(&frame(kind::HEADERS, END_HEADERS, stream, &block).repeat(count), 0);
        watch.is_flooded
    };
    marked.begin(1);
    marked.begin(3);
    interims(9, 10_000);
    assert_eq!(marked.waiting_interims(), 0, "a stream that is not served");
    assert!(!interims(1, 300));
    (0..300).for_each(|_| marked.interim_taken(1));
    marked.interim_taken(1);
    assert!(!interims(1, 200) && !interims(3, 200));
    marked.end(1);
    assert_eq!(marked.waiting_interims(), 200);
    assert!(!interims(3, 200));
    assert!(interims(3, 1));
}

#[test]
fn marks_are_bounded() {
    let mut block = Vec::new();
    FieldEncoder::default().field(&mut block, b":path", b"/#", HpackRepresentation::Literal, true);
    let head = |at: usize| frame(kind::HEADERS, END_HEADERS | END_STREAM, 2 * at as u32 + 1, &block);
    let marked = Rc::new(ServedStreams::default());
    let mut watch = FrameWatch::of_client(marked.clone());
    watch.observe_received(PREFACE, 0);
    for at in 0..3 * MARKED_MAX {
        watch.observe_received(&head(at), 1_000 + 10 * at as u64);
    }
    assert!(!watch.is_flooded, "a hundred within a second");
    assert_eq!(marked.streams.borrow().len(), MARKED_MAX);
    let newest = 2 * (3 * MARKED_MAX as u32) - 1;
    assert!(marked.take(newest) && !marked.take(newest) && !marked.take(1));
    let now_ms = 1_000_000;
    for at in 0..=RESETS_PER_SECOND_MAX as usize {
        assert!(!watch.is_flooded, "after {at}");
        watch.observe_received(&head(3 * MARKED_MAX + at), now_ms);
    }
    assert!(watch.is_flooded);
}

#[test]
fn marks_of_streams_that_are_not_served_are_forgotten() {
    let marked = ServedStreams::default();
    marked.begin(3);
    marked.begin(5);
    [1, 3, 5, 7].into_iter().for_each(|stream| marked.add(stream));
    marked.forget_unserved();
    assert_eq!(*marked.streams.borrow(), [3, 5]);
    marked.end(3);
    assert_eq!(*marked.streams.borrow(), [5]);
    marked.add(3);
    marked.forget_unserved();
    assert!(marked.take(5) && !marked.take(3));
    marked.end(5);
    assert!(marked.served.borrow().is_empty());
}

#[test]
fn of_too_many_responses_the_oldest_are_forgotten() {
    let head = |stream: usize, flags| {
        let mut block = Vec::new();
        FieldEncoder::default().field(&mut block, b":status", b"200", HpackRepresentation::Literal, false);
        frame(kind::HEADERS, flags | END_HEADERS, stream as u32, &block)
    };
    let marked = Rc::new(ServedStreams::default());
    let mut watch = FrameWatch::of_node(marked.clone());
    let newest = 2 * ANSWERED_MAX + 1;
    (1..newest).step_by(2).for_each(|stream| watch.observe_received(&head(stream, 0), 0));
    watch.observe_received(&frame(kind::DATA, END_STREAM, 1, b"a"), 0);
    [newest, newest + 2].into_iter().for_each(|stream| watch.observe_received(&head(stream, 0), 0));
    let mut is_known = |stream: usize| {
        // This is valid for a head, and not for trailers.
        watch.observe_received(&head(stream, END_STREAM), 0);
        marked.take(stream as u32)
    };
    assert!(!is_known(3));
    (5..=newest + 2).step_by(2).for_each(|stream| assert!(is_known(stream), "{stream}"));
}

/// The blocks of a real client are followed, whatever it adds to its table.
#[tokio::test]
async fn h2_is_followed() {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let (mut wire, behind) = tokio::io::duplex(1 << 16);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let copy = seen.clone();
    let relay = async move {
        let (mut up, mut down) = ([0; 4096], [0; 4096]);
        loop {
            tokio::select! {
                n = far.read(&mut up) => match n.unwrap() {
                    0 => return,
                    n => {
                        copy.lock().unwrap().extend_from_slice(&up[..n]);
                        wire.write_all(&up[..n]).await.unwrap();
                    }
                },
                n = wire.read(&mut down) => far.write_all(&down[..n.unwrap()]).await.unwrap(),
            }
        }
    };
    let serve = async move {
        let mut connection = h2::server::handshake(behind).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            respond.send_response(http::Response::new(()), true).unwrap();
        }
    };
    let mut expected = Vec::new();
    let ask = async {
        let (mut send, mut connection) = h2::client::handshake(near).await.unwrap();
        for at in 0..100_usize {
            let (name, value) = (format!("x-{}", at % 7), "v#".repeat(at * 37 % 900));
            let request = Request::get(format!("http://h{}/p{}", at % 3, at % 11)).header(&name, &value).body(());
            let (mut response, _) = send.send_request(request.unwrap(), true).unwrap();
            let pseudo = [(":method", "GET"), (":scheme", "http")].map(|(name, value)| (name, value.to_owned()));
            let more = [(":authority", format!("h{}", at % 3)), (":path", format!("/p{}", at % 11)), (&*name, value)];
            let fields: Vec<_> = pseudo.into_iter().chain(more).collect();
            let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, &**value)).collect();
            expected.push(expected_block(&pairs(&fields)));
            poll_fn(|cx| {
                assert!(Pin::new(&mut connection).poll(cx).is_pending());
                Pin::new(&mut response).poll(cx)
            })
            .await
            .unwrap();
        }
    };
    let all = async { tokio::join!(relay, serve, ask) };
    tokio::time::timeout(PATIENCE, all).await.unwrap();
    let bytes = Bytes::from(seen.lock().unwrap().split_off(PREFACE.len()));
    let (mut rest, mut walker, mut told) = (&bytes[..], stillgate_wire::FieldWalker::default(), Vec::new());
    while let [a, b, c, kind, flags, _, _, _, _, behind @ ..] = rest {
        let (payload, later) = behind.split_at(usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c));
        if matches!(*kind, kind::HEADERS | kind::CONTINUATION) {
            walker.walk(payload);
            told.extend((flags & END_HEADERS != 0).then(|| walker.end().unwrap()));
        }
        rest = later;
    }
    assert_eq!(told, expected);
}
