// SPDX-License-Identifier: Apache-2.0
//
// Finds an installed libgumbel by the command pkg-config. PKG_CONFIG names another command, and
// PKG_CONFIG_PATH more folders. Tests and examples of this package record the library's folder.
use std::env;
use std::process::Command;

/// The library must have the crate's minor version, whose structs and calls src/ffi.rs declares.
fn versions() -> (String, String) {
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

fn find() -> Result<(), String> {
    let (least, below) = versions();
    let flags = pkg_config(&["--print-errors", "--cflags", "--libs", &least, &below])?;
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
    if let Err(reason) = find() {
        panic!(
            "libgumbel was not found: {}\nInstall it, or set PKG_CONFIG_PATH to the folder of its \
             gumbel.pc",
            reason
        );
    }
}
