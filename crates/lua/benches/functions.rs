//! Cost of a function for its request, in nanoseconds: an empty one, and one that reads a header and a variable and
//! sets two headers. The host is as thin as possible, so that the bridge is measured.
//!
//! `cargo bench -p stillgate-lua`; the median of a hundred runs of ten thousand calls.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;
use stillgate_lua::{CallKind, Context, HeaderChange, Host, MessageSide, NginxLevel, Program, RunOutcome, run};

const EMPTY: &str = "return function() end";
const USUAL: &str = "return function(conf, ctx)
    local core = require('apisix.core')
    local agent = core.request.header(ctx, 'User-Agent')
    core.request.set_header(ctx, 'X-Agent', agent)
    core.response.set_header('X-Client', ctx.var.remote_addr)
end";
/// The function above in nginx style.
const NGX: &str = "return function()
    ngx.req.set_header('X-Agent', ngx.var.http_user_agent)
    ngx.header['X-Client'] = ngx.var.remote_addr
end";

#[derive(Default)]
struct Thin {
    changed: usize,
}

impl Host for Thin {
    fn phase(&self) -> &'static str {
        "access"
    }

    fn variable(&self, name: &str, out: &mut Vec<u8>) -> Result<bool, String> {
        out.extend_from_slice(if name == "remote_addr" { b"192.0.2.7" } else { b"curl/8.4.0" });
        Ok(true)
    }

    fn set_variable(&mut self, _: &str, _: &[u8]) -> Result<bool, String> {
        Ok(false)
    }

    fn field(&self, _: MessageSide, _: &[u8], visit: &mut dyn FnMut(&[u8])) {
        visit(b"curl/8.4.0");
    }

    fn each_field(&self, _: MessageSide, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn change_field(&mut self, _: MessageSide, name: &[u8], change: HeaderChange<'_>) -> Result<(), String> {
        black_box((name, change));
        self.changed += 1;
        Ok(())
    }

    fn target(&self) -> &[u8] {
        b"/"
    }

    fn is_logged(&self, _: NginxLevel) -> bool {
        true
    }

    fn log(&self, _: NginxLevel, text: &str) {
        println!("{text}");
    }

    fn now_ms(&self) -> u64 {
        0
    }
}

const ROUNDS: usize = 100;
const CALLS: u32 = 10_000;

fn measure(name: &str, source: &str) {
    let program = Program::new(name.to_owned(), vec![source.to_owned()], serde_json::Value::Null, CallKind::Plugin);
    let mut times: Vec<f64> = (0..ROUNDS).map(|_| round(&program)).collect();
    times.sort_unstable_by(f64::total_cmp);
    println!("{name}: {:.0} ns (from {:.0} to {:.0})", times[ROUNDS / 2], times[0], times[ROUNDS - 1]);
}

fn round(program: &Arc<Program>) -> f64 {
    let mut host = Thin::default();
    let began = Instant::now();
    for _ in 0..CALLS {
        let outcome = run(program, &mut host, &mut Context::default());
        assert!(matches!(outcome, RunOutcome::Done(_)), "{outcome:?}");
    }
    began.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

fn main() {
    measure("an empty function", EMPTY);
    measure("a header, a variable, two headers", USUAL);
    measure("the same by ngx", NGX);
}
