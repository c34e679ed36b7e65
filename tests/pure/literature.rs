//! The worked examples of the literature, through `tidegate test`: the real program, in virtual time.
//!
//! `literature/examples.yaml` has the examples and explains their format; this file knows none of them.

use std::process::Command;

#[test]
fn decides_every_example_as_published() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pure/literature/examples.yaml");
    let examples = std::fs::read_to_string(file).unwrap().matches("\n- name: ").count();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["test", file]).output().unwrap();
    let [out, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success() && out.ends_with(": all as expected\n"), "{out}{said}");
    assert!(examples > 20 && out.starts_with(&format!("{examples} tests, ")), "{out}");
}
