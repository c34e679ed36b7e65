//! The identity of a machine, and the memory of a process.

use std::fs;
use std::path::Path;

use tidegate::host::{read_machine_marks, read_resident_bytes};

fn add_card(root: &Path, name: &str, address: &str, is_card: bool) {
    let directory = root.join("sys/class/net").join(name);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("address"), format!("{address}\n")).unwrap();
    if is_card {
        fs::create_dir(directory.join("device")).unwrap();
    }
}

#[test]
fn marks_exclude_virtual_interfaces() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    assert!(read_machine_marks(root).is_empty(), "nothing can be read");
    for (file, text) in [("etc/machine-id", "0123\n"), ("proc/sys/kernel/hostname", "web-1\n")] {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    add_card(root, "eth0", "02:00:00:00:00:01", true);
    let marks = read_machine_marks(root);
    let texts: Vec<_> = marks.iter().map(|mark| String::from_utf8_lossy(mark).into_owned()).collect();
    assert_eq!(texts, ["machine-id=0123", "hostname=web-1", "card=02:00:00:00:00:01"]);
    add_card(root, "veth12", "7a:00:00:00:00:09", false);
    assert_eq!(read_machine_marks(root), marks, "a container started");
    add_card(root, "eth1", "02:00:00:00:00:00", true);
    assert_ne!(read_machine_marks(root), marks);
}

#[test]
fn reads_vmrss_or_returns_none() {
    let cases = [
        ("Name:\ttidegate\nVmHWM:\t    9000 kB\nVmRSS:\t    8192 kB\nRssAnon:\t 1 kB\n", Some(8 << 20)),
        ("Name:\ttidegate\n", None),
        ("VmRSS:\t many kB\n", None),
        ("VmRSS:\t 18446744073709551615 kB\n", None),
        ("VmRSS:\t 12\n", None),
    ];
    for (text, bytes) in cases {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(root.path().join("proc/self/status"), text).unwrap();
        assert_eq!(read_resident_bytes(root.path()), bytes, "{text}");
    }
    assert!(read_resident_bytes(Path::new("/")).is_some_and(|bytes| bytes > 1 << 20), "of this test");
}
