//! `stillgate-packaging GATEWAY LAB OUT`: all packages of two built programs. `cargo xtask package` builds them first.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use stillgate_packaging::{Programs, Release, Result, archive, container, deb, wheel};

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [gateway, lab, out] = arguments.as_slice() else {
        eprintln!("usage: stillgate-packaging GATEWAY LAB OUT");
        return ExitCode::from(2);
    };
    match make(Programs { gateway: gateway.clone(), lab: lab.clone() }, out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stillgate-packaging: {error}");
            ExitCode::FAILURE
        }
    }
}

fn make(programs: Programs, out: &Path) -> Result {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let release = Release::of(repository, programs)?;
    for make in [deb::gateway, deb::lab, archive::archive, wheel::wheel] {
        let path = make(&release, out)?;
        println!("{:>6.1} MB  {}", std::fs::metadata(&path)?.len() as f64 / 1e6, path.display());
    }
    println!("           {}", container::container(&release, out)?.display());
    Ok(())
}
