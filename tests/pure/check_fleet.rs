//! `tidegate check` of fleet rules: their bounds by the number of hosts, and missing settings.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;

use tidegate::cli::OutputFormat;
use tidegate::cli::check::Args;

use crate::check::check_with;
use crate::problems::{folder, has};

fn check(path: &Path, hosts: u32, format: OutputFormat) -> (String, bool) {
    let args = Args {
        path: Some(path.to_owned()),
        hosts: Some(hosts).filter(|hosts| *hosts > 0),
        format: format.into(),
        ..Args::default()
    };
    check_with(args)
}

fn rules() -> tempfile::TempDir {
    folder(&[("rules.yaml", include_str!("views/fleet/rules.yaml"))])
}

#[test]
fn reports_local_limits_without_redis_or_secret() {
    let folder = rules();
    let settings = folder.path().join("tidegate.yaml");
    let said = |text: &str| {
        fs::write(&settings, text).unwrap();
        check(&settings, 0, OutputFormat::Text)
    };
    let (text, fine) = said("rules: rules.yaml\n");
    let alone = "`tenant` and 4 more with `scope: fleet`, and no `redis`: each host limits by itself";
    assert!(fine && text.contains(alone) && text.contains("0 errors, 1 warning\n"), "{text}");
    let (text, fine) = said("rules: rules.yaml\nredis: {url: redis://127.0.0.1}\n");
    let without = "`redis` without `fleet_secret_files`: each host limits by itself";
    assert!(fine && text.contains(without) && !text.contains(alone), "{text}");
    let (text, fine) =
        said("rules: rules.yaml\nredis: {url: redis://127.0.0.1, fleet_secret_files: [none]}\n");
    assert!(!fine && text.contains("cannot read the fleet secret") && text.contains("head -c 32"), "{text}");
    // Rules may be checked without settings.
    let (text, _) = check(&folder.path().join("rules.yaml"), 0, OutputFormat::Text);
    assert!(!text.contains("no `redis`"), "{text}");
    // The settings of a domain apply to its rules.
    let (text, _) = said("rules: rules.yaml\ndomains: {api: {scope: fleet}}\n");
    assert!(text.contains("`tenant` and 5 more"), "{text}");
}

#[test]
fn uses_host_count_of_daemon_by_default() {
    let folder = rules();
    let settings = folder.path().join("tidegate.yaml");
    let text = "rules: rules.yaml\nsocket: {path: t.sock}\nredis: {url: redis://127.0.0.1}\n";
    fs::write(&settings, text).unwrap();
    let (text, _) = check(&settings, 0, OutputFormat::Text);
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
    let (text, _) = check(&settings, 0, OutputFormat::Text);
    daemon.join().unwrap();
    has(&text, &["  2 hosts ", "  7 hosts ", "  14 hosts ", "on 7 hosts at most 35 + 35"]);
}

#[test]
fn region_setting_scales_budget() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pure/views/region");
    let [whole, part] = ["rules.yaml", "tidegate.yaml"].map(|file| {
        let (text, _) = check(&folder.join(file), 0, OutputFormat::Json);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let limit = |rule: &serde_json::Value| (rule["limit"].as_u64(), rule["fleet"]["region"].clone());
        [0, 5, 8].map(|rule| limit(&json["domains"][0]["rules"][rule]))
    });
    let none = serde_json::Value::Null;
    assert_eq!(whole, [(Some(1_000), none.clone()), (Some(12), none.clone()), (Some(8), none.clone())]);
    let region = |burst: Option<u32>, max: Option<u32>| {
        let rate = burst.map(|burst| format!("{burst}/s"));
        serde_json::json!({"weight_permille": 750, "rate": rate, "burst": burst, "max": max})
    };
    let expected =
        [(Some(750), region(Some(1_000), None)), (Some(9), region(None, Some(12))), (Some(8), none)];
    assert_eq!(part, expected);
}
