// SPDX-License-Identifier: Apache-2.0
//
// Finds an installed libgumbel with pkg-config. The environment variable PKG_CONFIG names another
// command; PKG_CONFIG_PATH lists more folders. Tests and examples of this package record the
// folder of the library as their rpath.
use std::env;
use std::process::Command;

/// The library must have the crate's minor version: src/ffi.rs declares its structs and calls.
fn version_range() -> (String, String) {
    let number = |name| env::var(name).unwrap().parse::<u32>().unwrap();
    let (major, minor) = (number("CARGO_PKG_VERSION_MAJOR"), number("CARGO_PKG_VERSION_MINOR"));
    (format!("gumbel >= {}.{}", major, minor), format!("gumbel < {}.{}", major, minor + 1))
}

fn pkg_config(arguments: &[&str]) -> Result<String, String> {
    let command = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
    let done = Command::new(&command)
        .args(arguments)
        .output()
        .map_err(|error| format!("{} cannot be run: {}", command, error))?;
    if done.status.success() {
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&done.stderr).trim().to_owned())
    }
}

fn link_library() -> Result<(), String> {
    let (minimum, below) = version_range();
    let flags = pkg_config(&["--print-errors", "--cflags", "--libs", &minimum, &below])?;
    for flag in flags.split_whitespace() {
        if let Some(folder) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={}", folder);
            println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder);
        } else if let Some(library) = flag.strip_prefix("-l") {
            println!("cargo:rustc-link-lib={}", library);
        }
    }
    // The include path for the test of layouts.
    let include = pkg_config(&["--variable=includedir", "gumbel"])?;
    println!("cargo:rustc-env=GUMBEL_INCLUDE={}", include.trim());
    println!("cargo:include={}", include.trim());
    Ok(())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for name in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo:rerun-if-env-changed={}", name);
    }
    if let Err(reason) = link_library() {
        panic!(
            "libgumbel was not found: {}\nInstall it, or set PKG_CONFIG_PATH to the folder of its \
             gumbel.pc",
            reason
        );
    }
}
