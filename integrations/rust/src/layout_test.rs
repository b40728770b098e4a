// SPDX-License-Identifier: Apache-2.0
//! Compares every struct of `ffi` with the C compiler's layout of the installed headers.
use crate::ffi;
use std::fmt::Write as _;
use std::process::Command;

/// The lines that a C program prints for these structs: their sizes, each field's offset and size.
fn c_program() -> String {
    let mut text = String::from(
        "#define GUMBEL_UNSTABLE\n#include <gumbel/drafts.h>\n#include <gumbel/programs.h>\n\
         #include <gumbel/recent.h>\n#include <gumbel/screen.h>\n#include <gumbel/watermark.h>\n\
         #include <stdio.h>\n\
         int main(void)\n{\n",
    );
    for (name, _, fields) in ffi::layouts() {
        writeln!(text, "printf(\"{name} %zu\\n\", sizeof(struct {name}));", name = name).unwrap();
        for (field, _, _) in fields {
            writeln!(
                text,
                "printf(\"{name}.{field} %zu %zu\\n\", offsetof(struct {name}, {field}), \
                 sizeof ((struct {name} *)0)->{field});",
                name = name,
                field = field
            )
            .unwrap();
        }
    }
    text + "return 0;\n}\n"
}

fn rust_lines() -> String {
    let mut text = String::new();
    for (name, size, fields) in ffi::layouts() {
        writeln!(text, "{} {}", name, size).unwrap();
        for (field, offset, size) in fields {
            writeln!(text, "{}.{} {} {}", name, field, offset, size).unwrap();
        }
    }
    text
}

#[test]
fn structs_are_those_of_the_c_header() {
    let folder = std::env::temp_dir().join(format!("gumbel-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, c_program()).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let built = Command::new(&compiler)
        .arg(concat!("-I", env!("GUMBEL_INCLUDE")))
        .arg("-o")
        .args([&program, &source])
        .output()
        .expect("a C compiler is needed to compare layouts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let printed = Command::new(&program).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), rust_lines());
    assert!(rust_lines().lines().count() > 150);
}
