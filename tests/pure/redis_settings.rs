//! `redis` in the settings, its scopes, and the files of the fleet secret.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use tidegate::daemon::fleet_secret::fleet_secret;
use tidegate::daemon::settings::Settings;
use tidegate::rules::Scope;

use crate::settings::good;

#[test]
fn parses_each_line() {
    let (settings, problems) = good(
        "redis:\n  urls: [\"rediss://one.example:7000\", \"unix:///run/redis.sock\"]\n  user: gate\n  \
         password_file: pass\n  ca_file: /etc/ssl/ca.pem\n  fleet_secret_files: [secret]\n  region_weight: 25%\n",
    );
    assert_eq!(problems, Vec::<String>::new());
    let redis = settings.redis.unwrap();
    assert_eq!(redis.link.check(), Ok(()));
    let urls: Vec<_> = redis.link.urls.iter().map(ToString::to_string).collect();
    assert_eq!(urls, ["rediss://one.example:7000", "unix:///run/redis.sock"]);
    assert_eq!((redis.link.user.as_deref(), redis.link.cluster), (Some("gate"), false));
    assert_eq!(redis.region_weight, Some(250));
    // Paths are relative to the file that names them.
    assert_eq!(redis.link.password_file.unwrap(), std::path::Path::new("/etc/tidegate/pass"));
    assert_eq!(redis.link.ca_file.unwrap(), std::path::Path::new("/etc/ssl/ca.pem"));
    assert_eq!(redis.fleet_secret_file.unwrap(), std::path::Path::new("/etc/tidegate/secret"));
    let (settings, _) = good("redis: {url: redis://127.0.0.1, cluster: true, fleet_secret_files: [a]}");
    assert!(settings.redis.unwrap().link.cluster);
}

#[test]
fn scope_of_domain_precedes_global_scope() {
    let (settings, _) = good("domains: {mail: {scope: fleet}, api: {scope: host}, x: {}}\n");
    let of = |settings: &Settings| ["mail", "api", "x", "y"].map(|name| settings.scopes().of(name));
    assert_eq!(of(&settings), [Scope::Fleet, Scope::Host, Scope::Host, Scope::Host]);
    let (settings, _) = good("scope: fleet\ndomains: {mail: {scope: fleet}, api: {scope: host}, x: {}}\n");
    assert_eq!(of(&settings), [Scope::Fleet, Scope::Host, Scope::Fleet, Scope::Fleet]);
}

#[test]
fn rejects_short_or_readable_fleet_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: usize, mode: u32| {
        let path = folder.path().join(name);
        fs::write(&path, vec![name.as_bytes()[0]; bytes]).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    };
    let table = [
        (file("a", 32, 0o600), 1, None),
        (file("b", 32, 0o440), 1, None),
        (file("c", 4_096, 0o600), 1, None),
        (file("d", 32, 0o644), 1, Some((false, "mode 0644", "chmod 0600"))),
        (file("e", 32, 0o660), 1, Some((false, "mode 0660", "chmod 0600"))),
        (file("f", 31, 0o600), 0, Some((true, "31 bytes can be guessed", "head -c 32 /dev/urandom"))),
        (file("g", 0, 0o600), 0, Some((true, "0 bytes can be guessed", "the same on every host"))),
        (file("h", 4_097, 0o600), 0, Some((true, "more than 4096 bytes", "head -c 32"))),
        ("/dev/zero".into(), 0, Some((true, "more than 4096 bytes", "head -c 32"))),
        (folder.path().join("none"), 0, Some((true, "cannot read the fleet secret", "head -c 32"))),
        (folder.path().into(), 0, Some((true, "cannot read the fleet secret", "let the daemon's user"))),
    ];
    for (path, count, expected) in table {
        let (secret, problem) = fleet_secret(&path);
        assert_eq!(secret.iter().count(), count, "{}", path.display());
        let shown = secret.map(|secret| format!("{secret:?}"));
        assert!(shown.is_none_or(|shown| shown == "FleetSecret(…)"), "a secret is never shown");
        assert_eq!(problem.is_some(), expected.is_some(), "{problem:#?}");
        let Some((problem, (is_error, message, help))) = problem.zip(expected) else { continue };
        assert_eq!(problem.is_error(), is_error, "{problem}");
        assert!(problem.message.contains(message) && problem.help.contains(help), "{problem}");
    }
}
