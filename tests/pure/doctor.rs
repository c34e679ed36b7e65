//! What `tidegate doctor` says about a host, of texts and numbers as it finds them: `doctor/answers.txt` has each input and
//! the answer. `UPDATE_DOCS=1 cargo test --test pure doctor` rewrites the answers.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tidegate::cli::doctor::reach::User;
use tidegate::cli::doctor::{Finding, daemon, machine, reach, redis};

use crate::docs::keep_each;

fn answer(input: &str) -> String {
    let (check, rest) = input.split_once(' ').unwrap();
    let words: Vec<&str> = rest.split(' ').collect();
    let found: Finding = match check {
        "missed" => daemon::missed(words[0], words[1], words[2].parse().unwrap()),
        "release" => machine::of_release(rest),
        "slice" => {
            let requested = words[0].parse().map_or(Ok(()), |error| Err(io::Error::from_raw_os_error(error)));
            let refused = || io::Error::from_raw_os_error(1);
            let given = words[1].parse().map(Duration::from_micros).map_err(|_| refused());
            machine::of_slice(&requested, given)
        }
        "clock" => redis::clock(&"redis://127.0.0.1:6379".parse().unwrap(), rest.parse().unwrap()),
        "hosts" => redis::hosts(words[0].parse().unwrap(), words[1].parse().ok()),
        "open-files" => return format!("{:?}", daemon::open_files_in(rest)),
        "unit" => return machine::harm(rest).map_or("harmless", |(_, harm)| harm).to_owned(),
        "user" => return format!("{:?}", User::found(rest, USERS, GROUPS)),
        "process" => {
            let status = rest.replace("\\t", "\t").replace("\\n", "\n");
            return format!("{:?}", User::of_process(&status));
        }
        "mode" => {
            let (uid, gids) = words[1].split_once(':').unwrap();
            let gids = gids.split(',').map(|gid| gid.parse().unwrap()).collect();
            let user = User { name: String::new(), uid: uid.parse().unwrap(), gids };
            let (mode, bit) =
                (u32::from_str_radix(words[0], 8).unwrap(), if words[2] == "write" { 2 } else { 1 });
            return reach::allows(mode, 9, 90, &user, bit).to_string();
        }
        check => panic!("no check {check}"),
    };
    found.to_string().trim_end().replace("\n       ", "; ")
}

const USERS: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:33::/:/bin/false\nbroken\n";
const GROUPS: &str = "root:x:0:\nweb:x:33:\ntidegate:x:900:web,other\nlimits:x:901:other\n";

#[test]
fn answers_by_what_is_found() {
    keep_each("tests/pure/doctor", |_, file| {
        let (mut renewed, mut differing) = (String::new(), String::new());
        for line in file.lines().filter(|line| !line.starts_with("= ")) {
            renewed += &format!("{line}\n");
            let Some(input) = line.strip_prefix("> ") else { continue };
            let answer = format!("> {input}\n= {}\n", answer(input));
            if !file.contains(&answer) {
                differing += &answer;
            }
            renewed += answer.split_once('\n').unwrap().1;
        }
        (renewed, differing)
    });
}

#[test]
fn reports_missing_units_and_harmful_drop_ins() {
    let root = tempfile::tempdir().unwrap();
    let found = || {
        machine::units(root.path())
            .iter()
            .map(|finding| finding.to_string()[..5].to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(found(), ["well "], "no systemd, nothing to say");
    let of = |path: &str| root.path().join(path);
    fs::create_dir_all(of("run/systemd/system")).unwrap();
    assert_eq!(found(), ["look ", "look "]);
    fs::create_dir_all(of("etc/systemd/system/tidegate.service.d")).unwrap();
    for name in ["tidegate.service", "tidegate.socket"] {
        fs::write(of("etc/systemd/system").join(name), "").unwrap();
    }
    assert_eq!(found(), ["well "]);
    let drop_in = of("etc/systemd/system/tidegate.service.d/a.conf");
    fs::write(&drop_in, "[Service]\nMemoryMax=1G\n").unwrap();
    assert_eq!(found(), ["well "]);
    fs::write(&drop_in, "[Service]\nPrivateUsers=yes\n").unwrap();
    assert_eq!(found(), ["WRONG"]);
}

#[test]
fn finds_rules_that_the_user_of_the_daemon_cannot_read() {
    let directory = tempfile::tempdir().unwrap();
    let (rules, file) = (directory.path().join("rules"), directory.path().join("rules/api.yaml"));
    fs::create_dir(&rules).unwrap();
    fs::write(&file, "").unwrap();
    let other = User { name: "tidegate".into(), uid: 64_321, gids: vec![64_321] };
    let obstacle = |[directory_mode, rules_mode, file_mode]: [u32; 3]| {
        let modes = [(directory.path(), directory_mode), (&rules, rules_mode), (&file, file_mode)];
        for (path, mode) in modes {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        reach::rules(&rules, &other).map(|finding| finding.to_string())
    };
    assert_eq!(obstacle([0o755, 0o755, 0o644]), None);
    for (modes, at) in [
        ([0o755, 0o755, 0o600], &*file),
        ([0o755, 0o711, 0o644], &rules),
        ([0o700, 0o755, 0o644], directory.path()),
    ] {
        let message = obstacle(modes).unwrap();
        assert!(message.contains(&format!("tidegate, which cannot read {}:", at.display())), "{message}");
    }
}
