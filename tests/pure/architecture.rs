//! Dependencies between rooms: fails on an edge, a word or a size in src/ that `ARCHITECTURE.md` rules out.

mod advisories;
mod guards;
mod source;
mod verdict;
mod words;

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

/// Every file of src/.
fn product() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    read_sources(&root, &root, &mut files);
    assert!(files.len() > 50, "the sources were found: {}", files.len());
    files
}

#[test]
fn every_file_names_only_allowed_rooms() {
    let faults: Vec<String> = product().iter().flat_map(|(path, text)| verdict::faults(path, text)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The table of ARCHITECTURE.md: each room and the rooms it may name.
fn rooms_described(page: &str) -> Vec<(String, Vec<String>)> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|line| line.split('|').map(words_in_code).collect::<Vec<_>>());
    rows.map(|cells| (cells[1][0].clone(), cells[2].clone())).collect()
}

fn words_in_code(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn architecture_page_matches_enforced_rooms() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let entries = fs::read_dir(root.join("src")).unwrap().map(Result::unwrap);
    let rooms = entries.filter(|entry| entry.path().is_dir());
    let mut rooms: Vec<_> = rooms.map(|room| room.file_name().into_string().unwrap()).collect();
    rooms.sort();
    let mut described = rooms_described(&page);
    described.sort();
    assert!(described.iter().map(|(room, _)| room).eq(&rooms), "{described:?} {rooms:?}");
    for (room, named) in described.iter().filter(|(room, _)| room != "cli") {
        for other in rooms.iter().filter(|other| *other != room) {
            assert_eq!(named.contains(other), verdict::may_name(room, other), "`{room}` names `{other}`");
        }
    }
}
