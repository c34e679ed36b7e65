//! `tidegate check`: its input, the length of its output, its exit code, and fleet rules: their bounds by the number of
//! hosts, and missing settings. `views/` has its output for rules.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tidegate::cli::OutputFormat;
use tidegate::cli::check::{Args, Color, run};

use crate::problems::{folder, has};

fn check(path: &Path) -> (String, bool) {
    check_with(Args { path: Some(path.to_owned()), ..Args::default() })
}

fn check_with(args: Args) -> (String, bool) {
    let args = Args { color: Color::Never, ..args };
    let path = args.path.clone().unwrap();
    let mut out = Vec::new();
    let code = run(&args, &mut out).unwrap();
    // Only its debug form tells one code from another.
    let fine = format!("{code:?}") == format!("{:?}", std::process::ExitCode::SUCCESS);
    let text = String::from_utf8(out).unwrap();
    (text.replace(&*path.parent().unwrap().to_string_lossy(), "."), fine)
}

fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = folder(&[(name, text)]);
    let path = directory.path().join(name);
    (directory, path)
}

#[test]
fn checks_rules_named_by_settings_file() {
    let (directory, path) = file(
        "tidegate.yaml",
        "rules: rules\nredis: {url: \"redis://10.0.0.1\", fleet_secret_files: [key]}\n",
    );
    fs::write(directory.path().join("key"), [7; 32]).unwrap();
    fs::set_permissions(directory.path().join("key"), Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(directory.path().join("rules")).unwrap();
    let rules = "domain: api\nlimits:\n- {name: odd, key: [ip], rate: 1009/s}\n";
    fs::write(directory.path().join("rules/api.yaml"), rules).unwrap();
    let (text, fine) = check(&path);
    assert!(fine);
    assert!(text.contains("redis://10.0.0.1:6379 is plain text beyond this host"), "{text}");
    assert!(text.ends_with("./tidegate.yaml, ./rules: 1 domain, 1 rule; 0 errors, 2 warnings\n"), "{text}");
}

#[test]
fn warns_of_files_without_a_usable_content() {
    let (directory, path) = file(
        "tidegate.yaml",
        "rules: rules\nredis: {url: \"rediss://localhost\", fleet_secret_files: [key], password_file: pipe, \
         ca_file: endless}\nadapters:\n  http: {listen: \"127.0.0.1:9632\", token_file: pipe, domains: [api]}\n  \
         resp: {listen: \"127.0.0.1:9633\", token_file: endless, domains: [api]}\n  \
         envoy: {listen: \"127.0.0.1:9634\", token_file: nowhere, domains: [api]}\n",
    );
    mknodat(CWD, directory.path().join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    std::os::unix::fs::symlink("/dev/zero", directory.path().join("endless")).unwrap();
    let (text, _) = check(&path);
    for line in [
        "warning: it is empty\n--> ./pipe",
        "warning: it is longer than 4194304 bytes\n--> ./endless",
        "warning: a token has at least 16 bytes\n--> ./pipe",
        "warning: a file of a token has at most 4096 bytes\n--> ./endless",
        "warning: No such file or directory (os error 2)\n--> ./nowhere",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn prints_first_200_rules_unless_all_requested() {
    let rules: String = (0..1_000)
        .map(|n| format!("- {{name: r{n}, match: {{a: \"{n}\"}}, key: [u], rate: 1/s}}\n"))
        .collect();
    let (_directory, path) = file("rules.yaml", &format!("domain: api\nlimits:\n{rules}"));
    let blocks = |text: &str| text.lines().filter(|line| line.starts_with("api/r")).count();
    let (text, _) = check(&path);
    assert_eq!(blocks(&text), 200);
    has(&text, &["\n… and 800 more: --all prints them\n", "1 domain, 1 000 rules"]);
    let (text, _) = check_with(Args { path: Some(path), all: true, ..Args::default() });
    assert!(blocks(&text) == 1_000 && !text.contains("--all"));
}

fn check_fleet(path: &Path, hosts: u32, format: OutputFormat) -> (String, bool) {
    let args = Args {
        path: Some(path.to_owned()),
        hosts: Some(hosts).filter(|hosts| *hosts > 0),
        format: format.into(),
        ..Args::default()
    };
    check_with(args)
}

fn fleet_rules() -> tempfile::TempDir {
    folder(&[("rules.yaml", include_str!("views/fleet/rules.yaml"))])
}

#[test]
fn uses_host_count_of_daemon_by_default() {
    let folder = fleet_rules();
    let settings = folder.path().join("tidegate.yaml");
    let text = "rules: rules.yaml\nsocket: {path: t.sock}\nredis: {url: redis://127.0.0.1}\n";
    fs::write(&settings, text).unwrap();
    let (text, _) = check_fleet(&settings, 0, OutputFormat::Text);
    assert!(text.contains("  2 hosts ") && !text.contains("  7 hosts "), "no daemon: {text}");
    // A fake daemon; only its answer to this request matters.
    let _served = UnixListener::bind(folder.path().join("t.sock")).unwrap();
    let listener = UnixListener::bind(folder.path().join("t.admin.sock")).unwrap();
    let daemon = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 1_024];
        let length = stream.read(&mut asked).unwrap();
        assert!(asked[..length].starts_with(b"GET /status "));
        let body = r#"{"fleet": {"hosts": 7}}"#;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    });
    let (text, _) = check_fleet(&settings, 0, OutputFormat::Text);
    daemon.join().unwrap();
    has(&text, &["  2 hosts ", "  7 hosts ", "  14 hosts ", "on 7 hosts at most 35 + 35"]);
}
