//! The settings: defaults, the meaning of each line, and the files of the fleet secret. `diagnostics/settings.txt` has
//! wrong ones.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tidegate::adapters::{AdapterProtocol, Endpoint, HttpAuth};
use tidegate::daemon::redis_settings::RedisSettings;
use tidegate::daemon::redis_settings::fleet_secret;
use tidegate::daemon::settings::{Environment, Log, LogFormat, Settings, Socket};
use tidegate::fleet::link::LinkOptions;
use tidegate::rules::source::Source;
use tidegate::rules::{Mode, Problem, Scope};

use crate::docs::keep_part;

fn environment() -> Environment {
    Environment { cores: 2, ..Environment::default() }
}

fn read(text: &str) -> Result<(Settings, Vec<Problem>), Vec<Problem>> {
    Settings::read(Some(&Source::new("/etc/tidegate/tidegate.yaml", text.to_owned())), &environment())
}

#[track_caller]
fn good(text: &str) -> (Settings, Vec<String>) {
    let (settings, problems) = read(text).unwrap_or_else(|problems| panic!("{text}\n{problems:#?}"));
    (settings, problems.iter().map(ToString::to_string).collect())
}

fn domains(settings: &Settings) -> Vec<(&str, &[u32])> {
    settings.domains.iter().map(|domain| (&*domain.name, &*domain.uids)).collect()
}

fn pools(settings: &Settings) -> Vec<(&str, &[u32], Option<u32>)> {
    settings.pools.iter().map(|pool| (&*pool.name, &*pool.uids, pool.slots_max)).collect()
}

/// One server and otherwise defaults.
fn redis(url: &str) -> RedisSettings {
    RedisSettings {
        link: LinkOptions { urls: vec![url.parse().unwrap()], ..LinkOptions::default() },
        fleet_secret_file: None,
        region_weight: None,
    }
}

fn auth(domain: &str, attributes: &[(&str, &'static str)]) -> HttpAuth {
    let header = |name| hyper::header::HeaderName::from_static(name);
    let attributes = attributes.iter().map(|(name, from)| ((*name).into(), header(from))).collect();
    HttpAuth { domain: domain.into(), attributes }
}

#[test]
fn defaults_every_setting() {
    let (settings, _) = Settings::read(None, &environment()).unwrap();
    assert_eq!(settings.mode, Mode::Enforce);
    let path = "/run/tidegate/tidegate.sock".into();
    assert_eq!(settings.socket, Socket { path, mode: 0o660, group: None });
    assert_eq!(settings.rules, Path::new("/etc/tidegate/rules"));
    assert_eq!((settings.threads, settings.memory_max_bytes), (2, 64 << 20));
    assert_eq!((settings.connections.max, settings.connections.per_user), (4096, 1024));
    assert_eq!(settings.log, Log { format: LogFormat::Text, level: tracing::Level::INFO });
    assert_eq!(settings.domains, Vec::new());
    assert_eq!(settings.pools, Vec::new());
    assert_eq!((settings.scope, settings.redis.clone()), (Scope::Host, None));
    assert_eq!(settings.admin_socket(), Path::new("/run/tidegate/tidegate.admin.sock"));
    assert_eq!(settings.metrics, None, "on the admin socket alone");
    assert_eq!(settings.adapters, [], "off");
    for empty in ["", "# mode: shadow\n", "{}\n"] {
        assert_eq!(good(empty), (settings.clone(), Vec::new()), "{empty:?}");
    }
}

fn at(socket: &str) -> Endpoint {
    Endpoint { socket: Some(socket.into()), ..Endpoint::default() }
}

const PACKAGED: &str = include_str!("../../config/tidegate.yaml");

#[test]
fn docs_show_packaged_file() {
    keep_part("docs/settings.md", &format!("```yaml\n{PACKAGED}```\n"), "pure settings::docs");
}

#[test]
fn parses_every_line_of_packaged_file() {
    let (settings, problems) = good(PACKAGED);
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(settings.mode, Mode::Shadow);
    assert_eq!(settings.admin_socket(), Path::new("/run/tidegate/admin.sock"), "by name");
    // Each commented default is the default: uncommented, it changes nothing.
    let written: String = PACKAGED
        .lines()
        .map(|line| line.strip_prefix("#").filter(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase())))
        .map(|line| format!("{}\n", line.unwrap_or_default()))
        .collect();
    let (with_all, problems) = good(&written);
    let expected = Settings {
        mode: Mode::Enforce,
        threads: 4,
        state: Some("/var/lib/tidegate".into()),
        socket: Socket { group: Some("tidegate".to_owned()), ..settings.socket.clone() },
        domains: with_all.domains.clone(),
        pools: with_all.pools.clone(),
        admin_socket: None,
        metrics: Some("127.0.0.1:9631".parse().unwrap()),
        redis: Some(RedisSettings {
            link: LinkOptions {
                password_file: Some("/etc/tidegate/redis-password".into()),
                ..redis("redis://127.0.0.1:6379").link
            },
            fleet_secret_file: Some("/etc/tidegate/fleet-secret".into()),
            region_weight: None,
        }),
        adapters: vec![
            (AdapterProtocol::Http(Some(auth("web", &[("ip", "x-real-ip")]))), at("/run/tidegate/http.sock")),
            (AdapterProtocol::Resp, at("/run/tidegate/resp.sock")),
            (AdapterProtocol::Envoy, at("/run/tidegate/envoy.sock")),
        ],
        ..settings
    };
    assert_eq!(with_all, expected);
    assert_eq!(domains(&with_all), [("api", &[][..])], "written, and open to all");
    assert_eq!(pools(&with_all), [("web", &[][..], Some(256))]);
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn takes_state_directory_from_service_manager_or_file() {
    let of = |directory: Option<&str>, text: &str| {
        let environment =
            Environment { state_directory: directory.map(Into::into), ..Environment::default() };
        let source = Source::new("/etc/tidegate/tidegate.yaml", text.to_owned());
        Settings::read(Some(&source), &environment).unwrap().0.state
    };
    assert_eq!(of(None, ""), None);
    assert_eq!(of(Some(""), ""), None);
    assert_eq!(of(Some("/var/lib/one:/var/lib/two"), ""), Some("/var/lib/one".into()));
    assert_eq!(of(Some("/var/lib/one"), "state: kept"), Some("/etc/tidegate/kept".into()));
}

#[test]
fn parses_each_line() {
    let (settings, problems) = good(
        "mode: disabled\nsocket: {path: s.sock, mode: 0600, group: web}\nrules: my/rules\nthreads: 7\n\
         memory: {max: 2GiB}\nconnections: {max: 100}\nlog: {format: json, level: trace}\n\
         domains: {mail: {uids: [33, 0], scope: host}, api: {uids: []}, other: {}}\n\
         pools: {web: {uids: [33, 0], slots_max: 64}, jobs: {}}\n\
         admin: {socket: a.sock}\nmetrics: {listen: \"[::1]:9000\"}\nfleet: {hosts_at_least: 12}\n\
         adapters: {http: {socket: h.sock, listen: \"[::1]:9632\", token_file: t, domains: [api], \
         auth: {domain: web, attributes: {ip: X-Real-IP, user: x-user}}}, \
         resp: {listen: \"127.0.0.1:6379\", token_file: /t, domains: [api, resp]}, \
         envoy: {socket: e.sock}}\n",
    );
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(settings.mode, Mode::Disabled);
    // Paths are relative to the file that names them.
    let path = "/etc/tidegate/s.sock".into();
    assert_eq!(settings.socket, Socket { path, mode: 0o600, group: Some("web".to_owned()) });
    assert_eq!(settings.rules, Path::new("/etc/tidegate/my/rules"));
    assert_eq!((settings.threads, settings.memory_max_bytes), (7, 2 << 30));
    assert_eq!((settings.connections.max, settings.connections.per_user), (100, 100));
    assert_eq!(settings.log, Log { format: LogFormat::Json, level: tracing::Level::TRACE });
    assert_eq!(domains(&settings), [("mail", &[33, 0][..]), ("api", &[]), ("other", &[])]);
    assert_eq!(pools(&settings), [("web", &[33, 0][..], Some(64)), ("jobs", &[], None)]);
    assert_eq!(settings.admin_socket(), Path::new("/etc/tidegate/a.sock"));
    assert_eq!(settings.metrics, Some("[::1]:9000".parse().unwrap()));
    assert_eq!(settings.hosts_at_least, 12);
    let http = Endpoint {
        socket: Some("/etc/tidegate/h.sock".into()),
        listen: Some("[::1]:9632".parse().unwrap()),
        token_file: "/etc/tidegate/t".into(),
        domains: vec!["api".into()],
        ..Endpoint::default()
    };
    let auth = auth("web", &[("ip", "x-real-ip"), ("user", "x-user")]);
    let resp = Endpoint {
        listen: Some("127.0.0.1:6379".parse().unwrap()),
        token_file: "/t".into(),
        domains: vec!["api".into(), "resp".into()],
        ..Endpoint::default()
    };
    let adapters = [
        (AdapterProtocol::Http(Some(auth)), http),
        (AdapterProtocol::Resp, resp),
        (AdapterProtocol::Envoy, at("/etc/tidegate/e.sock")),
    ];
    assert_eq!(settings.adapters, adapters);
}

#[test]
fn has_default_socket_path() {
    let environment = |socket: Option<&str>, runtime: Option<&str>, is_root| Environment {
        socket: socket.map(Into::into),
        state_directory: None,
        runtime_directory: runtime.map(Into::into),
        is_root,
        cores: 1,
    };
    let own = Some("/run/user/1000");
    let table = [
        ("socket: {path: /a}", environment(Some("/b"), own, false), "/a"),
        ("", environment(Some("/b"), own, false), "/b"),
        ("", environment(Some(""), own, false), "/run/user/1000/tidegate/tidegate.sock"),
        ("", environment(None, own, false), "/run/user/1000/tidegate/tidegate.sock"),
        ("", environment(None, own, true), "/run/tidegate/tidegate.sock"),
        ("", environment(None, None, false), "/run/tidegate/tidegate.sock"),
        ("", environment(None, Some("relative"), false), "/run/tidegate/tidegate.sock"),
    ];
    for (text, environment, expected) in table {
        let source = Source::new("tidegate.yaml", text.to_owned());
        let (settings, _) = Settings::read(Some(&source), &environment).unwrap();
        assert_eq!(settings.socket.path, Path::new(expected), "{text} {environment:?}");
    }
    let long = format!("/{}", "x".repeat(107));
    let problems = Settings::read(None, &environment(Some(&long), None, false)).unwrap_err();
    let problem = problems[0].to_string();
    assert!(problem.starts_with("TIDEGATE_SOCKET: error: the path of the socket has 108 bytes"), "{problem}");
    assert!(problem.contains("at most 107"), "{problem}");
    assert!(Settings::read(None, &environment(Some(&long[..107]), None, false)).is_ok());
}

#[test]
fn missing_file_is_an_error_if_named() {
    let problems = Settings::load(Some(Path::new("/nowhere/tidegate.yaml"))).unwrap_err();
    assert!(problems[0].to_string().starts_with("/nowhere/tidegate.yaml: error: cannot read the file"));
    assert!(Settings::load(None).is_ok());
}

#[test]
fn names_the_admin_socket_after_the_socket() {
    for (socket, admin) in [
        ("web.sock", "web.admin.sock"),
        ("web", "web.admin.sock"),
        ("web.socket", "web.socket.admin.sock"),
        (".sock", ".admin.sock"),
        ("admin.sock", "admin.admin.sock"),
    ] {
        let (settings, _) = good(&format!("socket: {{path: {socket}}}"));
        assert_eq!(settings.admin_socket(), Path::new("/etc/tidegate").join(admin), "{socket}");
    }
}

#[test]
fn parses_each_line_of_redis() {
    let (settings, problems) = good(
        "redis:\n  urls: [\"rediss://one.example:7000\", \"unix:///run/redis.sock\"]\n  user: gate\n  \
         password_file: pass\n  ca_file: /etc/ssl/ca.pem\n  fleet_secret_files: [secret]\n  region_weight: 25%\n",
    );
    assert_eq!(problems, Vec::<String>::new());
    let redis = settings.redis.unwrap();
    let urls: Vec<_> = redis.link.urls.iter().map(ToString::to_string).collect();
    assert_eq!(urls, ["rediss://one.example:7000", "unix:///run/redis.sock"]);
    assert_eq!((redis.link.user.as_deref(), redis.link.cluster), (Some("gate"), false));
    assert_eq!(redis.region_weight, Some(250));
    // Paths are relative to the file that names them.
    assert_eq!(redis.link.password_file.unwrap(), Path::new("/etc/tidegate/pass"));
    assert_eq!(redis.link.ca_file.unwrap(), Path::new("/etc/ssl/ca.pem"));
    assert_eq!(redis.fleet_secret_file.unwrap(), Path::new("/etc/tidegate/secret"));
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
