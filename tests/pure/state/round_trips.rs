//! A file that is written as a whole or not at all.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};

use tidegate::state::{AtomicFile, write_whole};

#[test]
fn replaces_file_readable_by_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    write_whole(&path, b"one").unwrap();
    write_whole(&path, b"two, which is longer").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two, which is longer");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn dropped_write_keeps_old_file_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    write_whole(&path, b"old").unwrap();
    let mut whole = AtomicFile::begin(&path).unwrap();
    whole.write_all(&[7; 200_000]).unwrap();
    drop(whole);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn removes_new_file_when_rename_fails() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    fs::create_dir(&path).unwrap();
    assert!(write_whole(&path, b"new").is_err());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    assert!(write_whole(&directory.path().join("missing").join("tables"), b"new").is_err());
}

#[test]
fn never_writes_through_planted_link() {
    let directory = tempfile::tempdir().unwrap();
    let (path, victim) = (directory.path().join("tables"), directory.path().join("victim"));
    fs::write(&victim, b"untouched").unwrap();
    symlink(&victim, directory.path().join("tables.new")).unwrap();
    write_whole(&path, b"new").unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"untouched");
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
}
