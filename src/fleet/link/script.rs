//! A script as Redis is asked for it: by its digest, its text only where the server does not know it.

/// A script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// What it is called here.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// The SHA-1 of its text, in hexadecimal digits.
    pub sha: String,
}

impl Script {
    /// The script of this text.
    #[must_use]
    pub fn new(name: &'static str, text: &'static str) -> Script {
        Script { name, text, sha: redis::Script::new(text).get_hash().to_owned() }
    }

    pub(super) fn load(&self) -> Vec<u8> {
        redis::cmd("SCRIPT").arg("LOAD").arg(self.text).get_packed_command()
    }

    /// Appends what calls it.
    pub(super) fn call(&self, keys: &[&[u8]], args: &[&[u8]], to: &mut Vec<u8>) {
        let bytes: usize = keys.iter().chain(args).map(|part| part.len() + PART_BYTES).sum();
        let mut command = redis::Cmd::with_capacity(3 + keys.len() + args.len(), bytes);
        command.arg("EVALSHA").arg(&self.sha).arg(keys.len());
        for part in keys.iter().chain(args) {
            command.arg(*part);
        }
        command.write_packed_command(to);
    }
}

/// What frames each part of a command: its length and the ends of two lines.
const PART_BYTES: usize = 12;
