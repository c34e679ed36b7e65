//! Who may name whom. Reads every file of src/ and fails on an edge, a word or a size that `ARCHITECTURE.md` rules out.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

#[path = "architecture/source.rs"]
mod source;
#[path = "architecture/verdict.rs"]
mod verdict;

use std::fs;
use std::path::Path;

/// Every Rust file below `directory`, by its path below `root`, with its text.
fn read_sources(root: &Path, directory: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_sources(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            files.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn every_file_keeps_to_its_room() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    read_sources(&root, &root, &mut files);
    assert!(files.len() > 50, "the sources were found: {}", files.len());
    let faults: Vec<String> = files.iter().flat_map(|(path, text)| verdict::faults(path, text)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
