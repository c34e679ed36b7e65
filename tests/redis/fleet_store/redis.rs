//! A redis-server of a test's own, on a Unix socket in a temporary folder, and just enough of its protocol.
#![allow(dead_code, reason = "no test uses all of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use tidegate::fleet::link::RedisCommand;
use tidegate::fleet::link::Script;
use tidegate::fleet::scripts;

pub(crate) struct Redis {
    process: Child,
    directory: TempDir,
    stream: BufReader<UnixStream>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Bytes(Vec<u8>),
    Integer(i64),
    Nothing,
    List(Vec<Value>),
    Error(String),
}

impl Redis {
    /// One that keeps nothing. The test fails where there is no redis-server: nothing else tells what the scripts do.
    pub(crate) fn start() -> Redis {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket", "socket"]);
        let command = command.current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = command.spawn().expect("redis-server is installed (scripts/setup)");
        let stream = (0..2_000).find_map(|_| {
            thread::sleep(Duration::from_millis(5));
            UnixStream::connect(directory.path().join("socket")).ok()
        });
        let Some(stream) = stream else {
            let _ = process.kill();
            panic!("redis-server does not listen after ten seconds")
        };
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Redis { process, directory, stream: BufReader::new(stream) }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Loads every script as it stands.
    pub(crate) fn load_scripts(&mut self) {
        for script in scripts::all() {
            let sha = self.command(&[b"SCRIPT", b"LOAD", script.text.as_bytes()]);
            assert_eq!(sha, Value::Bytes(script.sha.clone().into()), "{script:?}");
        }
    }

    /// Loads a script that takes its time from the hash `clock` and not from `TIME`: the one place in a script where time
    /// comes in is that call, and both answer with seconds and microseconds.
    pub(crate) fn load_with_clock(&mut self, script: &Script) -> Vec<u8> {
        const TIME: &str = "redis.call('TIME')";
        assert_eq!(
            script.text.matches(TIME).count(),
            usize::from(!matches!(script.name, "version" | "overrides")),
            "{script:?}"
        );
        let text = script.text.replace(TIME, "redis.call('HMGET', 'clock', 's', 'us')");
        match self.command(&[b"SCRIPT", b"LOAD", text.as_bytes()]) {
            Value::Bytes(sha) => sha,
            other => panic!("{script:?}: {other:?}"),
        }
    }

    /// Sets the clock of those scripts.
    pub(crate) fn set_clock(&mut self, now_us: u64) {
        let (seconds, rest) = ((now_us / 1_000_000).to_string(), (now_us % 1_000_000).to_string());
        self.command(&[b"HSET", b"clock", b"s", seconds.as_bytes(), b"us", rest.as_bytes()]);
    }

    pub(crate) fn command(&mut self, words: &[&[u8]]) -> Value {
        self.commands(&[words.to_vec()]).remove(0)
    }

    /// Sends all at once and reads what comes back.
    pub(crate) fn commands(&mut self, commands: &[Vec<&[u8]>]) -> Vec<Value> {
        let bytes: Vec<u8> = commands.iter().flat_map(|words| in_bytes(words)).collect();
        self.stream.get_mut().write_all(&bytes).unwrap();
        commands.iter().map(|_| self.read()).collect()
    }

    /// Another connection.
    pub(crate) fn connect(&self) -> UnixStream {
        UnixStream::connect(self.directory.path().join("socket")).unwrap()
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "+" => Value::Bytes(rest.into()),
            "-" => Value::Error(rest.into()),
            ":" => Value::Integer(rest.parse().unwrap()),
            "$" if rest == "-1" => Value::Nothing,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                Value::Bytes(bytes)
            }
            "*" => Value::List((0..rest.parse().unwrap()).map(|_| self.read()).collect()),
            other => panic!("{other:?}: {line:?}"),
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Value {
    pub(crate) fn bytes(self) -> Vec<u8> {
        match self {
            Value::Bytes(bytes) => bytes,
            other => panic!("no bytes: {other:?}"),
        }
    }

    pub(crate) fn integer(self) -> i64 {
        match self {
            Value::Integer(number) => number,
            other => panic!("no number: {other:?}"),
        }
    }

    pub(crate) fn list(self) -> Vec<Value> {
        match self {
            Value::List(list) => list,
            other => panic!("no list: {other:?}"),
        }
    }
}

/// A command as it is sent.
pub(crate) fn in_bytes(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend(*word);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A call of a script that has this name in Redis.
pub(crate) fn evalsha<'a>(sha: &'a [u8], count: &'a str, call: &'a RedisCommand<'_>) -> Vec<&'a [u8]> {
    let mut words: Vec<&[u8]> = vec![b"EVALSHA", sha, count.as_bytes()];
    words.extend(call.keys.iter().map(Vec::as_slice));
    words.extend(call.args.iter().map(Vec::as_slice));
    words
}
