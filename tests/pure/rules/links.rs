//! The files that are read: links lead only to files beneath the directory, and only regular files are opened.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tidegate::rules::source::Source;

/// The text of a file, or the error.
fn read(path: &Path) -> Result<String, String> {
    Source::read(path).map(|source| source.text().to_owned()).map_err(|unreadable| unreadable.problem.message)
}

#[test]
fn follows_only_links_inside_the_directory() {
    let ground = tempfile::tempdir().unwrap();
    let root = ground.path().join("rules");
    fs::create_dir_all(root.join("..2024_1/sub")).unwrap();
    fs::write(ground.path().join("secret"), "secret").unwrap();
    fs::write(root.join("plain"), "plain").unwrap();
    fs::write(root.join("..2024_1/a"), "mounted").unwrap();
    let link = |target: &str, name: &str| symlink(target, root.join(name)).unwrap();
    link("..2024_1", "..data");
    link("..data/a", "a");
    link("..data/sub/../../plain", "around");
    link("./plain", "here");
    link("../secret", "out");
    link("..data/../../secret", "out-by-two");
    link("../rules/plain", "out-and-in");
    link("plain/../../secret", "through-a-file");
    link("nothing", "nowhere");
    link("loop", "loop");
    link("/proc/self/status", "process");
    symlink(root.join("plain"), root.join("absolute")).unwrap();
    let outside = "a link leads out of the directory of the file";
    for (name, expected) in [
        ("plain", Ok("plain")),
        ("a", Ok("mounted")),
        ("around", Ok("plain")),
        ("here", Ok("plain")),
        ("out", Err(outside)),
        ("out-by-two", Err(outside)),
        ("out-and-in", Err(outside)),
        ("absolute", Err(outside)),
        ("process", Err(outside)),
        ("through-a-file", Err("cannot read the file: Not a directory")),
        ("nowhere", Err("cannot read the file: No such file or directory")),
        ("missing", Err("cannot read the file: No such file or directory")),
        ("loop", Err("cannot read the file: Too many levels of symbolic links")),
    ] {
        let found = read(&root.join(name));
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{name}");
    }
}

#[test]
fn reads_only_regular_files_and_never_blocks() {
    let ground = tempfile::tempdir().unwrap();
    let path = |name: &str| ground.path().join(name);
    let mode = Mode::from_raw_mode(0o600);
    mknodat(CWD, path("pipe"), FileType::Fifo, mode, 0).unwrap();
    let _socket = UnixListener::bind(path("socket")).unwrap();
    fs::create_dir(path("directory")).unwrap();
    symlink("pipe", path("link")).unwrap();
    symlink(".", path("dot")).unwrap();
    let mut names = vec!["pipe", "socket", "directory", "link", "dot", "directory/.."];
    // Requires root.
    let null = rustix::fs::makedev(1, 3);
    if mknodat(CWD, path("device"), FileType::CharacterDevice, mode, null).is_ok() {
        names.push("device");
    }
    for name in names {
        assert_eq!(read(&path(name)), Err("not a regular file".to_owned()), "{name}");
    }
}
