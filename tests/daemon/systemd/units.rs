//! The packaged units: valid to systemd, and with little exposure if the service is compromised.

use super::tools::{output_text, program, project, run};
use crate::prelude::*;

/// Writes the units to a directory, with the binary of this build.
fn units(directory: &Path) -> [String; 2] {
    ["tidegate.service", "tidegate.socket"].map(|name| {
        let unit = fs::read_to_string(project("systemd").join(name)).unwrap();
        let path = directory.join(name);
        fs::write(&path, unit.replace("/usr/bin/tidegate", BINARY)).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

#[test]
fn units_pass_systemd_verification() {
    let Some(analyze) = program("systemd-analyze") else { return };
    let directory = tempfile::tempdir().unwrap();
    let [service, socket] = units(directory.path());
    let output = run(&analyze, &["verify", &service, &socket]);
    // systemd may warn of other units of this machine.
    let reported_lines = output_text(&output).lines().filter(|line| line.contains("tidegate")).count();
    assert!(output.status.success() && reported_lines == 0, "{}", output_text(&output));
    // A broken unit must be reported.
    fs::write(&service, fs::read_to_string(&service).unwrap().replace("Type=notify", "Type=notified"))
        .unwrap();
    assert!(output_text(&run(&analyze, &["verify", &service, &socket])).contains("notified"));
}

#[test]
fn units_pass_security_threshold() {
    let Some(analyze) = program("systemd-analyze") else { return };
    let directory = tempfile::tempdir().unwrap();
    let [service, _] = units(directory.path());
    // The threshold is in tenths.
    let output = run(&analyze, &["security", "--offline=true", "--threshold=15", "--no-pager", &service]);
    assert!(output.status.success(), "{}", output_text(&output));
    // The drop-in of docs/operate.md for a Redis on another host.
    let remote =
        fs::read_to_string(&service).unwrap().replace("[Install]", "IPAddressAllow=192.0.2.7\n\n[Install]");
    fs::write(&service, remote).unwrap();
    let output = run(&analyze, &["security", "--offline=true", "--threshold=16", "--no-pager", &service]);
    assert!(output.status.success(), "{}", output_text(&output));
}

#[test]
fn sysusers_and_tmpfiles_create_user_and_directory() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    let at = format!("--root={}", root.path().display());
    if let Some(sysusers) = program("systemd-sysusers") {
        let made = run(&sysusers, &[&at, project("systemd/sysusers.d/tidegate.conf").to_str().unwrap()]);
        assert!(made.status.success(), "{}", output_text(&made));
        let users = fs::read_to_string(root.path().join("etc/passwd")).unwrap();
        assert!(users.starts_with("tidegate:") && users.contains(":/usr/sbin/nologin"), "{users}");
        assert!(fs::read_to_string(root.path().join("etc/group")).unwrap().starts_with("tidegate:"));
    }
    let Some(tmpfiles) = program("systemd-tmpfiles").filter(|_| root.path().join("etc/passwd").exists())
    else {
        return;
    };
    needs!(is_root());
    // Process only this file, below this root, without effects on the machine.
    let configuration = project("systemd/tmpfiles.d/tidegate.conf");
    let made = run(&tmpfiles, &["--create", &at, configuration.to_str().unwrap()]);
    assert!(made.status.success(), "{}", output_text(&made));
    let directory = fs::metadata(root.path().join("run/tidegate")).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(directory.mode() & 0o777, 0o755);
    assert_ne!(directory.uid(), 0, "the operators' socket is made there by the daemon");
}
