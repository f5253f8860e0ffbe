//! nginx whose worker counts requests in Lua and shows its series itself: sorted, matched and formatted while requests wait.
//!
//! This is the problem that moved exporters out of workers, measured for comparison with gateways that do not have it.
//! The Lua is our own, in `exposition.lua`; nginx needs its Lua module.

use super::nginx;
use super::program::build_arguments;
use super::start::{Launch, LaunchInputs};
use crate::error::Result;
use std::path::{Path, PathBuf};

const EXPOSITION: &str = include_str!("exposition.lua");

/// Memory of the dictionary: per series with room to spare, and the fixed part.
const SERIES_BYTES: u64 = 256;
const DICTIONARY_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// Debian's folder of modules.
const MODULES: &str = "/usr/lib/nginx/modules";
/// The second needs the first.
const MODULE_FILES: [&str; 2] = ["ndk_http_module.so", "ngx_http_lua_module.so"];

pub(super) fn launch(place: &LaunchInputs<'_>, program: &Path) -> Result<Launch> {
    let modules = load_modules(&build_arguments(program)?, Path::is_file)?;
    let mut launch = nginx::from_configuration(place, configuration(place, &modules));
    launch.files.push((place.file("exposition.lua"), EXPOSITION.to_owned()));
    Ok(launch)
}

fn configuration(place: &LaunchInputs<'_>, modules: &str) -> String {
    let mib = (DICTIONARY_BYTES_MIN + place.series.unwrap_or(0).saturating_mul(SERIES_BYTES)) >> 20;
    let http = format!(
        "  lua_package_path \"{dir}/?.lua;;\";
  lua_shared_dict series {mib}m;
  init_by_lua_block {{ exposition = require \"exposition\" }}
  server {{ listen {metrics}; location = /metrics {{ content_by_lua_block {{ exposition.show() }} }} }}
",
        dir = place.directory.display(),
        metrics = place.metrics
    );
    let server = nginx::server(place, "    log_by_lua_block { exposition.count() }\n");
    nginx::configuration(place, modules, &server, &http)
}

/// The lines that load the Lua module, unless it is built in; `is_there` checks for a file.
fn load_modules(build: &str, is_there: impl Fn(&Path) -> bool) -> Result<String> {
    let arguments = || build.split_whitespace();
    if arguments().any(|argument| argument.starts_with("--add-module=") && argument.contains("ngx_lua")) {
        return Ok(String::new());
    }
    let folder = arguments().find_map(|argument| argument.strip_prefix("--modules-path=")).unwrap_or(MODULES);
    let files: Vec<PathBuf> = MODULE_FILES.iter().map(|file| Path::new(folder).join(file)).collect();
    match files.iter().find(|file| !is_there(file)) {
        None => Ok(files.iter().map(|file| format!("load_module {};\n", file.display())).collect()),
        Some(lacking) => Err(format!(
            "nginx-lua: this nginx has no Lua, and {} does not exist; install the package libnginx-mod-http-lua, or give the \
             nginx of an OpenResty: nginx-lua=PATH",
            lacking.display()
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_shows_in_the_worker() {
        let place = LaunchInputs::example(Some(1_000_000));
        let (ours, plain) = (configuration(&place, ""), nginx::launch(&place).files.remove(0).1);
        let added: Vec<&str> = ours.lines().filter(|line| !plain.contains(line)).map(str::trim).collect();
        assert_eq!(
            added,
            [
                "log_by_lua_block { exposition.count() }",
                "lua_package_path \"/dir/?.lua;;\";",
                "lua_shared_dict series 260m;",
                "init_by_lua_block { exposition = require \"exposition\" }",
                "server { listen 127.0.0.1:9090; location = /metrics { content_by_lua_block { exposition.show() } } }",
            ]
        );
        let lacking: Vec<&str> = plain.lines().filter(|line| !ours.contains(line)).map(str::trim).collect();
        assert_eq!(lacking, ["server { listen 127.0.0.1:9090; location = /metrics { stub_status; } }"]);
    }

    #[test]
    fn the_module_is_found_or_asked_for() {
        #[track_caller]
        fn check(build: &str, is_there: bool, expected: Result<&str, &str>) {
            let lines = load_modules(build, |_| is_there).map_err(|error| error.to_string());
            assert_eq!(lines.as_deref().map_err(String::as_str), expected);
        }
        let lines = "load_module /m/ndk_http_module.so;\nload_module /m/ngx_http_lua_module.so;\n";
        check("configure arguments: --with-x --modules-path=/m --with-y", true, Ok(lines));
        check("configure arguments: --add-module=../ngx_lua-0.10.26 --with-y", false, Ok(""));
        check(
            "configure arguments:",
            false,
            Err(
                "nginx-lua: this nginx has no Lua, and /usr/lib/nginx/modules/ndk_http_module.so does not exist; install the \
                 package libnginx-mod-http-lua, or give the nginx of an OpenResty: nginx-lua=PATH",
            ),
        );
    }
}
