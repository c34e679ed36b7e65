//! A minimal Redis client: one connection, one command at a time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use tidegate::clock::read_boot_nanos;
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::link::Script;
use tidegate::fleet::reply::ScriptReply;

pub(crate) struct Client {
    stream: UnixStream,
    reply: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(socket: &Path) -> io::Result<Client> {
        Ok(Client { stream: UnixStream::connect(socket)?, reply: vec![0; 64 * 1_024] })
    }

    pub(crate) fn load(&mut self, script: &Script) -> io::Result<()> {
        self.ask(&redis::cmd("SCRIPT").arg("LOAD").arg(script.text).get_packed_command())?;
        Ok(())
    }

    /// Calls a script; returns the reply and the nanoseconds from the first byte sent to the last one read.
    pub(crate) fn call(&mut self, call: &ScriptCommand) -> io::Result<(ScriptReply, u64)> {
        let command = packed(call)?;
        let start = read_boot_nanos();
        let bytes = self.ask(&command)?;
        let took = read_boot_nanos() - start;
        let (reply, clamped) = ScriptReply::decode(call, &bytes).map_err(io::Error::other)?;
        if clamped > 0 { Err(io::Error::other("a reply with absurd numbers")) } else { Ok((reply, took)) }
    }

    /// Nanoseconds of the shortest command.
    pub(crate) fn ping(&mut self) -> io::Result<u64> {
        let command = redis::cmd("ECHO").arg("").get_packed_command();
        let start = read_boot_nanos();
        self.ask(&command)?;
        Ok(read_boot_nanos() - start)
    }

    /// Sends a command and reads its reply, a bulk string.
    pub(crate) fn ask(&mut self, command: &[u8]) -> io::Result<Vec<u8>> {
        self.stream.write_all(command)?;
        let mut read = 0;
        loop {
            let more = self.stream.read(&mut self.reply[read..])?;
            read += more;
            let so_far = &self.reply[..read];
            let Some(line) = so_far.windows(2).position(|two| two == b"\r\n") else {
                if more == 0 { return Err(io::ErrorKind::UnexpectedEof.into()) } else { continue }
            };
            let head = String::from_utf8_lossy(&so_far[..line]).into_owned();
            let length = head.strip_prefix('$').and_then(|length| length.parse::<usize>().ok());
            let Some(length) = length else { return Err(io::Error::other(head)) };
            if read >= line + 2 + length + 2 {
                return Ok(so_far[line + 2..line + 2 + length].to_vec());
            }
            if more == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn packed(call: &ScriptCommand) -> io::Result<Vec<u8>> {
    let encoded = call.encode();
    let mut command = redis::cmd("EVALSHA");
    command.arg(&encoded.script.sha).arg(encoded.keys.len());
    encoded.keys.iter().chain(&encoded.args).for_each(|part| {
        command.arg(&part[..]);
    });
    Ok(command.get_packed_command())
}
