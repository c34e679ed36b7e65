//! Checks the systemd unit files and their drop-ins. It reads files only and does not contact systemd.

use std::path::{Path, PathBuf};

use super::Finding;

/// Returns the findings on the unit files below this root.
pub(super) fn all(root: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !root.join("run/systemd/system").exists() {
        return vec![Finding::well(
            WHAT,
            "this host does not run systemd: whoever starts the daemon keeps it running",
        )];
    }
    let places = PLACES.map(|place| root.join(place));
    for name in UNITS {
        if !places.iter().any(|place| place.join(name).exists()) {
            let mend = format!(
                "copy systemd/{name} to /etc/systemd/system, then systemctl daemon-reload: docs/operate.md"
            );
            findings.push(Finding::warning(WHAT, format!("{name} is not installed"), mend));
        }
        for file in places.iter().flat_map(|place| drop_ins(&place.join(format!("{name}.d")))) {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let harmful = text.lines().map(str::trim).find_map(harm);
            findings.push(match harmful {
                Some((line, harm)) => {
                    let message = format!("{} says {line}: {harm}", file.display());
                    Finding::wrong(
                        WHAT,
                        message,
                        "take the line out, then systemctl daemon-reload and restart",
                    )
                }
                None => Finding::well(WHAT, format!("{} changes {name}", file.display())),
            });
        }
    }
    if findings.is_empty() {
        findings.push(Finding::well(WHAT, "tidegate.socket and tidegate.service are as packaged"));
    }
    findings
}

fn drop_ins(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
    files.sort();
    files
}

/// Returns the line and its harm if it removes something that the daemon needs.
fn harm(line: &str) -> Option<(&str, &'static str)> {
    let found = HARMFUL.iter().find(|(begin, _)| line.starts_with(begin))?;
    let (option, value) = line.split_once('=')?;
    let is_harmless = matches!(value.trim(), "" | "no" | "false" | "0" | "off" | "default" | "all")
        || option == "RestrictAddressFamilies" && value.contains("AF_NETLINK");
    (!is_harmless).then_some((line, found.1))
}

const WHAT: &str = "unit";

const UNITS: [&str; 2] = ["tidegate.service", "tidegate.socket"];

/// Directories that systemd reads, in order of precedence.
const PLACES: [&str; 4] =
    ["etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];

const HARMFUL: [(&str, &str); 5] = [
    ("PrivateUsers=", "every peer is user 65534, so all count as one"),
    ("ProtectProc=", "the processes behind sessions cannot be seen"),
    ("ProcSubset=", "pressure and CPU time cannot be read"),
    ("PrivateNetwork=", "accept queues of this host cannot be seen, nor metrics be served"),
    ("RestrictAddressFamilies=", "without AF_NETLINK accept queues cannot be read"),
];

#[cfg(test)]
mod tests {
    use super::super::FindingSeverity;
    use super::{all, harm};

    #[test]
    fn lines_that_take_what_is_needed_are_told() {
        let table = [
            ("PrivateUsers=yes", true),
            ("PrivateUsers=no", false),
            ("ProtectProc=invisible", true),
            ("ProtectProc=default", false),
            ("ProcSubset=pid", true),
            ("RestrictAddressFamilies=AF_UNIX AF_INET", true),
            ("RestrictAddressFamilies=AF_UNIX AF_NETLINK", false),
            ("RestrictAddressFamilies=", false),
            ("MemoryMax=1G", false),
        ];
        for (line, harmful) in table {
            assert_eq!(harm(line).is_some(), harmful, "{line}");
        }
    }

    #[test]
    fn units_that_miss_and_drop_ins_are_told() {
        let root = tempfile::tempdir().unwrap();
        let severities = || all(root.path()).iter().map(|finding| finding.severity).collect::<Vec<_>>();
        assert_eq!(severities(), [FindingSeverity::Well], "no systemd, nothing to say");
        let of = |path: &str| root.path().join(path);
        std::fs::create_dir_all(of("run/systemd/system")).unwrap();
        assert_eq!(severities(), [FindingSeverity::Warning, FindingSeverity::Warning]);
        std::fs::create_dir_all(of("etc/systemd/system/tidegate.service.d")).unwrap();
        for name in ["tidegate.service", "tidegate.socket"] {
            std::fs::write(of("etc/systemd/system").join(name), "").unwrap();
        }
        assert_eq!(severities(), [FindingSeverity::Well]);
        let drop_in = of("etc/systemd/system/tidegate.service.d/a.conf");
        std::fs::write(&drop_in, "[Service]\nMemoryMax=1G\n").unwrap();
        assert_eq!(severities(), [FindingSeverity::Well]);
        std::fs::write(&drop_in, "[Service]\nPrivateUsers=yes\n").unwrap();
        assert_eq!(severities(), [FindingSeverity::Wrong]);
    }
}
