//! Resident memory of this process. It is read only when metrics are scraped.

use std::path::Path;

use super::pseudofile::Pseudofile;

/// Reads the resident memory of the whole process in bytes, including code and shared pages; `None` if it cannot be read.
/// `root` is `/` except in tests.
#[must_use]
pub fn read_resident_bytes(root: &Path) -> Option<u64> {
    let mut status = Pseudofile::new(root.join("proc/self/status"));
    let resident = status.parse_with(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
    });
    resident.ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::read_resident_bytes;

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
}
