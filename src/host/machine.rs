//! Identity of this machine, also distinct from a machine whose disk was copied to it; and the resident memory of this
//! process.

use std::fs;
use std::io::Read;
use std::path::Path;

use super::control_group::Pseudofile;

/// Returns the identity marks of this machine as `name=value`: its machine-id, its host name, the addresses of its
/// network cards. Unreadable marks are left out, as are virtual interfaces, which come and go. `root` is `/` except in
/// tests.
pub fn read_machine_marks(root: &Path) -> Vec<Vec<u8>> {
    let mut marks = Vec::new();
    let mut add_mark = |name: &str, value: &[u8]| marks.push([name.as_bytes(), b"=", value].concat());
    if let Some(id) = read_line(&root.join("etc/machine-id")) {
        add_mark("machine-id", &id);
    }
    if let Some(name) = read_line(&root.join("proc/sys/kernel/hostname")) {
        add_mark("hostname", &name);
    }
    let mut cards: Vec<Vec<u8>> = fs::read_dir(root.join("sys/class/net"))
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().join("device").exists())
        .filter_map(|entry| read_line(&entry.path().join("address")))
        .collect();
    cards.sort_unstable();
    for card in cards.iter().take(CARDS_MAX) {
        add_mark("card", card);
    }
    marks
}

/// Reads a file of one line; `None` if it is empty or cannot be read.
fn read_line(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let line = bytes.trim_ascii().to_vec();
    (!line.is_empty()).then_some(line)
}

const BYTES_MAX: u64 = 256;

const CARDS_MAX: usize = 64;

/// Reads the resident memory of the whole process in bytes, including code and shared pages; `None` if it cannot be read.
/// `root` is `/` except in tests.
pub fn read_resident_bytes(root: &Path) -> Option<u64> {
    let mut status = Pseudofile::new(root.join("proc/self/status"));
    let resident = status.parse_with(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
    });
    resident.ok()
}
