//! Missing features: an error that names them, and never `nil` by accident.

use crate::api::check;
use crate::fake::{Fake, program, run_with};
use stillgate_lua::Context;

/// The first tries of an attacker: names that are silently `nil`, ignored or different from OpenResty and APISIX.
#[test]
fn nothing_is_nil_by_accident() {
    check(&[
        (
            "core.request.header(ctx, 'x_two'), core.request.header(ctx, 'X_A'), tostring(core.request.header(ctx, 'x_b'))",
            "[\"a\",\"1\",\"nil\"]",
        ),
        (
            "('x'):rep(3, ','), ('x'):rep(0, ','), ('x'):rep(-1), ('x'):rep(1, ','), #('ab'):rep(1000, 'c')",
            "[\"x,x,x\",\"\",\"\",\"x\",2999]",
        ),
        (
            "core.table.merge({ a = { 1, 2 } }, { a = { 3 } }), core.table.merge({ a = {} }, { a = { b = 1 } })",
            "[{\"a\":[3]},{\"a\":{\"b\":1}}]",
        ),
        (
            "core.table.merge({ a = { b = 1, c = 2 } }, { a = { b = ngx.null } }), core.table.merge({ a = 1 }, { a = { 2 } })",
            "[{\"a\":{\"c\":2}},{\"a\":[2]}]",
        ),
        (
            "core.table.try_read_attr({ a = { b = false } }, 'a', 'b'), tostring(core.table.try_read_attr({ a = 1 }, 'a', 'b', 'c')), tostring(core.table.try_read_attr(nil, 'a'))",
            "[false,\"nil\",\"nil\"]",
        ),
        (
            "(function() local t = setmetatable({ a = { 1 } }, { __index = { x = 5 } }) local c = core.table.deepcopy(t) c.a[1] = 2 return t.a[1], c.x end)()",
            "[1,5]",
        ),
        (
            "(function() local t = {} t.self = t local c = core.table.deepcopy(t) return c.self == c, c ~= t end)()",
            "[true,true]",
        ),
        ("(function() local t = { 1 } return core.table.insert_tail(t, nil, 3), t[3] end)()", "[3,3]"),
        (
            "core.utils.resolve_var('$uri-${host}-$nothing-${nothing ?? none}-\\\\$uri', ctx.var)",
            "[\"\\/hello-h.example--none-\\\\$uri\",null,3]",
        ),
        ("require('cjson').encode({ require('cjson').empty_array, require('cjson').null, {} })", "[\"[[],null,{}]\"]"),
        (
            "require('cjson').null == ngx.null, require('cjson').empty_array_mt == core.json.array_mt, require('cjson').decode('null') == ngx.null",
            "[true,true,true]",
        ),
        (
            "(function() local c = require('cjson').new() c.encode_sparse_array(true) local sparse = c.encode({ [1000] = 1 }) c.encode_empty_table_as_object(false) return sparse, c.encode({ {} }), pcall(require('cjson').encode, { [1000] = 1 }) end)()",
            "[\"{\\\"1000\\\":1}\",\"[[]]\",false,\"test:1: Cannot serialise table: excessively sparse array\"]",
        ),
        (
            "require('cjson').decode_array_with_array_mt(true), getmetatable(require('cjson').decode('[]')) == require('cjson').array_mt",
            "[true,true]",
        ),
        (
            "(function() local d = ngx.shared.with_flags d:set('a', 'x', 0, 7) d:add('b', 1, 0, 2 ^ 32 - 1) d:set('c', true) local value, flags = d:get('a') return value, flags, (select(2, d:get('b'))), select('#', d:get('c')), (select(2, d:get_stale('a'))) end)()",
            "[\"x\",7,4294967295,1,7]",
        ),
        (
            "ctx.consumer.username, ctx.consumer.labels.team, tostring(ctx.consumer.group_id)",
            "[\"jack\",\"blue\",\"nil\"]",
        ),
    ]);
}

#[test]
fn an_error_names_what_is_not_there() {
    for (phase, body, expected) in [
        ("access", "ngx.status = 'teapot'", "ngx.status has to be a number, found string"),
        ("access", "local last = ngx.arg[2]", "ngx.arg exists in the phase body_filter only"),
        ("access", "ngx.arg[2] = false", "ngx.arg exists in the phase body_filter only"),
        ("log", "local piece = ngx.arg[1]", "ngx.arg exists in the phase body_filter only"),
        ("body_filter", "local value = ngx.arg[3]", "ngx.arg[3] is not there"),
        ("body_filter", "ngx.arg[0] = 'x'", "ngx.arg[0] cannot be set"),
        ("access", "local value = ctx.consumer.modifiedIndex", "ctx.consumer.modifiedIndex is not supported"),
        ("access", "local value = ngx.config.prefix()", "ngx.config.prefix is not supported"),
        ("access", "local value = require('resty.core.base').new_tab", "resty.core.base.new_tab is not supported"),
        ("access", "require('resty.lrucache').new(2):flush_all()", "resty.lrucache.flush_all is not supported"),
        ("access", "ngx.shared.x:get_keys()", "ngx.shared.DICT.get_keys is not supported"),
        ("access", "ngx.shared.x:set('a', 1, 0, 'flags')", "flags are a whole number of 32 bits"),
        (
            "access",
            "require('cjson').decode_array_with_array_mt(false)",
            "decode_array_with_array_mt(false) is not supported",
        ),
        ("access", "require('cjson').encode_sparse_array('yes')", "bad argument to 'encode_sparse_array'"),
        ("access", "local value = require('cjson').nothing", "cjson.nothing is not supported"),
        ("access", "local value = core.utils.split_uri('/a')", "core.utils.split_uri is not supported"),
        ("access", "local value = core.table.patch({}, 'a', 1)", "core.table.patch is not supported"),
        ("access", "core.request.header(ctx, nil)", "a header name has to be a text, found nil"),
        ("access", "ngx.re.find('a=1', [[(?<!x)a=1]])", "are not supported"),
        ("access", "ngx.re.match('aa', [[(a)\\1]])", "are not supported"),
        ("access", "ngx.re.gsub('aa', '(?>a)', 'b')", "are not supported"),
        ("access", "ngx.re.sub('aa', 'a(?=a)', 'b')", "are not supported"),
        ("access", "ngx.re.gmatch('aa', 'a(?!b)')", "are not supported"),
        ("log", "ngx.send_headers()", "API disabled in the context of log: ngx.send_headers"),
        ("body_filter", "ngx.eof()", "API disabled in the context of body_filter: ngx.eof"),
        ("log", "ngx.timer.every(1, print)", "ngx.timer.every is not supported"),
    ] {
        let mut fake = Fake { phase, ..Fake::default() };
        fake.piece = (phase == "body_filter").then(|| (b"piece".to_vec(), false));
        let source = format!("return function(conf, ctx) local core = require('apisix.core') {body} end");
        let told = run_with(&program(&[&source]), &mut fake, &mut Context::default());
        assert!(told.starts_with("error: test:1: ") && told.contains(expected), "{body}: {told}");
    }
}
